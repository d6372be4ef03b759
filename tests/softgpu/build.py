"""Builds the soft GPU's libcuda.so.1 with whatever C++ compiler is there, and keeps it by the content of its sources.

Apart from the package's front so that `python -m tests.softgpu.build` builds and prints the path, and nothing more.
"""

import contextlib
import fcntl
import hashlib
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from pilotlight.build import native_compiler
from pilotlight.errors import KernelError, UnavailableError

SOURCES = Path(__file__).parent / "src"
CACHE = Path(__file__).parents[2] / ".cache" / "softgpu"
COMPILE = (
    "-std=c++20",
    "-O2",
    "-march=native",
    "-ffp-contract=off",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
)
# -z defs: a function that nobody defines is the linker's error here, not the loader's in some test.
LINK = ("-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-z,defs", "-lpthread", "-ldl")


class BuildError(RuntimeError):
    """What the compiler said, or that there is none."""


_failed: dict[Path, BuildError] = {}  # by the library that was to be built


@cache
def compiler() -> tuple[str, ...]:
    """The command that compiles C++."""
    try:
        return native_compiler.compiler()
    except UnavailableError as error:
        raise BuildError(f"the soft GPU is built from C++: {error}") from None


def build(sources: Path = SOURCES, cached: Path = CACHE) -> Path:
    """The library's path, built if sources or compiler changed. Raises BuildError with the compiler's words."""
    cached.mkdir(parents=True, exist_ok=True)
    units = sorted(sources.glob("*.cpp"))
    keys = [_key(unit) for unit in units]
    library = cached / _digest("link", *LINK, *keys) / "libcuda.so.1"
    if library.exists():
        return library
    if library in _failed:  # every test of a broken tree asks again
        raise _failed[library]
    try:
        _build(library, units, keys)
    except BuildError as error:
        _failed[library] = error
        raise
    return library


def _build(library: Path, units: list[Path], keys: list[str]) -> None:
    cached = library.parents[1]
    with _alone(cached), native_compiler.saying("building the soft GPU (tests/softgpu/src)"):
        objects = [cached / f"{unit.stem}-{key}.o" for unit, key in zip(units, keys, strict=True)]
        missing = [(unit, target) for unit, target in zip(units, objects, strict=True) if not target.exists()]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda pair: _make(pair[1], *COMPILE, "-c", str(pair[0])), missing))
        if not library.exists():
            library.parent.mkdir(exist_ok=True)
            _make(library, *map(str, objects), *LINK)
        _forget(cached, {*objects, library.parent})


def _make(target: Path, *arguments: str) -> None:
    try:
        print(native_compiler.make(target, *arguments), file=sys.stderr, end="")
    except KernelError as error:
        raise BuildError(str(error)) from None


def _forget(cached: Path, kept: set[Path]) -> None:
    """Drops what has not been used for a long while: the newest sixty-four entries stay."""
    others = [path for path in cached.iterdir() if path not in kept and path.suffix != ".lock"]
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[64:]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(cached: Path) -> Iterator[None]:
    with open(cached / "build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _key(unit: Path) -> str:
    return _digest(_machine(), *COMPILE, *(text for name, text in sorted(_closure(unit).items())))


def _closure(unit: Path) -> dict[str, str]:
    """The unit and every header of ours that it includes, by name."""
    seen: dict[str, str] = {}
    waiting = [unit.name]
    while waiting:
        name = waiting.pop()
        path = unit.parent / name
        if name in seen or not path.exists():
            continue
        seen[name] = path.read_text()
        waiting += re.findall(r'^\s*#\s*include\s*"([^"]+)"', seen[name], re.MULTILINE)
    return seen


@cache
def _machine() -> str:
    # -march=native makes the objects this processor's own.
    version = subprocess.run([*compiler(), "--version"], capture_output=True, text=True).stdout
    info = Path("/proc/cpuinfo")
    flags = re.search(r"^(?:flags|Features)\s*:.*$", info.read_text(), re.MULTILINE) if info.exists() else None
    return "\n".join([*compiler(), version, platform.machine(), flags.group() if flags else platform.processor()])


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


if __name__ == "__main__":
    try:
        print(build())
    except BuildError as error:
        sys.exit(str(error))
