"""cp.async: sizes, zero-fill, groups; the copy is read after its wait and a barrier."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers

pytestmark = pytest.mark.usefixtures("soft")

SHARED = ".shared .align 16 .b8 cells[8192];"
CG = ("cg.shared.global", "cg.shared.global.L2::128B")


@pytest.mark.parametrize(
    ("form", "width"),
    [*(("ca.shared.global", width) for width in (4, 8, 16)), *((form, 16) for form in CG)],
)
def test_widths(form, width):
    words = width // 4
    a = integers.samples(np.uint32, 64 * words, 1)
    loads = "\n".join(
        f"ld.shared.u32 %r12, [%r22+{4 * i}]; {ptx.put('%out0', 'b32', '%r12', words, offset=i)}"
        for i in range(words)
    )
    body = f"""
        mov.u32 %r2, %tid.x;
        mov.u32 %r20, cells;
        mad.lo.u32 %r21, %r2, {width}, %r20;
        mad.wide.u32 %at, %thread, {width}, %in0;
        cp.async.{form} [%r21], [%at], {width};
        cp.async.wait_all;
        bar.sync 0;
        xor.b32 %r3, %r2, 63;
        mad.lo.u32 %r22, %r3, {width}, %r20;
        {loads}"""
    text = ptx.module(body, inputs=1, outputs=1, before=SHARED)
    (got,) = ptx.run(text, [a], [(a.size, np.uint32)], block=64)
    exact.check(got.reshape(64, words), a.reshape(64, words)[::-1].copy())


def test_bytes_past_the_source_size_become_zero():
    a = integers.samples(np.uint32, 32 * 4, 2) | np.uint32(0x01010101)
    size = np.arange(32, dtype=np.uint32) % 17
    body = f"""
        mov.u32 %r20, cells;
        mad.lo.u32 %r21, %lane, 16, %r20;
        {ptx.fetch("%r10", "%in1", "u32")}
        mad.wide.u32 %at, %thread, 16, %in0;
        cp.async.ca.shared.global [%r21], [%at], 16, %r10;
        cp.async.wait_all;
        ld.shared.v4.u32 {{%r11, %r12, %r13, %r14}}, [%r21];
        mad.wide.u32 %at, %thread, 16, %out0;
        st.global.v4.u32 [%at], {{%r11, %r12, %r13, %r14}};"""
    (got,) = ptx.run(ptx.module(body, inputs=2, outputs=1, before=SHARED), [a, size], [(128, np.uint32)])
    expected = a.view(np.uint8).reshape(32, 16).copy()
    expected[np.arange(16) >= size[:, None]] = 0
    exact.check(got.view(np.uint8).reshape(32, 16), expected)


def test_a_source_of_no_bytes_may_lie_anywhere():
    """The usual guard of a ragged edge: size 0 reads nothing, whatever the address."""
    body = f"""
        mov.u32 %r20, cells;
        mad.lo.u32 %r21, %lane, 16, %r20;
        mov.u32 %r10, 0;
        mov.u64 %rd1, 0;
        cvta.to.global.u64 %rd1, %rd1;
        cp.async.cg.shared.global [%r21], [%rd1], 16, %r10;
        cp.async.wait_all;
        ld.shared.u32 %r11, [%r21+8];
        {ptx.put("%out0", "b32", "%r11")}"""
    (got,) = ptx.run(ptx.module(body, outputs=1, before=SHARED), [], [(32, np.uint32)])
    exact.check(got, np.zeros(32, np.uint32))


def test_groups_arrive_in_order_of_commit():
    """A pipeline of three stages: wait_group 1 leaves the newest in flight and promises all before it."""
    stages = 6
    a = integers.samples(np.uint32, stages * 64, 3)
    lines = ["mov.u32 %r2, %tid.x;", "mov.u32 %r20, cells;", "mad.lo.u32 %r21, %r2, 4, %r20;"]
    lines += ["xor.b32 %r3, %r2, 63;", "mad.lo.u32 %r22, %r3, 4, %r20;"]

    def issue(stage):
        slot = stage % 3 * 256
        index = f"add.u32 %r5, %r2, {64 * stage}; mad.wide.u32 %at, %r5, 4, %in0;"
        return [index, f"cp.async.ca.shared.global [%r21+{slot}], [%at], 4;"] if stage < stages else []

    for stage in range(2):
        lines += [*issue(stage), "cp.async.commit_group;"]
    for stage in range(stages):
        lines += ["cp.async.wait_group 1;", "bar.sync 0;"]
        lines += [f"ld.shared.u32 %r12, [%r22+{stage % 3 * 256}];", f"add.u32 %r5, %r2, {64 * stage};"]
        lines += [ptx.put("%out0", "b32", "%r12", index="%r5"), *issue(stage + 2), "cp.async.commit_group;"]
    lines.append("cp.async.wait_group 0;")
    text = ptx.module("\n".join(lines), inputs=1, outputs=1, before=SHARED)
    (got,) = ptx.run(text, [a], [(a.size, np.uint32)], block=64)
    exact.check(got.reshape(stages, 64), a.reshape(stages, 64)[:, ::-1].copy())
