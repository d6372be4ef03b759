"""The files of a checkpoint in memory: mapped once and read-only, and which pieces of them make each tensor.

A mapped file must not be cut while it is in use (the kernel kills a process that reads past the end), so its size
is checked once more when it is mapped.
"""

import errno
import mmap
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from ..errors import ModelDataError
from ..messages import Span
from ..timeline import Timeline
from .layout import Extent, Layout, Placed
from .read_ahead import POPULATE_READ, is_begun, mapping_of


def tensors_of(layout: Layout) -> Iterator[tuple[Placed, list[memoryview]]]:
    """Each tensor with the pieces that make it, in order. What is made of a view keeps its file mapped.

    Raises ModelDataError for a file that is shorter than the layout says.
    """
    files: dict[Path, memoryview] = {}
    extents = sorted(layout.extents, key=lambda extent: extent.slab_offset)
    starts = [extent.slab_offset for extent in extents]
    for tensor in layout.tensors:
        end = tensor.offset + tensor.nbytes
        covering = extents[bisect_right(starts, tensor.offset) - 1 : bisect_left(starts, end)]
        yield tensor, [_piece(files, extent, tensor.offset, end) for extent in covering]


def loading(layout: Layout, timeline: Timeline) -> AbstractContextManager[Span]:
    """The span in which `tensors_of` is used: it reads the files, or waits for read_ahead.py to have read them."""
    if any(is_begun(extent.file) for extent in layout.extents):
        return timeline.span("wait for weights", after="weights")
    return timeline.span("weights", layout.nbytes)


def _piece(files: dict[Path, memoryview], extent: Extent, start: int, end: int) -> memoryview:
    """The part of an extent that lies in the slab's [start, end)."""
    low = max(start, extent.slab_offset)
    high = min(end, extent.slab_offset + extent.length)
    file, offset = extent.file, extent.file_offset + low - extent.slab_offset
    if file not in files:
        files[file] = _map(file)
    view = files[file][offset : offset + high - low]
    if len(view) != high - low:
        raise ModelDataError(
            f"{file}: has {len(files[file])} bytes, its tensors end at byte {offset + high - low} or later; "
            "it was cut after its header was read"
        )
    return view


def forget(piece: memoryview) -> None:
    """Gives back the memory of a piece that was copied. It stays in the page cache, and comes again if it is read."""
    mapping = piece.obj
    if isinstance(mapping, mmap.mmap) and len(piece):
        start = _address(piece) - _address(memoryview(mapping))
        first = start + -start % mmap.PAGESIZE
        whole = (start + len(piece) - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if whole > 0:
            mapping.madvise(mmap.MADV_DONTNEED, first, whole)


def _address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


def _map(file: Path) -> memoryview:
    try:
        begun = mapping_of(file)
        if begun is not None:
            return begun
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
        mapping.madvise(POPULATE_READ)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel before 5.14
            raise
