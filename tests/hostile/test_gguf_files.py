"""Each hostile GGUF file gives one clean line that names it; no mutation of a good one does worse."""

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilotlight.build.gguf import _KEYS, read_gguf
from pilotlight.errors import ModelDataError
from tests.hostile.files import LFS_POINTER, write


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def tensor(name: str, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf_bytes(
    metadata: list[bytes] = [],  # noqa: B006
    tensors: list[bytes] = [],  # noqa: B006
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: bytes = b"\3\0\0\0",
    counts: tuple[int, int] | None = None,
) -> bytes:
    tensor_count, metadata_count = counts or (len(tensors), len(metadata))
    head = magic + version + struct.pack("<QQ", tensor_count, metadata_count) + b"".join([*metadata, *tensors])
    return head + bytes(-len(head) % 32) + data


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


ARRAY_OF = text("list") + struct.pack("<I", 9)
GOOD = gguf_bytes(
    [number("general.alignment", 32), text("list") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("\u00e4")],
    [tensor("a", [4, 2]), tensor("b", [32], 2, 32)],
    bytes(32 + 18),
)

# name -> (the file, what the error must say beside the file's name)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "Git LFS pointer": (LFS_POINTER, "git lfs pull"),
    "two bytes": (b"GG", "not a GGUF file"),
    "another file": (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
    "version 1": (gguf_bytes(version=b"\1\0\0\0"), "has version 1"),
    "version 4": (gguf_bytes(version=b"\4\0\0\0"), "has version 4"),
    "big-endian": (gguf_bytes(version=b"\0\0\0\3"), "is big-endian"),
    "cut in the head": (GOOD[:12], "cut"),
    "cut in the metadata": (GOOD[:60], "cut"),
    "last byte cut": (GOOD[:-1], "the file is cut: tensor 'b' ends at byte"),
    "2^63 metadata keys": (gguf_bytes(counts=(0, 2**63)), "cut or damaged"),
    "2^64 - 1 tensors": (gguf_bytes(counts=(2**64 - 1, 0)), "cut or damaged"),
    "a text of 2^63 bytes": (gguf_bytes([struct.pack("<Q", 2**63)], counts=(0, 1)), "cut or damaged"),
    "a list of 2^62 texts": (gguf_bytes([ARRAY_OF + struct.pack("<IQ", 8, 2**62)]), "a list of 4611686018427387904"),
    "a list of 2^62 numbers": (gguf_bytes([ARRAY_OF + struct.pack("<IQ", 10, 2**62)]), "cut or damaged"),
    "lists in lists": (gguf_bytes([ARRAY_OF + struct.pack("<IQ", 9, 1) * 50]), "an array of type 9"),
    "a value of no type": (gguf_bytes([text("a") + struct.pack("<II", 99, 0)]), "a value of type 99"),
    "a name that is not UTF-8": (gguf_bytes([text(b"\xff\xfe") + struct.pack("<II", 4, 1)]), "not UTF-8"),
    "a key twice": (gguf_bytes([number("k", 1), number("k", 2)]), "metadata key 'k' stands twice"),
    "a tensor twice": (gguf_bytes([], [tensor("a", [1]), tensor("a", [1])], bytes(32)), "tensor 'a' stands twice"),
    "alignment 0": (gguf_bytes([number("general.alignment", 0)]), "general.alignment is 0, expected a power of two"),
    "alignment 48": (gguf_bytes([number("general.alignment", 48)]), "general.alignment is 48"),
    "alignment is a text": (
        gguf_bytes([text("general.alignment") + struct.pack("<I", 8) + text("x")]),
        "general.alignment is 'x'",
    ),
    "overlapping tensors": (
        gguf_bytes([], [tensor("a", [8]), tensor("b", [8], 0, 28)], bytes(96)),
        "tensor 'b' overlaps 'a'",
    ),
    "offset out of range": (gguf_bytes([], [tensor("a", [8], 0, 2**60)], bytes(32)), "the file is cut: tensor 'a'"),
    "shape product overflow": (
        gguf_bytes([], [tensor("a", [2**40, 2**40])], bytes(32)),
        "the file is cut: tensor 'a'",
    ),
    "half a block": (gguf_bytes([], [tensor("a", [16, 2], 2)], bytes(32)), "rows of 16, which is not whole blocks"),
    "2^31 dimensions": (
        gguf_bytes([], [text("a") + struct.pack("<I", 2**31)]),
        "tensor 'a' has 2147483648 dimensions",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_H15_hostile_gguf_is_one_line_that_names_file_and_reason(name: str, tmp_path: Path) -> None:
    content, reason = HOSTILE[name]
    file = write(tmp_path / "model.gguf", content)
    with pytest.raises(ModelDataError) as caught:
        read_gguf(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert reason in message
    assert "\n" not in message
    assert len(message) < len(str(file)) + 200


@pytest.mark.parametrize("key", [key for key, kind in _KEYS.items() if not kind.startswith("list of ")])
def test_an_empty_list_in_the_place_of_a_value_is_refused(key: str, tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", gguf_bytes([text(key) + struct.pack("<IIQ", 9, 8, 0)]))
    with pytest.raises(ModelDataError, match=rf"its metadata's {key} is \[\], expected {_KEYS[key]}$"):
        read_gguf(file)


def test_the_good_file_is_read(tmp_path: Path) -> None:
    found = read_gguf(write(tmp_path / "model.gguf", GOOD))
    assert found.metadata == {"general.alignment": 32, "list": ["a", "\u00e4"]}
    assert {name: (it.encoding, it.shape, it.nbytes) for name, it in found.tensors.items()} == {
        "a": ("F32", (2, 4), 32),
        "b": ("Q4_0", (32,), 18),
    }
    assert found.tensors["b"].offset == len(GOOD) - 18


def test_unknown_encoding_is_named_and_harmless_where_nobody_reads_it(tmp_path: Path) -> None:
    found = read_gguf(
        write(tmp_path / "m", gguf_bytes([], [tensor("a", [7], 77), tensor("b", [7], 18, 32)], bytes(64)))
    )
    assert {name: (it.encoding, it.nbytes) for name, it in found.tensors.items()} == {
        "a": ("type 77", None),
        "b": ("IQ3_XXS", None),
    }


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_gguf_is_read_or_refused(data: Any, tmp_path: Path) -> None:
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[position] = data.draw(st.integers(0, 255))
        else:
            del content[max(position, 1) :]
    file = write(tmp_path / "model.gguf", bytes(content))
    try:
        tensors = read_gguf(file).tensors.values()
    except ModelDataError as error:
        tensors, message = [], str(error)
    else:
        message = f"{file}: "
    assert message.startswith(f"{file}: ")
    assert all(it.offset + it.nbytes <= len(content) for it in tensors if it.nbytes is not None)
