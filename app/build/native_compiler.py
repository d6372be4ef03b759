"""Which C++ compiler this machine has, and running it so that nobody ever sees half a file.

Apart from what is built with it: the CPU device's library, and the tests' stand-in for a GPU.
"""

import contextlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..errors import KernelError, UnavailableError


@cache
def compiler() -> tuple[str, ...]:
    """The command that compiles C++20: $CXX, c++, g++, clang++, or the one in the wheel `ziglang`.

    Raises UnavailableError where there is none.
    """
    named = os.environ.get("CXX")
    if named:
        return tuple(named.split())
    for name in ("g++", "clang++", "c++"):
        found = shutil.which(name)
        if found:
            return (found,)
    if importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "c++")
    raise UnavailableError(
        "there is no C++ compiler here: install g++ or clang++, or `pip install 'pilotlight[compiler]'`"
    )


def target() -> tuple[str, ...]:
    """Options that make code for any machine of this architecture with a C library from 2018 on.

    Only zig needs to be told: it compiles for the very processor that it runs on.
    """
    return ("-target", f"{platform.machine()}-linux-gnu.2.28") if "ziglang" in compiler() else ()


def make(target: Path, *arguments: str) -> str:
    """Runs the compiler with `-o` a file that takes the place of `target` once it is whole. Returns its warnings.

    Raises KernelError with what the compiler says.
    """
    descriptor, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    os.close(descriptor)
    try:
        done = subprocess.run([*compiler(), *arguments, "-o", scratch], capture_output=True, text=True)
        if done.returncode != 0:
            raise KernelError(f"{' '.join([*compiler(), *arguments])}\n{done.stderr.strip()}")
        os.chmod(scratch, 0o755)  # noqa: S103 (as a linker leaves it)
        os.replace(scratch, target)
    finally:
        Path(scratch).unlink(missing_ok=True)
    return done.stderr


@contextlib.contextmanager
def saying(line: str) -> Iterator[None]:
    """Says on stderr what takes so long, after two seconds."""
    timer = threading.Timer(2, lambda: print(line, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
