"""shl, shr and the funnel shift shf: amounts past the width clamp to it, or wrap where .wrap says so."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers

pytestmark = pytest.mark.usefixtures("soft")

AMOUNTS = np.array([0, 1, 2, 7, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 255, 256, 1 << 31, 0xFFFFFFFF], np.uint32)


def sources(dtype, seed):
    values = np.concatenate([np.array(integers.corners(dtype), dtype), integers.samples(dtype, 40, seed)])
    return np.repeat(values, AMOUNTS.size), np.tile(AMOUNTS, values.size)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_left_shift_clamps_at_the_width(width):
    dtype = integers.DTYPES[f"u{width}"]
    a, n = sources(dtype, seed=1)
    got = ptx.each(f"shl.b{width} {{d}}, {{a}}, {{b}};", a, n, result=dtype)
    expected = exact.apply(lambda x, s: integers.wrap(x << min(s, width), dtype), a, n, dtype=dtype)
    exact.check(got, expected, a, n)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_right_shift_fills_with_zero_or_the_sign(kind):
    dtype = integers.DTYPES[kind]
    a, n = sources(dtype, seed=2)
    got = ptx.each(f"shr.{kind} {{d}}, {{a}}, {{b}};", a, n, result=dtype)
    exact.check(got, exact.apply(lambda x, s: x >> min(s, 64), a, n, dtype=dtype), a, n)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_untyped_right_shift_fills_with_zero(width):
    dtype = integers.DTYPES[f"u{width}"]
    a, n = sources(dtype, seed=3)
    got = ptx.each(f"shr.b{width} {{d}}, {{a}}, {{b}};", a, n, result=dtype)
    exact.check(got, exact.apply(lambda x, s: x >> min(s, 64), a, n, dtype=dtype), a, n)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
@pytest.mark.parametrize("direction", ["l", "r"])
def test_funnel_shift(direction, mode):
    """{b, a} is one 64-bit number: .l gives its high word after a left shift, .r its low word after a right shift."""
    low, n = sources(np.uint32, seed=4)
    high = integers.samples(np.uint32, low.size, 5)
    got = ptx.each(f"shf.{direction}.{mode}.b32 {{d}}, {{a}}, {{b}}, {{c}};", low, high, n, result=np.uint32)

    def reference(a, b, c):
        amount = min(c, 32) if mode == "clamp" else c & 31
        both = b << 32 | a
        return (both << amount) >> 32 & 0xFFFFFFFF if direction == "l" else both >> amount & 0xFFFFFFFF

    exact.check(got, exact.apply(reference, low, high, n, dtype=np.uint32), low, high, n)
