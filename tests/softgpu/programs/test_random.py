"""Random programs give on the soft GPU, bit for bit, what the host's compiler makes of the same text."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.build import compiler
from tests.softgpu.programs.compiler import compile_source
from tests.softgpu.programs.generator import WARPS, source

PROGRAMS = 8  # of one text
# -frounding-math: without it g++ 12 makes -0 of 0 - double(0).
HOST = ("-std=c++20", "-O1", "-fwrapv", "-ffp-contract=off", "-frounding-math", "-fno-strict-aliasing", "-fPIC")
HOST += ("-shared", "-x", "c++")


def on_the_host(text: str, directory: Path) -> list[np.ndarray]:
    (directory / "program.cpp").write_text(text)
    target = directory / "program.so"
    subprocess.run([*compiler(), *HOST, str(directory / "program.cpp"), "-o", str(target)], check=True)
    library = ctypes.CDLL(str(target))
    results = [np.zeros(32 * WARPS, np.uint64) for _ in range(PROGRAMS)]
    for n, result in enumerate(results):
        getattr(library, f"program{n}")(ctypes.c_void_p(result.ctypes.data))
    return results


@pytest.mark.parametrize("seed", [1, 2, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 40))])
def test_what_the_host_computes(soft, seed, tmp_path):
    text = source(PROGRAMS, seed)
    expected = on_the_host(text, tmp_path)
    assembly = compile_source(text, "--fmad=false")
    for n in range(PROGRAMS):
        for order in ("forward", "shuffle"):
            soft.reset(seed=seed, warp_order=order)
            (got,) = ptx.run(assembly, outputs=[(32 * WARPS, np.uint64)], entry=f"program{n}", block=32 * WARPS)
            assert np.array_equal(got, expected[n]), f"program{n}, lanes {np.flatnonzero(got != expected[n])}"
