"""ldmatrix and stmatrix: which lane receives which elements of 8x8 matrices, plain and transposed."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers

pytestmark = pytest.mark.usefixtures("soft")

LANES = np.arange(32)


def fragments(matrices, transposed):
    """[matrix, lane]: lane l holds elements (l / 4, 2 (l % 4)) and the next, of the matrix or of its transpose."""
    matrices = matrices.transpose(0, 2, 1) if transposed else matrices
    low, high = (matrices[:, LANES // 4, LANES % 4 * 2 + i].astype(np.uint32) for i in (0, 1))
    return low | high << np.uint32(16)


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count, transposed):
    """Lane 8 i + r points at row r of matrix i; the rows lie scattered, 16 bytes each."""
    matrices = integers.samples(np.uint16, count * 64, 1).reshape(count, 8, 8)
    slots = np.random.default_rng(2).permutation(64)[:32]
    memory = integers.samples(np.uint16, 64 * 8, 3).reshape(64, 8)
    memory[slots[: 8 * count]] = matrices.reshape(8 * count, 8)
    offsets = (slots * 16).astype(np.uint32)
    offsets[8 * count :] = 0  # the other lanes' addresses are ignored
    registers = [f"%r{10 + i}" for i in range(count)]
    stores = "\n".join(ptx.put("%out0", "b32", r, count, offset=i) for i, r in enumerate(registers))
    trans = ".trans" if transposed else ""
    body = f"""
        mov.u32 %r2, buffer;
        mad.lo.u32 %r3, %lane, 32, %r2;
        mad.wide.u32 %at, %lane, 32, %in0;
        ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%at];
        st.shared.v4.u32 [%r3], {{%r4, %r5, %r6, %r7}};
        ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%at+16];
        st.shared.v4.u32 [%r3+16], {{%r4, %r5, %r6, %r7}};
        bar.sync 0;
        {ptx.fetch("%r8", "%in1", "u32")}
        add.u32 %r8, %r8, %r2;
        ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{", ".join(registers)}}}, [%r8];
        {stores}"""
    text = ptx.module(body, inputs=2, outputs=1, before=".shared .align 16 .b8 buffer[1024];")
    (got,) = ptx.run(text, [memory, offsets], [((32, count), np.uint32)])
    exact.check(got, fragments(matrices, transposed).T.copy())


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_is_the_inverse(soft, count, transposed):
    soft.reset(capability=90)
    matrices = integers.samples(np.uint16, count * 64, 4).reshape(count, 8, 8)
    registers = [f"%r{10 + i}" for i in range(count)]
    loads = "\n".join(
        f"mad.wide.u32 %at, %lane, {4 * count}, %in0; ld.global.u32 {r}, [%at+{4 * i}];"
        for i, r in enumerate(registers)
    )
    trans = ".trans" if transposed else ""
    body = f"""
        mov.u32 %r2, buffer;
        {loads}
        and.b32 %r3, %lane, {8 * count - 1};
        mad.lo.u32 %r3, %r3, 16, %r2;
        stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r3], {{{", ".join(registers)}}};
        bar.sync 0;
        setp.ge.u32 %p1, %lane, {8 * count};
        @%p1 exit;
        mad.lo.u32 %r4, %lane, 16, %r2;
        ld.shared.v4.u32 {{%r5, %r6, %r7, %r8}}, [%r4];
        mad.wide.u32 %at, %lane, 16, %out0;
        st.global.v4.u32 [%at], {{%r5, %r6, %r7, %r8}};"""
    text = ptx.module(
        body, inputs=1, outputs=1, before=".shared .align 16 .b8 buffer[512];", version="7.8", target="sm_90"
    )
    source = fragments(matrices, transposed).T.copy()
    (got,) = ptx.run(text, [source], [((count, 8, 8), np.uint16)])
    exact.check(got, matrices)
