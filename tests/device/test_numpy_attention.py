"""Paged attention and the rotary op against loops over tokens and heads; what masked places may not do."""

import math

import numpy as np
import pytest

from pilotlight.device import numpy_attention
from pilotlight.device.base import AttentionShape, Batch
from pilotlight.device.numpy_attention import PagedAttention

SHAPE = AttentionShape(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, rotary_dim=8, page_size=16)
PAGES = 40
MAX_LENGTH = 600
RANDOM = np.random.default_rng(0)
_NONE = np.zeros(0, np.int32)


def random(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def make(shape=SHAPE, num_pages=PAGES):
    angles = np.arange(MAX_LENGTH)[:, None] * 100.0 ** -(np.arange(shape.rotary_dim // 2) / (shape.rotary_dim / 2))
    return PagedAttention(shape, num_pages, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))


def batch_of(news, lengths, pages, slots=None):
    """`news` new tokens for each sequence, the last of its `lengths`, which lie in its `pages`."""
    positions = [np.arange(length - new, length) for new, length in zip(news, lengths, strict=True)]
    if slots is None:
        slots = [
            [table[position // 16] * 16 + position % 16 for position in each]
            for each, table in zip(positions, pages, strict=True)
        ]
    held = [own[: -(-length // 16)] for own, length in zip(pages, lengths, strict=True)]
    return Batch(
        tokens=np.zeros(sum(news), np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        slots=np.concatenate(slots).astype(np.int32),
        starts=np.cumsum([0, *news]).astype(np.int32),
        lengths=np.array(lengths, np.int32),
        pages=np.array([page for own in held for page in own], np.int32),
        page_starts=np.cumsum([0, *map(len, held)], dtype=np.int32),
        sample_rows=_NONE,
        rows=[],
        numbers=_NONE,
        admissions=_NONE,
        sample_positions=_NONE,
        score_rows=_NONE,
        score_targets=_NONE,
    )


def turned(vector, position, shape=SHAPE):
    """Rotary embedding of one head by its definition: pair i is (i, i + half)."""
    half = shape.rotary_dim // 2
    result = vector.astype(np.float64)
    for pair in range(half):
        angle = position * 100.0 ** -(pair / half)
        a, b = float(vector[pair]), float(vector[pair + half])
        result[pair] = a * math.cos(angle) - b * math.sin(angle)
        result[pair + half] = b * math.cos(angle) + a * math.sin(angle)
    return result


def attended(q, keys, values, scale, window=None):
    """One query head at the last position: keys, values [length, head_dim]."""
    first = 0 if window is None else max(0, len(keys) - window)
    scores = [math.exp(scale * float(q @ key)) for key in keys[first:]]
    return sum(score * value for score, value in zip(scores, values[first:], strict=True)) / sum(scores)


def test_rope_turns_q_and_k_and_fills_the_pages():
    pool = make()
    batch = batch_of([3, 1], [20, 5], [[7, 2], [9]])
    qkv = random(4, 8 * 8)
    for order in "CF":
        step = pool.begin(batch)
        q = pool.rope_and_cache(step, np.asarray(qkv, order=order), layer=1)
        assert q.shape == (4, 4, 8)
        heads = qkv.reshape(4, 8, 8)
        kv = pool.pages()[:, 1]  # [pages, 2 * kv_heads, page_size, head_dim]
        for token, (position, slot) in enumerate(zip(batch.positions, batch.slots, strict=True)):
            for head in range(4):
                np.testing.assert_allclose(q[token, head], turned(heads[token, head], position), rtol=1e-5, atol=1e-6)
            for head in range(2):
                key, value = kv[slot // 16, head, slot % 16], kv[slot // 16, 2 + head, slot % 16]
                np.testing.assert_allclose(key, turned(heads[token, 4 + head], position), rtol=1e-5, atol=1e-6)
                np.testing.assert_array_equal(value, heads[token, 6 + head])
        assert not pool.pages()[:, 0].any()
        assert np.count_nonzero(pool.pages()) == 4 * 2 * 2 * 8


def test_rope_of_a_part_of_each_head():
    shape = AttentionShape(num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8, rotary_dim=4, page_size=16)
    pool = make(shape)
    qkv = random(1, 3 * 8)
    q = pool.rope_and_cache(pool.begin(batch_of([1], [10], [[3]])), qkv, layer=0)
    np.testing.assert_allclose(q[0, 0], turned(qkv[0, :8], 9, shape), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pool.pages()[3, 0, 0, 9], turned(qkv[0, 8:16], 9, shape), rtol=1e-5, atol=1e-6)


def test_I15_padding_writes_nowhere():
    """Slots [3, -1, -1], with the pool full to its last page."""
    pool = make()
    pool.pages()[:] = 5
    batch = batch_of([1, 1, 1], [4, 1, 1], [[0], [PAGES - 1], [PAGES - 1]], slots=[[3], [-1], [-1]])
    pool.rope_and_cache(pool.begin(batch), random(3, 64), layer=0)
    written = np.argwhere((pool.pages() != 5).any(axis=-1))
    assert written.tolist() == [[0, 0, head, 3] for head in range(4)]


def filled(lengths, pages, poison=np.nan):
    """A pool whose layer 1 holds random K/V for these sequences and `poison` everywhere else; K and V by sequence."""
    pool = make()
    pool.pages()[:] = poison
    contexts = []
    for length, own in zip(lengths, pages, strict=True):
        kv = random(4, length, 8)
        for position in range(length):
            pool.pages()[own[position // 16], 1, :, position % 16] = kv[:, position]
        contexts.append(kv)
    return pool, contexts


def check(pool, contexts, batch, window, q=None):
    q = random(len(batch.tokens), 4, 8) if q is None else q
    found = pool.attend(pool.begin(batch), q, 1, 0.3, window)
    assert found.shape == (len(q), 4 * 8)
    token = 0
    for kv, length, new in zip(contexts, batch.lengths, np.diff(batch.starts), strict=True):
        for seen in range(length - new + 1, length + 1):
            for head in range(4):
                keys, values = kv[head // 2, :seen], kv[2 + head // 2, :seen]
                expected = attended(q[token, head], keys, values, 0.3, window)
                np.testing.assert_allclose(found[token, head * 8 : head * 8 + 8], expected, rtol=1e-4, atol=1e-5)
            token += 1


LENGTHS = [1, 16, 17, 40, 150, 3]
TABLES = [[1], [5], [9, 3], [30, 8, 20], [11, 25, 2, 37, 7, 13, 4, 31, 19, 6], [12]]


@pytest.mark.parametrize("window", [None, 1, 5, 16, 33, 1000])
def test_I15_decode_reads_its_own_pages_and_no_nan_beside_them(window):
    """Page 0 stands in the page table's unused places and is NaN, as is every slot nobody wrote."""
    pool, contexts = filled(LENGTHS, TABLES)
    check(pool, contexts, batch_of([1] * len(LENGTHS), LENGTHS, TABLES), window)


@pytest.mark.parametrize("window", [None, 5, 33])
def test_decode_in_small_groups(window, monkeypatch):
    monkeypatch.setattr(numpy_attention, "_PADDING_PAGES", 0)
    monkeypatch.setattr(numpy_attention, "_GATHER_BYTES", 1)
    pool, contexts = filled(LENGTHS, TABLES)
    batch = batch_of([1] * len(LENGTHS), LENGTHS, TABLES)
    check(pool, contexts, batch, window)
    step = pool.begin(batch)
    pool.attend(step, random(len(LENGTHS), 4, 8), 1, 0.3, window)
    assert sorted(row for group in step.groups[window] for row in group.rows) == list(range(len(LENGTHS)))
    assert len(step.groups[window]) == len(LENGTHS)


@pytest.mark.parametrize("window", [None, 1, 5, 16, 33, 1000])
@pytest.mark.parametrize("block", [4, 32])
def test_I15_prefill_packed_and_in_chunks(window, block, monkeypatch):
    """Whole prompts, a chunk after a cached prefix, and a single token, in one step."""
    monkeypatch.setattr(numpy_attention, "_QUERY_BLOCK", block)
    pool, contexts = filled(LENGTHS, TABLES)
    check(pool, contexts, batch_of([1, 16, 2, 40, 70, 3], LENGTHS, TABLES), window)


def test_large_scores_do_not_overflow():
    pool, contexts = filled([40], [[1, 2, 3]])
    q = np.zeros((1, 4, 8), np.float32)
    kv = contexts[0]
    target = 13
    for head in range(4):
        q[0, head] = kv[head // 2, target] * 1e4
    best = [(kv[head // 2] @ kv[head // 2, target]).argmax() for head in range(4)]
    found = pool.attend(pool.begin(batch_of([1], [40], [[1, 2, 3]])), q, 1, 1.0, None).reshape(4, 8)
    for head in range(4):
        np.testing.assert_allclose(found[head], kv[2 + head // 2, best[head]], rtol=1e-5)


def test_groups_pad_little():
    """Sequences of all lengths from 1 to 500 tokens: what is gathered stays near what is read."""
    pool = make(num_pages=32)
    lengths = list(range(1, 500, 7))
    tables = [[1] * -(-length // 16) for length in lengths]
    step = pool.begin(batch_of([1] * len(lengths), lengths, tables))
    pool.attend(step, random(len(lengths), 4, 8), 0, 0.3, None)
    gathered = sum(group.tiles.shape[1] * group.tiles.shape[2] for group in step.groups[None])
    assert gathered < 1.6 * sum(map(len, tables))
    assert len(step.groups[None]) <= 4
