"""bar and barrier: what is written before one is read after it, by all threads or by as many as are named."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers

pytestmark = pytest.mark.usefixtures("soft")

SHARED = ".shared .align 16 .b8 cells[4096];"
PLACE = """
    mov.u32 %r2, %tid.x;
    mov.u32 %r20, cells;
    mad.lo.u32 %r21, %r2, 4, %r20;"""


@pytest.mark.parametrize(
    "barrier", ["bar.sync 0;", "barrier.sync 3;", "barrier.sync.aligned 15;", "bar.sync 1, 256;", "bar.cta.sync 0;"]
)
def test_writes_before_are_read_after(barrier):
    a = integers.samples(np.uint32, 512, 1)
    body = f"""
        {PLACE}
        {ptx.fetch("%r10", "%in0", "u32")}
        st.shared.u32 [%r21], %r10;
        {barrier}
        sub.u32 %r11, 255, %r2;
        mad.lo.u32 %r22, %r11, 4, %r20;
        ld.shared.u32 %r12, [%r22];
        {ptx.put("%out0", "b32", "%r12")}"""
    version = "7.8" if ".cta" in barrier else "7.4"
    text = ptx.module(body, inputs=1, outputs=1, before=SHARED, version=version)
    (got,) = ptx.run(text, [a], [(512, np.uint32)], grid=2, block=256)
    exact.check(got.reshape(2, 256), a.reshape(2, 256)[:, ::-1].copy())


def test_one_barrier_serves_a_loop():
    """Eight rounds of a neighbour's sum: two barriers each keep readers and writers apart."""
    a = integers.samples(np.uint32, 128, 2)
    body = f"""
        {PLACE}
        {ptx.fetch("%r10", "%in0", "u32")}
        mov.u32 %r15, 0;
        add.u32 %r11, %r2, 1;
        and.b32 %r11, %r11, 127;
        mad.lo.u32 %r22, %r11, 4, %r20;
        AGAIN:
        st.shared.u32 [%r21], %r10;
        bar.sync 0;
        ld.shared.u32 %r12, [%r22];
        add.u32 %r10, %r10, %r12;
        bar.sync 0;
        add.u32 %r15, %r15, 1;
        setp.lt.u32 %p1, %r15, 8;
        @%p1 bra AGAIN;
        {ptx.put("%out0", "b32", "%r10")}"""
    text = ptx.module(body, inputs=1, outputs=1, before=SHARED)
    (got,) = ptx.run(text, [a], [(128, np.uint32)], block=128)
    expected = a.copy()
    for _ in range(8):
        expected = expected + np.roll(expected, -1)
    exact.check(got, expected, a)


def test_some_warps_meet_at_a_counted_barrier():
    """Warps 0 and 2 exchange through barrier 5; warps 1 and 3 never come near it."""
    body = f"""
        {PLACE}
        mov.u32 %r30, 0;
        shr.u32 %r3, %r2, 5;
        and.b32 %r4, %r3, 1;
        setp.ne.u32 %p1, %r4, 0;
        @%p1 bra DONE;
        st.shared.u32 [%r21], %r2;
        barrier.sync 5, 64;
        xor.b32 %r5, %r2, 64;
        mad.lo.u32 %r22, %r5, 4, %r20;
        ld.shared.u32 %r30, [%r22];
        DONE:
        {ptx.put("%out0", "b32", "%r30")}"""
    (got,) = ptx.run(ptx.module(body, outputs=1, before=SHARED), [], [(128, np.uint32)], block=128)
    thread = np.arange(128, dtype=np.uint32)
    exact.check(got, np.where(thread // 32 % 2 == 0, thread ^ 64, 0).astype(np.uint32))


def test_producers_arrive_and_consumers_wait():
    body = f"""
        {PLACE}
        setp.ge.u32 %p1, %r2, 32;
        @%p1 bra CONSUME;
        mul.lo.u32 %r10, %r2, 3;
        st.shared.u32 [%r21], %r10;
        bar.arrive 2, 64;
        bra DONE;
        CONSUME:
        bar.sync 2, 64;
        xor.b32 %r11, %r2, 32;
        mad.lo.u32 %r22, %r11, 4, %r20;
        ld.shared.u32 %r12, [%r22];
        {ptx.put("%out0", "b32", "%r12")}
        DONE:"""
    (got,) = ptx.run(ptx.module(body, outputs=1, before=SHARED), [], [np.zeros(64, np.uint32)], block=64)
    exact.check(got[32:], np.arange(32, dtype=np.uint32) * 3)


@pytest.mark.parametrize("negated", ["", "!"])
def test_reductions_over_the_block(negated):
    generator = np.random.default_rng(3)
    rows = np.array([np.zeros(96), np.ones(96), np.arange(96) == 70, *(generator.random((3, 96)) < 0.5)], bool)
    body = f"""
        {ptx.fetch("%r10", "%in0", "u32")}
        setp.ne.u32 %p1, %r10, 0;
        bar.red.popc.u32 %r11, 0, {negated}%p1;
        bar.red.and.pred %p2, 1, {negated}%p1;
        barrier.red.or.pred %p3, 2, 96, {negated}%p1;
        selp.u32 %r12, 1000, 0, %p2;
        selp.u32 %r13, 10000, 0, %p3;
        add.u32 %r11, %r11, %r12;
        add.u32 %r11, %r11, %r13;
        {ptx.put("%out0", "b32", "%r11")}"""
    text = ptx.module(body, inputs=1, outputs=1)
    (got,) = ptx.run(text, [rows.astype(np.uint32)], [(rows.shape, np.uint32)], grid=len(rows), block=96)
    meant = ~rows if negated else rows
    expected = meant.sum(1) + 1000 * meant.all(1) + 10000 * meant.any(1)
    exact.check(got, np.repeat(expected, 96).reshape(rows.shape).astype(np.uint32))


def test_barrier_number_from_a_register():
    body = f"""
        {PLACE}
        st.shared.u32 [%r21], %r2;
        mov.u32 %r9, 4;
        barrier.sync.aligned %r9;
        ld.shared.u32 %r12, [cells+252];
        {ptx.put("%out0", "b32", "%r12")}"""
    (got,) = ptx.run(ptx.module(body, outputs=1, before=SHARED), [], [(64, np.uint32)], block=64)
    exact.check(got, np.full(64, 63, np.uint32))


def test_exited_warps_are_not_waited_for():
    body = f"""
        {PLACE}
        setp.ge.u32 %p1, %r2, 96;
        @%p1 exit;
        st.shared.u32 [%r21], %r2;
        bar.sync 0;
        ld.shared.u32 %r12, [cells+376];
        {ptx.put("%out0", "b32", "%r12")}"""
    (got,) = ptx.run(ptx.module(body, outputs=1, before=SHARED), [], [np.zeros(128, np.uint32)], block=128)
    exact.check(got, np.repeat(np.array([94, 0], np.uint32), [96, 32]))


def test_warp_sync_orders_shared_memory_within_a_warp():
    a = integers.samples(np.uint32, 64, 4)
    body = f"""
        {PLACE}
        {ptx.fetch("%r10", "%in0", "u32")}
        st.shared.u32 [%r21], %r10;
        bar.warp.sync 0xffffffff;
        xor.b32 %r11, %r2, 31;
        mad.lo.u32 %r22, %r11, 4, %r20;
        ld.shared.u32 %r12, [%r22];
        {ptx.put("%out0", "b32", "%r12")}"""
    (got,) = ptx.run(ptx.module(body, inputs=1, outputs=1, before=SHARED), [a], [(64, np.uint32)], block=64)
    exact.check(got, a.reshape(2, 32)[:, ::-1].ravel().copy(), a)
