"""add and sub: integers wrap (or saturate with .sat), floats round as the modifier says."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers
from tests.softgpu.instructions.exact import BF16, F16, F32, F64, MODES

pytestmark = pytest.mark.usefixtures("soft")


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("operation", ["add", "sub"])
def test_integers_wrap(operation, kind):
    dtype = integers.DTYPES[kind]
    a, b = integers.tuples(dtype, 2, 500, seed=1)
    got = ptx.each(f"{operation}.{kind} {{d}}, {{a}}, {{b}};", a, b, result=dtype)
    sign = 1 if operation == "add" else -1
    exact.check(got, exact.apply(lambda x, y: integers.wrap(x + sign * y, dtype), a, b, dtype=dtype), a, b)


@pytest.mark.parametrize("operation", ["add", "sub"])
def test_sat_clamps_to_int32(operation):
    a, b = integers.tuples(np.int32, 2, 500, seed=2)
    keep = (b != -(1 << 31)) | (operation == "add")  # ptxas makes a - INT_MIN into a + INT_MIN, against the manual
    a, b = a[keep], b[keep]
    got = ptx.each(f"{operation}.sat.s32 {{d}}, {{a}}, {{b}};", a, b, result=np.int32)
    sign = 1 if operation == "add" else -1
    exact.check(got, exact.apply(lambda x, y: integers.clamp(x + sign * y, np.int32), a, b, dtype=np.int32), a, b)


@pytest.mark.parametrize("operation", ["add", "sub"])
def test_carry_goes_through_words(operation):
    """add.cc / addc.cc / addc: 96 bits from three words; sub.cc / subc likewise with a borrow."""
    generator = np.random.default_rng(3)
    words = generator.integers(0, 1 << 32, (4, 400), dtype=np.uint64).astype(np.uint32)
    words[:, :16] = generator.choice(np.array([0, 1, 0xFFFFFFFF], np.uint32), (4, 16))
    low_a, low_b, high_a, high_b = words
    lines = f"""
        {operation}.cc.u32 %r10, {{a}}, {{b}};
        {operation}c.cc.u32 %r11, {{c}}, {{e}};
        {operation}c.u32 %r12, 5, 3;
        {{result}}"""
    sign = 1 if operation == "add" else -1
    total = exact.apply(
        lambda a, b, c, e: ((5 << 64 | c << 32 | a) + sign * (3 << 64 | e << 32 | b)) % (1 << 96),
        low_a, low_b, high_a, high_b, dtype=object,
    )  # fmt: skip
    for word, register in enumerate(("%r10", "%r11", "%r12")):
        text = lines.replace("{result}", f"mov.b32 {{d}}, {register};")
        got = ptx.each(text, low_a, low_b, high_a, high_b, result=np.uint32)
        exact.check(got, np.array([value >> 32 * word & 0xFFFFFFFF for value in total], np.uint32), *words)


@pytest.mark.parametrize("operation", ["add", "sub"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", [F32, F64], ids=["f32", "f64"])
def test_floats_round(operation, mode, form):
    a, b = exact.tuples(form, 2, 400, seed=4)
    got = ptx.each(f"{operation}.{mode}.f{form.width} {{d}}, {{a}}, {{b}};", a, b, result=form.dtype)

    def reference(x, y):
        second = exact.decode(y, form)
        second = exact.negate(second) if operation == "sub" else second
        return exact.encode(exact.add(exact.decode(x, form), second, mode), form, mode)

    expected = exact.apply(reference, a, b, dtype=form.dtype)
    if form is F64:
        exact.check_any_nan(got, expected, form, a, b)
    else:
        exact.check(got, expected, a, b)


def test_no_modifier_is_rn_where_nothing_can_fuse():
    a, b = exact.tuples(F32, 2, 400, seed=5)
    got = ptx.each("add.f32 {d}, {a}, {b};", a, b, result=np.uint32)
    exact.check(got, ptx.each("add.rn.f32 {d}, {a}, {b};", a, b, result=np.uint32), a, b)


def test_ftz_flushes_sources_and_results():
    a, b = exact.tuples(F32, 2, 400, seed=6)
    tiny = np.arange(1, 200, dtype=np.uint32) * 40000
    a = np.concatenate([a, tiny, tiny + 0x800000, tiny + 0x80800000]).astype(np.uint32)
    b = np.concatenate([b, tiny[::-1], tiny[::-1] + 0x80800000, tiny + 0x810000]).astype(np.uint32)
    got = ptx.each("add.ftz.f32 {d}, {a}, {b};", a, b, result=np.uint32)

    def reference(x, y):
        total = exact.add(exact.decode(x, F32, ftz=True), exact.decode(y, F32, ftz=True))
        return exact.encode(total, F32, ftz=True)

    exact.check(got, exact.apply(reference, a, b, dtype=np.uint32), a, b)


def test_sat_clamps_to_zero_and_one():
    a, b = exact.tuples(F32, 2, 400, seed=7)
    got = ptx.each("add.sat.f32 {d}, {a}, {b};", a, b, result=np.uint32)

    def reference(x, y):
        total = exact.add(exact.decode(x, F32), exact.decode(y, F32))
        if math.isnan(total) or total <= 0:  # NaN becomes +0, and so does -0
            return 0
        return exact.encode(min(Fraction(1), total) if total < math.inf else Fraction(1), F32)

    exact.check(got, exact.apply(reference, a, b, dtype=np.uint32), a, b)


@pytest.mark.parametrize("operation", ["add", "sub"])
def test_halves_round_to_nearest_even(operation):
    a, b = exact.tuples(F16, 2, 400, seed=8)
    got = ptx.each(f"{operation}.rn.f16 {{d}}, {{a}}, {{b}};", a, b, result=np.uint16)

    def reference(x, y):
        second = exact.decode(y, F16)
        return exact.encode(
            exact.add(exact.decode(x, F16), exact.negate(second) if operation == "sub" else second), F16
        )

    expected = exact.apply(reference, a, b, dtype=np.uint16)
    exact.check(got, expected, a, b)
    even = a.size // 2 * 2
    pairs = [array[:even].copy().view(np.uint32) for array in (a, b)]
    packed = ptx.each(f"{operation}.rn.f16x2 {{d}}, {{a}}, {{b}};", *pairs, result=np.uint32)
    exact.check(packed.view(np.uint16), expected[:even], a, b)


@pytest.mark.parametrize("operation", ["add", "sub", "mul"])
def test_bf16_on_sm_90(soft, operation):
    soft.reset(capability=90)
    a, b = exact.tuples(BF16, 2, 400, seed=9)
    line = f"{operation}.rn.bf16 {{d}}, {{a}}, {{b}};"
    got = ptx.each(line, a, b, result=np.uint16, version="7.8", target="sm_90")

    def reference(x, y):
        left, right = exact.decode(x, BF16), exact.decode(y, BF16)
        if operation == "mul":
            return exact.encode(exact.multiply(left, right), BF16)
        return exact.encode(exact.add(left, exact.negate(right) if operation == "sub" else right), BF16)

    exact.check(got, exact.apply(reference, a, b, dtype=np.uint16), a, b)


@pytest.mark.parametrize("modifiers", [".ftz", ".sat", ".ftz.sat"])
def test_half_modifiers(modifiers):
    a, b = exact.tuples(F16, 2, 400, seed=10)
    got = ptx.each(f"add.rn{modifiers}.f16 {{d}}, {{a}}, {{b}};", a, b, result=np.uint16)
    ftz = "ftz" in modifiers

    def reference(x, y):
        total = exact.add(exact.decode(x, F16, ftz), exact.decode(y, F16, ftz))
        if "sat" in modifiers:
            total = Fraction(0) if total != total or total <= 0 else Fraction(1) if total >= 1 else total
        return exact.encode(total, F16, ftz=ftz)

    exact.check(got, exact.apply(reference, a, b, dtype=np.uint16), a, b)
