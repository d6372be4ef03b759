"""A layer of a decode step in a bucket of more rows than there are sequences, as a graph runs it.

Apart from the tests of each kernel because padding rows pass through all of them: they have token 0, position 0, slot
-1 and length 0, attention leaves their rows as they were, and what lies there must not reach a sequence or the pages.
"""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from pilotlight.device.cuda import attention, embed, gate, linear, norm, rope_and_cache
from pilotlight.device.cuda.attention import Shape
from pilotlight.device.cuda.launch import Half, Launch

from .harness import Buffer, Card, to_half

HEADS, KV_HEADS, HEAD_DIM, INNER, VOCABULARY = 4, 2, 64, 136, 10
HIDDEN, QKV = HEADS * HEAD_DIM, (HEADS + 2 * KV_HEADS) * HEAD_DIM
SPLITS = 2
LENGTHS = [20, 300, 1]  # each with pages of its own


class Layer:
    """Weights and pages on the card."""

    def __init__(self, card: Card, half: Half) -> None:
        random = np.random.default_rng(7)
        self.card, self.half = card, half

        def weight(*shape: int) -> int:
            return card.upload(to_half(random.standard_normal(shape, np.float32) / shape[-1] ** 0.5, half)).address

        self.table, self.norm = weight(VOCABULARY, HIDDEN), weight(HIDDEN)
        self.qkv, self.output = weight(QKV, HIDDEN), weight(HIDDEN, HIDDEN)
        self.gate_up, self.down = weight(2 * INNER, HIDDEN), weight(HIDDEN, INNER)
        counts = [-(-length // 16) for length in LENGTHS]
        self.starts = np.cumsum([0, *counts])
        shape = (self.starts[-1], 2, KV_HEADS, 16, HEAD_DIM)
        self.pages = to_half(random.standard_normal(shape, np.float32), half)
        self.angles = [card.upload(random.standard_normal((300, HEAD_DIM // 2), np.float32)).address for _ in "cs"]

    def step(self, rows: int) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        """Hidden states of the sequences and the pages, after a step of `rows`. All other memory is NaN before it."""
        card, half = self.card, self.half
        pages = card.upload(self.pages)
        used = len(LENGTHS)

        def padded(values: list[int], padding: int) -> int:
            return card.upload(np.array(values + [padding] * (rows - used), np.int32)).address

        def scratch(*shape: int) -> Buffer:
            return card.output(shape, np.uint16)

        tokens, ids = padded([3, ~1, 7], 0), card.upload(np.array([-1, 9], np.int32)).address
        positions = padded([length - 1 for length in LENGTHS], 0)
        lengths = padded(LENGTHS, 0)
        last = [int(start) * 16 + length - 1 for start, length in zip(self.starts[:-1], LENGTHS, strict=True)]
        slots, table_starts = padded(last, -1), padded(self.starts[:-1].tolist(), 0)
        table = card.upload(np.arange(self.starts[-1], dtype=np.int32)).address

        x, y, q, out, inner = (scratch(rows, n) for n in (HIDDEN, HIDDEN, HIDDEN, HIDDEN, INNER))
        wide = card.output((SPLITS, rows, max(QKV, 2 * INNER)), np.float32).address
        shape = Shape(HEADS, KV_HEADS, HEAD_DIM, half, 2 * KV_HEADS * 16 * HEAD_DIM)
        needed = attention.workspace_bytes(shape, rows, max(LENGTHS))
        tensors = attention.Tensors(
            out.address, q.address, pages.address, table, table_starts, lengths, scratch(needed // 2).address
        )
        rope = rope_and_cache.Tensors(q.address, pages.address, wide, *self.angles, positions, slots)

        def product(to: int, of: int, weight: int, n: int, k: int, residual: int = 0, splits: int = 1) -> Launch:
            return linear.plan(
                card.gpu, to, of, weight, rows, n, k, dtype=half, residual=residual, wide=splits > 1, splits=splits
            )

        def normed() -> Launch:
            return norm.plan(y.address, x.address, self.norm, rows, HIDDEN, dtype=half, eps=1e-5)

        card.run(
            embed.plan(x.address, self.table, tokens, rows, HIDDEN, VOCABULARY, dtype=half, ids=ids),
            normed(),
            product(wide, y.address, self.qkv, QKV, HIDDEN, splits=SPLITS),
            rope_and_cache.plan(shape, rope, tokens=rows, rotary_dim=HEAD_DIM, splits=SPLITS),
            *attention.decode(card.gpu, shape, tensors, sequences=rows, max_length=max(LENGTHS), scale=0.125),
            product(x.address, out.address, self.output, HIDDEN, HIDDEN, residual=x.address),
            normed(),
            product(wide, y.address, self.gate_up, 2 * INNER, HIDDEN, splits=SPLITS),
            gate.plan(inner.address, wide, rows, INNER, dtype=half, activation="silu", splits=SPLITS),
            product(x.address, inner.address, self.down, HIDDEN, INNER, residual=x.address),
            normed(),
        )
        return card.read(y)[:used], card.read(replace(pages, shape=self.pages.shape))


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_padding_rows_change_no_bit_of_a_sequence_or_the_pages(gpu: Card, half: Half) -> None:
    layer = Layer(gpu, half)
    alone, pages = layer.step(3)
    changed = (pages != layer.pages).any(axis=(1, 2, 4))  # [pages, 16]
    assert np.argwhere(changed).tolist() == [[1, 3], [20, 11], [21, 0]]  # positions 19, 299 and 0
    assert ((alone & 0x7C00) != 0x7C00).any(axis=1).all()
    for rows in (4, 8, 16, 24):
        beside, after = layer.step(rows)
        np.testing.assert_array_equal(beside, alone)
        np.testing.assert_array_equal(after, pages)
