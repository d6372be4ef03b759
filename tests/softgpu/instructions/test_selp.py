"""selp and slct: a choice by a predicate or by a sign, bits untouched."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers
from tests.softgpu.instructions.exact import F32

pytestmark = pytest.mark.usefixtures("soft")


@pytest.mark.parametrize("kind", ["b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64"])
def test_predicate_chooses(kind):
    dtype = integers.DTYPES[f"u{kind[1:]}"]
    a, b = integers.tuples(dtype, 2, 100, seed=1)
    c = np.random.default_rng(2).random(a.size) < 0.5
    got = ptx.each(f"selp.{kind} {{d}}, {{a}}, {{b}}, {{c}};", a, b, c, result=dtype)
    exact.check(got, np.where(c, a, b), a, b)


def test_slct_takes_a_where_c_is_not_negative():
    a, b = integers.tuples(np.uint32, 2, 100, seed=3)
    c = np.resize(np.array(integers.corners(np.int32), np.int32), a.size)
    got = ptx.each("slct.b32.s32 {d}, {a}, {b}, {c};", a, b, c, result=np.uint32)
    exact.check(got, np.where(c >= 0, a, b), a, b)


def test_slct_by_a_float_takes_b_for_nan_and_a_for_minus_zero():
    a, b = integers.tuples(np.uint32, 2, 100, seed=4)
    c = np.resize(np.array(exact.corners(F32), np.uint32), a.size)
    with np.errstate(invalid="ignore"):
        chosen = exact.as_floats(c, F32) >= 0
    exact.check(
        ptx.each("slct.b32.f32 {d}, {a}, {b}, {c};", a, b, c, result=np.uint32), np.where(chosen, a, b), a, b, c
    )
    flushed = chosen | ((c & 0x7F800000) == 0)
    got = ptx.each("slct.ftz.b32.f32 {d}, {a}, {b}, {c};", a, b, c, result=np.uint32)
    exact.check(got, np.where(flushed, a, b), a, b, c)
