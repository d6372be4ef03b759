"""mma.sync: fragment layouts of every shape, exact where sums are exact, and elsewhere within the error of an
accumulation that truncates; different from seed to seed, as it is from card to card."""

from dataclasses import dataclass

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact
from tests.softgpu.instructions.exact import BF16, E4M3, E5M2, F16, TF32, Format

pytestmark = pytest.mark.usefixtures("soft")

LANE = np.arange(32)
GROUP, THREAD = LANE // 4, LANE % 4


@dataclass(frozen=True)
class Shape:
    """m x n x k, `packed` elements in a 32-bit register, and where each lane's elements lie."""

    m: int
    n: int
    k: int
    packed: int

    def a(self):
        """[lane, element] -> row, column of A: a lane's registers go down the rows first, then along the depth."""
        element = np.arange(self.m * self.k // 32)
        register, part = element // self.packed, element % self.packed
        bands = self.m // 8
        row = GROUP[:, None] + 8 * (register % bands)
        column = THREAD[:, None] * self.packed + part + 4 * self.packed * (register // bands)
        return row, column

    def b(self):
        element = np.arange(self.k * self.n // 32)
        register, part = element // self.packed, element % self.packed
        row = THREAD[:, None] * self.packed + part + 4 * self.packed * register
        return row, GROUP[:, None] + 0 * element

    def c(self):
        element = np.arange(self.m * self.n // 32)
        return GROUP[:, None] + 8 * (element // 2), THREAD[:, None] * 2 + element % 2


def words(matrix, places):
    """A matrix of unsigned integers (8, 16 or 32 bits) as each lane's registers: element 0 lowest."""
    return np.ascontiguousarray(matrix[places]).view(np.uint32).reshape(32, -1)


def multiply(shape, types, a, b, c, *, accumulator=np.uint32, modifiers="", version="7.4", target="sm_80"):
    """D of each batch: a [count, m, k], b [count, k, n], c [count, m, n], all as bit patterns."""
    count = len(a)
    fragments = []
    for matrices, places in ((a, shape.a()), (b, shape.b()), (c, shape.c())):
        fragments.append(np.stack([words(matrix, places) for matrix in matrices]))
    sizes = [fragment.shape[2] for fragment in fragments]
    lines, names, first = [], [], 10
    for i, size in enumerate(sizes):
        names.append([f"%r{first + j}" for j in range(size)])
        lines.append(f"mad.wide.u32 %at, %thread, {4 * size}, %in{i};")
        lines += [f"ld.global.b32 {name}, [%at+{4 * j}];" for j, name in enumerate(names[-1])]
        first += size
    result = [f"%r{first + j}" for j in range(sizes[2])]
    listed = ["{" + ", ".join(group) + "}" for group in (result, *names)]
    name = f"mma.sync.aligned.m{shape.m}n{shape.n}k{shape.k}.row.col{modifiers}.{types}"
    kinds = types.split(".")
    lines.append(f"{name} {', '.join(listed)};")
    lines.append(f"mad.wide.u32 %at, %thread, {4 * sizes[2]}, %out0;")
    lines += [f"st.global.b32 [%at+{4 * j}], {register};" for j, register in enumerate(result)]
    body = "\n".join(lines)
    if kinds[0] == "f32":  # f32 accumulators are .f32 registers, the packed ones .b32
        for register in (*result, *names[2]):
            body = body.replace(f"{register},", f"%f{register[2:]},").replace(f"{register}}}", f"%f{register[2:]}}}")
            body = body.replace(f"{register};", f"%f{register[2:]};")
    text = ptx.module(body, inputs=3, outputs=1, version=version, target=target)
    (out,) = ptx.run(text, fragments, [((count, 32, sizes[2]), np.uint32)], grid=count)
    result_matrix = np.zeros((count, shape.m, shape.n), accumulator)
    result_matrix[(slice(None), *shape.c())] = out.view(accumulator).reshape(count, 32, -1)
    return result_matrix


def encode(values, form):
    return exact.apply(lambda x: exact.encode(exact.Fraction(x), form), np.ravel(values), dtype=form.dtype).reshape(
        values.shape
    )


def decode(bits, form: Format):
    return exact.as_floats(bits, form).reshape(bits.shape)


FLOATS = {
    "m16n8k16-f16": (Shape(16, 8, 16, 2), "f32.f16.f16.f32", F16),
    "m16n8k8-f16": (Shape(16, 8, 8, 2), "f32.f16.f16.f32", F16),
    "m16n8k16-bf16": (Shape(16, 8, 16, 2), "f32.bf16.bf16.f32", BF16),
    "m16n8k8-bf16": (Shape(16, 8, 8, 2), "f32.bf16.bf16.f32", BF16),
    "m16n8k8-tf32": (Shape(16, 8, 8, 1), "f32.tf32.tf32.f32", TF32),
    "m16n8k4-tf32": (Shape(16, 8, 4, 1), "f32.tf32.tf32.f32", TF32),
}


@pytest.mark.parametrize("case", FLOATS)
def test_small_integers_are_exact_in_any_order(case):
    """Every element of A, B and C matters: a wrong layout moves a number."""
    shape, types, form = FLOATS[case]
    generator = np.random.default_rng(1)
    a = generator.integers(-15, 16, (6, shape.m, shape.k))
    b = generator.integers(-15, 16, (6, shape.k, shape.n))
    c = generator.integers(-1000, 1001, (6, shape.m, shape.n))
    bits = c.astype(np.float32).view(np.uint32)
    got = multiply(shape, types, encode(a, form), encode(b, form), bits)
    np.testing.assert_array_equal(got.view(np.float32), (a @ b + c).astype(np.float32))


@pytest.mark.parametrize(("a_kind", "b_kind"), [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e5m2", "e5m2")])
def test_fp8(soft, a_kind, b_kind):
    shape, forms = Shape(16, 8, 32, 4), {"e4m3": E4M3, "e5m2": E5M2}
    generator = np.random.default_rng(9)
    a, b = generator.integers(-4, 5, (4, 16, 32)), generator.integers(-4, 5, (4, 32, 8))
    c = generator.integers(-1000, 1001, (4, 16, 8)).astype(np.float32)
    a_bits, b_bits = encode(a, forms[a_kind]), encode(b, forms[b_kind])
    for seed in range(3):
        soft.reset(seed=seed, capability=89)
        types = f"f32.{a_kind}.{b_kind}.f32"
        got = multiply(shape, types, a_bits, b_bits, c.view(np.uint32), version="8.4", target="sm_89")
        np.testing.assert_array_equal(got.view(np.float32), (a @ b + c).astype(np.float32))


@pytest.mark.parametrize("case", FLOATS)
def test_one_element_at_a_time(case):
    """A has a single 1 in each batch: row i, depth j of A picks row j of B."""
    shape, types, form = FLOATS[case]
    places = [(i * 5 % shape.m, j) for i, j in enumerate(range(shape.k))]
    a = np.zeros((len(places), shape.m, shape.k), np.int64)
    for batch, place in enumerate(places):
        a[(batch, *place)] = 1
    b = np.broadcast_to(np.arange(shape.k * shape.n).reshape(shape.k, shape.n) + 1, (len(places), shape.k, shape.n))
    c = np.zeros((len(places), shape.m, shape.n), np.uint32)
    got = multiply(shape, types, encode(a, form), encode(b, form), c)
    np.testing.assert_array_equal(got.view(np.float32), (a @ b).astype(np.float32))


def random_operands(shape, form, count, seed, positive=False):
    generator = np.random.default_rng(seed)
    a, b = generator.standard_normal((count, shape.m, shape.k)), generator.standard_normal((count, shape.k, shape.n))
    c = generator.standard_normal((count, shape.m, shape.n)).astype(np.float32)
    if positive:
        a, b, c = np.abs(a), np.abs(b), np.abs(c)
    a, b = encode(a.astype(np.float32), form), encode(b.astype(np.float32), form)
    true = decode(a, form) @ decode(b, form) + c
    size = np.abs(decode(a, form)) @ np.abs(decode(b, form)) + np.abs(c)
    return a, b, c.view(np.uint32), true, size


@pytest.mark.parametrize("case", FLOATS)
def test_within_the_error_of_truncated_accumulation(soft, case):
    """Each of k + 1 terms and each partial sum loses less than one unit of the largest's 24 bits."""
    shape, types, form = FLOATS[case]
    a, b, c, true, size = random_operands(shape, form, 8, seed=2)
    results = []
    for seed in range(6):
        soft.reset(seed=seed)
        results.append(multiply(shape, types, a, b, c).view(np.float32))
        assert np.all(np.abs(results[-1] - true) <= (shape.k + 2) * 2.0**-23 * size)
    assert any(np.any(results[0] != other) for other in results[1:]), "the seed moves nothing"
    soft.reset(seed=0)
    np.testing.assert_array_equal(multiply(shape, types, a, b, c).view(np.float32), results[0])


def test_no_jitter_no_difference_between_seeds(soft):
    shape, types, form = FLOATS["m16n8k16-bf16"]
    a, b, c, *_ = random_operands(shape, form, 4, seed=3)
    results = []
    for seed in range(3):
        soft.reset(seed=seed, jitter=False)
        results.append(multiply(shape, types, a, b, c))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_sums_of_positive_numbers_come_out_low_on_average(soft):
    """Truncation is a bias, which rounding to nearest would not be."""
    shape, types, form = FLOATS["m16n8k16-f16"]
    a, b, c, true, _ = random_operands(shape, form, 8, seed=4, positive=True)
    for seed in range(3):
        soft.reset(seed=seed)
        error = (multiply(shape, types, a, b, c).view(np.float32) - true) / true
        assert -(2.0**-21) < error.mean() < -(2.0**-27)


@pytest.mark.parametrize("case", ["m16n8k16-f16", "m16n8k16-bf16", "m16n8k8-tf32"])
def test_infinities_and_nan(case):
    shape, types, form = FLOATS[case]
    a = np.zeros((5, shape.m, shape.k), form.dtype)
    b = np.broadcast_to(encode(np.ones((shape.k, shape.n), np.int64), form), (5, shape.k, shape.n)).copy()
    c = np.ones((5, shape.m, shape.n), np.float32)
    infinity = form.infinity
    a[0, 3, 2] = infinity  # inf * 1
    a[1, 3, 2] = infinity  # inf * 0
    b[1, 2, :] = 0
    a[2, 3, 2], a[2, 3, 3] = infinity, infinity | 1 << (form.width - 1)  # inf - inf
    a[3, 3, 2] = form.nan if form is not TF32 else 0x7FC00000
    c[4, 3, :] = -np.inf
    got = multiply(shape, types, a, b, c.view(np.uint32))
    expected = c.copy()
    expected[0, 3] = np.inf
    expected[1:4, 3] = np.nan
    np.testing.assert_array_equal(got.view(np.float32), expected)
    assert np.all(got[1:4, 3] == 0x7FFFFFFF), "NaN is canonical"


def test_subnormal_halves_are_not_flushed():
    shape, types, _ = FLOATS["m16n8k16-f16"]
    a = np.full((1, 16, 16), 1, np.uint16)  # 2^-24
    b = encode(np.full((1, 16, 8), 1024), F16)
    got = multiply(shape, types, a, b, np.zeros((1, 16, 8), np.uint32))
    np.testing.assert_array_equal(got.view(np.float32), np.full((1, 16, 8), np.float32(16 * 2.0**-14)))


@pytest.mark.parametrize("k", [8, 16])
def test_half_accumulators(soft, k):
    shape = Shape(16, 8, k, 2)
    generator = np.random.default_rng(5)
    a, b = generator.integers(-7, 8, (4, 16, k)), generator.integers(-7, 8, (4, k, 8))
    c = generator.integers(-100, 101, (4, 16, 8))
    got = multiply(shape, "f16.f16.f16.f16", encode(a, F16), encode(b, F16), encode(c, F16), accumulator=np.uint16)
    np.testing.assert_array_equal(got.view(np.float16), (a @ b + c).astype(np.float16))
    a, b, *_, size = random_operands(shape, F16, 4, seed=6)
    for seed in range(3):
        soft.reset(seed=seed)
        got = multiply(shape, "f16.f16.f16.f16", a, b, np.zeros((4, 16, 8), np.uint16), accumulator=np.uint16)
        product = decode(a, F16) @ decode(b, F16)
        assert np.all(np.abs(got.view(np.float16) - product) <= (k + 2) * 2.0**-10 * size)


def test_half_accumulators_overflow_to_infinity():
    shape = Shape(16, 8, 16, 2)
    a, b = encode(np.full((1, 16, 16), 256), F16), encode(np.full((1, 16, 8), 256), F16)
    c = np.zeros((1, 16, 8), np.uint16)
    got = multiply(shape, "f16.f16.f16.f16", a, b, c, accumulator=np.uint16)
    assert np.all(got == F16.infinity)


@pytest.mark.parametrize("types", ["s32.s8.s8.s32", "s32.u8.u8.s32", "s32.s8.u8.s32", "s32.u8.s8.s32"])
@pytest.mark.parametrize("shape", [Shape(16, 8, 32, 4), Shape(16, 8, 16, 4)], ids=lambda s: f"m{s.m}n{s.n}k{s.k}")
def test_bytes_are_exact(shape, types):
    _, a_kind, b_kind, _ = types.split(".")
    generator = np.random.default_rng(7)
    a = generator.integers(0, 256, (5, shape.m, shape.k)).astype(np.uint8)
    b = generator.integers(0, 256, (5, shape.k, shape.n)).astype(np.uint8)
    c = generator.integers(-(2**31), 2**31, (5, shape.m, shape.n))
    c[:4] >>= 12
    got = multiply(shape, types, a, b, c.astype(np.int32).view(np.uint32))
    left, right = (x.view(np.int8) if kind == "s8" else x for x, kind in ((a, a_kind), (b, b_kind)))
    total = left.astype(np.int64) @ right.astype(np.int64) + c
    exact.check(got, (total & 0xFFFFFFFF).astype(np.uint32))  # wraps
    clamped = multiply(shape, types, a, b, c.astype(np.int32).view(np.uint32), modifiers=".satfinite")
    exact.check(clamped.view(np.int32), np.clip(total, -(2**31), 2**31 - 1).astype(np.int32))


def test_destination_may_be_the_accumulator():
    """The usual loop: D and C are the same registers."""
    shape, _, form = FLOATS["m16n8k16-bf16"]
    generator = np.random.default_rng(8)
    a, b = generator.integers(-3, 4, (16, 16)), generator.integers(-3, 4, (16, 8))
    fragments = [words(encode(matrix, form), places) for matrix, places in ((a, shape.a()), (b, shape.b()))]
    c = "{%f1, %f2, %f3, %f4}"
    step = f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {c}, {{%r4, %r5, %r6, %r7}}, {{%r8, %r9}}, {c};"
    body = f"""
        mad.wide.u32 %at, %thread, 16, %in0;
        ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%at];
        mad.wide.u32 %at, %thread, 8, %in1;
        ld.global.v2.u32 {{%r8, %r9}}, [%at];
        mov.f32 %f1, 0f00000000;
        mov.f32 %f2, 0f00000000;
        mov.f32 %f3, 0f00000000;
        mov.f32 %f4, 0f00000000;
        {step * 3}
        mad.wide.u32 %at, %thread, 16, %out0;
        st.global.v4.f32 [%at], {{%f1, %f2, %f3, %f4}};"""
    (got,) = ptx.run(ptx.module(body, inputs=2, outputs=1), fragments, [((32, 4), np.float32)])
    result = np.zeros((16, 8), np.float32)
    result[shape.c()] = got
    np.testing.assert_array_equal(result, 3 * (a @ b))
