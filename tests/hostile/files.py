"""Safetensors files that once could hurt a reader, made here from a few bytes each."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DATA = bytes(range(64))
F32_4 = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


def safetensors_bytes(table: Mapping[str, Any] | bytes, data: bytes = b"") -> bytes:
    """A file of any header, valid or not; `table` may be the header's raw text."""
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data


def _tensor(begin: int, end: int, shape: list[Any] | None = None, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def _duplicate() -> bytes:
    entry = json.dumps(F32_4)
    return f'{{"a": {entry}, "a": {entry}}}'.encode()


# name -> (the file, what the error must say beside the file's name)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "last 4 bytes cut": (safetensors_bytes({"a": F32_4}, DATA[:12]), "cut"),
    "cut in the header": (safetensors_bytes({"a": F32_4}, DATA[:16])[:40], "cut"),
    "header length 2^63": ((2**63).to_bytes(8, "little") + b"{}" + DATA, "9223372036854775808"),
    "header length 2^64 - 8": ((2**64 - 8).to_bytes(8, "little") + b"{}" + DATA, "not a safetensors file"),
    "header length > file": ((1000).to_bytes(8, "little") + b"{}" + DATA, "1000"),
    "header length alone": ((2).to_bytes(8, "little"), "cut"),
    "seven bytes": (b"\x02\0\0\0\0\0\0", "not a safetensors file"),
    "header is not JSON": (safetensors_bytes(b"this is no json at all"), "not JSON"),
    "header is not UTF-8": (safetensors_bytes(b'{"\xff\xfe": 1}'), "not JSON"),
    "header is a list": (safetensors_bytes(b"[1, 2, 3]"), "not a JSON object"),
    "header nested without end": (safetensors_bytes(b'{"a":' * 100_000), "not JSON"),
    "a number of 5000 digits": (
        safetensors_bytes(b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,16]}}', DATA[:16]),
        "not JSON",
    ),
    "Git LFS pointer": (LFS_POINTER, "git lfs pull"),
    "empty": (b"", "empty"),
    "a page of HTML": (b"<!DOCTYPE html><html>404</html>", "not a safetensors file"),
    "zip (a PyTorch file)": (b"PK\x03\x04" + bytes(60), "not a safetensors file"),
    "overlapping": (safetensors_bytes({"a": _tensor(0, 16), "b": _tensor(8, 24)}, DATA[:24]), "overlaps"),
    "same bytes twice": (safetensors_bytes({"a": F32_4, "b": F32_4}, DATA[:16]), "overlaps"),
    "hole between": (safetensors_bytes({"a": _tensor(0, 16), "b": _tensor(20, 24)}, DATA[:24]), "hole"),
    "hole before": (safetensors_bytes({"a": _tensor(4, 20)}, DATA[:20]), "hole"),
    "bytes after": (safetensors_bytes({"a": F32_4}, DATA), "48 bytes after"),
    "reversed offsets": (safetensors_bytes({"a": _tensor(16, 0, [4])}, DATA[:16]), "reversed"),
    "out of range": (safetensors_bytes({"a": _tensor(0, 2**40)}, DATA), "cut"),
    "negative offset": (safetensors_bytes({"a": _tensor(-16, 0, [4])}, DATA[:16]), "2^63"),
    "offset 2^64": (safetensors_bytes({"a": _tensor(0, 2**64, [2**62])}, DATA[:16]), "2^63"),
    "float offset": (
        safetensors_bytes({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16.0]}}, DATA[:16]),
        "2^63",
    ),
    "shape x dtype > bytes": (safetensors_bytes({"a": _tensor(0, 16, [5])}, DATA[:16]), "needs 20 bytes, has 16"),
    "shape x dtype < bytes": (safetensors_bytes({"a": _tensor(0, 16, [3])}, DATA[:16]), "needs 12 bytes, has 16"),
    "shape product overflow": (safetensors_bytes({"a": _tensor(0, 16, [2**32, 2**32, 4])}, DATA[:16]), "impossible"),
    "shape product overflow before a zero": (
        safetensors_bytes({"a": _tensor(0, 0, [2**32, 2**32, 0])}),
        "impossible",
    ),
    "negative shape": (safetensors_bytes({"a": _tensor(0, 16, [-2, -2])}, DATA[:16]), "2^63"),
    "boolean shape": (safetensors_bytes({"a": _tensor(0, 4, [True])}, DATA[:4]), "2^63"),
    "duplicate names": (safetensors_bytes(_duplicate(), DATA[:16]), "stands twice"),
    "no offsets": (safetensors_bytes({"a": {"dtype": "F32", "shape": [4]}}, DATA[:16]), "data_offsets"),
    "dtype is a number": (
        safetensors_bytes({"a": {"dtype": 1, "shape": [4], "data_offsets": [0, 16]}}, DATA[:16]),
        "dtype",
    ),
    "three offsets": (
        safetensors_bytes({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8, 16]}}, DATA[:16]),
        "data_offsets",
    ),
    "a surrogate as a name": (safetensors_bytes(b'{"\\ud800": 1}'), "\\ud800"),
    "metadata that is no map of strings": (safetensors_bytes({"__metadata__": {"a": 1}}), "__metadata__"),
}

# name -> a file that looks odd and is valid
VALID: dict[str, bytes] = {
    "0-size tensor": safetensors_bytes({"a": _tensor(0, 0, [0, 5]), "b": F32_4}, DATA[:16]),
    "0-size tensor at the end": safetensors_bytes({"b": F32_4, "a": _tensor(16, 16, [3, 0])}, DATA[:16]),
    "scalar": safetensors_bytes({"a": _tensor(0, 4, [])}, DATA[:4]),
    "metadata": safetensors_bytes({"__metadata__": {"format": "pt"}, "a": F32_4}, DATA[:16]),
    "metadata last": safetensors_bytes({"a": F32_4, "__metadata__": {"format": "pt"}}, DATA[:16]),
    "trailing spaces": safetensors_bytes(json.dumps({"a": F32_4}).encode() + b" " * 37, DATA[:16]),
    "no tensors": safetensors_bytes({}),
    "unsorted names": safetensors_bytes({"b": _tensor(16, 32), "a": _tensor(0, 16)}, DATA[:32]),
}


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
