"""The tests of the CPU library with a sanitizer compiled into it: `scripts/prove sanitize`.

Apart from the tests because they run in processes of their own: a sanitizer's runtime has to be loaded before Python.
Each is first shown a fault that it must find.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pilotlight.build.native import build_native
from pilotlight.build.native_compiler import compiler
from pilotlight.device.native_library import directory

ROOT = Path(__file__).parents[3]

_SETUP = """
import os, threading
import numpy as np
from pathlib import Path
from pilotlight.device import native_abi as abi
from pilotlight.device.native_library import Library
from tests.device.native.memory import copy
pools = [Library(Path(os.environ["NATIVE_LIBRARY"]), 1) for _ in range(2)]
x, out, factors = (copy(np.ones(shape, np.float32)) for shape in ((1, 64), (2, 64), (64,)))
rows = copy([ROWS], np.int32)
op = abi.op(abi.Norm(rows.ctypes.data, x.ctypes.data, None, factors.ctypes.data, out.ctypes.data, 64, 1e-5))
programs = [pool.program([op]) for pool in pools]
"""
_READS_PAST_THE_END = _SETUP.replace("ROWS", "2") + "programs[0].run()\n"
_WRITES_FROM_TWO_THREADS = _SETUP.replace("ROWS", "1") + (
    "def run(program):\n"
    "    for _ in range(2000):\n"
    "        program.run()\n"
    "threads = [threading.Thread(target=run, args=[program]) for program in programs]\n"
    "[thread.start() for thread in threads]\n"
    "[thread.join() for thread in threads]\n"
)


@dataclass(frozen=True, slots=True)
class Sanitizer:
    options: tuple[str, ...]
    runtimes: tuple[str, ...]  # loaded before everything else
    settings: dict[str, str]
    fault: str  # a script that it must not let pass
    says: str


SANITIZERS = {
    "address": Sanitizer(
        ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g", "-O1"),
        ("libasan.so", "libubsan.so"),
        {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"},  # leaks: Python's own
        _READS_PAST_THE_END,
        "AddressSanitizer: heap-buffer-overflow",
    ),
    "thread": Sanitizer(
        ("-fsanitize=thread", "-g", "-O1"),
        ("libtsan.so",),
        {"TSAN_OPTIONS": "halt_on_error=1"},
        _WRITES_FROM_TWO_THREADS,
        "ThreadSanitizer: data race",
    ),
}


def prove(name: str) -> int:
    """Builds the library with the sanitizer and runs the tests on it. Returns pytest's exit code, or 1."""
    sanitizer = SANITIZERS[name]
    library = ROOT / ".cache" / "native" / name / "libpilotlight_cpu.so"
    build_native(directory(), library, sanitizer.options)
    environ = os.environ | sanitizer.settings
    environ |= {"NATIVE_LIBRARY": str(library), "SANITIZED": name, "LD_PRELOAD": _runtimes(sanitizer)}
    environ |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONMALLOC": "malloc"}  # numpy's threads are not looked at
    fault = subprocess.run(
        [sys.executable, "-c", sanitizer.fault], cwd=ROOT, env=environ, capture_output=True, text=True
    )
    if fault.returncode == 0 or sanitizer.says not in fault.stderr:
        print(f"{name}: a fault is not found; exit code {fault.returncode}\n{fault.stderr}", file=sys.stderr)
        return 1
    pytest = [sys.executable, "-m", "pytest", "tests/device/native", "-o", "timeout=0", "-x"]
    return subprocess.run(pytest, cwd=ROOT, env=environ).returncode


def _runtimes(sanitizer: Sanitizer) -> str:
    """Where the compiler has them. g++ only: clang links its runtimes into programs, and Python is none of its."""
    found = []
    for name in sanitizer.runtimes:
        done = subprocess.run([*compiler(), f"-print-file-name={name}"], capture_output=True, text=True)
        found.append(done.stdout.strip())
    return " ".join(found)
