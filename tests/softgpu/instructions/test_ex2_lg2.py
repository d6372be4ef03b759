"""ex2 and lg2: within the documented error, jittered by the seed; special values and flushed subnormals."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import approximate, exact
from tests.softgpu.instructions.exact import F16

pytestmark = pytest.mark.usefixtures("soft")


@pytest.mark.parametrize("ftz", ["", ".ftz"])
def test_ex2_is_within_2_to_the_minus_22(soft, ftz):
    generator = np.random.default_rng(1)
    a = np.concatenate([generator.uniform(-125.9, 127.9, 800), generator.uniform(-1, 1, 800)]).astype(np.float32)
    true = np.exp2(a.astype(np.float64))
    approximate.held(soft, f"ex2.approx{ftz}.f32 {{d}}, {{a}};", a, true, true * 2.0**-22)


@pytest.mark.parametrize("ftz", ["", ".ftz"])
def test_ex2_special_values(ftz):
    a = np.float32([-np.inf, -0.0, 0.0, np.inf, np.nan, 128.0, 1000.0, -1000.0, 1e-40, -1e-40])
    expected = np.float32([0, 1, 1, np.inf, np.nan, np.inf, np.inf, 0, 1, 1])
    got = ptx.each(f"ex2.approx{ftz}.f32 {{d}}, {{a}};", a, result=np.float32)
    approximate.same_with_signs(got, expected)


def test_ex2_subnormal_results_stay_or_are_flushed():
    a = np.float32([-126.5, -127.0, -130.0, -140.25, -148.0])
    got = ptx.each("ex2.approx.ftz.f32 {d}, {a};", a, result=np.float32)
    approximate.same_with_signs(got, np.zeros(5, np.float32))
    got = ptx.each("ex2.approx.f32 {d}, {a};", a, result=np.float32)
    np.testing.assert_allclose(got, np.exp2(a.astype(np.float64)), rtol=2.0**-22, atol=2.0**-149)


def test_ex2_of_halves_is_within_2_to_the_minus_9_9(soft):
    generator = np.random.default_rng(2)
    a = generator.uniform(-13.9, 15.9, 800).astype(np.float16)
    true = np.exp2(a.astype(np.float64))
    approximate.held(soft, "ex2.approx.f16 {d}, {a};", a, true, true * 2.0**-9.9, result=np.float16)
    special = np.float16([-np.inf, -0.0, np.inf, np.nan, 2.0**-24])
    got = ptx.each("ex2.approx.f16 {d}, {a};", special, result=np.float16)
    approximate.same_with_signs(got, np.float16([0, 1, np.inf, np.nan, 1]))
    pairs = a.view(np.uint32)
    packed = ptx.each("ex2.approx.f16x2 {d}, {a};", pairs, result=np.uint32).view(np.float16)
    assert np.all(np.abs(packed.astype(np.float64) - true) <= true * 2.0**-9.9)


@pytest.mark.parametrize("ftz", ["", ".ftz"])
def test_lg2_is_within_2_to_the_minus_22(soft, ftz):
    """Absolute in (0.5, 2), relative elsewhere."""
    a = np.concatenate([approximate.spread(800, -126, 128, seed=3), approximate.spread(800, -1, 1, seed=4)])
    true = np.log2(a.astype(np.float64))
    error = np.where((a > 0.5) & (a < 2), 2.0**-22, np.abs(true) * 2.0**-22)
    approximate.held(soft, f"lg2.approx{ftz}.f32 {{d}}, {{a}};", a, true, error)


def test_lg2_special_values():
    a = np.float32([-np.inf, -1, -0.0, 0.0, np.inf, np.nan, 1e-40, -1e-40])
    got = ptx.each("lg2.approx.ftz.f32 {d}, {a};", a, result=np.float32)
    minus = -np.inf
    approximate.same_with_signs(got, np.float32([np.nan, np.nan, minus, minus, np.inf, np.nan, minus, minus]))
    got = ptx.each("lg2.approx.f32 {d}, {a};", a[:-1], result=np.float32)
    expected = np.float32([np.nan, np.nan, minus, minus, np.inf, np.nan, np.log2(np.float64(a[6]))])
    np.testing.assert_allclose(got, expected, rtol=2.0**-22)


def test_nan_is_canonical_in_halves():
    a = np.array([F16.nan, 0xFC01, 0x7C01], np.uint16)
    exact.check(ptx.each("ex2.approx.f16 {d}, {a};", a, result=np.uint16), np.full(3, F16.nan, np.uint16), a)


@pytest.mark.parametrize("operation", ["sin", "cos"])
def test_sine_and_cosine_run_but_are_found(soft, operation):
    """Absolute error 2^-20.5 in [-2 pi, 2 pi]; a kernel has no business with them: its tables come from the host."""
    a = np.random.default_rng(5).uniform(-6.28, 6.28, 256).astype(np.float32)
    got = ptx.each(f"{operation}.approx.f32 {{d}}, {{a}};", a, result=np.float32)
    true = getattr(np, operation)(a.astype(np.float64))
    assert np.all(np.abs(got - true) <= 2.0**-20.5)
    assert soft.take_findings("sin-cos")
