"""The compilers, all from wheels of the kernels extra: NVRTC (CUDA C++ to PTX) and ptxas (PTX to a cubin).

Nothing else knows of their processes, libraries and headers. What they refuse is a KernelError, with the place first.
"""

import hashlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from ..errors import KernelError, UnavailableError
from . import kernel_ptx

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_OPTIONS = ("--gpu-architecture=compute_80", "-lineinfo", "--std=c++17", "-default-device")
_PTXAS_OPTIONS = ("-v", "--suppress-debug-info")
_COMPILERS = {
    "nvrtc": "nvidia-cuda-nvrtc-cu12",
    "headers": "nvidia-cuda-runtime-cu12",
    "ptxas": "nvidia-cuda-nvcc-cu12",
}
NEEDS_EXTRA = "needs the kernels extra: pip install 'pilotlight[kernels]'"
_READERS = {"nvdisasm": "nvidia-cuda-nvdisasm", "cuobjdump": "nvidia-cuda-cuobjdump"}

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.MULTILINE)
_PLACE = re.compile(r"^(\S+)\((\d+)\): ", re.MULTILINE)  # "kernels/norm.cu(12): error: ..."
_USED = re.compile(r"Used (\d+) registers")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_SHARED = re.compile(r"(\d+) bytes smem")
_COMPILING = re.compile(r"Compiling entry function '([^']+)'")


@dataclass(frozen=True, slots=True)
class Usage:
    """What ptxas gave one entry on one architecture. spill_bytes counts stores and loads."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    static_shared_bytes: int


@dataclass(frozen=True, slots=True)
class Cubin:
    image: bytes
    usage: dict[str, Usage]  # by entry


@dataclass(frozen=True, slots=True)
class Sources:
    """A directory of kernels: `<module>.cu` each a module, shared headers in `include/`."""

    directory: Path

    def modules(self) -> list[str]:
        return sorted(file.stem for file in self.directory.glob("*.cu"))

    def digest(self, module: str) -> str:
        """sha256 over the module's source, every header of ours that it names, and the compilers' options."""
        digest = hashlib.sha256("\0".join(_OPTIONS + _PTXAS_OPTIONS).encode())
        for file in sorted(self._closure(self.directory / f"{module}.cu")):
            content = file.read_bytes()
            digest.update(f"\0{file.relative_to(self.directory).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()

    def _closure(self, file: Path) -> set[Path]:
        found = {file}
        waiting = [file]
        while waiting:
            for header in self._included(waiting.pop()):
                if header not in found:
                    found.add(header)
                    waiting.append(header)
        return found

    def _included(self, file: Path) -> Iterator[Path]:
        """Whatever the preprocessor's conditions say: a header too many costs a compilation, one too few a bug."""
        for name in _INCLUDE.findall(file.read_bytes()):
            for directory in (file.parent, self.directory / "include"):
                header = directory / name.decode(errors="replace")
                if header.is_file():
                    yield self.directory / header.resolve().relative_to(self.directory.resolve())
                    break


def compiler_versions() -> dict[str, str]:
    """ "nvrtc", "headers", "ptxas" -> version. Raises UnavailableError where one is not installed."""
    return {name: _wheel(name).version for name in _COMPILERS}


def compile_to_ptx(sources: Sources, module: str) -> str:
    """The module as PTX of the lowest version that holds it, the same text on every machine."""
    text = _nvrtc(sources, module)
    names = {sources.directory.resolve(): "kernels", _headers(): "cuda", Path.cwd() / "kernels": "kernels"}
    text = kernel_ptx.with_relative_names(kernel_ptx.without_call_sites(text), names)
    # For a virtual architecture ptxas reads the text and makes nothing of it; with -v it would crash.
    return kernel_ptx.lowest_version(text, lambda lowered: not _ptxas("compute_80", module, lowered)[1].returncode)


def assemble(architecture: str, module: str, text: str) -> Cubin:
    """The cubin without line numbers: with them it would carry the whole of the PTX, which lies beside it anyway."""
    image, done = _ptxas(architecture, module, text, *_PTXAS_OPTIONS)
    said = done.stdout + done.stderr
    if done.returncode or "ptxas warning" in said:
        fallback = f"left with {done.returncode} {said.strip()}"
        line = next((line for line in said.splitlines() if "error" in line or "warning" in line), fallback)
        at = re.search(r", line (\d+);?", line)
        place = kernel_ptx.source_place(text, int(at[1])) if at else f"kernels/{module}.cu"
        raise KernelError(f"{place}: ptxas for {architecture}: {' '.join(line.split())}")
    return Cubin(image, read_usage(said))


def read_usage(said: str) -> dict[str, Usage]:
    """What `ptxas -v` says of each entry."""
    _, *parts = _COMPILING.split(said)
    usage = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        stack, stores, loads = (int(figure) for figure in _search(_STACK, text).groups())
        shared = _SHARED.search(text)
        usage[name] = Usage(
            int(_search(_USED, text)[1]), stores + loads, stack, static_shared_bytes=int(shared[1]) if shared else 0
        )
    return usage


def _nvrtc(sources: Sources, module: str) -> str:
    """In this process, without the lock of the interpreter."""
    from cuda.bindings import nvrtc

    source = (sources.directory / f"{module}.cu").read_bytes()
    include = [f"-I{sources.directory.resolve() / 'include'}", f"-I{_headers()}"]
    options = [option.encode() for option in (*_OPTIONS, *include)]
    error, program = nvrtc.nvrtcCreateProgram(source, f"kernels/{module}.cu".encode(), 0, [], [])
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise KernelError(f"kernels/{module}.cu: NVRTC makes no program of it ({error.name})")
    try:
        (outcome,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = bytearray(size)
        nvrtc.nvrtcGetProgramLog(program, log)
        said = _PLACE.sub(r"\1:\2: ", log.rstrip(b"\0").decode(errors="replace")).strip()
        if outcome != nvrtc.nvrtcResult.NVRTC_SUCCESS or said:  # a warning too: what is committed gives none
            raise KernelError(said.replace(f"{sources.directory.resolve()}/", "kernels/") or outcome.name)
        _, size = nvrtc.nvrtcGetPTXSize(program)
        text = bytearray(size)
        nvrtc.nvrtcGetPTX(program, text)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    ptx = text.rstrip(b"\0").decode()
    expected = _wheel("nvrtc").version
    if f"V{expected}\n" not in ptx:
        raise UnavailableError(f"NVRTC is not that of {_COMPILERS['nvrtc']} {expected}; is another one before it?")
    return ptx


def _ptxas(
    architecture: str, module: str, text: str, *options: str
) -> tuple[bytes, "subprocess.CompletedProcess[str]"]:
    """The cubin, empty where there is none. Names are relative, so that no path of this machine gets into it."""
    with tempfile.TemporaryDirectory(prefix="pilotlight-") as directory:
        (Path(directory) / f"{module}.ptx").write_text(text, encoding="utf-8")
        done = subprocess.run(
            [program("ptxas"), *options, "-arch", architecture, f"{module}.ptx", "-o", f"{module}.cubin"],
            cwd=directory,
            capture_output=True,
            text=True,
        )
        cubin = Path(directory) / f"{module}.cubin"
        return cubin.read_bytes() if cubin.exists() else b"", done


def _headers() -> Path:
    return Path(str(_wheel("headers").locate_file("nvidia/cuda_runtime/include"))).resolve()


@cache
def program(name: str) -> Path:
    """A tool's executable, in its wheel. Raises UnavailableError where that is not installed."""
    wheel = _wheel(name)
    (file,) = [file for file in wheel.files or () if file.name == name and file.parent.name == "bin"]
    return Path(str(wheel.locate_file(file)))


@cache
def _wheel(name: str) -> Distribution:
    wheel = (_COMPILERS | _READERS)[name]
    try:
        return distribution(wheel)
    except PackageNotFoundError:
        raise UnavailableError(f"{name} {NEEDS_EXTRA} ({wheel} is missing)") from None


def _search(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.search(text)
    if match is None:
        raise KernelError(f"ptxas said nothing like {pattern.pattern!r}: {text.strip()[:200]!r}")
    return match
