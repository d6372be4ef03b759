"""Weights for the numpy device: fp32 that lies in one piece is mapped and never copied, the rest is made fp32.

A mapped file must not be cut while it is in use (the kernel kills a process that reads past the end), so its size
is checked once more when it is mapped.
"""

import errno
import mmap
import os
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import ModelDataError
from .base import Float32
from .layout import Extent, Layout, Placed

_MADV_POPULATE_READ = 22  # from Linux's mman-common.h; Python has no name for it
_PIECE_BYTES = 16 << 20  # half-precision weights are read and widened in such pieces


def loaded_bytes(layout: Layout) -> int:
    """Bytes of all tensors in fp32."""
    return sum(4 * tensor.nbytes // (4 if tensor.dtype == "F32" else 2) for tensor in layout.tensors)


def load_weights(layout: Layout) -> dict[str, Float32]:
    """The tensors by name. Raises ModelDataError for a file that is shorter than the layout says."""
    files = _Files()
    extents = sorted(layout.extents, key=lambda extent: extent.slab_offset)
    starts = [extent.slab_offset for extent in extents]
    weights = {}
    for tensor in layout.tensors:
        end = tensor.offset + tensor.nbytes
        covering = extents[bisect_right(starts, tensor.offset) - 1 : bisect_left(starts, end)]
        weights[tensor.name] = _tensor(files, tensor, [_cut(extent, tensor.offset, end) for extent in covering])
    return weights


def _cut(extent: Extent, start: int, end: int) -> tuple[Path, int, int]:
    """The part of an extent that lies in the slab's [start, end): file, offset, length."""
    low = max(start, extent.slab_offset)
    high = min(end, extent.slab_offset + extent.length)
    return extent.file, extent.file_offset + low - extent.slab_offset, high - low


def _tensor(files: "_Files", tensor: Placed, pieces: Sequence[tuple[Path, int, int]]) -> Float32:
    views = [files.view(file, offset, length) for file, offset, length in pieces]
    if tensor.dtype == "F32" and len(views) == 1 and pieces[0][1] % 4 == 0:
        return np.frombuffer(views[0], np.float32).reshape(tensor.shape)
    values = np.empty(tensor.shape, np.float32)
    flat, position = values.reshape(-1), 0
    size = 4 if tensor.dtype == "F32" else 2
    for view in views:
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            count = len(piece) // size
            _widen(piece, tensor.dtype, flat[position : position + count])
            position += count
    values.flags.writeable = False
    return values


def _widen(piece: memoryview, dtype: str, out: Float32) -> None:
    if dtype == "BF16":  # the upper half of an fp32
        np.left_shift(np.frombuffer(piece, np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)
    else:
        out[:] = np.frombuffer(piece, np.float16 if dtype == "F16" else np.float32)


class _Files:
    """Read-only mappings, one a file. The arrays made from them keep them alive."""

    def __init__(self) -> None:
        self._maps: dict[Path, memoryview] = {}

    def view(self, file: Path, offset: int, length: int) -> memoryview:
        if file not in self._maps:
            self._maps[file] = _map(file)
        view = self._maps[file][offset : offset + length]
        if len(view) != length:
            raise ModelDataError(
                f"{file}: has {len(self._maps[file])} bytes, its tensors end at byte {offset + length} or later; "
                "it was cut after its header was read"
            )
        return view


def _map(file: Path) -> memoryview:
    try:
        with open(file, "rb") as stream:
            if os.fstat(stream.fileno()).st_size == 0:  # which mmap refuses
                return memoryview(b"")
            mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            _read_in(mapping)
    except OSError as error:
        raise ModelDataError(f"{file}: cannot be read: {error.strerror}") from None
    return memoryview(mapping)


def _read_in(mapping: mmap.mmap) -> None:
    """Reads the file and fills the page table now, in one call, and not by a fault for each page later."""
    mapping.madvise(mmap.MADV_WILLNEED)
    try:
        mapping.madvise(_MADV_POPULATE_READ)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel before 5.14
            raise
