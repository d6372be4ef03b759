"""Takes out of an environment what no running server opens, and shows that its packages still import.

Run by the Dockerfile in the stage of the wheels: `python trim.py /venv`. Each line it prints says what a kind of file
weighed; to find none is an error, so that this list goes with the wheels that it was made for.
"""

import itertools
import shutil
import subprocess
import sys
from pathlib import Path

LIBRARIES = ("cufile", "nvfatbin", "nvjitlink", "nvml", "nvrtc", "nvvm")
BINDINGS = (
    "_bindings/cyruntime", "cyruntime", "runtime",
    *(place + library for library in LIBRARIES for place in ("", "cy", "_internal/")),
)  # fmt: skip
# (what, patterns below site-packages)
UNUSED = (
    ("tests", ("**/tests", "numpy/conftest.py", "numpy/_core/*_tests.*.so", "numpy/_core/_simd.*")),
    ("sources of Cython and C", ("**/*.pyx", "**/*.pxd", "**/*.pxi", "**/*.in", "**/*.h", "**/*.c", "**/*.a")),
    ("types for checkers", ("**/*.pyi",)),
    ("numpy's Fortran and build tools", ("numpy/f2py", "numpy/distutils", "numpy/_pyinstaller")),
    ("a hook in every start of Python, for a deprecated name", ("_cuda_bindings_redirector.p*",)),
    ("bindings of other libraries than the driver", tuple(f"cuda/bindings/{name}*" for name in BINDINGS)),
)
CHECK = """
import cuda.bindings.driver, jinja2.sandbox, msgspec, numpy.linalg, numpy.typing, orjson, safetensors.numpy
import starlette.applications, tokenizers, uvicorn
"""


def main() -> None:
    environment = Path(sys.argv[1])
    (site,) = environment.glob("lib/python3*/site-packages")
    for what, patterns in UNUSED:
        freed = sum(take_out(site, pattern) for pattern in patterns)
        if not freed:
            sys.exit(f"trim: {what}: nothing of it in {site}; the wheels have changed, and so must this list")
        print(f"trim: {what}: {freed / 1e6:.1f} MB")
    for script in (environment / "bin").iterdir():
        if not script.name.startswith("python"):  # activate, f2py, uvicorn and the like
            script.unlink()
    subprocess.run([environment / "bin" / "python", "-B", "-c", CHECK], check=True)


def take_out(site: Path, pattern: str) -> int:
    """The bytes that were freed."""
    freed = 0
    for path in list(site.glob(pattern)):
        if not path.exists():
            continue  # went with a directory above it
        freed += sum(part.lstat().st_size for part in itertools.chain([path], path.rglob("*")) if part.is_file())
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return freed


if __name__ == "__main__":
    main()
