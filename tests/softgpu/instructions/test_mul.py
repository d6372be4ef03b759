"""mul: low, high and wide halves of integer products, float products in every rounding."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers
from tests.softgpu.instructions.exact import F16, F32, F64, MODES

pytestmark = pytest.mark.usefixtures("soft")


@pytest.mark.parametrize("half", ["lo", "hi"])
@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_halves_of_the_product(half, kind):
    dtype = integers.DTYPES[kind]
    a, b = integers.tuples(dtype, 2, 500, seed=1)
    got = ptx.each(f"mul.{half}.{kind} {{d}}, {{a}}, {{b}};", a, b, result=dtype)
    shift = dtype.itemsize * 8 if half == "hi" else 0
    exact.check(got, exact.apply(lambda x, y: integers.wrap(x * y >> shift, dtype), a, b, dtype=dtype), a, b)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_wide_keeps_the_whole_product(kind):
    dtype = integers.DTYPES[kind]
    double = np.dtype(f"{dtype.kind}{dtype.itemsize * 2}")
    a, b = integers.tuples(dtype, 2, 500, seed=2)
    got = ptx.each(f"mul.wide.{kind} {{d}}, {{a}}, {{b}};", a, b, result=double)
    exact.check(got, exact.apply(lambda x, y: x * y, a, b, dtype=double), a, b)


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_mul24_uses_the_low_24_bits(kind):
    dtype = integers.DTYPES[kind]
    a, b = integers.tuples(dtype, 2, 500, seed=3)

    def low24(value):
        value &= 0xFFFFFF
        return value - (1 << 24) if kind == "s32" and value >> 23 else value

    high = ptx.each(f"mul24.hi.{kind} {{d}}, {{a}}, {{b}};", a, b, result=dtype)
    exact.check(
        high, exact.apply(lambda x, y: integers.wrap(low24(x) * low24(y) >> 16, dtype), a, b, dtype=dtype), a, b
    )
    low = ptx.each(f"mul24.lo.{kind} {{d}}, {{a}}, {{b}};", a, b, result=dtype)
    exact.check(low, exact.apply(lambda x, y: integers.wrap(low24(x) * low24(y), dtype), a, b, dtype=dtype), a, b)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", [F32, F64], ids=["f32", "f64"])
def test_floats_round(mode, form):
    a, b = exact.tuples(form, 2, 400, seed=4)
    got = ptx.each(f"mul.{mode}.f{form.width} {{d}}, {{a}}, {{b}};", a, b, result=form.dtype)

    def reference(x, y):
        return exact.encode(exact.multiply(exact.decode(x, form), exact.decode(y, form)), form, mode)

    expected = exact.apply(reference, a, b, dtype=form.dtype)
    if form is F64:
        exact.check_any_nan(got, expected, form, a, b)
    else:
        exact.check(got, expected, a, b)


def test_ftz_flushes_sources_and_results():
    a, b = exact.tuples(F32, 2, 400, seed=5)
    small = exact.samples(F32, 400, 6) & np.uint32(0x807FFFFF) | np.uint32(0x1FC00000)  # products near 2^-126
    a, b = np.concatenate([a, small]), np.concatenate([b, small[::-1]])
    got = ptx.each("mul.ftz.f32 {d}, {a}, {b};", a, b, result=np.uint32)

    def reference(x, y):
        return exact.encode(
            exact.multiply(exact.decode(x, F32, ftz=True), exact.decode(y, F32, ftz=True)), F32, ftz=True
        )

    exact.check(got, exact.apply(reference, a, b, dtype=np.uint32), a, b)


def test_sat_clamps_to_zero_and_one():
    a, b = exact.tuples(F32, 2, 400, seed=7)
    got = ptx.each("mul.sat.f32 {d}, {a}, {b};", a, b, result=np.uint32)

    def reference(x, y):
        product = exact.multiply(exact.decode(x, F32), exact.decode(y, F32))
        if product != product or product <= 0:
            return 0
        return 0x3F800000 if product >= 1 else exact.encode(product, F32)

    exact.check(got, exact.apply(reference, a, b, dtype=np.uint32), a, b)


def test_halves_round_to_nearest_even():
    a, b = exact.tuples(F16, 2, 400, seed=8)
    got = ptx.each("mul.rn.f16 {d}, {a}, {b};", a, b, result=np.uint16)

    def reference(x, y):
        return exact.encode(exact.multiply(exact.decode(x, F16), exact.decode(y, F16)), F16)

    expected = exact.apply(reference, a, b, dtype=np.uint16)
    exact.check(got, expected, a, b)
    even = a.size // 2 * 2
    pairs = [array[:even].copy().view(np.uint32) for array in (a, b)]
    packed = ptx.each("mul.rn.f16x2 {d}, {a}, {b};", *pairs, result=np.uint32)
    exact.check(packed.view(np.uint16), expected[:even], a, b)
