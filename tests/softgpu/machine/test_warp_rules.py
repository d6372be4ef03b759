"""Instructions of a whole warp: who must take part, and what a membermask may name."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.memory import rules

LOW_HALF = "setp.lt.u32 %p1, %lane, 16;"
MMA = (
    "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
    "{%f1, %f2, %f3, %f4}, {%r11, %r11}, {%r11}, {%f5, %f5, %f5, %f5};"
)
LDMATRIX = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r12}, [%r20];"
SETUP = """mov.u32 %r11, 0; mov.f32 %f5, 0f00000000; mov.u32 %r12, 0; activemask.b32 %r14;
shr.u32 %r13, %r2, 5;
mad.lo.u32 %r20, %r13, 16, %r20;
st.shared.v4.b32 [%r20], {%r11, %r11, %r11, %r11};
bar.warp.sync %r14;"""
ALIGNED = {
    "mma": MMA,
    "ldmatrix": LDMATRIX,
    "bar.sync": "bar.sync 0;",
    "barrier.sync.aligned": "barrier.sync.aligned 0;",
}


def kernel(body, **shape):
    return rules.module(f"{SETUP}\n{body}\n{ptx.put('%out0', 'b32', '%r12')}", outputs=1, **shape)


@pytest.mark.parametrize("statement", ALIGNED.values(), ids=ALIGNED)
def test_aligned_with_all_lanes(soft, statement):
    ptx.run(kernel(f"{LOW_HALF}\n@%p1 add.u32 %r12, %r12, 1;\n{statement}  // here"), outputs=[(32, np.uint32)])


@pytest.mark.parametrize("statement", ALIGNED.values(), ids=ALIGNED)
def test_aligned_in_a_branch_of_some_lanes(soft, statement):
    text = kernel(f"{LOW_HALF}\n@!%p1 bra skip;\n{statement}  // here\nskip:")
    found = rules.caught(soft, "aligned", text, "// here", (), [(32, np.uint32)], code=719)
    assert "0xffff0000 are elsewhere" in found.what


@pytest.mark.parametrize("statement", ALIGNED.values(), ids=ALIGNED)
def test_aligned_under_a_guard_of_some_lanes(soft, statement):
    text = kernel(f"{LOW_HALF}\n@%p1 {statement}  // here")
    rules.caught(soft, "aligned", text, "// here", (), [(32, np.uint32)], code=719)


@pytest.mark.parametrize("statement", ALIGNED.values(), ids=ALIGNED)
def test_aligned_after_some_lanes_have_exited(soft, statement):
    text = kernel(f"{LOW_HALF}\n@%p1 exit;\n{statement}  // here")
    found = rules.caught(soft, "aligned", text, "// here", (), [(32, np.uint32)], code=719)
    assert "0xffff have exited" in found.what


def test_a_barrier_takes_a_partial_last_warp_and_mma_does_not(soft):
    ptx.run(kernel("bar.sync 0;"), outputs=[(48, np.uint32)], block=48)
    found = rules.caught(
        soft, "aligned", kernel(f"{MMA}  // here"), "// here", (), [(48, np.uint32)], code=719, block=48
    )
    assert "warp 1 " in found.where
    assert "were never started" in found.what


MEMBERS = {
    "shfl": "shfl.sync.idx.b32 %r12, %lane, 0, 31, {mask};",
    "vote": "vote.sync.ballot.b32 %r12, %p1, {mask};",
    "match": "match.any.sync.b32 %r12, %lane, {mask};",
    "redux": "redux.sync.add.u32 %r12, %lane, {mask};",
    "bar.warp": "bar.warp.sync {mask};",
}


def low_half(name, mask):
    """The instruction in a branch that lanes 0 to 15 take."""
    return kernel(f"{LOW_HALF}\n@!%p1 bra skip;\n{MEMBERS[name].format(mask=mask)}  // here\nskip:")


@pytest.mark.parametrize("name", MEMBERS)
def test_a_mask_of_the_lanes_that_are_there(soft, name):
    ptx.run(low_half(name, "0xffff"), outputs=[(32, np.uint32)])


@pytest.mark.parametrize("name", MEMBERS)
def test_a_mask_that_names_lanes_elsewhere(soft, name):
    found = rules.caught(soft, "membermask-inactive", low_half(name, "0xffffffff"), "// here", (), [(32, np.uint32)])
    assert "0xffff0000, which are elsewhere" in found.what
    soft.take_findings("membermask-inactive")


@pytest.mark.parametrize("name", MEMBERS)
def test_a_mask_that_names_lanes_that_have_exited(soft, name):
    text = kernel(f"{LOW_HALF}\n@!%p1 exit;\n{MEMBERS[name].format(mask='0xffffffff')}  // here")
    found = rules.caught(soft, "membermask-inactive", text, "// here", (), [(32, np.uint32)])
    assert "have exited" in found.what


@pytest.mark.parametrize("name", MEMBERS)
def test_a_mask_without_the_lane_itself(soft, name):
    found = rules.caught(soft, "membermask-without-self", low_half(name, "0xfffe"), "// here", (), [(32, np.uint32)])
    assert " lane 0," in found.where
    soft.take_findings("shfl-inactive-source")


@pytest.mark.parametrize("name", ["vote", "match", "redux"])
def test_groups_that_execute_together_stay_apart(soft, name):
    """Two tiles of 16 lanes, each with its own mask, at one instruction."""
    statement = MEMBERS[name].format(mask="%r13")
    if name == "match":
        statement = statement.replace("%lane", "%r11")
    text = kernel(
        f"""{LOW_HALF}
        selp.b32 %r13, 0x0000ffff, 0xffff0000, %p1;
        setp.eq.u32 %p1, %lane, %lane;
        shr.u32 %r14, %lane, 4;
        {statement}"""
    )
    (got,) = ptx.run(text, outputs=[(32, np.uint32)])
    low, high = {"vote": (0xFFFF, 0xFFFF0000), "match": (0xFFFF, 0xFFFF0000), "redux": (120, 376)}[name]
    assert list(got) == [low] * 16 + [high] * 16


def test_lanes_of_one_group_name_different_masks(soft):
    text = kernel(
        """setp.eq.u32 %p1, %lane, 3;
        selp.b32 %r13, 0xffff, 0xffffffff, %p1;
        vote.sync.ballot.b32 %r12, %p1, %r13;  // here"""
    )
    found = rules.caught(soft, "membermask-differs", text, "// here", (), [(32, np.uint32)])
    assert "different membermasks" in found.what


def test_shfl_reads_a_lane_outside_its_mask(soft):
    text = kernel(f"{LOW_HALF}\n@!%p1 bra skip;\nshfl.sync.idx.b32 %r12, %lane, 20, 31, 0xffff;  // here\nskip:")
    found = rules.caught(soft, "shfl-inactive-source", text, "// here", (), [(32, np.uint32)])
    assert "lane 20" in found.what


def test_a_branch_that_is_not_uniform(soft):
    good = kernel("setp.ge.u32 %p1, %lane, 0;\n@%p1 bra.uni skip;\nskip:")
    ptx.run(good, outputs=[(32, np.uint32)])
    text = kernel(f"{LOW_HALF}\n@%p1 bra.uni skip;  // here\nmov.u32 %r12, 1;\nskip:")
    rules.caught(soft, "uniform-branch", text, "// here", (), [(32, np.uint32)], code=719)
