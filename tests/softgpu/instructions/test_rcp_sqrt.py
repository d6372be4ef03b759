"""rcp, sqrt and rsqrt: rounded exactly, or approximate within the documented error and special values."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import approximate, exact
from tests.softgpu.instructions.exact import F32, F64, MODES

pytestmark = pytest.mark.usefixtures("soft")

SPECIAL = np.float32([-np.inf, -0.0, 0.0, np.inf, np.nan, -1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", [F32, F64], ids=["f32", "f64"])
@pytest.mark.parametrize("operation", ["rcp", "sqrt"])
def test_rounded(operation, form, mode):
    a = exact.samples(form, 1000, seed=1)
    got = ptx.each(f"{operation}.{mode}.f{form.width} {{d}}, {{a}};", a, result=form.dtype)

    def reference(x):
        value = exact.decode(x, form)
        value = exact.divide(exact.Fraction(1), value) if operation == "rcp" else exact.root(value)
        return exact.encode(value, form, mode)

    exact.check_any_nan(got, exact.apply(reference, a, dtype=form.dtype), form, a)


@pytest.mark.parametrize("operation", ["rcp", "sqrt"])
def test_rounded_ftz(operation):
    a = exact.samples(F32, 1000, seed=2)
    a[:200] = (a[:200] & 0x80FFFFFF) | 0x7E000000  # reciprocals around 2^-126
    a[200:300] &= 0x807FFFFF
    got = ptx.each(f"{operation}.rn.ftz.f32 {{d}}, {{a}};", a, result=np.uint32)

    def reference(x):
        value = exact.decode(x, F32, ftz=True)
        value = exact.divide(exact.Fraction(1), value) if operation == "rcp" else exact.root(value)
        return exact.encode(value, F32, ftz=True)

    exact.check_any_nan(got, exact.apply(reference, a, dtype=np.uint32), F32, a)


@pytest.mark.parametrize("ftz", ["", ".ftz"])
def test_rcp_approx_is_within_one_ulp(soft, ftz):
    a = approximate.spread(1500, -126, 125, seed=3) * np.resize(np.float32([1, -1]), 1500)
    true = 1 / a.astype(np.float64)
    approximate.held(soft, f"rcp.approx{ftz}.f32 {{d}}, {{a}};", a, true, approximate.ulp(true))


@pytest.mark.parametrize("ftz", ["", ".ftz"])
def test_sqrt_approx_is_within_2_to_the_minus_23(soft, ftz):
    a = approximate.spread(1500, -126, 128, seed=4)
    true = np.sqrt(a.astype(np.float64))
    approximate.held(soft, f"sqrt.approx{ftz}.f32 {{d}}, {{a}};", a, true, true * 2.0**-23)


@pytest.mark.parametrize("ftz", ["", ".ftz"])
def test_rsqrt_approx_is_within_2_to_the_minus_22_9(soft, ftz):
    a = approximate.spread(1500, -126, 128, seed=5)
    true = 1 / np.sqrt(a.astype(np.float64))
    approximate.held(soft, f"rsqrt.approx{ftz}.f32 {{d}}, {{a}};", a, true, true * 2.0**-22.9)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("rcp", [-0.0, -np.inf, np.inf, 0.0, np.nan]),
        ("sqrt", [np.nan, -0.0, 0.0, np.inf, np.nan, np.nan]),
        ("rsqrt", [np.nan, -np.inf, np.inf, 0.0, np.nan, np.nan]),
    ],
)
def test_special_values(operation, expected):
    source = SPECIAL[: len(expected)]
    got = ptx.each(f"{operation}.approx.ftz.f32 {{d}}, {{a}};", source, result=np.float32)
    approximate.same_with_signs(got, np.float32(expected))


def test_ftz_treats_subnormals_as_zeros_of_their_sign():
    a = np.float32([1e-40, -1e-40, 2.0**-149, -(2.0**-127)])
    got = ptx.each("rcp.approx.ftz.f32 {d}, {a};", a, result=np.float32)
    approximate.same_with_signs(got, np.float32([np.inf, -np.inf, np.inf, -np.inf]))
    got = ptx.each("sqrt.approx.ftz.f32 {d}, {a};", a, result=np.float32)
    approximate.same_with_signs(got, np.float32([0.0, -0.0, 0.0, -0.0]))
    got = ptx.each("rsqrt.approx.ftz.f32 {d}, {a};", a, result=np.float32)
    approximate.same_with_signs(got, np.float32([np.inf, -np.inf, np.inf, -np.inf]))
    big = np.float32([2.0**127, -(2.0**127)])  # reciprocals that are subnormal
    got = ptx.each("rcp.approx.ftz.f32 {d}, {a};", big, result=np.float32)
    approximate.same_with_signs(got, np.float32([0.0, -0.0]))
