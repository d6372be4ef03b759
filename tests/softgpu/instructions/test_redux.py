"""redux.sync: integer sums, minima, maxima and bitwise reductions over the lanes of the mask."""

import functools
import operator

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers

pytestmark = pytest.mark.usefixtures("soft")

OPERATIONS = {"add": sum, "min": min, "max": max}
BITWISE = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
CASES = [(name, kind) for name in OPERATIONS for kind in ("u32", "s32")] + [(name, "b32") for name in BITWISE]


def reduce(operation, values):
    return OPERATIONS[operation](values) if operation in OPERATIONS else functools.reduce(BITWISE[operation], values)


@pytest.mark.parametrize(("operation", "kind"), CASES)
def test_whole_warp(operation, kind):
    dtype = np.dtype(np.int32 if kind == "s32" else np.uint32)
    rows = integers.samples(dtype, 32 * 20, 1).reshape(20, 32)
    body = f"""
        {ptx.fetch("%r10", "%in0", "b32")}
        redux.sync.{operation}.{kind} %r11, %r10, 0xffffffff;
        {ptx.put("%out0", "b32", "%r11")}"""
    (got,) = ptx.run(ptx.module(body, inputs=1, outputs=1), [rows], [(rows.shape, dtype)], grid=20)
    expected = np.array([integers.wrap(reduce(operation, row), dtype) for row in rows.tolist()], dtype)
    exact.check(got, np.repeat(expected, 32).reshape(20, 32))


@pytest.mark.parametrize(("operation", "kind"), CASES)
def test_each_side_of_a_branch_reduces_its_own_lanes(operation, kind):
    dtype = np.dtype(np.int32 if kind == "s32" else np.uint32)
    values = integers.samples(dtype, 32, 2)
    body = f"""
        {ptx.fetch("%r10", "%in0", "b32")}
        and.b32 %r12, %lane, 3;
        setp.eq.u32 %p1, %r12, 1;
        @%p1 bra ONES;
        redux.sync.{operation}.{kind} %r11, %r10, 0xdddddddd;
        bra DONE;
        ONES:
        redux.sync.{operation}.{kind} %r11, %r10, 0x22222222;
        DONE:
        {ptx.put("%out0", "b32", "%r11")}"""
    (got,) = ptx.run(ptx.module(body, inputs=1, outputs=1), [values], [(32, dtype)])
    ones = np.arange(32) % 4 == 1
    sides = [integers.wrap(reduce(operation, values[side].tolist()), dtype) for side in (ones, ~ones)]
    exact.check(got, np.where(ones, *np.array(sides, dtype)).astype(dtype), values)
