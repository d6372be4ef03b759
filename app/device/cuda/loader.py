"""From the files of a model to a slab on the GPU: read by threads into page-locked memory, copied by one stream.

    thread 0   | read slot 0 | read slot 1 | wait 0, read slot 0 | ...
    thread 1   | read slot 2 | read slot 3 | wait 2, read slot 2 | ...
    stream          | copy 0 | copy 2 | copy 1 | copy 3 | ...

Each thread has two slots, with an event that tells when a slot's copy is done; the ring is freed when the last is.
Reading beats page faults through a mapping, which stall one by one. fp32 is rounded to bfloat16 on its way.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelDataError
from ..host import usable_cpus
from ..layout import Extent
from . import driver
from .context import Context
from .errors import CudaError
from .memory import HostBuffer, create_events

PIECE_BYTES = 4 << 20  # of a slot, and of a copy
_LEAST_THREADS, _MOST_THREADS = 4, 16
_SLOTS = 2  # of a thread


@dataclass(frozen=True, slots=True)
class _Piece:
    source: "_Source"
    offset: int  # in the file
    length: int
    target: int  # address on the device


def load(context: Context, extents: Sequence[Extent], slab: int, *, narrow: bool = False) -> None:
    """Fills the slab at address `slab` and waits until all of it is there. Any thread may call it.

    narrow: the files hold fp32, the slab bfloat16: an extent then belongs at half its offset in the slab. Raises
    ModelDataError, naming the file and the byte, for one that cannot be read, ends early, or is changed meanwhile.
    """
    context.bind()
    files = {extent.file for extent in extents}
    sources: dict[Path, _Source] = {}
    try:
        for file in files:
            sources[file] = _Source(file)
        for extent in extents:
            sources[extent.file].require(extent.file_offset + extent.length)
        pieces = list(_pieces(extents, sources, slab, narrow))
        _Loading(context, pieces, narrow).run()
        for source in sources.values():
            source.require_unchanged()
    finally:
        for source in sources.values():
            source.close()


def _pieces(extents: Sequence[Extent], sources: dict[Path, "_Source"], slab: int, narrow: bool) -> Iterator[_Piece]:
    """What is read and copied at once, in the files' order."""
    ratio = 2 if narrow else 1
    step = PIECE_BYTES * ratio
    for extent in sorted(extents, key=lambda extent: (extent.file, extent.file_offset)):
        for start in range(0, extent.length, step):
            length = min(step, extent.length - start)
            target = slab + (extent.slab_offset + start) // ratio
            yield _Piece(sources[extent.file], extent.file_offset + start, length, target)


class _Source:
    """An open file, and what it was when it was opened."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ModelDataError(f"{file}: cannot be read: {error.strerror}") from None
        self._known = _identity(os.fstat(self._descriptor))

    def require(self, nbytes: int) -> None:
        size = self._known[0]
        if size < nbytes:
            raise ModelDataError(
                f"{self._file}: has {size} bytes, its tensors end at byte {nbytes} or later; it was cut after its "
                "header was read"
            )

    def read(self, into: memoryview, offset: int) -> None:
        done = 0
        while done < len(into):
            try:
                count = os.preadv(self._descriptor, [into[done:]], offset + done)
            except OSError as error:
                raise ModelDataError(
                    f"{self._file}: cannot be read at byte {offset + done}: {error.strerror}"
                ) from None
            if not count:
                raise ModelDataError(
                    f"{self._file}: ends at byte {offset + done}, its tensors go on to {offset + len(into)}; it was "
                    "cut while it was read"
                )
            done += count

    def require_unchanged(self) -> None:
        """Whether the path still leads to the same bytes, as far as size, time and inode tell."""
        try:
            now = _identity(os.stat(self._file))
        except OSError as error:
            raise ModelDataError(f"{self._file}: was taken away while it was read: {error.strerror}") from None
        if now != self._known:
            raise ModelDataError(f"{self._file}: was changed while it was read; start again when it is whole")

    def close(self) -> None:
        os.close(self._descriptor)


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev


class _Loading:
    """The threads at work on a list of pieces."""

    def __init__(self, context: Context, pieces: list[_Piece], narrow: bool) -> None:
        self._context = context
        self._pieces = iter(pieces)
        self._narrow = narrow
        self._threads = min(max(usable_cpus(), _LEAST_THREADS), _MOST_THREADS, len(pieces))
        self._slot_bytes = max((piece.length for piece in pieces), default=0) // (2 if narrow else 1)
        self._lock = threading.Lock()
        self._error: Exception | None = None

    def run(self) -> None:
        """Raises what the first thread that failed raised."""
        try:
            with ExitStack() as owned:
                ring = HostBuffer(self._threads * _SLOTS * self._slot_bytes)
                owned.callback(ring.close)
                stream = driver.create_stream()
                owned.callback(driver.destroy_stream, stream)
                owned.callback(driver.synchronize_stream, stream)
                threads = [threading.Thread(target=self._work, args=(ring, n, stream)) for n in range(self._threads)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        except CudaError as error:
            self._error = self._error or error
        if self._error is not None:
            raise self._error

    def _work(self, ring: HostBuffer, number: int, stream: driver.Stream) -> None:
        """One thread: fills its slots in turn until no piece is left."""
        try:
            self._context.bind()
            with ExitStack() as owned:
                events = create_events(_SLOTS, owned)
                turn = 0
                while (piece := self._next()) is not None:
                    event = events[turn]
                    driver.synchronize_event(event)  # the slot's last copy
                    start = (number * _SLOTS + turn) * self._slot_bytes
                    nbytes = self._read(piece, ring.view[start : start + self._slot_bytes])
                    driver.copy_to_device(piece.target, ring.address + start, nbytes, stream)
                    driver.record_event(event, stream)
                    turn = (turn + 1) % _SLOTS
                for event in events:
                    driver.synchronize_event(event)
        except Exception as error:
            with self._lock:
                self._error = self._error or error

    def _next(self) -> _Piece | None:
        with self._lock:
            return None if self._error else next(self._pieces, None)

    def _read(self, piece: _Piece, slot: memoryview) -> int:
        """The piece's bytes into a slot, as the device wants them; how many those are."""
        if not self._narrow:
            piece.source.read(slot[: piece.length], piece.offset)
            return piece.length
        wide = np.empty(piece.length // 4, np.uint32)
        piece.source.read(wide.data.cast("B"), piece.offset)
        narrow_to_bfloat16(wide, np.frombuffer(slot, np.uint16, len(wide)))
        return 2 * len(wide)


def narrow_to_bfloat16(wide: NDArray[np.uint32], out: NDArray[np.uint16]) -> None:
    """The bits of fp32 numbers rounded to the nearest bfloat16, ties to even; a NaN stays one. `wide` is lost."""
    is_nan = (wide & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    wide += (wide >> np.uint32(16) & np.uint32(1)) + np.uint32(0x7FFF)
    wide >>= np.uint32(16)
    out[:] = wide
    out[is_nan] = 0x7FC0
