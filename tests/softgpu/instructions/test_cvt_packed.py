"""cvt of two values at once: bf16x2, f16x2 and the fp8 pairs. The first source is the high half."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact
from tests.softgpu.instructions.exact import BF16, E4M3, E5M2, F16, F32

pytestmark = pytest.mark.usefixtures("soft")

FP8 = {"e4m3x2": E4M3, "e5m2x2": E5M2}
NEAR_448 = [447, 448, 449, 463.9, 464, 464.1, 465, 479, 480, 512, 57344, 61439, 61440, 65504, 1e30]
SMALL = [
    2.0**-6,
    2.0**-7,
    2.0**-9,
    2.0**-10,
    1.1 * 2.0**-10,
    1.5 * 2.0**-9,
    2.5 * 2.0**-9,
    2.0**-14,
    2.0**-16,
    2.0**-17,
    1e-30,
]


def sources(form, seed):
    """float32: the format's own numbers, what lies between them, the ends, NaN and infinities."""
    own = exact.as_floats(exact.samples(form, 400, seed), form).astype(np.float32)
    own = own[np.isfinite(own)]
    step = np.float32(1 + 2.0 ** -(form.fraction_bits + 1))  # half a step above each: the ties
    listed = np.float32([*NEAR_448, *SMALL, 0, 1, 0.1])
    with np.errstate(over="ignore"):
        points = np.concatenate([own, own * step, own * (step + np.float32(2e-7)), listed, -listed])
    specials = np.array(exact.corners(F32), np.uint32)
    return np.concatenate([points.view(np.uint32), specials, exact.samples(F32, 300, seed + 1)])


def pack(high, low, bits):
    return (high.astype(np.uint32) << bits | low).astype(f"u{2 * bits // 8}")


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("target", ["f16x2", "bf16x2"])
def test_f32_pair_to_halves(target, mode, relu):
    form = F16 if target == "f16x2" else BF16
    a = sources(form, seed=1)
    b = a[::-1].copy()
    got = ptx.each(f"cvt.{mode}{relu}.{target}.f32 {{d}}, {{a}}, {{b}};", a, b, result=np.uint32)

    def one(x):
        value = exact.decode(x, F32)
        return exact.encode(exact.relu(value) if relu else value, form, mode)

    high = exact.apply(one, a, dtype=np.uint16)
    exact.check(got, pack(high, high[::-1], 16), a, b)


def test_the_first_source_is_the_high_half():
    one, two = np.float32([1.0]), np.float32([2.0])
    got = ptx.each("cvt.rn.bf16x2.f32 {d}, {a}, {b};", one, two, result=np.uint32)
    assert got[0] == 0x3F804000
    got = ptx.each("cvt.rn.f16x2.f32 {d}, {a}, {b};", one, two, result=np.uint32)
    assert got[0] == 0x3C004000


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("target", FP8)
def test_f32_pair_to_fp8(soft, target, relu):
    soft.reset(capability=89)
    form = FP8[target]
    a = sources(form, seed=2)
    b = a[::-1].copy()
    line = f"cvt.rn.satfinite{relu}.{target}.f32 {{d}}, {{a}}, {{b}};"
    got = ptx.each(line, a, b, result=np.uint16, version="8.1", target="sm_89")

    def one(x):
        value = exact.decode(x, F32)
        return exact.encode(exact.relu(value) if relu else value, form, satfinite=True)

    high = exact.apply(one, a, dtype=np.uint8)
    exact.check(got, pack(high, high[::-1], 8), a, b)


def test_fp8_values_by_hand(soft):
    soft.reset(capability=89)
    a = np.float32([np.nan, np.inf, -np.inf, -0.0, 448, -448, 449, 464, 465, 2.0**-9, 2.0**-10, 1.0])
    by_hand = np.uint8([0x7F, 0x7E, 0xFE, 0x80, 0x7E, 0xFE, 0x7E, 0x7E, 0x7E, 0x01, 0x00, 0x38])
    zeros = np.zeros(12, np.float32)
    line = "cvt.rn.satfinite.e4m3x2.f32 {d}, {a}, {b};"
    got = ptx.each(line, zeros, a, result=np.uint16, version="8.1", target="sm_89")
    exact.check(got, by_hand.astype(np.uint16), a)
    got = ptx.each(line, a, zeros, result=np.uint16, version="8.1", target="sm_89")
    exact.check(got, by_hand.astype(np.uint16) << np.uint16(8), a)


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("target", FP8)
def test_halves_to_fp8(soft, target, relu):
    soft.reset(capability=89)
    form = FP8[target]
    a = np.concatenate(
        [
            exact.samples(F16, 800, 3),
            exact.as_floats(exact.samples(form, 200, 4), form).astype(np.float16).view(np.uint16),
        ]
    )
    line = f"cvt.rn.satfinite{relu}.{target}.f16x2 {{d}}, {{a}};"
    got = ptx.each(line, a.view(np.uint32), result=np.uint16, version="8.1", target="sm_89")

    def one(x):
        value = exact.decode(x, F16)
        return exact.encode(exact.relu(value) if relu else value, form, satfinite=True)

    exact.check(got.view(np.uint8), exact.apply(one, a, dtype=np.uint8), a)


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("source", FP8)
def test_every_fp8_pair_to_halves(soft, source, relu):
    soft.reset(capability=89)
    form = FP8[source]
    every = np.arange(256, dtype=np.uint8)
    a = np.stack([every, every[::-1]], axis=1).ravel()
    line = f"cvt.rn{relu}.f16x2.{source} {{d}}, {{a}};"
    got = ptx.each(line, a.view(np.uint16), result=np.uint32, version="8.1", target="sm_89")

    def one(x):
        value = exact.decode(x, form)
        return exact.encode(exact.relu(value) if relu else value, F16)

    exact.check(got.view(np.uint16), exact.apply(one, a, dtype=np.uint16), a)
