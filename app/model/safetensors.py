"""The header of a safetensors file, read strictly and written in our own order.

Reading a header touches no tensor data and needs no library, so that a start pays for a few kilobytes only. It
stands apart from checkpoint.py because both Hugging Face files and snapshots pass through it.
Format: https://huggingface.co/docs/safetensors/index (u64 length, JSON, data).
"""

import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..device.layout import DATA_ALIGNMENT, STORED_BYTES, TENSOR_ALIGNMENT, WeightDtype
from ..errors import ModelDataError

METADATA = "__metadata__"
FILLER_PREFIX = "filler."  # U8 tensors that keep the next tensor aligned
MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
_LENGTH_BYTES = 8
_LARGEST = 2**63 - 1
_BITS: dict[str, int] = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


class TensorEntry(msgspec.Struct, frozen=True):
    """A tensor of a file. `offset` counts from the file's beginning; `dtype` is any string the file has."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Header(msgspec.Struct, frozen=True):
    """`encoded` is what precedes the data: the length, the JSON and its padding."""

    tensors: Mapping[str, TensorEntry]  # in the order of their bytes
    metadata: Mapping[str, str]
    encoded: bytes
    file_size: int

    @property
    def data_start(self) -> int:
        return len(self.encoded)


def read_header(file: Path) -> Header:
    """The header of `file`, its table checked against the file's size.

    Raises ModelDataError, naming file and reason, for anything that is not a whole and valid safetensors file.
    """
    try:
        if stat.S_ISFIFO(os.stat(file).st_mode):  # which opening would wait for
            raise ModelDataError(f"{file}: is a pipe, expected a file")
        with open(file, "rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            prefix = stream.read(_LENGTH_BYTES)
            length = _header_length(file, prefix, size)
            encoded = prefix + stream.read(length)
    except OSError as error:
        raise ModelDataError(f"{file}: cannot be read: {error.strerror}") from None
    try:
        tensors, metadata = _parse(encoded[_LENGTH_BYTES:], len(encoded), size)
    except _Invalid as error:
        raise ModelDataError(f"{file}: {error}") from None
    return Header(tensors, metadata, encoded, size)


def plan_header(
    tensors: Iterable[tuple[str, WeightDtype, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> Header:
    """The header of a file that holds `tensors` in the order given, each at a multiple of TENSOR_ALIGNMENT.

    Its data starts at a multiple of DATA_ALIGNMENT. Holes are not allowed in the format, so U8 fillers stand in them.
    """
    table: dict[str, Any] = {METADATA: dict(metadata or {})}
    position = fillers = 0
    for name, dtype, shape in tensors:
        if name in table or name.startswith(FILLER_PREFIX):
            raise ValueError(f"tensor name {name!r} is taken")
        padding = -position % TENSOR_ALIGNMENT
        if padding:
            table[f"{FILLER_PREFIX}{fillers}"] = _entry("U8", (padding,), position, padding)
            fillers += 1
            position += padding
        nbytes = _count(shape) * STORED_BYTES[dtype]
        table[name] = _entry(dtype, shape, position, nbytes)
        position += nbytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH_BYTES + len(text)) % DATA_ALIGNMENT)
    encoded = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    entries, checked = _parse(text, len(encoded), len(encoded) + position)
    return Header(entries, checked, encoded, len(encoded) + position)


class _Invalid(Exception):
    """The reason alone; the public functions put the file's name before it."""


def _header_length(file: Path, prefix: bytes, size: int) -> int:
    if size == 0:
        raise ModelDataError(f"{file}: the file is empty; download or copy it again")
    if prefix == b"version ":
        raise ModelDataError(f"{file}: this is a Git LFS pointer, not the weights; run `git lfs pull`")
    length = int.from_bytes(prefix, "little")
    if len(prefix) < _LENGTH_BYTES or length > min(MAX_HEADER_BYTES, size - _LENGTH_BYTES):
        raise ModelDataError(
            f"{file}: not a safetensors file, or cut: it says that its header has {length} bytes, "
            f"the whole file has {size}"
        )
    return length


def _parse(text: bytes, data_start: int, file_size: int) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """The table of a header, sorted by position. Raises _Invalid."""
    try:
        table = json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _Invalid(f"not a safetensors file: its header is not JSON ({str(error)[:80]})") from None
    if not isinstance(table, dict):
        raise _Invalid("not a safetensors file: its header is not a JSON object")
    metadata = table.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _Invalid(f"{METADATA} of its header is not a map of strings")
    entries = [_checked_entry(name, value, data_start) for name, value in table.items()]
    entries.sort(key=lambda entry: (entry.offset, entry.nbytes))
    position = data_start
    previous = "the header"
    for entry in entries:
        if entry.offset != position:
            problem = "overlaps" if entry.offset < position else "leaves a hole after"
            raise _Invalid(f"tensor {entry.name!r} {problem} {previous}")
        position += entry.nbytes
        previous = repr(entry.name)
    if position > file_size:
        raise _Invalid(
            f"the file is cut: its tensors end at byte {position}, the file at {file_size}; download or copy it again"
        )
    if position < file_size:
        raise _Invalid(f"{file_size - position} bytes after the last tensor belong to none")
    return {entry.name: entry for entry in entries}, metadata


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Invalid(f"{twice!r} stands twice in its header")
    return found


def _checked_entry(name: str, value: Any, data_start: int) -> TensorEntry:
    match value:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, end]} if len(value) == 3:
            numbers = [*shape, begin, end]
        case _:
            raise _Invalid(f"tensor {name!r} has no plain dtype, shape and data_offsets in the header")
    if not all(type(number) is int and 0 <= number <= _LARGEST for number in numbers):
        raise _Invalid(f"tensor {name!r} has a shape or offset that is not a number of 0 to 2^63 - 1")
    if end < begin:
        raise _Invalid(f"tensor {name!r} has reversed offsets: {begin} to {end}")
    bits = _BITS.get(dtype)
    if bits is not None:
        count = _count(shape)
        if count > _LARGEST:
            raise _Invalid(f"tensor {name!r} has an impossible shape {shape}")
        if count * bits != (end - begin) * 8:
            raise _Invalid(
                f"tensor {name!r} of {dtype} {shape} needs {count * bits / 8:.0f} bytes, has {end - begin}"
            )
    return TensorEntry(name, dtype, tuple(shape), data_start + begin, end - begin)


def _entry(dtype: str, shape: tuple[int, ...], begin: int, nbytes: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, begin + nbytes]}


def _count(shape: Iterable[int]) -> int:
    """Elements of a tensor; more than _LARGEST where the product overflows on the way, even before a 0."""
    count = 1
    for size in shape:
        count *= size
        if count > _LARGEST:
            break
    return count
