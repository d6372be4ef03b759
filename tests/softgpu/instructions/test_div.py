"""div and rem: truncating integer division, and the float divisions that round exactly.

An integer divided by zero gives what the manual leaves unspecified: nothing here asserts it. INT_MIN / -1 wraps.
"""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers
from tests.softgpu.instructions.exact import F32, F64, MODES

pytestmark = pytest.mark.usefixtures("soft")


def quotient(x, y):
    size = abs(x) // abs(y)
    return size if (x < 0) == (y < 0) else -size


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("operation", ["div", "rem"])
def test_integers_truncate(operation, kind):
    dtype = integers.DTYPES[kind]
    a, b = integers.tuples(dtype, 2, 500, seed=1)
    a, b = a[b != 0], b[b != 0]
    got = ptx.each(f"{operation}.{kind} {{d}}, {{a}}, {{b}};", a, b, result=dtype)

    def reference(x, y):
        return integers.wrap(quotient(x, y) if operation == "div" else x - quotient(x, y) * y, dtype)

    exact.check(got, exact.apply(reference, a, b, dtype=dtype), a, b)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", [F32, F64], ids=["f32", "f64"])
def test_floats_round(mode, form):
    a, b = exact.tuples(form, 2, 400, seed=2)
    got = ptx.each(f"div.{mode}.f{form.width} {{d}}, {{a}}, {{b}};", a, b, result=form.dtype)

    def reference(x, y):
        return exact.encode(exact.divide(exact.decode(x, form), exact.decode(y, form)), form, mode)

    expected = exact.apply(reference, a, b, dtype=form.dtype)
    exact.check_any_nan(got, expected, form, a, b)


def test_ftz_flushes_sources_and_results():
    a, b = exact.tuples(F32, 2, 400, seed=3)
    got = ptx.each("div.rn.ftz.f32 {d}, {a}, {b};", a, b, result=np.uint32)

    def reference(x, y):
        return exact.encode(
            exact.divide(exact.decode(x, F32, ftz=True), exact.decode(y, F32, ftz=True)), F32, ftz=True
        )

    exact.check_any_nan(got, exact.apply(reference, a, b, dtype=np.uint32), F32, a, b)


@pytest.mark.parametrize("form", ["full", "approx"])
def test_approximate_division_stays_within_two_ulp(soft, form):
    """2 ulp: for .approx with |b| in [2^-126, 2^126], for .full over the full range (here of normal quotients)."""
    generator = np.random.default_rng(4)
    exponents = generator.integers(-60, 61, (2, 2000))
    a, b = np.ldexp(generator.uniform(1, 2, (2, 2000)) * generator.choice([-1, 1], (2, 2000)), exponents)
    a, b = a.astype(np.float32), b.astype(np.float32)
    true = a.astype(np.float64) / b.astype(np.float64)
    ulp = np.spacing(np.abs(true).astype(np.float32)).astype(np.float64)
    seen = []
    for seed in range(4):
        soft.reset(seed=seed)
        seen.append(ptx.each(f"div.{form}.f32 {{d}}, {{a}}, {{b}};", a, b, result=np.float32))
        assert np.all(np.abs(seen[-1] - true) <= 2.0 * ulp)
    assert any(np.any(seen[0] != other) for other in seen[1:]), "the seed moves nothing"


def test_approximate_division_at_the_corners():
    """x/inf is 0; for 2^126 < |b| < 2^128 a finite a gives 0 and an infinite one NaN; 0/0 and inf/inf are NaN."""
    a = np.float32([1, -1, 0, np.inf, 1, np.inf, np.inf, np.nan, 1, -3])
    b = np.float32([np.inf, np.inf, 0, np.inf, 2.0**127, 2.0**127, 0, 1, np.nan, 0])
    expected = np.float32([0, -0.0, np.nan, np.nan, 0, np.nan, np.inf, np.nan, np.nan, -np.inf])
    got = ptx.each("div.approx.f32 {d}, {a}, {b};", a, b, result=np.float32)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got)[~np.isnan(got)], np.signbit(expected)[~np.isnan(got)])
