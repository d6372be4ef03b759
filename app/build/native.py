"""`pilotlight build native`: the C++ sources of the CPU device become one library for this machine's architecture.

The library holds code for every processor of the architecture and chooses when it is loaded, so it may be carried to
another machine. It names the sources and options that it was made from, and is made again where they differ or it
does not load.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..command_line import Parser
from ..device.native_library import directory, library_name, load
from ..errors import UnavailableError, UsageError
from ..source import expand
from . import native_compiler

COMPILE = (
    *("-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"),
    *("-ffp-contract=fast", "-fno-math-errno", "-Wall", "-Wextra", "-pthread"),
)
_AVX512 = (
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"),
    "-mprefer-vector-width=512",
)
# What a unit may use beyond the architecture's least; such code is called only where the processor has it.
LEVELS = {
    "x86_64": {
        "level_avx2": ("-mavx2", "-mfma", "-mf16c"),
        "level_avx512": _AVX512,
        "level_avx512_bf16": (*_AVX512, "-mavx512bf16", "-mavx512vnni"),
    }
}
# -z defs: a function that nobody defines is the linker's error here, not the loader's when a server starts. The C++
# runtime comes along, since the machine that serves may have an older one or none.
LINK = ("-shared", "-pthread", "-static-libstdc++", "-static-libgcc", "-Wl,-z,defs", "-Wl,--strip-debug")
_DIGEST_UNIT = 'extern "C" __attribute__((visibility("default"), used)) const char pilotlight_built_from[] = "{}";\n'


def command(argv: list[str]) -> int:
    """Runs `pilotlight build native`. Returns the exit code; raises PilotlightError."""
    options = _parse(argv)
    source = Path(expand(options.source)) if options.source else directory()
    library = Path(expand(options.output) if options.output else source) / library_name()
    made = build_native(source, library)
    if not made and not _loads(library):  # it was cut, say, or comes from a machine with a newer C library
        made = build_native(source, library, anew=True)
    print(f"{library}: {'built' if made else 'up to date'}, {library.stat().st_size / 1e6:.1f} MB")
    return 0


def _loads(library: Path) -> bool:
    try:
        load(library)
    except OSError:
        return False
    return True


def build_native(source: Path, library: Path, extra: Sequence[str] = (), *, anew: bool = False) -> bool:
    """Brings `library` up to date with the *.cpp in `source`; whether there was anything to do.

    `extra` are further options of compiler and linker, such as a sanitizer's. `anew`: even if it is up to date. A
    library that is there stays if anything fails.
    Raises UnavailableError without a compiler, KernelError for what does not compile.
    """
    units = sorted(source.glob("*.cpp"))
    if not units:
        raise UsageError(f"{source}: has no C++ sources (*.cpp)")
    digest = _digest(source, extra)
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with _alone(library.parent):
            if was_built_from(library, digest) and not anew:
                return False
            with tempfile.TemporaryFile(dir=library.parent):  # whether it may be written, before what takes long
                pass
            with (
                native_compiler.saying(f"compiling {source}"),
                tempfile.TemporaryDirectory(prefix="pilotlight-") as scratch,
            ):
                _build(units, library, digest, extra, Path(scratch))
    except OSError as error:
        raise UnavailableError(f"{error.filename or library}: {error.strerror}; {library} is as it was") from error
    return True


def is_current(source: Path, library: Path) -> bool:
    """Whether the library is there and was made from these very sources."""
    return was_built_from(library, _digest(source))


def was_built_from(library: Path, digest: str) -> bool:
    """Whether the library is there and names `digest`, that of its sources and options."""
    return library.is_file() and digest.encode() in library.read_bytes()


def _build(units: Sequence[Path], library: Path, digest: str, extra: Sequence[str], scratch: Path) -> None:
    named = scratch / "built_from.cpp"
    named.write_text(_DIGEST_UNIT.format(digest), encoding="utf-8")
    units = [*units, named]
    objects = [scratch / f"{unit.stem}.o" for unit in units]

    levels = LEVELS.get(platform.machine(), {})

    def compile_unit(unit: Path, target: Path) -> str:
        return native_compiler.make(
            target, *native_compiler.target(), *COMPILE, *levels.get(unit.stem, ()), *extra, "-c", str(unit)
        )

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for warnings in pool.map(compile_unit, units, objects):
            print(warnings, file=sys.stderr, end="")
    native_compiler.make(library, *native_compiler.target(), *map(str, objects), *LINK, *extra)


def _digest(source: Path, extra: Sequence[str] = ()) -> str:
    """sha256 over sources, options and architecture."""
    options = [*COMPILE, *LINK, *extra, repr(LEVELS), platform.machine()]
    digest = hashlib.sha256("\0".join(options).encode())
    for file in sorted(file for file in source.iterdir() if file.suffix in (".cpp", ".h", ".hpp")):
        content = file.read_bytes()
        digest.update(f"\0{file.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """One build at a time in a directory."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # NFS, for one, locks no directory
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        "pilotlight build native",
        "Compile the CPU device's library with this machine's C++ compiler; only where it has changed.",
    )
    parser.add_argument("--source", metavar="DIR", help="the *.cpp (default: those of this installation)")
    parser.add_argument("-o", "--output", metavar="DIR", help="where a server looks for it (default)")
    return parser.parse_args(argv)
