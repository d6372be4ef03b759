"""shfl.sync: four modes, sub-warps and clamps, partial masks; lanes out of range keep their own value."""

import itertools

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers

pytestmark = pytest.mark.usefixtures("soft")

WIDTHS = {32: 0x1F, 16: 0x101F, 8: 0x181F, 4: 0x1C1F, 2: 0x1E1F, 1: 0x1F1F}


def source_lane(mode, lane, b, c):
    """The manual's pseudo-code: the lane read, and whether it is in range."""
    bval, cval, mask = b & 31, c & 31, c >> 8 & 31
    highest, lowest = lane & mask | cval & ~mask & 31, lane & mask
    j, inside = {
        "up": (lane - bval, lane - bval >= highest),
        "down": (lane + bval, lane + bval <= highest),
        "bfly": (lane ^ bval, (lane ^ bval) <= highest),
        "idx": (lowest | bval & ~mask & 31, (lowest | bval & ~mask & 31) <= highest),
    }[mode]
    return (j if inside else lane), inside


def expected(mode, values, b, c):
    pairs = [source_lane(mode, lane, int(b[lane]), int(c[lane])) for lane in range(32)]
    return values[[j for j, _ in pairs]], np.array([inside for _, inside in pairs])


def run(mode, values, b, c, b_text="%r11", c_text="%r12"):
    body = f"""
        {ptx.fetch("%r10", "%in0", "b32", index="%lane")}
        {ptx.fetch("%r11", "%in1", "b32")}
        {ptx.fetch("%r12", "%in2", "b32")}
        shfl.sync.{mode}.b32 %r13|%p1, %r10, {b_text}, {c_text}, 0xffffffff;
        selp.b32 %r14, 1, 0, %p1;
        {ptx.put("%out0", "b32", "%r13")}
        {ptx.put("%out1", "b32", "%r14")}"""
    got, inside = ptx.run(
        ptx.module(body, inputs=3, outputs=2), [values, b, c], [(b.size, np.uint32)] * 2, grid=b.size // 32
    )
    return got, inside.astype(bool)


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_every_distance_and_width(mode):
    values = integers.samples(np.uint32, 32, 1)
    cases = list(itertools.product(range(34), WIDTHS))
    clamp = 0xFFFFFFE0 if mode == "up" else 0xFFFFFFFF  # __shfl_up clamps at the segment's first lane
    b = np.repeat(np.array([distance for distance, _ in cases], np.uint32), 32)
    c = np.repeat(np.array([WIDTHS[width] & clamp for _, width in cases], np.uint32), 32)
    got, inside = run(mode, values, b, c)
    for i in range(len(cases)):
        part = slice(32 * i, 32 * i + 32)
        want, want_inside = expected(mode, values, b[part], c[part])
        exact.check(got[part], want, b[part])
        np.testing.assert_array_equal(inside[part], want_inside)


def test_idx_with_an_index_a_lane():
    values = integers.samples(np.uint32, 32, 2)
    b = np.random.default_rng(3).integers(0, 32, 32).astype(np.uint32)
    got, inside = run("idx", values, b, np.full(32, 31, np.uint32))
    exact.check(got, values[b], b)
    assert inside.all()


def test_immediate_operands():
    values = integers.samples(np.uint32, 32, 4)
    unused = np.zeros(32, np.uint32)
    got, _ = run("bfly", values, unused, unused, "16", "31")
    exact.check(got, values[np.arange(32) ^ 16], values)


def test_lanes_of_a_partial_mask_exchange_among_themselves():
    """The low half diverges from the high half; each shuffles under its own mask, clamped to its own lanes."""
    values = integers.samples(np.uint32, 32, 5)
    body = f"""
        {ptx.fetch("%r10", "%in0", "b32")}
        setp.lt.u32 %p1, %lane, 16;
        @%p1 bra LOW;
        shfl.sync.bfly.b32 %r11, %r10, 1, 31, 0xffff0000;
        bra DONE;
        LOW:
        shfl.sync.down.b32 %r11, %r10, 2, 15, 0x0000ffff;
        DONE:
        {ptx.put("%out0", "b32", "%r11")}"""
    (got,) = ptx.run(ptx.module(body, inputs=1, outputs=1), [values], [(32, np.uint32)])
    lanes = np.arange(32)
    low = np.where(lanes + 2 <= 15, lanes + 2, lanes)
    exact.check(got, values[np.where(lanes < 16, low, lanes ^ 1)], values)


def test_destination_may_be_the_source():
    values = integers.samples(np.uint32, 32, 6)
    body = f"""
        {ptx.fetch("%r10", "%in0", "b32")}
        shfl.sync.idx.b32 %r10, %r10, 7, 31, -1;
        {ptx.put("%out0", "b32", "%r10")}"""
    (got,) = ptx.run(ptx.module(body, inputs=1, outputs=1), [values], [(32, np.uint32)])
    exact.check(got, np.full(32, values[7], np.uint32), values)
