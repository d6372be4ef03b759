"""The CPU library: where it lies, whether it is one that this version can use, and its resident threads.

Apart from the device so that what is missing is found, and told, before anything else is done.
"""

import ctypes
import platform
import struct
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UnavailableError
from . import native_abi as abi

_PACKAGE = Path(__file__).resolve().parents[1]  # `pilotlight` in an environment, `app` in a checkout
_BUILD = "`pilotlight build native` makes it"
_ELF64 = struct.Struct("=40xQ10xHH2x")  # what ends the file: e_shoff, e_shentsize, e_shnum


def directory() -> Path:
    """The directory of the C++ sources and of the library: in the package, or `kernels/cpu` of a checkout."""
    installed = _PACKAGE / "cpu"
    return installed if installed.is_dir() else _PACKAGE.parent / "kernels" / "cpu"


def library_name() -> str:
    """One for each architecture: a package that holds several serves on all of them."""
    return f"libpilotlight_cpu.{platform.machine()}.so"


def find() -> Path:
    """Where the library of this machine's architecture is looked for."""
    return directory() / library_name()


def load(file: Path) -> ctypes.CDLL:
    """The library in `file`. Raises OSError, also for a file that was cut: the system's loader would die of that.

    A linker writes the table of sections last; where it lies stands in the file's header (elf(5), Elf64_Ehdr).
    """
    with open(file, "rb") as stream:
        header = stream.read(_ELF64.size)
        size = stream.seek(0, 2)
    if len(header) < _ELF64.size or not header.startswith(b"\x7fELF"):
        raise OSError(f"it is no library, but {size} bytes of something else")
    sections, bytes_each, count = _ELF64.unpack(header)
    if (end := sections + bytes_each * count) > size:
        raise OSError(f"it is cut: {end} bytes long when it was made, {size} now")
    return ctypes.CDLL(str(file))


class Library:
    """The library, loaded: its functions, and a pool of threads that sleep while nothing is run."""

    def __init__(self, file: Path, threads: int, level: str | None = None) -> None:
        """level: one of `levels` to compute at, by default the best. Raises UnavailableError that says what to do."""
        if not file.is_file():
            raise UnavailableError(f"{file}: the CPU library is not there; {_BUILD}")
        try:
            self._functions: Any = load(file)
            for name, (result, arguments) in abi.FUNCTIONS.items():
                function = getattr(self._functions, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise UnavailableError(f"{file}: the CPU library does not load ({error}); {_BUILD} anew") from None
        if (self._functions.pl_abi(), self._functions.pl_op_bytes()) != (abi.ABI, ctypes.sizeof(abi.Op)):
            raise UnavailableError(f"{file}: the CPU library is of another version; {_BUILD} anew")
        self.levels: list[str] = self._functions.pl_levels().decode().split()
        self.level = level or self.levels[0]
        self.threads = threads
        self._pool = self._functions.pl_open(threads, self.level.encode())
        if not self._pool:
            raise UnavailableError(f"{file}: the CPU library cannot start {threads} threads at level {self.level}")
        weakref.finalize(self, self._functions.pl_close, self._pool).atexit = False

    def packed_bytes(self, rows: int, columns: int) -> int:
        return int(self._functions.pl_packed_bytes(rows, columns))

    def attention_bytes(self, cache: abi.Cache, tokens: int, sequences: int, max_length: int) -> int:
        return int(self._functions.pl_attention_bytes(cache, tokens, sequences, max_length))

    def sample_bytes(self, vocab: int) -> int:
        return int(self._functions.pl_sample_bytes(self.threads, vocab))

    def check(self, op: abi.Op) -> None:
        """Raises UnavailableError for sizes or types that no kernel takes."""
        refusal: bytes | None = self._functions.pl_check(op)
        if refusal is not None:
            raise UnavailableError(f"the CPU library: {refusal.decode()}; with --dtype float32 numpy computes")

    def program(self, ops: Sequence[abi.Op]) -> "Program":
        for op in ops:
            self.check(op)
        return Program(self._functions.pl_run, self._pool, (abi.Op * len(ops))(*ops), self)


class Program:
    """Ops that are run by one call."""

    def __init__(self, call: Any, pool: int, ops: "ctypes.Array[abi.Op]", library: Library) -> None:
        self._call, self._arguments = call, (pool, ops, len(ops))
        self._library = library  # whose threads are there as long as this is

    def run(self) -> None:
        """Waits until all is done; other Python threads go on meanwhile."""
        self._call(*self._arguments)
