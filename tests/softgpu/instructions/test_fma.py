"""fma: one rounding; and the un-rounded mul + add pairs that a compiler may turn into it, which .rn forbids."""

import math

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact
from tests.softgpu.instructions.exact import BF16, F16, F32, F64, MODES

pytestmark = pytest.mark.usefixtures("soft")


def fused(form, mode="rn", ftz=False, relu=False):
    def reference(x, y, z):
        value = exact.fma(*(exact.decode(bits, form, ftz) for bits in (x, y, z)), mode)
        return exact.encode(exact.relu(value) if relu else value, form, mode, ftz=ftz)

    return reference


def rounded_product(a, b, form):
    def reference(x, y):
        return exact.encode(exact.multiply(exact.decode(x, form), exact.decode(y, form)), form)

    return exact.apply(reference, a, b, dtype=form.dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", [F32, F64], ids=["f32", "f64"])
def test_one_rounding(form, mode):
    a, b, c = exact.tuples(form, 3, 400, seed=1)
    # Sums that cancel the product: only the product's low half is left.
    product = rounded_product(a, b, form)
    c[::3] = product[::3] ^ form.dtype.type(1 << (form.width - 1))
    got = ptx.each(f"fma.{mode}.f{form.width} {{d}}, {{a}}, {{b}}, {{c}};", a, b, c, result=form.dtype)
    expected = exact.apply(fused(form, mode), a, b, c, dtype=form.dtype)
    if form is F64:
        exact.check_any_nan(got, expected, form, a, b, c)
    else:
        exact.check(got, expected, a, b, c)


def test_ftz_flushes_sources_and_results():
    a, b, c = exact.tuples(F32, 3, 400, seed=2)
    got = ptx.each("fma.rn.ftz.f32 {d}, {a}, {b}, {c};", a, b, c, result=np.uint32)
    exact.check(got, exact.apply(fused(F32, ftz=True), a, b, c, dtype=np.uint32), a, b, c)


def test_sat_clamps_to_zero_and_one():
    a, b, c = exact.tuples(F32, 3, 400, seed=3)
    got = ptx.each("fma.rn.sat.f32 {d}, {a}, {b}, {c};", a, b, c, result=np.uint32)

    def reference(x, y, z):
        value = exact.fma(*(exact.decode(bits, F32) for bits in (x, y, z)))
        return 0 if math.isnan(value) or value <= 0 else 0x3F800000 if value >= 1 else exact.encode(value, F32)

    exact.check(got, exact.apply(reference, a, b, c, dtype=np.uint32), a, b, c)


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves(kind, relu):
    form = F16 if kind == "f16" else BF16
    a, b, c = exact.tuples(form, 3, 400, seed=4)
    got = ptx.each(f"fma.rn{relu}.{kind} {{d}}, {{a}}, {{b}}, {{c}};", a, b, c, result=np.uint16)
    expected = exact.apply(fused(form, relu=bool(relu)), a, b, c, dtype=np.uint16)
    exact.check(got, expected, a, b, c)
    even = a.size // 2 * 2
    pairs = [side[:even].copy().view(np.uint32) for side in (a, b, c)]
    packed = ptx.each(f"fma.rn{relu}.{kind}x2 {{d}}, {{a}}, {{b}}, {{c}};", *pairs, result=np.uint32)
    exact.check(packed.view(np.uint16), expected[:even], a, b, c)


PAIR = "mul{m}.f32 %f10, {{a}}, {{b}}; {op}{n}.f32 {{d}}, %f10, {{c}};"


def pair_sources():
    """Products whose rounding error decides the sum."""
    a, b = (exact.samples(F32, 600, seed)[100:] for seed in (5, 6))
    a, b = ((side & np.uint32(0x807FFFFF)) | np.uint32(0x3F800000) for side in (a, b))
    return a, b, rounded_product(a, b, F32) ^ np.uint32(0x80000000)


def two_roundings(x, y, z):
    product = exact.encode(exact.multiply(exact.decode(x, F32), exact.decode(y, F32)), F32)
    return exact.encode(exact.add(exact.decode(product, F32), exact.decode(z, F32)), F32)


@pytest.mark.parametrize("rounded", ["both", "mul", "add"])
def test_rounded_pairs_are_never_fused(soft, rounded):
    a, b, c = pair_sources()
    expected = exact.apply(two_roundings, a, b, c, dtype=np.uint32)
    lines = PAIR.format(m=".rn" if rounded != "add" else "", n=".rn" if rounded != "mul" else "", op="add")
    for seed in range(4):
        soft.reset(seed=seed)
        exact.check(ptx.each(lines, a, b, c, result=np.uint32), expected, a, b, c)


def test_unrounded_pairs_are_fused_at_the_seed_s_whim(soft):
    a, b, c = pair_sources()
    apart = exact.apply(two_roundings, a, b, c, dtype=np.uint32)
    together = exact.apply(fused(F32), a, b, c, dtype=np.uint32)
    assert np.count_nonzero(apart != together) > 100
    both = set()
    for seed in range(12):
        soft.reset(seed=seed)
        got = ptx.each(PAIR.format(m="", n="", op="add"), a, b, c, result=np.uint32)
        assert np.all((got == apart) | (got == together))
        both |= {"apart"} if np.any((got == apart) & (got != together)) else set()
        both |= {"together"} if np.any((got == together) & (got != apart)) else set()
    assert both == {"apart", "together"}


def test_fusing_can_be_turned_off(soft):
    a, b, c = pair_sources()
    expected = exact.apply(two_roundings, a, b, c, dtype=np.uint32)
    for seed in range(4):
        soft.reset(seed=seed, fuse=False)
        exact.check(ptx.each(PAIR.format(m="", n="", op="add"), a, b, c, result=np.uint32), expected, a, b, c)


def test_unrounded_subtraction_fuses_too(soft):
    a, b, c = pair_sources()
    c ^= np.uint32(0x80000000)
    apart = exact.apply(lambda x, y, z: two_roundings(x, y, z ^ 0x80000000), a, b, c, dtype=np.uint32)
    together = exact.apply(lambda x, y, z: fused(F32)(x, y, z ^ 0x80000000), a, b, c, dtype=np.uint32)
    results = []
    for seed in range(12):
        soft.reset(seed=seed)
        results.append(ptx.each(PAIR.format(m="", n="", op="sub"), a, b, c, result=np.uint32))
        assert np.all((results[-1] == apart) | (results[-1] == together))
    assert any(np.any(result != apart) for result in results)
    assert any(np.any(result != together) for result in results)


KINDS = {"f64": F64, "f32": F32, "f16": F16, "bf16": BF16, "f16x2": F16, "bf16x2": BF16}
CONTRACTED = {  # what follows `mul %product, a, b`, and which of a * b and c it negates
    "add": ("add.{k} {{d}}, %product, {{c}};", False, False),
    "add turned round": ("add.{k} {{d}}, {{c}}, %product;", False, False),
    "sub": ("sub.{k} {{d}}, %product, {{c}};", False, True),
    "sub turned round": ("sub.{k} {{d}}, {{c}}, %product;", True, False),
    "neg and add": ("neg.{k} %other, %product;\nadd.{k} {{d}}, %other, {{c}};", True, False),
    "neg and sub": ("neg.{k} %other, %product;\nsub.{k} {{d}}, %other, {{c}};", True, True),
    "neg twice": ("neg.{k} %other, %product;\nneg.{k} %other, %other;\nadd.{k} {{d}}, %other, {{c}};", False, False),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONTRACTED)
def test_what_an_assembler_contracts(soft, kind, name):
    form = KINDS[kind]
    lines, minus_product, minus_addend = CONTRACTED[name]
    sign = form.dtype.type(1 << (form.width - 1))
    keep = sign | form.dtype.type((1 << form.fraction_bits) - 1)
    one = form.dtype.type(form.bias << form.fraction_bits)
    a, b = ((exact.samples(form, 300, seed)[100:] & keep) | one for seed in (5, 6))
    product = rounded_product(a, b, form) ^ (sign if minus_product else 0)
    c = product ^ (0 if minus_addend else sign)  # cancels all of it but its rounding error
    addend = c ^ (sign if minus_addend else 0)
    together = exact.apply(fused(form), a ^ (sign if minus_product else 0), b, addend, dtype=form.dtype)
    apart = exact.apply(
        lambda x, y: exact.encode(exact.add(exact.decode(x, form), exact.decode(y, form)), form),
        product, addend, dtype=form.dtype,
    )  # fmt: skip
    assert np.any(apart != together)
    wide = f"b{np.dtype(form.dtype).itemsize * 8 * (2 if kind.endswith('x2') else 1)}"
    text = f".reg .{wide} %product, %other;\nmul.{kind} %product, {{a}}, {{b}};\n" + lines.format(k=kind)
    sources = [side.view(np.uint32) if kind.endswith("x2") else side for side in (a, b, c)]
    seen = set()
    for seed in range(12):
        soft.reset(seed=seed, capability=90)
        got = ptx.each(text, *sources, result=sources[0].dtype, version="7.8", target="sm_90").view(form.dtype)
        assert np.array_equal(got, apart) or np.array_equal(got, together)
        seen.add(np.array_equal(got, together))
    assert seen == {False, True}
