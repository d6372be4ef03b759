"""The page cache: weights put into it or dropped from it before a start, and what of them is really there.

Apart, because dropping is a request that the kernel may refuse: a page that some process maps stays, and a start
that is called cold without having been looked at is a hot one.
"""

import ctypes
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from pilotlight.device.read_ahead import POPULATE_READ

SUFFIXES = (".safetensors", ".gguf")  # of files that a start reads at the rate of a disk
_ATTEMPTS, _PAUSE = 20, 0.05  # a process that has just ended gives its pages back a little later

_COMPUTE = "print(flush=True)\nwhile True: pass"

_libc = ctypes.CDLL(None, use_errno=True)


def files_of(words: Iterable[str | Path]) -> list[Path]:
    """The weights that a command names: files, and those in directories, by their suffix."""
    found: list[Path] = []
    for word in map(Path, words):
        candidates = sorted(word.iterdir()) if word.is_dir() else [word]
        found += [file.resolve() for file in candidates if file.suffix in SUFFIXES and file.is_file()]
    return found


def resident(file: Path) -> tuple[int, int]:
    """Pages of a file that are in the page cache, and all that it has, by mincore(2)."""
    if not file.stat().st_size:
        return 0, 0
    with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        view = np.frombuffer(mapping, np.uint8)
        flags = np.zeros(-(-len(view) // mmap.PAGESIZE), np.uint8)
        arguments = ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(view)), ctypes.c_void_p(flags.ctypes.data)
        del view  # or the mapping could not be closed
        if _libc.mincore(*arguments):
            raise SystemExit(f"{file}: mincore failed: {os.strerror(ctypes.get_errno())}")
        return int(np.count_nonzero(flags & 1)), len(flags)


def drop(files: Iterable[Path]) -> None:
    """Drops every page of the files from the page cache. Raises SystemExit where one stays."""
    for file in files:
        for attempt in range(_ATTEMPTS):
            let_go(file)
            there, pages = resident(file)
            if not there:
                break
            if attempt + 1 < _ATTEMPTS:
                time.sleep(_PAUSE)
        else:
            raise SystemExit(
                f"{file}: {there} of its {pages} pages stay in the page cache; some process maps or locks them, or "
                "the file system keeps them: no start can be measured from dropped pages here"
            )


def load(files: Iterable[Path]) -> None:
    """Reads every page of the files into the page cache. Raises SystemExit where they do not all stay there."""
    for file in files:
        there, pages = resident(file)
        if there < pages:
            read(file)
            there, pages = resident(file)
        if there < pages:
            raise SystemExit(f"{file}: {pages - there} of its {pages} pages do not stay in the page cache")


def read(file: Path) -> float:
    """Seconds to map the file and have the kernel read all of it in: the machine's own rate, of disk or cache.

    Asked for as a whole first, or the disk would be read in the small windows that a fault asks for.
    """
    begun = time.monotonic()
    with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        mapping.madvise(mmap.MADV_WILLNEED)
        mapping.madvise(POPULATE_READ)
        return time.monotonic() - begun


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes compute all the while, as those of a start do that import."""
    with ExitStack() as running:
        for _ in range(count):
            process = running.enter_context(
                subprocess.Popen([sys.executable, "-c", _COMPUTE], stdout=subprocess.PIPE)
            )
            running.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
        yield


def touch(file: Path) -> float:
    """Seconds in which all CPUs look at every byte of a file in the page cache once: the memory's own rate."""
    with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        mapping.madvise(POPULATE_READ)
        words = np.frombuffer(mapping, np.int64, len(mapping) // 8)
        cpus = len(os.sched_getaffinity(0))
        with ThreadPoolExecutor(cpus) as pool:
            begun = time.monotonic()
            # As fast as memory is, and lets the other threads run.
            list(pool.map(np.max, np.array_split(words, cpus)))
            seconds = time.monotonic() - begun
        del words  # or the mapping could not be closed
    return seconds


def prepare(files: Sequence[Path], pages: str) -> None:
    """As `pages` says: "hot" or "dropped"."""
    if pages == "dropped":
        drop(files)
    else:
        load(files)


def let_go(file: Path) -> None:
    """Asks the kernel to drop the file's pages, which it may refuse."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # a page that is not written yet cannot be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
