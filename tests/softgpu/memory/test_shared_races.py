"""Shared memory: races by lane and byte, what orders lanes and what does not, bytes that nobody wrote."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.memory import rules


def exchange(between: str, partner: str, kind: str = "u32") -> str:
    """Each thread stores its number and loads that of thread `t ^ partner`."""
    width = int(kind[1:]) // 8
    register = "%h1" if kind == "u16" else "%r11"
    convert = "cvt.u16.u32 %h1, %r2;\ncvt.u16.u32 %h0, %r0;" if kind == "u16" else "mov.u32 %r11, %r2;"
    zero = "%h0" if kind == "u16" else "%r0"  # block 0
    widen = "cvt.u32.u16 %r11, %h1;" if kind == "u16" else ""
    return rules.module(
        f"""{convert}
        mad.lo.u32 %r21, %r2, {width}, %r20;
        st.shared.{kind} [%r21], {zero};
        bar.sync 0;
        st.shared.{kind} [%r21], {register};
        {between}
        xor.b32 %r12, %r2, {partner};
        mad.lo.u32 %r22, %r12, {width}, %r20;
        ld.shared.{kind} {register}, [%r22];
        {widen}
        {ptx.put("%out0", "b32", "%r11")}""",
        outputs=1,
    )


HALVES = """setp.lt.u32 %p1, %lane, 16;
        @%p1 bra low;
        bar.warp.sync 0xffff0000;
        bra.uni met;
        low:
        bar.warp.sync 0x0000ffff;
        met:"""
PAIRS = """shr.u32 %r13, %r2, 6;
        add.u32 %r13, %r13, 1;
        bar.sync %r13, 64;"""


@pytest.mark.parametrize("kind", ["u8", "u16", "u32"])
@pytest.mark.parametrize(
    ("between", "block", "partner", "right"),
    [
        ("", 32, 0, True),
        ("", 32, 1, False),
        ("bar.warp.sync 0xffffffff;", 32, 1, True),
        ("bar.sync 0;", 32, 1, True),
        ("shfl.sync.bfly.b32 %r14, %r2, 1, 31, 0xffffffff;", 32, 1, False),
        ("vote.sync.ballot.b32 %r14, 1, 0xffffffff;", 32, 1, False),
        ("redux.sync.add.u32 %r14, %r2, 0xffffffff;", 32, 1, False),
        ("membar.cta;", 32, 1, False),
        (HALVES, 32, 1, True),
        (HALVES, 32, 16, False),
        ("bar.warp.sync 0xffffffff;", 64, 32, False),
        ("bar.sync 0;", 64, 32, True),
        ("bar.sync 0;", 48, 8, True),
        (PAIRS, 128, 32, True),
        (PAIRS, 128, 64, False),
    ],
)
def test_a_lane_reads_what_another_has_written(soft, between, block, partner, right, kind):
    text = exchange(between, str(partner), kind)
    if right:
        (got,) = ptx.run(text, outputs=[(block, np.uint32)], block=block)
        assert (got == (rules.words(block) ^ partner)).all()
        return
    found = rules.caught(soft, "shared-race", text, f"ld.shared.{kind}", outputs=[(block, np.uint32)], block=block)
    assert "written by probe block (0,0,0)" in found.what
    assert f"st.shared.{kind} [%r21], %" in found.what


def test_the_lanes_of_a_race_are_named(soft):
    body = """
        setp.eq.u32 %p1, %r2, 5;
        @%p1 st.shared.u32 [%r20+64], %r2;
        setp.eq.u32 %p1, %r2, 41;
        @%p1 ld.shared.u32 %r10, [%r20+64];"""
    found = rules.caught(soft, "shared-race", rules.module(body), "ld.shared", grid=1, block=64)
    assert "probe block (0,0,0) warp 1 lane 9" in found.where
    assert "shared byte 0x40" in found.what
    assert "probe block (0,0,0) warp 0 lane 5" in found.what


@pytest.mark.parametrize("right", [True, False])
def test_the_second_barrier_of_a_loop(soft, right):
    """Each round writes, meets, reads; without a barrier at its end the next round overwrites what is being read."""
    text = rules.module(
        f"""
        mad.lo.u32 %r21, %r2, 4, %r20;
        xor.b32 %r12, %r2, 32;
        mad.lo.u32 %r22, %r12, 4, %r20;
        mov.u32 %r13, 0;
        mov.u32 %r15, 0;
        round:
        add.u32 %r14, %r2, %r13;
        st.shared.u32 [%r21], %r14;
        bar.sync 0;
        ld.shared.u32 %r16, [%r22];
        add.u32 %r15, %r15, %r16;
        {"bar.sync 0;" if right else ""}
        add.u32 %r13, %r13, 1;
        setp.lt.u32 %p1, %r13, 3;
        @%p1 bra round;
        {ptx.put("%out0", "b32", "%r15")}""",
        outputs=1,
    )
    if right:
        (got,) = ptx.run(text, outputs=[(64, np.uint32)], block=64)
        assert (got == 3 * (rules.words(64) ^ 32) + 3).all()
        return
    found = rules.caught(soft, "shared-race", text, "st.shared", outputs=[(64, np.uint32)], block=64)
    assert "read by probe" in found.what


@pytest.mark.parametrize("right", [True, False])
def test_two_lanes_write_one_after_the_other(soft, right):
    body = f"""
        setp.eq.u32 %p1, %r2, 0;
        @%p1 st.shared.u16 [%r20+2], 7;
        {"bar.warp.sync 0xffffffff;" if right else ""}
        setp.eq.u32 %p1, %r2, 1;
        @%p1 st.shared.u32 [%r20], 9;"""
    if right:
        ptx.run(rules.module(body))
        return
    found = rules.caught(soft, "shared-race", rules.module(body), "st.shared.u32")
    assert "write of shared byte 0x2," in found.what


@pytest.mark.parametrize(("value", "right"), [("%r2", False), ("3", True)])
def test_lanes_of_one_store_meet(soft, value, right):
    text = rules.module(f"st.shared.u32 [%r20], {value};")
    if right:
        ptx.run(text)
    else:
        found = rules.caught(soft, "shared-race", text, "st.shared")
        assert "two lanes of one store write different values" in found.what


def test_many_warps_read_one_word(soft):
    text = rules.module(
        f"""
        setp.eq.u32 %p1, %r2, 0;
        @%p1 st.shared.u32 [%r20], 11;
        bar.sync 0;
        ld.shared.u32 %r10, [%r20];
        bar.sync 0;
        setp.eq.u32 %p1, %r2, 100;
        @%p1 st.shared.u32 [%r20], 12;
        bar.sync 0;
        ld.shared.u32 %r11, [%r20];
        add.u32 %r10, %r10, %r11;
        {ptx.put("%out0", "b32", "%r10")}""",
        outputs=1,
    )
    (got,) = ptx.run(text, outputs=[(128, np.uint32)], block=128)
    assert (got == 23).all()


def test_one_of_many_readers_is_not_waited_for(soft):
    """Warps 0 to 3 read; 0, 1 and 3 meet; 3 writes over what 2 may still read."""
    body = """
        setp.eq.u32 %p1, %r2, 0;
        @%p1 st.shared.u32 [%r20], 11;
        bar.sync 0;
        ld.shared.u32 %r10, [%r20];
        shr.u32 %r11, %r2, 5;
        setp.eq.u32 %p2, %r11, 2;
        @%p2 bra out;
        bar.sync 1, 96;
        setp.eq.u32 %p1, %r2, 96;
        @%p1 st.shared.u32 [%r20], 12;
        out:"""
    found = rules.caught(soft, "shared-race", rules.module(body), "st.shared.u32 [%r20], 12", block=128)
    assert "read by probe block (0,0,0) warp 2" in found.what


def test_threads_that_left_do_not_spoil_later_barriers(soft):
    text = rules.module(
        f"""
        setp.ge.u32 %p1, %r2, 80;
        @%p1 ret;
        mad.lo.u32 %r21, %r2, 4, %r20;
        st.shared.u32 [%r21], %r2;
        barrier.sync 0;
        mov.u32 %r12, 79;
        sub.u32 %r12, %r12, %r2;
        mad.lo.u32 %r22, %r12, 4, %r20;
        ld.shared.u32 %r10, [%r22];
        {ptx.put("%out0", "b32", "%r10")}""",
        outputs=1,
    )
    (got,) = ptx.run(text, outputs=[np.zeros(128, np.uint32)], block=128)
    assert (got[:80] == rules.words(80)[::-1]).all()


def test_bytes_that_nobody_wrote(soft):
    text = rules.module("st.shared.u8 [%r20+5], 1;\nbar.sync 0;\nld.shared.u16 %h1, [%r20+4];")
    found = rules.caught(soft, "shared-uninitialised", text, "ld.shared", block=1)
    assert "shared byte 0x4," in found.what
    soft.reset()
    ptx.run(rules.module("st.shared.u8 [%r20+5], 1;\nld.shared.u8 %h1, [%r20+5];"), block=1)


def test_shared_memory_starts_as_nan(soft):
    text = rules.module(f"ld.shared.u32 %r10, [%r20+8];\n{ptx.put('%out0', 'b32', '%r10')}", outputs=1)
    (got,) = ptx.run(text, outputs=[(2, np.uint32)], grid=2, block=1)
    assert (got == 0xFFFFFFFF).all()
    assert soft.take_findings("shared-uninitialised")


@pytest.mark.parametrize("right", [True, False])
def test_atomics_order_nothing(soft, right):
    """They do not race with one another, and a plain read of their sum needs the barrier."""
    text = rules.module(
        f"""
        setp.eq.u32 %p1, %r2, 0;
        @%p1 st.shared.u32 [%r20], 0;
        bar.sync 0;
        atom.shared.add.u32 %r10, [%r20], %r2;
        {"bar.sync 0;" if right else ""}
        ld.shared.u32 %r11, [%r20];
        {ptx.put("%out0", "b32", "%r11")}""",
        outputs=1,
    )
    if right:
        (got,) = ptx.run(text, outputs=[(64, np.uint32)], block=64)
        assert (got == 63 * 32).all()
        return
    found = rules.caught(soft, "shared-race", text, "ld.shared", outputs=[(64, np.uint32)], block=64)
    assert "atom.shared.add" in found.what


@pytest.mark.parametrize("right", [True, False])
def test_a_counter_that_a_thread_sets_while_others_count(soft, right):
    """The first of them to count is the one that set it: its own atomic must not hide the store from the others."""
    body = f"""
        setp.eq.u32 %p1, %r2, 0;
        @%p1 st.shared.u32 [%r20], 0;
        {"bar.sync 0;" if right else ""}
        red.shared.add.u32 [%r20], 1;"""
    text = rules.module(body)
    if right:
        ptx.run(text, block=64)
        return
    found = rules.caught(soft, "shared-race", text, "red.shared", block=64)
    assert "st.shared" in found.what


def test_an_atomic_on_what_nobody_wrote(soft):
    text = rules.module("atom.shared.add.u32 %r10, [%r20], 1;")
    rules.caught(soft, "shared-uninitialised", text, "atom.shared", block=1)


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_matrix_loads_need_the_warp_to_have_met(soft, right, trans):
    text = rules.module(
        f"""
        mad.lo.u32 %r21, %lane, 16, %r20;
        st.shared.v4.u32 [%r21], {{%r2, %r2, %r2, %r2}};
        {"bar.warp.sync 0xffffffff;" if right else ""}
        ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r21];"""
    )
    if right:
        ptx.run(text)
    else:
        rules.caught(soft, "shared-race", text, "ldmatrix")


@pytest.mark.parametrize("order", ["volatile", "relaxed.cta"])
def test_the_lock_step_sum_of_old(soft, order):
    """Lanes that add up without meeting: volatile orders nothing between them; values by a flag may be relaxed."""
    text = rules.module(
        f"""
        mad.lo.u32 %r21, %r2, 4, %r20;
        st.{order}.shared.u32 [%r21], %r2;
        xor.b32 %r12, %r2, 1;
        mad.lo.u32 %r22, %r12, 4, %r20;
        ld.{order}.shared.u32 %r10, [%r22];"""
    )
    if order == "volatile":
        rules.caught(soft, "shared-race", text, "ld.volatile")
    else:
        ptx.run(text)


@pytest.mark.parametrize("right", [True, False])
def test_matrix_stores_are_seen_after_the_warp_has_met(soft, right):
    soft.reset(capability=90)
    text = rules.module(
        f"""
        and.b32 %r10, %lane, 7;
        mad.lo.u32 %r21, %r10, 16, %r20;
        stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r21], {{%r2}};
        {"bar.warp.sync 0xffffffff;" if right else ""}
        xor.b32 %r11, %lane, 1;
        mad.lo.u32 %r22, %r11, 4, %r20;
        ld.shared.u32 %r12, [%r22];
        {ptx.put("%out0", "b32", "%r12")}""",
        outputs=1,
        version="7.8",
        target="sm_90",
    )
    if right:
        (got,) = ptx.run(text, outputs=[(32, np.uint32)])
        assert (got == rules.words(32) ^ 1).all()
        return
    found = rules.caught(soft, "shared-race", text, "ld.shared", outputs=[(32, np.uint32)])
    assert "stmatrix" in found.what


def test_a_matrix_store_over_what_another_lane_has_read(soft):
    soft.reset(capability=90)
    body = """
        mad.lo.u32 %r21, %lane, 16, %r20;
        st.shared.v4.u32 [%r21], {%r2, %r2, %r2, %r2};
        bar.warp.sync 0xffffffff;
        ld.shared.u32 %r12, [%r20];
        stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r21], {%r2};"""
    text = rules.module(body, version="7.8", target="sm_90")
    found = rules.caught(soft, "shared-race", text, "stmatrix")
    assert "read by probe" in found.what
