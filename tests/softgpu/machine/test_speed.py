"""How fast the machine runs, in processor time, so that what else the host does is not measured.

gemm.ptx comes from gemm.cu beside it, which says how.
"""

import time
from pathlib import Path

import numpy as np
import pytest

from tests.softgpu import ptx

pytestmark = pytest.mark.slow
CORES = 2  # that the figures are stated for


def halves(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def test_a_tensor_core_gemm_reaches_a_gigaflop(soft):
    m, n, k = 256, 256, 1024
    random = np.random.default_rng()
    a = random.standard_normal((m, k), np.float32).view(np.uint32) & 0xFFFF0000
    b = random.standard_normal((n, k), np.float32).view(np.uint32) & 0xFFFF0000
    a, b = a.view(np.float32), b.view(np.float32)
    text = (Path(__file__).parent / "gemm.ptx").read_text()
    best = np.inf
    for _ in range(3):
        start = time.process_time()
        (c,) = ptx.run(
            text,
            [halves(a), halves(b)],
            [((m, n), np.float32)],
            [m, n, k],
            entry="gemm",
            grid=(n // 64, m // 64, 1),
            block=128,
        )
        best = min(best, time.process_time() - start)
    reference = a.astype(np.float64) @ b.astype(np.float64).T
    # fp32 sums of 1,024 products of size 1, truncated 64 or 128 times.
    np.testing.assert_allclose(c, reference, rtol=0, atol=128 * 2.0**-23 * np.abs(reference).max())
    rate = 2 * m * n * k / best * CORES
    print(f"{rate / 1e9:.2f} GFLOP/s on {CORES} cores")
    assert rate >= 1e9


def test_scalar_code(soft):
    rounds = 20000
    body = "fma.rn.f32 %f1, %f1, %f2, %f3;\nadd.u32 %r11, %r11, %r10;\nxor.b32 %r12, %r11, %r10;\n" * 8
    text = ptx.module(
        f"""mov.u32 %r10, 0; mov.u32 %r11, 1;
        mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f3F000000; mov.f32 %f3, 0f3F000000;
        again:
        {body}
        add.u32 %r10, %r10, 1;
        setp.lt.u32 %p1, %r10, {rounds};
        @%p1 bra again;
        add.u32 %r12, %r12, %r11;
        {ptx.put("%out0", "b32", "%r12")}""",
        outputs=1,
    )
    start = time.process_time()
    ptx.run(text, outputs=[(64, np.uint32)], block=64)
    rate = 2 * rounds * 27 / (time.process_time() - start)
    print(f"{rate / 1e6:.0f} million warp instructions/s a core")
    assert rate >= 20e6
