"""min, max, abs and neg: integers, floats with their NaN rules, and the half forms."""

import math

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers
from tests.softgpu.instructions.exact import BF16, F16, F32, F64

pytestmark = pytest.mark.usefixtures("soft")


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("operation", ["min", "max"])
def test_integers(operation, kind):
    dtype = integers.DTYPES[kind]
    a, b = integers.tuples(dtype, 2, 200, seed=1)
    got = ptx.each(f"{operation}.{kind} {{d}}, {{a}}, {{b}};", a, b, result=dtype)
    exact.check(got, {"min": np.minimum, "max": np.maximum}[operation](a, b), a, b)


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
def test_integer_abs_and_neg_wrap_at_the_smallest(kind):
    dtype = integers.DTYPES[kind]
    a = np.concatenate([np.array(integers.corners(dtype), dtype), integers.samples(dtype, 200, 2)])
    got = ptx.each(f"neg.{kind} {{d}}, {{a}};", a, result=dtype)
    exact.check(got, exact.apply(lambda x: integers.wrap(-x, dtype), a, dtype=dtype), a)
    got = ptx.each(f"abs.{kind} {{d}}, {{a}};", a, result=dtype)
    exact.check(got, exact.apply(lambda x: integers.wrap(abs(x), dtype), a, dtype=dtype), a)


def smaller(x, y, form, operation, nan=False, ftz=False, xorsign=False):
    """Bits of min/max: a NaN loses to a number unless .NaN, two give the canonical one; -0 is below +0."""
    a, b = exact.decode(x, form, ftz), exact.decode(y, form, ftz)
    sign = (x ^ y) >> (form.width - 1)
    if xorsign:
        a, b = (-v if exact.is_negative(v) and v != 0 else abs(v) for v in (a, b))
    missing = [v for v in (a, b) if v != v]
    if len(missing) == 2 or (nan and missing):
        return form.nan
    if missing:
        value = a if b != b else b
    else:
        pick = min if operation == "min" else max
        value = pick((a, b), key=lambda v: (v, not exact.is_negative(v)))
    bits = exact.encode(value, form)
    return bits & ~(1 << (form.width - 1)) | sign << (form.width - 1) if xorsign else bits


@pytest.mark.parametrize("operation", ["min", "max"])
@pytest.mark.parametrize("modifiers", ["", ".ftz", ".NaN", ".ftz.NaN"])
def test_f32(operation, modifiers):
    a, b = exact.tuples(F32, 2, 400, seed=3)
    got = ptx.each(f"{operation}{modifiers}.f32 {{d}}, {{a}}, {{b}};", a, b, result=np.uint32)

    def reference(x, y):
        return smaller(x, y, F32, operation, "NaN" in modifiers, "ftz" in modifiers)

    exact.check(got, exact.apply(reference, a, b, dtype=np.uint32), a, b)


@pytest.mark.parametrize("operation", ["min", "max"])
def test_f64(operation):
    a, b = exact.tuples(F64, 2, 200, seed=4)
    got = ptx.each(f"{operation}.f64 {{d}}, {{a}}, {{b}};", a, b, result=np.uint64)
    expected = exact.apply(lambda x, y: smaller(x, y, F64, operation), a, b, dtype=np.uint64)
    exact.check_any_nan(got, expected, F64, a, b)


@pytest.mark.parametrize("operation", ["min", "max"])
@pytest.mark.parametrize("nan", ["", ".NaN"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves(operation, nan, kind):
    form = F16 if kind == "f16" else BF16
    a, b = exact.tuples(form, 2, 400, seed=5)
    got = ptx.each(f"{operation}{nan}.{kind} {{d}}, {{a}}, {{b}};", a, b, result=np.uint16)
    expected = exact.apply(lambda x, y: smaller(x, y, form, operation, bool(nan)), a, b, dtype=np.uint16)
    exact.check(got, expected, a, b)
    pairs = [side[: a.size // 2 * 2].copy().view(np.uint32) for side in (a, b)]
    packed = ptx.each(f"{operation}{nan}.{kind}x2 {{d}}, {{a}}, {{b}};", *pairs, result=np.uint32)
    exact.check(packed.view(np.uint16), expected[: a.size // 2 * 2], a, b)


@pytest.mark.parametrize("operation", ["neg", "abs"])
def test_float_sign_changes_keep_every_other_bit(operation):
    a = exact.samples(F32, 400, 6)
    numbers = a[~exact.is_nan(a, F32)]
    got = ptx.each(f"{operation}.f32 {{d}}, {{a}};", numbers, result=np.uint32)
    sign = np.uint32(0x80000000)
    exact.check(got, numbers ^ sign if operation == "neg" else numbers & ~sign, numbers)
    flushed = np.where((numbers & 0x7F800000) == 0, numbers & sign, numbers)
    got = ptx.each(f"{operation}.ftz.f32 {{d}}, {{a}};", numbers, result=np.uint32)
    exact.check(got, flushed ^ sign if operation == "neg" else flushed & ~sign, numbers)
    nans = a[exact.is_nan(a, F32)]
    assert exact.is_nan(ptx.each(f"{operation}.f32 {{d}}, {{a}};", nans, result=np.uint32), F32).all()


def test_testp_and_copysign():
    a = exact.samples(F32, 300, 7)
    values = [exact.decode(x, F32) for x in a.tolist()]
    normal = F32.smallest_normal
    properties = {
        "finite": lambda v: exact.is_finite(v),
        "infinite": lambda v: isinstance(v, float) and math.isinf(v),
        "number": lambda v: v == v,
        "notanumber": lambda v: v != v,
        "normal": lambda v: exact.is_finite(v) and (v == 0 or abs(v) >= normal),  # zeros count as normal
        "subnormal": lambda v: exact.is_finite(v) and 0 < abs(v) < normal,
    }
    for name, holds in properties.items():
        got = ptx.each(f"testp.{name}.f32 {{d}}, {{a}};", a, result=bool)
        np.testing.assert_array_equal(got, np.array([holds(v) for v in values]), name)
    b = a[::-1].copy()
    got = ptx.each("copysign.f32 {d}, {a}, {b};", a, b, result=np.uint32)
    exact.check(got, a & np.uint32(0x80000000) | b & np.uint32(0x7FFFFFFF), a, b)
