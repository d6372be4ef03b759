"""A snapshot's weights, read while Python imports: begun before anything else, whatever is in them.

For a device that computes where the file is mapped, the mapping itself is filled: no page of it faults later. For one
that has the bytes copied, they are brought into the page cache, if they are not there. Nothing is decided here and no
failure is told: whoever opens the file finds a mapping that was begun, or makes its own, and says what is wrong.
"""

import ctypes
import mmap
import os

from . import Begun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..messages import Span
    from ..timeline import Timeline

POPULATE_READ = 22  # MADV_POPULATE_READ of Linux's mman-common.h, from 5.14 on; Python has no name for it
_WINDOW = 64 << 20  # of a call, during which no other thread can map anything: a few ms where the pages are there
_SAMPLES = 16

_begun: "list[ReadAhead]" = []


def begin(file: str, *, mapped: bool) -> "ReadAhead | None":
    """Starts to read `file`; `mapped`: into a mapping, which `mapping_of` gives. None where there is no such file."""
    try:
        ahead = ReadAhead(file, mapped)
    except OSError:
        return None
    _begun.append(ahead)
    ahead.start()
    return ahead


def mapping_of(file: "os.PathLike[str]") -> memoryview | None:
    """The whole of `file`, if it was begun and is still the same; waits until all is read."""
    ahead = _ahead_of(file)
    return None if ahead is None else ahead.result()


def is_begun(file: "os.PathLike[str]") -> bool:
    return _ahead_of(file) is not None


def _ahead_of(file: "os.PathLike[str]") -> "ReadAhead | None":
    if not _begun:
        return None
    try:
        identity = _identity(os.stat(file))
    except OSError:
        return None
    return next((ahead for ahead in _begun if ahead.identity == identity), None)


class ReadAhead(Begun):
    """`mmap` is called through ctypes, because Python's own holds the interpreter's lock while it waits for a disk.

    A mapping stays for the life of the process.
    """

    def __init__(self, file: str, mapped: bool) -> None:
        super().__init__(f"weights {len(_begun) + 1}")
        # A pipe in a file's place would be waited for, here in the engine's first thread.
        self._descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        self.identity = _identity(status)
        self._mapped = mapped
        self._view: memoryview | None = None

    def work(self) -> None:
        try:
            if self.size and (self._mapped or not _is_cached(self._descriptor, self.size)):
                self._read(self._descriptor)
        finally:
            os.close(self._descriptor)

    def result(self) -> memoryview | None:
        self.join()
        return self._view

    def begin_span(self, timeline: "Timeline") -> "Span":
        return timeline.add("weights", self.began, None, self.size, thread=self.name, after="python")

    def _read(self, descriptor: int) -> None:
        c = ctypes.CDLL(None)
        c.mmap.restype = ctypes.c_void_p
        c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        c.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        c.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        address = c.mmap(None, self.size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == ctypes.c_void_p(-1).value:
            return
        for offset in range(0, self.size, _WINDOW):
            if c.madvise(address + offset, min(_WINDOW, self.size - offset), POPULATE_READ):
                # An older kernel, which is asked to read all the same, or a disk's error, which its reader will meet.
                c.madvise(address + offset, self.size - offset, mmap.MADV_WILLNEED)
                break
        if self._mapped:
            self._view = memoryview((ctypes.c_ubyte * self.size).from_address(address)).cast("B").toreadonly()
        else:
            c.munmap(address, self.size)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_cached(descriptor: int, size: int) -> bool:
    """Whether pages here and there in the file are in the page cache."""
    try:
        for number in range(_SAMPLES):
            os.preadv(descriptor, [bytearray(1)], size * number // _SAMPLES, os.RWF_NOWAIT)
    except OSError:  # BlockingIOError: it is not; others: who knows
        return False
    return True
