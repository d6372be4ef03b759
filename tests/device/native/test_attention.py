"""The rotary op and attention over pages against the numpy device's, over ragged batches, windows and page dtypes."""

from pathlib import Path

import numpy as np
import pytest

from pilotlight.device.base import AttentionShape, Batch
from pilotlight.device.numpy_attention import PagedAttention
from tests.device.test_numpy_attention import batch_of

from .conftest import opened
from .ops import Ops, Pages
from .test_linear import random

SHAPES = {
    "grouped": AttentionShape(num_layers=2, num_heads=9, num_kv_heads=3, head_dim=64, rotary_dim=64, page_size=16),
    "single": AttentionShape(num_layers=1, num_heads=1, num_kv_heads=1, head_dim=16, rotary_dim=16, page_size=16),
    "part rotated": AttentionShape(
        num_layers=2, num_heads=4, num_kv_heads=4, head_dim=80, rotary_dim=20, page_size=16
    ),
    "wide groups": AttentionShape(
        num_layers=1, num_heads=14, num_kv_heads=2, head_dim=64, rotary_dim=64, page_size=16
    ),
    "large": AttentionShape(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=256, rotary_dim=256, page_size=16),
}
NUM_PAGES, MAX_LENGTH = 60, 400
WINDOWS = [None, 1, 5, 16, 33, 1000]
# New tokens and lengths of each sequence.
DECODE = [(1, 1), (1, 16), (1, 17), (1, 40), (1, 333), (1, 3)]
MIXED = [(1, 1), (16, 16), (2, 17), (40, 40), (133, 333), (3, 3), (1, 70), (20, 21)]
# Of the largest output: pages hold what they hold on both sides, so sums in fp32 are all that differ.
ERROR = 1e-5


def batch(sequences: list[tuple[int, int]], seed: int = 0) -> Batch:
    """In pages that no address arithmetic could guess."""
    free = np.random.default_rng(seed).permutation(NUM_PAGES).tolist()
    pages = [[free.pop() for _ in range(-(-length // 16))] for _, length in sequences]
    return batch_of([new for new, _ in sequences], [length for _, length in sequences], pages)


def tables(shape: AttentionShape) -> tuple[np.ndarray, np.ndarray]:
    angles = np.arange(MAX_LENGTH)[:, None] * 100.0 ** -np.linspace(0, 1, shape.rotary_dim // 2)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def pair(ops: Ops, shape: AttentionShape, dtype: str) -> tuple[Pages, PagedAttention]:
    return Pages(ops, shape, NUM_PAGES, dtype, *tables(shape)), PagedAttention(shape, NUM_PAGES, *tables(shape))


def filled(ops: Ops, shape: AttentionShape, dtype: str, given: Batch) -> tuple[Pages, PagedAttention]:
    """Random K/V where the batch's sequences have any, and a NaN everywhere else; alike on both sides."""
    pages, numpy = pair(ops, shape, dtype)
    contents = np.full(numpy.pages().shape, np.nan, np.float32)
    for index, length in enumerate(given.lengths):
        own = given.pages[slice(*given.page_starts[index : index + 2])]
        kv = random(*contents.shape[1:3], int(length), shape.head_dim, seed=index)
        at = np.arange(length)
        contents[own[at // 16], :, :, at % 16] = kv.transpose(2, 0, 1, 3)
    numpy.pages()[...] = pages.fill(contents)
    return pages, numpy


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> AttentionShape:
    return SHAPES[request.param]


@pytest.fixture(params=["F32", "F16", "BF16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_rope_turns_q_and_k_and_fills_the_pages(ops: Ops, shape: AttentionShape, dtype: str) -> None:
    pages, numpy = pair(ops, shape, dtype)
    numpy.pages()[...] = np.nan
    given = batch(MIXED)
    given.slots[5] = -1  # which writes nowhere
    heads = shape.num_heads + 2 * shape.num_kv_heads
    for layer in range(shape.num_layers):
        qkv = random(len(given.tokens), heads * shape.head_dim, seed=layer)
        expected = numpy.rope_and_cache(numpy.begin(given), qkv, layer).reshape(len(qkv), -1)
        np.testing.assert_allclose(pages.rope_and_cache(given, qkv, layer), expected, rtol=1e-5, atol=1e-6)
    step = {"F32": 1e-6, "F16": 2**-11, "BF16": 2**-8}[dtype]
    np.testing.assert_allclose(pages.contents(), numpy.pages(), rtol=1.01 * step, atol=1e-6)


def test_fp16_pages_saturate(ops: Ops) -> None:
    shape = SHAPES["single"]
    pages, _ = pair(ops, shape, "F16")
    given = batch([(1, 1)])
    qkv = np.full((1, 48), 1e6, np.float32)
    pages.rope_and_cache(given, qkv, 0)
    stored = pages.contents()[given.pages[0], 0, :, 0]
    assert (stored == 65504).all()


@pytest.mark.parametrize("sequences", [DECODE, MIXED], ids=["decode", "mixed"])
def test_I15_attention_reads_its_own_pages_and_no_nan_beside_them(
    ops: Ops, shape: AttentionShape, dtype: str, sequences: list[tuple[int, int]]
) -> None:
    given = batch(sequences)
    pages, numpy = filled(ops, shape, dtype, given)
    q = random(len(given.tokens), shape.num_heads * shape.head_dim, seed=9)
    layer = shape.num_layers - 1
    heads = q.reshape(len(q), shape.num_heads, shape.head_dim)
    for window in WINDOWS:
        expected = numpy.attend(numpy.begin(given), heads, layer, 0.2, window)
        found = pages.attention(given, q, layer, 0.2, window)
        assert np.isfinite(found).all()
        assert np.abs(found - expected).max() <= ERROR * np.abs(expected).max(), window


def test_large_scores_do_not_overflow(ops: Ops) -> None:
    """Each head's query is a key a thousand times over: that key's value is all that is left."""
    shape = SHAPES["grouped"]
    given = batch([(1, 40)])
    pages, numpy = filled(ops, shape, "F32", given)
    kv = numpy.pages()[given.pages[13 // 16], 0, :, 13 % 16]
    q = np.repeat(kv[: shape.num_kv_heads], 3, axis=0) * 1e4
    found = pages.attention(given, q.reshape(1, -1), 0, 1.0, None).reshape(9, 64)
    expected = numpy.attend(numpy.begin(given), q[None], 0, 1.0, None).reshape(9, 64)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_attention_does_not_depend_on_threads_or_neighbours(file: Path, ops: Ops, dtype: str) -> None:
    shape = SHAPES["grouped"]
    given = batch(MIXED)
    pages, _ = filled(ops, shape, dtype, given)
    q = random(len(given.tokens), shape.num_heads * shape.head_dim, seed=9)
    whole = pages.attention(given, q, 1, 0.2, 33)
    for threads in (1, 3, 4):
        other, _ = filled(Ops(opened(threads, ops.library.level)), shape, dtype, given)
        assert (other.attention(given, q, 1, 0.2, 33) == whole).all()
    for index in range(len(MIXED)):
        tokens = slice(*given.starts[index : index + 2])
        own = given.pages[slice(*given.page_starts[index : index + 2])].tolist()
        new, length = MIXED[index]
        alone = pages.attention(batch_of([new], [length], [own]), q[tokens], 1, 0.2, 33)
        assert (alone == whole[tokens]).all(), MIXED[index]


def test_A10_a_nan_spoils_its_own_sequence_alone(ops: Ops) -> None:
    shape = SHAPES["grouped"]
    given = batch(MIXED)
    pages, _ = filled(ops, shape, "F32", given)
    q = random(len(given.tokens), shape.num_heads * shape.head_dim, seed=9)
    clean = pages.attention(given, q, 1, 0.2, None)
    q[20, 64:128] = np.nan  # one head of one token
    found = pages.attention(given, q, 1, 0.2, None)
    spoiled = np.isnan(found)
    assert spoiled[20, 64:128].all()
    assert spoiled.sum() == 64
    assert (found[~spoiled] == clean[~spoiled]).all()
