"""Numbers come out of every encoding exactly, and go into a snapshot's dtypes rounded to nearest, ties to even."""

from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pilotlight.build.encodings import ENCODINGS, block_size, decode, encode
from pilotlight.build.quants import BLOCKS
from pilotlight.device.layout import WeightDtype

finite = arrays.arrays(
    np.float32, st.integers(1, 50), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
)
LARGEST_BF16 = float.fromhex("0x1.fep127")


def bits(values: Any) -> list[int]:
    return [int(value) for value in np.asarray(values)]


# Written out by hand: bits of the float32, bits of the nearest bfloat16.
BF16 = [
    (0x00000000, 0x0000),
    (0x80000000, 0x8000),
    (0x3F800000, 0x3F80),  # 1
    (0x3F807FFF, 0x3F80),  # just below the middle
    (0x3F808000, 0x3F80),  # the middle, even below
    (0x3F808001, 0x3F81),  # just above
    (0x3F818000, 0x3F82),  # the middle, even above
    (0xBF818000, 0xBF82),
    (0x3FFFFFFF, 0x4000),  # carries into the exponent
    (0x00000001, 0x0000),  # the least subnormal
    (0x00008000, 0x0000),
    (0x00008001, 0x0001),
    (0x7F7F0000, 0x7F7F),  # the largest bfloat16
    (0x7F7F7FFF, 0x7F7F),
]


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([source for source, _ in BF16], np.uint32).view(np.float32)
    assert bits(encode(values, "BF16")) == [expected for _, expected in BF16]


@given(finite)
def test_bfloat16_is_the_nearer_neighbour(values: np.ndarray) -> None:
    values = values[np.abs(values) <= LARGEST_BF16]
    if not values.size:
        return
    coded = encode(values, "BF16")
    decoded = decode(coded.view(np.uint8), "BF16").astype(np.float64)
    error = np.abs(decoded - values.astype(np.float64))
    for step in (-1, 1):  # the neighbours in magnitude, where there are such
        neighbour = coded.astype(np.int64) + step
        inside = ((neighbour & 0x7FFF) < 0x7F80) & (neighbour >> 15 == coded >> 15) & (neighbour >= 0)
        other = decode(neighbour[inside].astype(np.uint16).view(np.uint8), "BF16").astype(np.float64)
        distance = np.abs(other - values[inside].astype(np.float64))
        assert (error[inside] <= distance).all()
        assert not (coded[inside][error[inside] == distance] & 1).any()


@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=50), st.sampled_from(["F16", "BF16"]))
def test_half_formats_survive_a_round_trip(patterns: list[int], dtype: WeightDtype) -> None:
    values = decode(np.array(patterns, np.uint16).view(np.uint8), dtype)
    kept = np.isfinite(values)
    again = encode(np.ascontiguousarray(values[kept]), dtype).view(np.uint16)
    assert bits(again) == bits(np.array(patterns, np.uint16)[kept])


def test_float16_is_ieee() -> None:
    values = np.array([1, 65504, 65519.996, 2**-24, 2**-25, 0.1, -0.0], np.float32)
    coded = encode(values, "F16")
    assert bits(coded.view(np.uint16)) == [0x3C00, 0x7BFF, 0x7BFF, 0x0001, 0x0000, 0x2E66, 0x8000]


@pytest.mark.parametrize(
    ("value", "dtype", "reason"),
    [
        (65520.0, "F16", "holds 65520, which is more than F16 can hold"),
        (-7e5, "F16", "holds 7e.05, which is more than F16 can hold"),
        (3.4e38, "BF16", r"holds 3\.4e.38, which is more than BF16 can hold"),
        (float("nan"), "F32", "holds NaN or an infinity"),
        (float("inf"), "F16", "holds NaN or an infinity"),
        (float("-inf"), "BF16", "holds NaN or an infinity"),
    ],
)
def test_what_does_not_fit_is_refused(value: float, dtype: WeightDtype, reason: str) -> None:
    with pytest.raises(OverflowError, match=reason):
        encode(np.array([1, value, 2], np.float32), dtype)


def random_blocks(encoding: str, count: int, seed: int = 0) -> np.ndarray:
    """Blocks of any content whose scales are finite: [count, bytes]."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (count, BLOCKS[encoding][1]), dtype=np.uint8)
    scales = {"Q4_0": [0], "Q4_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}[encoding]
    for start in scales:
        halves = random.standard_normal(count).astype(np.float16)
        blocks[:, start : start + 2] = halves.view(np.uint8).reshape(count, 2)
    return blocks


@pytest.mark.parametrize("encoding", BLOCKS)
def test_quantized_blocks_are_decoded_bitwise_as_gguf_does(encoding: str) -> None:
    blocks = random_blocks(encoding, 500)
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType[encoding])
    decoded = decode(blocks.reshape(-1), encoding)
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded.view(np.uint32), expected.reshape(-1).view(np.uint32))


def test_quantized_block_by_hand() -> None:
    """Q4_1: scale 0.5, minimum -2; byte i holds number i low and number i + 16 high."""
    block = np.concatenate([np.array([0.5, -2], np.float16).view(np.uint8), np.arange(16, dtype=np.uint8) * 0x11])
    assert decode(block, "Q4_1").tolist() == [index * 0.5 - 2 for index in range(16)] * 2


def test_block_sizes() -> None:
    assert {encoding: block_size(encoding) for encoding in ENCODINGS} == {
        "F32": (1, 4),
        "F16": (1, 2),
        "BF16": (1, 2),
        "Q4_0": (32, 18),
        "Q4_1": (32, 20),
        "Q8_0": (32, 34),
        "Q4_K": (256, 144),
        "Q6_K": (256, 210),
    }


@pytest.mark.reference
def test_bfloat16_equals_torch() -> None:
    torch = pytest.importorskip("torch")
    patterns = np.random.default_rng(1).integers(0, 2**32, 1 << 20, dtype=np.uint32)
    values = patterns.view(np.float32)
    values = values[np.abs(values) <= LARGEST_BF16]
    expected = torch.from_numpy(values.copy()).to(torch.bfloat16).view(torch.uint16).numpy()
    np.testing.assert_array_equal(encode(values, "BF16"), expected)
