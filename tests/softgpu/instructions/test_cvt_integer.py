"""cvt between integers, and between integers and floats: widening, truncation, saturation, rounding."""

import math

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers
from tests.softgpu.instructions.exact import BF16, F16, F32, F64, MODES

pytestmark = pytest.mark.usefixtures("soft")

KINDS = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]
FORMS = {"f16": F16, "f32": F32, "f64": F64, "bf16": BF16}


def dtype_of(kind):
    return np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}")


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_integer_to_integer(target, source):
    """Extends by the source's sign, keeps the low bits where the target is narrower; .sat clamps to its range."""
    a = integers.tuples(dtype_of(source), 2, 60, seed=1)[0]
    # The whole destination register is read back: 8- and 16-bit results are extended in it by their own sign.
    wide = np.dtype(f"{'i' if target[0] == 's' else 'u'}{max(int(target[1:]) // 8, 4)}")
    got = ptx.each(f"cvt.{target}.{source} {{d}}, {{a}};", a, result=wide)
    narrow = dtype_of(target)
    exact.check(got, exact.apply(lambda x: integers.wrap(x, narrow), a, dtype=wide), a)
    ours, theirs = np.iinfo(narrow), np.iinfo(dtype_of(source))
    if ours.min <= theirs.min and ours.max >= theirs.max:
        return  # every value fits: .sat is refused there
    got = ptx.each(f"cvt.sat.{target}.{source} {{d}}, {{a}};", a, result=wide)
    exact.check(got, exact.apply(lambda x: integers.clamp(x, narrow), a, dtype=wide), a)


@pytest.mark.parametrize("source", ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("target", ["f16", "f32", "f64"])
def test_integer_to_float(target, source):
    form = FORMS[target]
    a = integers.tuples(dtype_of(source), 2, 300, seed=2)[0]
    for mode in MODES:
        got = ptx.each(f"cvt.{mode}.{target}.{source} {{d}}, {{a}};", a, result=form.dtype)
        expected = exact.apply(lambda x: exact.encode(exact.Fraction(x), form, mode), a, dtype=form.dtype)  # noqa: B023
        exact.check(got, expected, a)


def integer_of(value, mode, dtype, nan):
    """Rounded, then clamped to the type's range: the default for float to integer."""
    if isinstance(value, float) and math.isnan(value):
        return nan
    limits = np.iinfo(dtype)
    if isinstance(value, float) and math.isinf(value):
        return int(limits.max if value > 0 else limits.min)
    return integers.clamp(exact.to_integer(exact.Fraction(value), mode), dtype)


@pytest.mark.parametrize("target", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
def test_float_to_integer_clamps(source, target):
    form, dtype = FORMS[source], dtype_of(target)
    a = exact.samples(form, 600, seed=3)
    limits = np.iinfo(dtype)
    ends = [int(limits.min), int(limits.max), int(limits.max) // 2]
    near = [exact.encode(exact.Fraction(2 * end + step, 2), form, "rz") for end in ends for step in range(-3, 4)]
    a = np.concatenate([a, np.array(near, form.dtype)])
    a = a[~exact.is_nan(a, form)]
    for mode in MODES:
        got = ptx.each(f"cvt.{mode}i.{target}.{source} {{d}}, {{a}};", a, result=dtype)
        expected = exact.apply(lambda x: integer_of(exact.decode(x, form), mode, dtype, 0), a, dtype=dtype)  # noqa: B023
        exact.check(got, expected, a)


@pytest.mark.parametrize("target", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
def test_nan_to_integer(source, target):
    """Zero, but 2^(width-1) where the source is f64 or the target has 64 bits."""
    form, width = FORMS[source], int(target[1:])
    a = np.array([x for x in exact.corners(form) if exact.decode(x, form) != exact.decode(x, form)], form.dtype)
    got = ptx.each(f"cvt.rni.{target}.{source} {{d}}, {{a}};", a, result=f"u{width // 8}")
    value = 1 << (width - 1) if source == "f64" or width == 64 else 0
    exact.check(got, np.full(a.size, value, f"u{width // 8}"), a)


def test_ftz_reads_subnormals_as_zero():
    a = np.array([1, 0x7FFFFF, 0x80000001, 0x807FFFFF], np.uint32)
    got = ptx.each("cvt.rpi.ftz.s32.f32 {d}, {a};", a, result=np.int32)
    exact.check(got, np.zeros(4, np.int32), a)
    exact.check(ptx.each("cvt.rpi.s32.f32 {d}, {a};", a, result=np.int32), np.int32([1, 1, 0, 0]), a)
