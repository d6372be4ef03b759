"""Block barriers: counts, who meets whom, and warps that wait for ever."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.memory import rules


def kernel(body):
    """%p1: the thread is of warp 0."""
    return rules.module(
        f"""shr.u32 %r10, %r2, 5;
        setp.eq.u32 %p1, %r10, 0;
        mov.u32 %r12, 0;
        {body}
        {ptx.put("%out0", "b32", "%r12")}""",
        outputs=1,
    )


def test_a_count_must_be_whole_warps(soft):
    text = kernel("add.u32 %r13, %r12, 48;\nbar.sync 1, %r13;  // here")
    found = rules.caught(soft, "barrier-count", text, "// here", (), [(64, np.uint32)], code=719, block=64)
    assert "48" in found.what


def test_warps_give_one_barrier_different_counts(soft):
    text = kernel("selp.b32 %r13, 64, 96, %p1;\nbar.sync 1, %r13;  // here")
    rules.caught(soft, "barrier-count", text, "// here", (), [(96, np.uint32)], code=719, block=96)


def test_lanes_of_a_warp_name_different_barriers(soft):
    text = kernel("and.b32 %r13, %lane, 1;\nbar.sync %r13;  // here")
    rules.caught(soft, "barrier-operands", text, "// here", (), [(32, np.uint32)], code=719)


def test_two_barriers_cross(soft):
    """Warp 0 waits at 1 and then 2, warp 1 the other way round."""
    text = kernel(
        """@%p1 bra first;
        bar.sync 2, 64;
        bar.sync 1, 64;
        bra.uni met;
        first:
        bar.sync 1, 64;  // here
        bar.sync 2, 64;
        met:"""
    )
    rules.caught(soft, "barrier-deadlock", text, "// here", (), [(64, np.uint32)], code=702, block=64)


def test_a_warp_that_has_exited_is_not_waited_for(soft):
    ptx.run(kernel("@%p1 exit;\nbar.sync 0;"), outputs=[(64, np.uint32)], block=64)


def test_a_count_that_the_block_does_not_have(soft):
    text = kernel("bar.sync 1, 96;  // here")
    rules.caught(soft, "barrier-deadlock", text, "// here", (), [(64, np.uint32)], code=702, block=64)


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffle"])
def test_producer_arrives_and_consumer_waits(soft, order):
    soft.reset(warp_order=order)
    text = kernel(
        """@%p1 bra producer;
        bar.sync 1, 64;
        and.b32 %r13, %r2, 31;
        mad.lo.u32 %r13, %r13, 4, %r20;
        ld.shared.b32 %r12, [%r13];
        bra.uni met;
        producer:
        mad.lo.u32 %r13, %r2, 4, %r20;
        st.shared.b32 [%r13], %r2;
        bar.arrive 1, 64;
        met:"""
    )
    (got,) = ptx.run(text, outputs=[(64, np.uint32)], block=64)
    assert list(got) == [0] * 32 + list(range(32))


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffle"])
def test_what_a_producer_does_after_it_has_arrived_is_not_covered(soft, order):
    soft.reset(warp_order=order)
    text = kernel(
        """@%p1 bra producer;
        bar.sync 1, 64;
        ld.shared.b32 %r12, [%r20];
        bra.uni met;
        producer:
        bar.arrive 1, 64;
        setp.eq.u32 %p2, %r2, 0;
        @%p2 st.shared.b32 [%r20], 7;
        met:"""
    )
    ptx.run(text, outputs=[(64, np.uint32)], block=64)
    assert soft.take_findings("shared-race") or soft.take_findings("shared-uninitialised")
    soft.take_findings("shared-uninitialised")


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_whoever_arrives_without_waiting_learns_nothing(soft, order):
    """Warp 0 only arrives; that warp 1 has written before it met the barrier is no news to it."""
    soft.reset(warp_order=order)
    text = kernel(
        """setp.eq.u32 %p2, %r2, 32;
        @%p2 st.shared.b32 [%r20], 7;
        @%p1 bra passing;
        bar.sync 1, 64;
        bra.uni met;
        passing:
        bar.arrive 1, 64;
        ld.shared.b32 %r12, [%r20];
        met:"""
    )
    ptx.run(text, outputs=[(64, np.uint32)], block=64)
    assert soft.take_findings("shared-race") or soft.take_findings("shared-uninitialised")
    soft.take_findings("shared-uninitialised")


def test_part_of_a_warp_arrives(soft):
    """The others of warp 0 have exited; lanes are known one by one from there on."""
    text = kernel(
        """setp.ge.u32 %p2, %lane, 16;
        and.pred %p2, %p1, %p2;
        @%p2 exit;
        mad.lo.u32 %r13, %r2, 4, %r20;
        @%p1 bra producer;
        barrier.sync 1, 64;
        and.b32 %r14, %r2, 15;
        mad.lo.u32 %r14, %r14, 4, %r20;
        ld.shared.b32 %r12, [%r14];
        bra.uni met;
        producer:
        st.shared.b32 [%r13], %r2;
        barrier.arrive 1, 64;
        met:"""
    )
    (got,) = ptx.run(text, outputs=[np.zeros(64, np.uint32)], block=64)
    assert list(got[32:]) == 2 * list(range(16))


def test_reductions_count_every_thread(soft):
    text = rules.module(
        f"""setp.lt.u32 %p1, %r2, 40;
        setp.lt.u32 %p2, %r2, 96;
        bar.red.popc.u32 %r10, 0, %p1;
        bar.red.and.pred %p3, 0, %p1;
        bar.red.or.pred %p4, 0, !%p2;
        bar.red.and.pred %p5, 0, %p2;
        selp.b32 %r11, 1000, 0, %p3;
        @%p4 add.u32 %r11, %r11, 2000;
        @%p5 add.u32 %r11, %r11, 4000;
        add.u32 %r10, %r10, %r11;
        {ptx.put("%out0", "b32", "%r10")}""",
        outputs=1,
    )
    (got,) = ptx.run(text, outputs=[(96, np.uint32)], block=96)
    assert set(got) == {4040}
