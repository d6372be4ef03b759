"""vote.sync and activemask: all, any, uni and ballot over the lanes of the mask."""

import numpy as np
import pytest

from tests.softgpu import ptx

pytestmark = pytest.mark.usefixtures("soft")


def predicates(seed=1):
    generator = np.random.default_rng(seed)
    rows = [np.zeros(32), np.ones(32), np.arange(32) == 9, np.arange(32) != 30, *(generator.random((6, 32)) < 0.5)]
    return np.array(rows, dtype=bool)


def run(line, rows, kind="pred"):
    result = "selp.b32 %r11, 1, 0, %p2;" if kind == "pred" else ""
    body = f"""
        {ptx.fetch("%r10", "%in0", "u32")}
        setp.ne.u32 %p1, %r10, 0;
        {line}
        {result}
        {ptx.put("%out0", "b32", "%r11")}"""
    text = ptx.module(body, inputs=1, outputs=1)
    (got,) = ptx.run(text, [rows.astype(np.uint32)], [(rows.shape, np.uint32)], grid=len(rows))
    return got


@pytest.mark.parametrize("negated", ["", "!"])
def test_whole_warp(negated):
    rows = predicates()
    meant = ~rows if negated else rows
    got = run(f"vote.sync.all.pred %p2, {negated}%p1, 0xffffffff;", rows)
    np.testing.assert_array_equal(got, np.repeat(meant.all(1), 32).reshape(-1, 32))
    got = run(f"vote.sync.any.pred %p2, {negated}%p1, 0xffffffff;", rows)
    np.testing.assert_array_equal(got, np.repeat(meant.any(1), 32).reshape(-1, 32))
    got = run(f"vote.sync.uni.pred %p2, {negated}%p1, 0xffffffff;", rows)
    np.testing.assert_array_equal(got, np.repeat(meant.all(1) | ~meant.any(1), 32).reshape(-1, 32))
    got = run(f"vote.sync.ballot.b32 %r11, {negated}%p1, 0xffffffff;", rows, "b32")
    words = (meant.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1).astype(np.uint32)
    np.testing.assert_array_equal(got, np.repeat(words, 32).reshape(-1, 32))


def test_lanes_outside_the_mask_do_not_count():
    rows = predicates(2)
    line = """
        mov.u32 %r11, 0xdead;
        setp.lt.u32 %p3, %lane, 12;
        @!%p3 bra REST;
        vote.sync.ballot.b32 %r11, %p1, 0xfff;
        activemask.b32 %r12;
        setp.ne.u32 %p4, %r12, 0xfff;
        @%p4 mov.u32 %r11, 0xbad;
        REST:"""
    got = run(line, rows, "b32")
    words = (rows[:, :12].astype(np.uint64) << np.arange(12, dtype=np.uint64)).sum(1).astype(np.uint32)
    expected = np.full((len(rows), 32), 0xDEAD, np.uint32)
    expected[:, :12] = words[:, None]
    np.testing.assert_array_equal(got, expected)
