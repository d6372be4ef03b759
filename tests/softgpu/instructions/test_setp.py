"""setp and set: ordered comparisons are false with a NaN, the …u forms true; Boolean operators join a predicate."""

import itertools
import operator

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers
from tests.softgpu.instructions.exact import F16, F32, F64

pytestmark = pytest.mark.usefixtures("soft")

COMPARE = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_integers(kind):
    dtype = integers.DTYPES[kind]
    a, b = integers.tuples(dtype, 2, 100, seed=1)
    for name, compare in COMPARE.items():
        got = ptx.each(f"setp.{name}.{kind} {{d}}, {{a}}, {{b}};", a, b, result=bool)
        np.testing.assert_array_equal(got, compare(a, b), name)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_unsigned_names_and_bits(width):
    dtype = integers.DTYPES[f"u{width}"]
    a, b = integers.tuples(dtype, 2, 100, seed=2)
    for name, meaning in UNSIGNED.items():
        got = ptx.each(f"setp.{name}.u{width} {{d}}, {{a}}, {{b}};", a, b, result=bool)
        np.testing.assert_array_equal(got, COMPARE[meaning](a, b), name)
    for name in ("eq", "ne"):
        got = ptx.each(f"setp.{name}.b{width} {{d}}, {{a}}, {{b}};", a, b, result=bool)
        np.testing.assert_array_equal(got, COMPARE[name](a, b), name)


def expected(name, a, b):
    """By the values alone: NaN is unordered; +0 equals -0."""
    unordered = a != a or b != b
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    if name.endswith("u") and name[:-1] in COMPARE:
        return unordered or COMPARE[name[:-1]](a, b)
    return not unordered and COMPARE[name](a, b)


@pytest.mark.parametrize("form", [F32, F64, F16], ids=["f32", "f64", "f16"])
def test_floats(form):
    a, b = exact.tuples(form, 2, 100, seed=3)
    a, b = np.concatenate([a, a[-50:]]), np.concatenate([b, a[-50:]])
    left, right = [[exact.decode(x, form) for x in side.tolist()] for side in (a, b)]
    for name in (*COMPARE, *(name + "u" for name in COMPARE), "num", "nan"):
        got = ptx.each(f"setp.{name}.f{form.width} {{d}}, {{a}}, {{b}};", a, b, result=bool)
        want = np.array([expected(name, x, y) for x, y in zip(left, right, strict=True)])
        np.testing.assert_array_equal(got, want, name)


def test_ftz_compares_subnormals_as_zero():
    points = np.array([0, 0x80000000, 1, 0x80000001, 0x7FFFFF, 0x807FFFFF, 0x800000, 0x80800000], np.uint32)
    a, b = np.array(list(itertools.product(points, repeat=2)), np.uint32).T
    for name in COMPARE:
        got = ptx.each(f"setp.{name}.ftz.f32 {{d}}, {{a}}, {{b}};", a, b, result=bool)
        want = [
            COMPARE[name](exact.decode(x, F32, ftz=True), exact.decode(y, F32, ftz=True))
            for x, y in zip(a, b, strict=True)
        ]
        np.testing.assert_array_equal(got, np.array(want), name)


@pytest.mark.parametrize("joined", ["and", "or", "xor"])
def test_second_destination_and_boolean_operator(joined):
    """p = (a op b) joined c, q = !(a op b) joined c; !c negates c."""
    a, b, c = (np.array(side) for side in zip(*itertools.product([1, 2], [1, 2], [False, True]), strict=True))
    a, b = a.astype(np.int32), b.astype(np.int32)
    join = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[joined]
    for sign, third in (("", c), ("!", ~c)):
        for part, compared in (("%p3", a < b), ("%p4", a >= b)):
            lines = f"setp.lt.{joined}.s32 %p3|%p4, {{a}}, {{b}}, {sign}{{c}}; mov.pred {{d}}, {part};"
            np.testing.assert_array_equal(ptx.each(lines, a, b, c, result=bool), join(compared, third))


def test_set_writes_all_ones_or_one():
    a, b = exact.tuples(F32, 2, 50, seed=4)
    want = exact.as_floats(a, F32) < exact.as_floats(b, F32)
    got = ptx.each("set.lt.u32.f32 {d}, {a}, {b};", a, b, result=np.uint32)
    exact.check(got, np.where(want, np.uint32(0xFFFFFFFF), np.uint32(0)), a, b)
    got = ptx.each("set.lt.f32.f32 {d}, {a}, {b};", a, b, result=np.uint32)
    exact.check(got, np.where(want, np.uint32(0x3F800000), np.uint32(0)), a, b)


def test_packed_halves_have_a_predicate_each():
    """setp.f16x2 p|q: p of the low halves, q of the high ones."""
    a, b = exact.tuples(F16, 2, 100, seed=5)
    a, b = (side[: side.size // 2 * 2].view(np.uint32) for side in (a, b))
    halves = [exact.as_floats(side.view(np.uint16), F16).reshape(-1, 2) for side in (a, b)]
    for half, register in enumerate(("%p3", "%p4")):
        lines = f"setp.lt.f16x2 %p3|%p4, {{a}}, {{b}}; mov.pred {{d}}, {register};"
        got = ptx.each(lines, a, b, result=bool)
        np.testing.assert_array_equal(got, halves[0][:, half] < halves[1][:, half])
