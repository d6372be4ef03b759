"""match.sync: which lanes hold the same value, and whether all do."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact

pytestmark = pytest.mark.usefixtures("soft")


def rows_of(dtype):
    generator = np.random.default_rng(1)
    rows = [np.zeros(32), np.arange(32), np.arange(32) % 3, *generator.integers(0, 5, (4, 32)), np.full(32, 77)]
    shift = dtype.itemsize * 8 - 8  # the high bits count too
    return np.array(rows).astype(dtype) << dtype.type(shift)


@pytest.mark.parametrize("width", [32, 64])
def test_any_gives_each_lane_its_peers(width):
    rows = rows_of(np.dtype(f"u{width // 8}"))
    register = "%r10" if width == 32 else "%rd10"
    body = f"""
        {ptx.fetch(register, "%in0", f"b{width}")}
        match.any.sync.b{width} %r11, {register}, 0xffffffff;
        {ptx.put("%out0", "b32", "%r11")}"""
    (got,) = ptx.run(ptx.module(body, inputs=1, outputs=1), [rows], [(rows.shape, np.uint32)], grid=len(rows))
    equal = rows[:, :, None] == rows[:, None, :]
    exact.check(got, (equal.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(2).astype(np.uint32))


@pytest.mark.parametrize("width", [32, 64])
def test_all_gives_the_mask_or_nothing(width):
    rows = rows_of(np.dtype(f"u{width // 8}"))
    register = "%r10" if width == 32 else "%rd10"
    body = f"""
        {ptx.fetch(register, "%in0", f"b{width}")}
        match.all.sync.b{width} %r11|%p1, {register}, 0xffffffff;
        selp.b32 %r12, 1, 0, %p1;
        {ptx.put("%out0", "b32", "%r11")}
        {ptx.put("%out1", "b32", "%r12")}"""
    shape = (rows.shape, np.uint32)
    got, same = ptx.run(ptx.module(body, inputs=1, outputs=2), [rows], [shape, shape], grid=len(rows))
    alike = np.repeat((rows == rows[:, :1]).all(1), 32).reshape(rows.shape)
    exact.check(got, np.where(alike, np.uint32(0xFFFFFFFF), np.uint32(0)))
    exact.check(same, alike.astype(np.uint32))
