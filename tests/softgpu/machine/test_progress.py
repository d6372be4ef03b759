"""Warps and blocks that get nowhere: waiting for one that has not started, or for ever."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.memory import rules

# The last block sets a flag that the first one waits for.
WAIT = """setp.ne.u32 %p1, %r0, 0;
        @%p1 bra setter;
        poll:
        ld.relaxed.gpu.global.u32 %r10, [%in0];  // here
        setp.eq.u32 %p2, %r10, 0;
        @%p2 bra poll;
        bra.uni done;
        setter:
        st.relaxed.gpu.global.u32 [%in0], 1;
        done:"""


def kernel(body):
    return rules.module(f"{body}\nmov.u32 %r12, 7;\n{ptx.put('%out0', 'b32', '%r12')}", inputs=1, outputs=1)


def run(text, grid):
    return ptx.run(text, [np.zeros(1, np.uint32)], [(32 * grid, np.uint32)], grid=grid)


def spins_there(soft, rule, text, grid):
    with pytest.raises(ptx.DriverError) as error:
        run(text, grid)
    assert error.value.code == 702
    (found,) = soft.take_findings(rule)
    assert found.where.startswith("probe block (0,0,0) warp 0")
    return found


@pytest.mark.parametrize("order", ["forward", "shuffle"])
def test_blocks_that_run_together_may_wait_for_each_other(soft, order):
    soft.reset(resident_blocks=3, threads=2, block_order=order)
    (got,) = run(kernel(WAIT), 3)
    assert set(got) == {7}


def test_a_block_waits_for_one_that_has_not_started(soft):
    soft.reset(resident_blocks=1)
    found = spins_there(soft, "co-residency", kernel(WAIT), 2)
    assert "1 blocks have not started" in found.what


def test_the_order_of_blocks_hides_it(soft):
    soft.reset(resident_blocks=1, block_order="reverse")
    run(kernel(WAIT), 2)


def test_all_residents_spin_while_others_wait_to_start(soft):
    soft.reset(resident_blocks=2, threads=2)
    text = kernel(WAIT.replace("setp.ne.u32 %p1, %r0, 0;", "setp.eq.u32 %p1, %r0, 2;"))
    with pytest.raises(ptx.DriverError):
        run(text, 3)
    assert soft.take_findings("co-residency")


def test_a_loop_that_only_polls(soft):
    spins_there(soft, "hang", kernel(WAIT), 1)


def test_a_lock_that_nobody_releases(soft):
    text = kernel(
        """again:
        atom.acquire.gpu.global.cas.b32 %r10, [%in0], 0, 1;
        setp.ne.u32 %p1, %r10, 0;
        @%p1 bra again;"""
    )
    with pytest.raises(ptx.DriverError):
        run(text, 1)  # one lane takes it, the others of its warp spin
    assert soft.take_findings("hang")


def test_a_loop_that_counts_is_not_polling(soft):
    text = kernel("mov.u32 %r10, 0;\nagain:\nadd.u32 %r10, %r10, 1;\nsetp.lt.u32 %p1, %r10, 300000;\n@%p1 bra again;")
    (got,) = run(text, 1)
    assert set(got) == {7}


def test_warps_that_go_from_barrier_to_barrier_are_not_waiting(soft):
    barriers = "bar.sync 0;\n" * 16
    text = kernel(
        f"mov.u32 %r10, 0;\nagain:\n{barriers}add.u32 %r10, %r10, 1;\nsetp.lt.u32 %p1, %r10, 8000;\n@%p1 bra again;"
    )
    (got,) = ptx.run(text, [np.zeros(1, np.uint32)], [(128, np.uint32)], block=128)
    assert set(got) == {7}


def test_a_loop_past_the_limit(soft):
    soft.reset(instruction_limit=10000)
    text = kernel("mov.u32 %r10, 0;\nagain:\nadd.u32 %r10, %r10, 1;\nsetp.ne.u32 %p1, %r10, 0;\n@%p1 bra again;")
    found = spins_there(soft, "hang", text, 1)
    assert "warp instructions" in found.what


def test_a_warp_waits_at_a_barrier_while_another_polls_for_ever(soft):
    text = rules.module(
        f"""shr.u32 %r10, %r2, 5;
        setp.eq.u32 %p1, %r10, 0;
        @%p1 bra met;
        poll:
        ld.volatile.global.u32 %r11, [%in0];
        setp.eq.u32 %p2, %r11, 0;
        @%p2 bra poll;
        met:
        bar.sync 0;
        {ptx.put("%out0", "b32", "%r2")}""",
        inputs=1, outputs=1,
    )  # fmt: skip
    with pytest.raises(ptx.DriverError):
        ptx.run(text, [np.zeros(1, np.uint32)], [(64, np.uint32)], block=64)
    (found,) = soft.take_findings("hang")
    assert " warp 1" in found.where


def test_a_trap(soft):
    text = kernel("setp.eq.u32 %p1, %lane, 5;\n@%p1 trap;  // here")
    with pytest.raises(ptx.DriverError):
        run(text, 1)
    (found,) = soft.take_findings("trap")
    assert " lane 5," in found.where
