"""cp.async: when its bytes are there, for whom, and what may not happen meanwhile."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.memory import rules

SEEDS = range(4)  # move the moment at which a copy lands

# Thread t copies 16 bytes to its own place, %r21; %r22 is the place of thread t ^ 32.
COPY = """
    mad.lo.u32 %r21, %r2, 16, %r20;
    xor.b32 %r12, %r2, 32;
    mad.lo.u32 %r22, %r12, 16, %r20;
    mad.wide.u32 %at, %thread, 16, %in0;
    mov.u32 %r11, 0;
    st.shared.v4.u32 [%r21], {%r11, %r11, %r11, %r11};
    bar.sync 0;
    cp.async.cg.shared.global [%r21], [%at], 16;
    """


def use(place: str) -> str:
    return f"ld.shared.u32 %r10, [{place}];\n" + ptx.put("%out0", "b32", "%r10")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("between", "place", "right"),
    [
        ("cp.async.wait_all;", "%r21", True),
        ("cp.async.commit_group;\ncp.async.wait_group 0;", "%r21", True),
        ("cp.async.wait_all;\nbar.sync 0;", "%r22", True),
        ("cp.async.commit_group;", "%r21", False),
        ("bar.sync 0;", "%r21", False),
        ("cp.async.commit_group;\ncp.async.wait_group 1;", "%r21", False),
        ("cp.async.wait_group 0;", "%r21", False),  # never committed
        ("cp.async.wait_all;", "%r22", False),
        ("bar.sync 0;\ncp.async.wait_all;", "%r22", False),
        ("cp.async.commit_group;\nbar.sync 0;\ncp.async.wait_all;", "%r22", False),
    ],
)
def test_a_copy_is_read(soft, between, place, right, seed):
    soft.reset(seed=seed)
    text = rules.module(COPY + between + "\n" + use(place) + "cp.async.wait_all;", inputs=1, outputs=1)
    arguments = [rules.words(256)], [(64, np.uint32)]
    if right:
        (got,) = ptx.run(text, *arguments, block=64)
        partner = 32 if place == "%r22" else 0
        assert (got == 4 * (rules.words(64) ^ partner)).all()
        return
    found = rules.caught(soft, "async-unsynchronised", text, "ld.shared", *arguments, block=64)
    assert "cp.async.cg" in found.what
    soft.take_findings("async-overwrites-read")  # by warps that read before others had issued their copies


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("right", [True, False])
def test_a_stage_is_overwritten_while_it_may_be_read(soft, right, seed):
    """A ring of one stage: the barrier after the reads is what allows the next copy."""
    soft.reset(seed=seed)
    body = f"""{COPY}
        cp.async.wait_all;
        bar.sync 0;
        ld.shared.u32 %r10, [%r22];
        {"bar.sync 0;" if right else ""}
        cp.async.ca.shared.global [%r21], [%at+4], 4;
        cp.async.wait_all;"""
    text = rules.module(body, inputs=1)
    if right:
        ptx.run(text, [rules.words(256)], block=64)
        return
    found = rules.caught(soft, "async-overwrites-read", text, "[%at+4], 4", [rules.words(256)], block=64)
    assert "read by probe" in found.what
    soft.take_findings("async-unsynchronised")  # the warp that reads later sees the next copy


def test_a_group_that_is_not_the_last_is_complete(soft):
    body = """
        mad.lo.u32 %r21, %r2, 16, %r20;
        mad.wide.u32 %at, %thread, 16, %in0;
        cp.async.ca.shared.global [%r21], [%at], 8;
        cp.async.commit_group;
        cp.async.ca.shared.global [%r21+8], [%at+8], 8;
        cp.async.commit_group;
        cp.async.wait_group 1;
        ld.shared.u32 %r10, [%r21{offset}];
        cp.async.wait_all;"""
    ptx.run(rules.module(body.format(offset=""), inputs=1), [rules.words(128)])
    soft.check()
    text = rules.module(body.format(offset="+8"), inputs=1)
    rules.caught(soft, "async-unsynchronised", text, "ld.shared", [rules.words(128)])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_into_a_copy(soft, seed):
    soft.reset(seed=seed)
    text = rules.module(COPY + "cp.async.cg.shared.global [%r21], [%at+1024], 16;\ncp.async.wait_all;", inputs=1)
    rules.caught(soft, "async-unsynchronised", text, "[%at+1024]", [rules.words(512)], block=64)


def test_a_write_into_a_copy(soft):
    text = rules.module(COPY + "st.shared.u32 [%r21+4], 1;\ncp.async.wait_all;", inputs=1)
    rules.caught(soft, "async-unsynchronised", text, "st.shared.u32 [%r21+4]", [rules.words(256)], block=64)


@pytest.mark.parametrize("commit", ["", "cp.async.commit_group;"])
def test_a_copy_is_left_pending(soft, commit):
    text = rules.module(COPY + commit, inputs=1)
    found = rules.caught(soft, "async-pending", text, "cp.async.cg", [rules.words(256)], block=64)
    assert "lane 0" in found.where
    soft.reset()
    ptx.run(rules.module(COPY + commit + "cp.async.wait_all;", inputs=1), [rules.words(256)], block=64)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("right", [True, False])
def test_the_source_changes_meanwhile(soft, right, seed):
    soft.reset(seed=seed)
    store = "st.global.u32 [%at+8], 77;"
    body = COPY + (f"cp.async.wait_all;\n{store}" if right else f"{store}\ncp.async.wait_all;")
    text = rules.module(body.replace("%in0", "%out0"), outputs=1)
    if right:
        ptx.run(text, outputs=[rules.words(256)], block=64)
        return
    found = rules.caught(soft, "async-source-changed", text, "cp.async.cg", outputs=[rules.words(256)], block=64)
    assert "16 bytes at 0x" in found.what


def test_a_copy_that_reads_outside(soft):
    text = rules.module(COPY + "cp.async.wait_all;", inputs=1)
    found = rules.caught(soft, "out-of-bounds", text, "cp.async.cg", [rules.words(128)], block=64, code=700)
    assert "warp 1 lane 0" in found.where


def test_a_copy_from_what_another_block_writes(soft):
    body = f"setp.eq.u32 %p0, %r0, 1;\n@%p0 st.global.u32 [%out0], 1;\n{COPY}cp.async.wait_all;"
    text = rules.module(body.replace("%in0", "%out0"), outputs=1)
    rules.caught(soft, "global-race", text, "cp.async.cg", outputs=[rules.words(256)], grid=2)


@pytest.mark.parametrize(("place", "source"), [("%r21+4", "%at"), ("%r21", "%at+8")])
def test_a_misaligned_copy(soft, place, source):
    body = COPY.replace("[%r21], [%at]", f"[{place}], [{source}]") + "cp.async.wait_all;"
    text = rules.module(body, inputs=1)
    rules.caught(soft, "misaligned", text, "cp.async.cg", [rules.words(257)], block=64, code=716)


@pytest.mark.parametrize(("size", "right"), [(16, True), (6, True), (0, True), (17, False)])
def test_a_source_is_no_longer_than_the_copy(soft, size, right):
    body = f"mov.u32 %r13, {size};\n" + COPY.replace(", 16;\n", ", 16, %r13;\n") + "cp.async.wait_all;\n"
    text = rules.module(body + use("%r21+4"), inputs=1, outputs=1)
    arguments = [rules.words(256)], [(64, np.uint32)]
    if not right:
        rules.caught(soft, "async-source-size", text, "cp.async.cg", *arguments, block=64, code=719)
        return
    (got,) = ptx.run(text, *arguments, block=64)
    kept = {16: 0xFFFFFFFF, 6: 0xFFFF, 0: 0}[size]  # of the second word, what the source brings; the rest is zero
    assert (got == ((4 * rules.words(64) + 1) & kept)).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("address", ["0", "-16", "16"])
def test_a_copy_of_nothing_may_name_any_address(soft, seed, address):
    """What lies past the end of a tensor is filled with zeros; its address need not exist."""
    soft.reset(seed=seed)
    nowhere = f"mov.u64 %at, {address};\nmov.u32 %r13, 0;\n"
    body = COPY.replace("cp.async", nowhere + "cp.async").replace(", 16;\n    ", ", 16, %r13;\n")
    text = rules.module(body + "cp.async.commit_group;\ncp.async.wait_all;\n" + use("%r21"), inputs=1, outputs=1)
    (got,) = ptx.run(text, [rules.words(256)], [(64, np.uint32)], block=64)
    assert (got == 0).all()
