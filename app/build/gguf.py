"""A strict reader of GGUF files: the metadata as Python values, and where each tensor lies.

Ours, because a file is refused here with its name and a reason before anything is made from it, and because the
vocabulary of a large model must not cost hundreds of megabytes of small arrays.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import ModelDataError
from .encodings import ENCODINGS, block_size

_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_SCALARS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
# enum ggml_type: each name at its number; numbers that are no longer used are empty
_TYPES = (
    *("F32", "F16", "Q4_0", "Q4_1", "", "", "Q5_0", "Q5_1", "Q8_0", "Q8_1"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S"),
    *("IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16"),
)
_MAX_DIMENSIONS = 4
# What the keys that we read must be; those of an architecture are checked where they are read.
_KEYS: dict[str, str] = {
    "general.architecture": "str",
    "split.count": "int",
    "tokenizer.ggml.model": "str",
    "tokenizer.ggml.pre": "str",
    "tokenizer.ggml.tokens": "list of str",
    "tokenizer.ggml.token_type": "list of int",
    "tokenizer.ggml.scores": "list of float",
    "tokenizer.ggml.merges": "list of str",
    "tokenizer.ggml.add_space_prefix": "bool",
    **{f"tokenizer.ggml.add_{role}_token": "bool" for role in ("bos", "eos")},
    **{f"tokenizer.ggml.{role}_token_id": "int" for role in ("bos", "eos", "eot", "eom", "unknown", "padding")},
    "tokenizer.chat_template": "str",
    "tokenizer.chat_templates": "list of str",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` is in numpy's order, rows first (GGUF writes the columns first). `offset` counts from the file's start.

    `nbytes` is None for an encoding that we do not know.
    """

    name: str
    encoding: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class GgufFile:
    file: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf(file: Path) -> GgufFile:
    """Metadata and tensor table of `file`. Raises ModelDataError, naming file and reason."""
    try:
        with open(file, "rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            return _read(file, _Cursor(stream, size))
    except OSError as error:
        raise ModelDataError(f"{file}: cannot be read: {error.strerror}") from None
    except _Invalid as error:
        raise ModelDataError(f"{file}: {error}") from None


class _Invalid(Exception):
    """The reason alone."""


class _Cursor:
    """Reads forward, never past the file's end. Raises _Invalid."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream = stream
        self.size = size
        self.position = 0

    def take(self, count: int) -> bytes:
        if count > self.size - self.position:
            raise _Invalid(
                f"the file is cut or damaged: {count} bytes should follow byte {self.position} of {self.size}"
            )
        self.position += count
        return self._stream.read(count)

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        raw = self.take(self.number("<Q"))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise _Invalid(f"a name or text before byte {self.position} is not UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            kind, count = self.number("<I"), self.number("<Q")
            if kind in _SCALARS:
                form = np.dtype(_SCALARS[kind])
                return np.frombuffer(self.take(count * form.itemsize), form).tolist()
            if kind == _STRING:
                return self._texts(count)
            raise _Invalid(f"its metadata has an array of type {kind}")
        if kind not in _SCALARS:
            raise _Invalid(f"its metadata has a value of type {kind}")
        return self.number(_SCALARS[kind])

    def _texts(self, count: int) -> list[str]:
        if count > self.size - self.position:
            raise _Invalid(f"the file is cut or damaged: a list of {count} texts in {self.size} bytes")
        return [self.text() for _ in range(count)]


def _read(file: Path, cursor: _Cursor) -> GgufFile:
    if cursor.size == 0:
        raise _Invalid("the file is empty; download or copy it again")
    magic = cursor.take(min(4, cursor.size))
    if magic == b"vers":
        raise _Invalid("this is a Git LFS pointer, not the weights; run `git lfs pull`")
    if magic != _MAGIC:
        raise _Invalid("not a GGUF file")
    version = cursor.number("<I")
    if version not in (2, 3):
        problem = "is big-endian" if version & 0xFFFF == 0 else f"has version {version}"
        raise _Invalid(f"the GGUF file {problem}, expected version 2 or 3 in little-endian")
    tensor_count, metadata_count = cursor.number("<Q"), cursor.number("<Q")
    metadata = _unique("metadata key", metadata_count, lambda: (cursor.text(), cursor.value(cursor.number("<I"))))
    _check_kinds(metadata)
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise _Invalid(f"general.alignment is {alignment!r}, expected a power of two")
    entries = _unique("tensor", tensor_count, lambda: _tensor_info(cursor))
    start = cursor.position + -cursor.position % alignment
    tensors = {name: _tensor(name, info, start, cursor.size) for name, info in entries.items()}
    _check_disjoint(list(tensors.values()))
    return GgufFile(file, metadata, tensors)


def _unique(what: str, count: int, read: Callable[[], tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(count):
        name, value = read()
        if name in found:
            raise _Invalid(f"{what} {name!r} stands twice")
        found[name] = value
    return found


def _check_kinds(metadata: Mapping[str, Any]) -> None:
    for key, expected in _KEYS.items():
        value = metadata.get(key)
        is_empty_list = value == [] and expected.startswith("list of ")
        if value is not None and not is_empty_list and _kind(value) != expected:
            raise _Invalid(f"its metadata's {key} is {repr(value)[:40]}, expected {expected}")


def _kind(value: Any) -> str:
    """ "int", "list of str": an array has items of one type. Of an empty one: "list"."""
    if isinstance(value, list):
        return f"list of {_kind(value[0])}" if value else "list"
    return type(value).__name__


_Info = tuple[tuple[int, ...], int, int]  # shape, number of the encoding, offset in the data


def _tensor_info(cursor: _Cursor) -> tuple[str, _Info]:
    name, dimensions = cursor.text(), cursor.number("<I")
    if dimensions > _MAX_DIMENSIONS:
        raise _Invalid(f"tensor {name!r} has {dimensions} dimensions")
    shape = tuple(cursor.number("<Q") for _ in range(dimensions))[::-1]
    return name, (shape, cursor.number("<I"), cursor.number("<Q"))


def _tensor(name: str, info: _Info, start: int, size: int) -> GgufTensor:
    shape, number, offset = info
    encoding = (_TYPES[number] if number < len(_TYPES) else "") or f"type {number}"
    if encoding not in ENCODINGS:
        return GgufTensor(name, encoding, shape, start + offset, None)
    elements, nbytes = block_size(encoding)
    if prod(shape) % elements or (shape and shape[-1] % elements):
        raise _Invalid(f"tensor {name!r} of {encoding} has rows of {shape[-1]}, which is not whole blocks")
    length = prod(shape) // elements * nbytes
    if start + offset + length > size:
        raise _Invalid(
            f"the file is cut: tensor {name!r} ends at byte {start + offset + length}, the file at {size}; "
            "download or copy it again"
        )
    return GgufTensor(name, encoding, shape, start + offset, length)


def _check_disjoint(tensors: list[GgufTensor]) -> None:
    for first, second in pairwise(sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes or 0))):
        if first.offset + (first.nbytes or 0) > second.offset:
            raise _Invalid(f"tensor {second.name!r} overlaps {first.name!r}")
