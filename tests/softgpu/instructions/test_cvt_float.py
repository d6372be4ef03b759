"""cvt between float formats of one value: f16, bf16, tf32, f32, f64; rounding to an integer; saturation."""

import math

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact
from tests.softgpu.instructions.exact import BF16, F16, F32, F64, MODES, TF32

pytestmark = pytest.mark.usefixtures("soft")

FORMS = {"f16": F16, "f32": F32, "f64": F64, "bf16": BF16}


def near(target, source, seed):
    """Sources around the target's ties, its largest and its subnormals."""
    generator = np.random.default_rng(seed)
    points = exact.samples(source, 600, seed)
    targets = [exact.decode(x, target) for x in exact.samples(target, 300, seed + 1).tolist()]
    half = exact.power(-target.fraction_bits - 1)
    moved = []
    for value in targets:
        if exact.is_finite(value):
            step = exact.Fraction(int(generator.integers(-2, 3))) * half * abs(exact.Fraction(value))
            moved.append(exact.encode(exact.Fraction(value) + step, source, "rz"))
    largest = exact.decode(target.largest, target)
    ulp = largest - exact.decode(target.largest - (1 << target.padding), target)
    edge = [largest + ulp / 4 * i for i in range(-1, 4)]
    tiny = exact.decode(1 << target.padding, target)
    edge += [tiny / 4 * i for i in range(1, 8)]
    moved += [exact.encode(sign * value, source, "rz") for value in edge for sign in (1, -1)]
    return np.concatenate([points, np.array(moved, source.dtype)])


@pytest.mark.parametrize(("target", "source"), [("f16", "f32"), ("f16", "f64"), ("f32", "f64")])
def test_narrowing_rounds(target, source):
    a = near(FORMS[target], FORMS[source], seed=1)
    for mode in MODES:
        got = ptx.each(f"cvt.{mode}.{target}.{source} {{d}}, {{a}};", a, result=FORMS[target].dtype)
        expected = exact.apply(
            lambda x: exact.encode(exact.decode(x, FORMS[source]), FORMS[target], mode),  # noqa: B023
            a,
            dtype=FORMS[target].dtype,
        )
        exact.check_any_nan(got, expected, FORMS[target], a)


@pytest.mark.parametrize(("target", "source"), [("f32", "f16"), ("f64", "f16"), ("f64", "f32"), ("f32", "bf16")])
def test_widening_is_exact(target, source):
    a = exact.samples(FORMS[source], 600, seed=2)
    got = ptx.each(f"cvt.{target}.{source} {{d}}, {{a}};", a, result=FORMS[target].dtype)
    expected = exact.apply(
        lambda x: exact.encode(exact.decode(x, FORMS[source]), FORMS[target]), a, dtype=FORMS[target].dtype
    )
    exact.check_any_nan(got, expected, FORMS[target], a)


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("target", ["f16", "bf16"])
def test_f32_to_half_with_relu(target, mode, relu):
    form = FORMS[target]
    a = near(form, F32, seed=3)
    got = ptx.each(f"cvt.{mode}{relu}.{target}.f32 {{d}}, {{a}};", a, result=np.uint16)

    def reference(x):
        value = exact.decode(x, F32)
        return exact.encode(exact.relu(value) if relu else value, form, mode)

    exact.check(got, exact.apply(reference, a, dtype=np.uint16), a)


def test_f32_to_tf32_rounds_ties_away():
    a = near(TF32, F32, seed=4)
    a = a[~exact.is_nan(a, F32)]
    got = ptx.each("cvt.rna.tf32.f32 {d}, {a};", a, result=np.uint32)
    exact.check(got, exact.apply(lambda x: exact.encode(exact.decode(x, F32), TF32, "rna"), a, dtype=np.uint32), a)


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_rounding_to_an_integral_value(kind):
    """cvt.rni.f32.f32 and the others: the sign of zero stays."""
    form = FORMS[kind]
    a = exact.samples(form, 600, seed=5)
    for mode in MODES:
        got = ptx.each(f"cvt.{mode}i.{kind}.{kind} {{d}}, {{a}};", a, result=form.dtype)

        def reference(x, mode=mode):
            value = exact.decode(x, form)
            if not exact.is_finite(value):
                return exact.encode(value, form)
            whole = exact.to_integer(exact.Fraction(value), mode)
            return exact.encode(exact.Fraction(whole) if whole else exact.zero(exact.is_negative(value)), form)

        exact.check_any_nan(got, exact.apply(reference, a, dtype=form.dtype), form, a)


@pytest.mark.parametrize("target", ["f16", "f32"])
def test_sat_clamps_to_zero_and_one(target):
    form = FORMS[target]
    a = exact.samples(F32, 600, seed=6)
    mode = ".rn" if target == "f16" else ""
    got = ptx.each(f"cvt{mode}.sat.{target}.f32 {{d}}, {{a}};", a, result=form.dtype)

    def reference(x):
        value = exact.decode(x, F32)
        if math.isnan(value) or value <= 0:
            return 0
        return exact.encode(exact.Fraction(1) if value >= 1 else value, form)

    exact.check(got, exact.apply(reference, a, dtype=form.dtype), a)


def test_ftz_flushes_f32_subnormals_on_either_side():
    a = exact.samples(F32, 600, seed=7)
    a[:100] = (a[:100] & 0x807FFFFF) | 0
    got = ptx.each("cvt.ftz.f32.f32 {d}, {a};", a, result=np.uint32)
    expected = exact.apply(lambda x: exact.encode(exact.decode(x, F32, ftz=True), F32), a, dtype=np.uint32)
    exact.check_any_nan(got, expected, F32, a)
    b = near(F32, F64, seed=8)
    got = ptx.each("cvt.rn.ftz.f32.f64 {d}, {a};", b, result=np.uint32)
    expected = exact.apply(lambda x: exact.encode(exact.decode(x, F64), F32, ftz=True), b, dtype=np.uint32)
    exact.check_any_nan(got, expected, F32, b)
