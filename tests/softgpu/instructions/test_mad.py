"""mad (low, high, wide, saturating, with carries), sad, dp2a and dp4a."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers

pytestmark = pytest.mark.usefixtures("soft")


@pytest.mark.parametrize("half", ["lo", "hi"])
@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_half_of_the_product_plus_c(half, kind):
    dtype = integers.DTYPES[kind]
    a, b, c = integers.tuples(dtype, 3, 500, seed=1)
    got = ptx.each(f"mad.{half}.{kind} {{d}}, {{a}}, {{b}}, {{c}};", a, b, c, result=dtype)
    shift = dtype.itemsize * 8 if half == "hi" else 0
    expected = exact.apply(lambda x, y, z: integers.wrap((x * y >> shift) + z, dtype), a, b, c, dtype=dtype)
    exact.check(got, expected, a, b, c)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_wide_adds_a_double_word(kind):
    dtype = integers.DTYPES[kind]
    double = np.dtype(f"{dtype.kind}{dtype.itemsize * 2}")
    a, b = integers.tuples(dtype, 2, 500, seed=2)
    c = np.resize(integers.tuples(double, 2, 200, seed=3)[0], a.size)
    got = ptx.each(f"mad.wide.{kind} {{d}}, {{a}}, {{b}}, {{c}};", a, b, c, result=double)
    expected = exact.apply(lambda x, y, z: integers.wrap(x * y + z, double), a, b, c, dtype=double)
    exact.check(got, expected, a, b, c)


def test_hi_sat_clamps_the_sum():
    a, b, c = integers.tuples(np.int32, 3, 500, seed=4)
    got = ptx.each("mad.hi.sat.s32 {d}, {a}, {b}, {c};", a, b, c, result=np.int32)
    expected = exact.apply(lambda x, y, z: integers.clamp((x * y >> 32) + z, np.int32), a, b, c, dtype=np.int32)
    exact.check(got, expected, a, b, c)


def test_carry_chain_multiplies_64_bits():
    """mad.lo.cc / madc.hi: a * b + c for 64-bit c, from words."""
    a, b = integers.tuples(np.uint32, 2, 300, seed=5)
    c = np.resize(integers.samples(np.uint64, 200, 6), a.size)
    lines = """
        mov.b64 {{%r10, %r11}}, {c};
        mad.lo.cc.u32 %r12, {a}, {b}, %r10;
        madc.hi.u32 %r13, {a}, {b}, %r11;
        mov.b64 {d}, {{%r12, %r13}};"""
    got = ptx.each(lines, a, b, c, result=np.uint64)
    expected = exact.apply(lambda x, y, z: (x * y + z) % (1 << 64), a, b, c, dtype=np.uint64)
    exact.check(got, expected, a, b, c)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_sad_adds_the_distance(kind):
    dtype = integers.DTYPES[kind]
    a, b, c = integers.tuples(dtype, 3, 300, seed=7)
    got = ptx.each(f"sad.{kind} {{d}}, {{a}}, {{b}}, {{c}};", a, b, c, result=dtype)
    expected = exact.apply(lambda x, y, z: integers.wrap(z + abs(x - y), dtype), a, b, c, dtype=dtype)
    exact.check(got, expected, a, b, c)


@pytest.mark.parametrize("b_kind", ["u32", "s32"])
@pytest.mark.parametrize("a_kind", ["u32", "s32"])
def test_dp4a_sums_four_byte_products(a_kind, b_kind):
    a, b, c = integers.tuples(np.uint32, 3, 400, seed=8)
    got = ptx.each(f"dp4a.{a_kind}.{b_kind} {{d}}, {{a}}, {{b}}, {{c}};", a, b, c, result=np.uint32)

    def reference(x, y, z):
        left = np.array([x], np.uint32).view(np.int8 if a_kind == "s32" else np.uint8).tolist()
        right = np.array([y], np.uint32).view(np.int8 if b_kind == "s32" else np.uint8).tolist()
        return integers.wrap(z + sum(p * q for p, q in zip(left, right, strict=True)), np.uint32)

    exact.check(got, exact.apply(reference, a, b, c, dtype=np.uint32), a, b, c)


@pytest.mark.parametrize("half", ["lo", "hi"])
@pytest.mark.parametrize("b_kind", ["u32", "s32"])
@pytest.mark.parametrize("a_kind", ["u32", "s32"])
def test_dp2a_multiplies_halves_by_two_bytes(a_kind, b_kind, half):
    a, b, c = integers.tuples(np.uint32, 3, 400, seed=9)
    got = ptx.each(f"dp2a.{half}.{a_kind}.{b_kind} {{d}}, {{a}}, {{b}}, {{c}};", a, b, c, result=np.uint32)

    def reference(x, y, z):
        left = np.array([x], np.uint32).view(np.int16 if a_kind == "s32" else np.uint16).tolist()
        right = np.array([y], np.uint32).view(np.int8 if b_kind == "s32" else np.uint8).tolist()
        right = right[:2] if half == "lo" else right[2:]
        return integers.wrap(z + sum(p * q for p, q in zip(left, right, strict=True)), np.uint32)

    exact.check(got, exact.apply(reference, a, b, c, dtype=np.uint32), a, b, c)
