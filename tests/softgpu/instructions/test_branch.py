"""bra, brx, ret and exit: each lane follows its own path, and the lanes meet again behind it."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers

pytestmark = pytest.mark.usefixtures("soft")


def lanes(body, *inputs, version="7.4", before="", target="sm_80"):
    """The body leaves its result in %r20; inputs are in %r10, %r11, ..."""
    loads = "\n".join(ptx.fetch(f"%r{10 + i}", f"%in{i}", "b32") for i in range(len(inputs)))
    text = ptx.module(
        f"{loads}\n{body}\n{ptx.put('%out0', 'b32', '%r20')}",
        inputs=len(inputs), outputs=1, version=version, before=before, target=target,
    )  # fmt: skip
    size = len(inputs[0])
    (got,) = ptx.run(text, inputs, [(size, np.uint32)], grid=size // 32)
    return got


def test_if_and_else_meet_again():
    """A full-mask vote behind the branch needs all 32 lanes back together."""
    a = integers.samples(np.uint32, 256, 1)
    got = lanes(
        """
        and.b32 %r12, %r10, 1;
        setp.eq.u32 %p1, %r12, 0;
        @%p1 bra EVEN;
        mul.lo.u32 %r20, %r10, 3;
        bra.uni JOIN;
        EVEN:
        shr.u32 %r20, %r10, 1;
        JOIN:
        setp.ne.u32 %p2, %r10, %r10;
        vote.sync.all.pred %p3, !%p2, 0xffffffff;
        @!%p3 mov.u32 %r20, 0xbad;""",
        a,
    )
    exact.check(got, np.where(a % 2 == 0, a >> np.uint32(1), a * np.uint32(3)), a)


def test_loops_of_different_length():
    """Collatz: every lane leaves the loop in its own round, and the warp votes afterwards."""
    a = np.arange(1, 257, dtype=np.uint32)
    got = lanes(
        """
        mov.u32 %r20, 0;
        AGAIN:
        setp.eq.u32 %p1, %r10, 1;
        @%p1 bra DONE;
        add.u32 %r20, %r20, 1;
        and.b32 %r12, %r10, 1;
        setp.eq.u32 %p2, %r12, 1;
        @%p2 bra ODD;
        shr.u32 %r10, %r10, 1;
        bra AGAIN;
        ODD:
        mad.lo.u32 %r10, %r10, 3, 1;
        bra AGAIN;
        DONE:
        bar.warp.sync 0xffffffff;""",
        a,
    )

    def steps(n):
        count = 0
        while n != 1:
            n, count = (3 * n + 1 if n % 2 else n // 2), count + 1
        return count

    exact.check(got, exact.apply(steps, a, dtype=np.uint32), a)


def test_nested_loops_with_break_and_continue():
    a, b = (np.random.default_rng(seed).integers(0, 12, 128).astype(np.uint32) for seed in (2, 3))
    got = lanes(
        """
        mov.u32 %r20, 0;
        mov.u32 %r12, 0;
        OUTER:
        setp.ge.u32 %p1, %r12, %r10;
        @%p1 bra END;
        mov.u32 %r13, 0;
        INNER:
        setp.ge.u32 %p2, %r13, %r11;
        @%p2 bra NEXT;
        add.u32 %r13, %r13, 1;
        add.u32 %r14, %r12, %r13;
        rem.u32 %r15, %r14, 3;
        setp.eq.u32 %p3, %r15, 0;
        @%p3 bra INNER;
        setp.gt.u32 %p4, %r14, 15;
        @%p4 bra NEXT;
        mad.lo.u32 %r20, %r20, 7, %r14;
        bra INNER;
        NEXT:
        add.u32 %r12, %r12, 1;
        bra OUTER;
        END:""",
        a,
        b,
    )

    def reference(x, y):
        total = 0
        for i in range(x):
            j = 0
            while j < y:
                j += 1
                if (i + j) % 3 == 0:
                    continue
                if i + j > 15:
                    break
                total = (total * 7 + i + j) % (1 << 32)
        return total

    exact.check(got, exact.apply(reference, a, b, dtype=np.uint32), a, b)


def test_diverged_lanes_see_only_themselves():
    lane = np.arange(32, dtype=np.uint32)
    got = lanes(
        """
        and.b32 %r12, %r10, 3;
        setp.eq.u32 %p1, %r12, 2;
        @%p1 bra TWO;
        activemask.b32 %r20;
        bra JOIN;
        TWO:
        activemask.b32 %r20;
        JOIN:""",
        lane,
    )
    exact.check(got, np.where(lane % 4 == 2, np.uint32(0x44444444), np.uint32(0xBBBBBBBB)))


def test_exit_in_a_branch_leaves_the_others():
    body = f"""
        setp.lt.u32 %p1, %lane, 20;
        @%p1 bra STAY;
        exit;
        STAY:
        vote.sync.ballot.b32 %r20, %p1, 0xfffff;
        {ptx.put("%out0", "b32", "%r20")}"""
    (got,) = ptx.run(ptx.module(body, outputs=1), [], [np.zeros(32, np.uint32)])
    exact.check(got, np.where(np.arange(32) < 20, np.uint32(0xFFFFF), np.uint32(0)))


def test_guarded_ret_ends_the_kernel_for_its_lanes():
    body = f"""
        setp.ge.u32 %p1, %lane, 7;
        @%p1 ret;
        {ptx.put("%out0", "b32", "%lane")}"""
    kept = np.full(32, 99, np.uint32)
    (got,) = ptx.run(ptx.module(body, outputs=1), [], [kept])
    exact.check(got, np.where(np.arange(32) < 7, np.arange(32), 99).astype(np.uint32))


def test_brx_jumps_by_index():
    a = np.random.default_rng(4).integers(0, 4, 128).astype(np.uint32)
    got = lanes(
        """
        mov.u32 %r20, 0;
        TABLE: .branchtargets T0, T1, T2, T3;
        brx.idx %r10, TABLE;
        T0: add.u32 %r20, %r20, 1;
        T1: add.u32 %r20, %r20, 10;
        bra END;
        T2: add.u32 %r20, %r20, 100;
        T3: add.u32 %r20, %r20, 1000;
        END:""",
        a,
    )
    exact.check(got, np.uint32([11, 10, 1100, 1000])[a], a)


def test_brx_past_the_end_of_its_table(soft):
    text = ptx.module("""
        TABLE: .branchtargets T0, T1;
        sub.u32 %r10, %lane, 3;
        max.s32 %r10, %r10, 0;
        brx.idx %r10, TABLE;
        T0: T1:""")
    with pytest.raises(ptx.DriverError) as error:
        ptx.run(text, block=6)
    assert error.value.code == 719
    (found,) = soft.take_findings("branch-index")
    assert " lane 5," in found.where
    assert "index 2 of 2 targets" in found.what
    soft.reset()
    ptx.run(text, block=5)


def test_labels_are_local_to_a_scope():
    a = integers.samples(np.uint32, 64, 5)
    got = lanes(
        """
        {
        .reg .b32 %t;
        setp.gt.u32 %p1, %r10, 100;
        @%p1 bra L;
        add.u32 %t, %r10, 1;
        bra M;
        L: sub.u32 %t, %r10, 1;
        M: mov.u32 %r20, %t;
        }
        {
        .reg .b64 %t;
        cvt.u64.u32 %t, %r20;
        setp.gt.u32 %p1, %r20, 1000;
        @%p1 bra L;
        add.u64 %t, %t, 2;
        L: cvt.u32.u64 %r20, %t;
        }""",
        a,
    )
    first = np.where(a > 100, a - np.uint32(1), a + np.uint32(1)).astype(np.uint32)
    exact.check(got, np.where(first > 1000, first, first + np.uint32(2)), a)


def test_trap_ends_the_launch_with_an_error(soft):
    """Only where a lane gets there: 719, launch failed."""
    body = """
        setp.eq.u32 %p1, %thread, 40;
        @%p1 trap;"""
    ptx.run(ptx.module(body), block=32)
    with pytest.raises(ptx.DriverError) as caught:
        ptx.run(ptx.module(body), block=64)
    assert caught.value.code == 719
    soft.take_findings("trap")
