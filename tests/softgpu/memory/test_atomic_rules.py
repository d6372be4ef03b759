"""Atomics: of floats, which no two runs add in the same order, those of a scope, and counters that end at zero."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.memory import rules


def test_a_counter_left_behind(soft):
    text = rules.module("atom.global.add.u32 %r10, [%in0], 1;", inputs=1)
    with ptx.context():
        counters = int(ptx.call("cuMemAlloc", 8))
        ptx.call("cuMemsetD8", counters, 0, 8)
        soft.expect_zero(counters, 8)
        rules.launch(text.replace("add.u32", "max.u32").replace("], 1;", "], 0;"), [counters], block=1)
        soft.check()
        rules.launch(text, [counters], block=1)
    (found,) = soft.take_findings("counter-not-zero")
    assert "byte 0 of the counters" in found.what
    assert "probe" in found.where


@pytest.mark.parametrize("space", ["global", "shared"])
def test_float_atomics(soft, space):
    at = {"global": "%out0", "shared": "%r20"}[space]
    body = f"st.shared.u32 [%r20], 0;\nbar.sync 0;\nred.{space}.add.f32 [{at}], 0f3F800000;"
    text = rules.module(body, outputs=1)
    found = rules.caught(soft, "float-atomic", text, "add.f32", outputs=[np.zeros(1, np.float32)], block=1)
    assert "lane 0" in found.where
    soft.reset(allow_float_atomics="other,probe")
    ptx.run(text, outputs=[np.zeros(1, np.float32)], block=1)
    soft.reset(allow_float_atomics="probe_2")
    ptx.run(text, outputs=[np.zeros(1, np.float32)], block=1)
    assert soft.take_findings("float-atomic")
    soft.reset()
    ptx.run(text.replace("add.f32", "add.u32").replace("0f3F800000", "1"), outputs=[rules.words(1)], block=1)


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize(
    ("scope", "cells", "right"), [("cta", "%r0", True), ("cta", "%r30", False), ("gpu", "%r30", True)]
)
def test_atomics_see_one_another_in_their_scope(soft, scope, cells, right, order):
    """Each block counts in its own word, or all of them (%r30 is 0) in one."""
    soft.reset(block_order=order)
    text = rules.module(
        f"""mov.u32 %r30, 0;
        mad.wide.u32 %at, {cells}, 4, %out0;
        red.relaxed.{scope}.global.add.u32 [%at], 1;""",
        outputs=1,
    )
    outputs = [np.zeros(3, np.uint32)]
    if right:
        (got,) = ptx.run(text, outputs=outputs, grid=3, block=64)
        assert got.sum() == 192
        return
    found = rules.caught(soft, "global-race", text, "red.relaxed", outputs=outputs, grid=3, block=64)
    assert "write of the byte" in found.what


def test_a_count_of_the_block_is_read_after_a_barrier(soft):
    for barrier in ("bar.sync 0;", ""):
        text = rules.module(
            f"""red.relaxed.cta.global.add.u32 [%out0], 1;
            {barrier}
            ld.global.u32 %r10, [%out0];
            {ptx.put("%out1", "b32", "%r10")}""",
            outputs=2,
        )
        outputs = [np.zeros(1, np.uint32), (64, np.uint32)]
        if barrier:
            assert (ptx.run(text, outputs=outputs, block=64)[1] == 64).all()
        else:
            rules.caught(soft, "global-race", text, "ld.global.u32 %r10", outputs=outputs, block=64)
