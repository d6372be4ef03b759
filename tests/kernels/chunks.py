"""A batch of prefill attention: its inputs, what must come out, and its place in a card's memory.

Apart from the tests for the same reason as paged.py, whose bounds on every element hold here too: per row, over the
tokens that it sees. Weights are relative to the largest score so far and no longer shrink than to the largest of all,
so what their rounding gives is no more than there.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilotlight.device.cuda import attention_prefill
from pilotlight.device.cuda.attention import Shape
from pilotlight.device.cuda.attention_prefill import Blocks, Tensors
from pilotlight.device.cuda.launch import Gpu, Half, Launch

from .harness import Buffer, Card, from_half, to_half
from .paged import E4M3, NEVER, ROUNDING, hold

Array = NDArray[Any]


@dataclass
class Chunks:
    """A batch: q [tokens, heads, head_dim] as it lies in memory, and each sequence's K and V likewise, [kv_heads,
    length, head_dim]. `new`: how many tokens of each sequence, its last ones, are in q."""

    heads: int
    kv_heads: int
    head_dim: int
    half: Half
    new: list[int]
    q: Array
    keys: list[Array]
    values: list[Array]
    window: int = 0
    cap: float = 0.0
    scale: float = 0.0
    key_scale: float = 1.0
    value_scale: float = 1.0

    @property
    def fp8(self) -> bool:
        return self.keys[0].dtype == np.uint8

    @property
    def lengths(self) -> list[int]:
        return [keys.shape[1] for keys in self.keys]

    @property
    def starts(self) -> NDArray[np.int32]:
        return np.concatenate([[0], np.cumsum(self.new)]).astype(np.int32)

    def seen_from(self, sequence: int) -> int:
        """The first position that a new token of the sequence sees."""
        first = self.lengths[sequence] - self.new[sequence]
        return max(first - self.window + 1, 0) if self.window else 0

    def cut(self, new: list[list[int]]) -> list["Chunks"]:
        """The same work as several batches, one after the other: new[i][s] tokens of sequence s in the i-th."""
        done, batches = [0] * len(self.new), []
        for part in new:
            rows = [slice(self.starts[s] + done[s], self.starts[s] + done[s] + n) for s, n in enumerate(part)]
            done = [before + n for before, n in zip(done, part, strict=True)]
            ends = [length - whole + n for length, whole, n in zip(self.lengths, self.new, done, strict=True)]
            batches.append(
                Chunks(
                    *(self.heads, self.kv_heads, self.head_dim, self.half, part),
                    np.concatenate([self.q[row] for row in rows]),
                    [keys[:, :end] for keys, end in zip(self.keys, ends, strict=True)],
                    [values[:, :end] for values, end in zip(self.values, ends, strict=True)],
                    *(self.window, self.cap, self.scale, self.key_scale, self.value_scale),
                )
            )
        return batches


def random_chunks(
    rng: np.random.Generator,
    model: tuple[int, int, int],
    sequences: list[tuple[int, int]],
    *,
    half: Half = "bfloat16",
    fp8: bool = False,
    spread: float = 1.0,
    **more: Any,
) -> Chunks:
    """sequences: (length, new tokens) of each. Scores have about `spread` as their standard deviation."""
    heads, kv_heads, head_dim = model

    def stored(length: int) -> Array:
        shape = (kv_heads, length, head_dim)
        if fp8:  # the codes of e4m3, NaN left out; of magnitude 2^-9 to 30
            return rng.integers(0, 0x5F, shape, np.uint8) | (rng.integers(0, 2, shape, np.uint8) << np.uint8(7))
        return to_half(rng.standard_normal(shape, np.float32), half)

    if fp8:
        more = {"key_scale": 0.125, "value_scale": 0.375} | more
    tokens = sum(new for _, new in sequences)
    return Chunks(
        heads, kv_heads, head_dim, half, [new for _, new in sequences],
        q=to_half(spread * rng.standard_normal((tokens, heads, head_dim), np.float32), half),
        keys=[stored(length) for length, _ in sequences],
        values=[stored(length) for length, _ in sequences],
        **{"scale": head_dim**-0.5} | more,
    )  # fmt: skip


def expected(chunks: Chunks, sequence: int) -> tuple[Array, Array]:
    """Output and tolerance of one sequence's new tokens, in float64: [new, heads, head_dim] each."""
    keys, values = (
        (E4M3[x] if chunks.fp8 else from_half(x)).astype(np.float64) * np.float32(factor)
        for x, factor in (
            (chunks.keys[sequence], chunks.key_scale),
            (chunks.values[sequence], chunks.value_scale),
        )
    )
    new, length = chunks.new[sequence], chunks.lengths[sequence]
    start = chunks.starts[sequence]
    q = from_half(chunks.q[start : start + new]).astype(np.float64)
    q = q.reshape(new, chunks.kv_heads, -1, chunks.head_dim).transpose(1, 2, 0, 3)  # [kv_heads, group, new, head_dim]
    positions = np.arange(length - new, length)[:, None]
    unseen = np.arange(length) > positions
    if chunks.window:
        unseen |= np.arange(length) <= positions - chunks.window
    keys, values = keys[:, None], values[:, None]
    scores = chunks.scale * (q @ keys.swapaxes(2, 3))
    if chunks.cap:
        scores = chunks.cap * np.tanh(scores / chunks.cap)
    scores[..., unseen] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out, mass = weights @ values, weights @ np.abs(values)
    sizes = np.where(unseen, 0.0, np.abs(q) @ np.abs(keys).swapaxes(2, 3))
    blur = 2.0**-20 * chunks.scale * sizes.max(axis=-1, keepdims=True)
    u = ROUNDING[chunks.half]
    tolerance = (u + 2 * blur + 2.0**-18) * mass + u * np.abs(out)
    if chunks.half == "float16":
        tolerance += 2.0**-25 * (np.where(unseen, 0.0, 1.0) @ np.abs(values) + 1)
    return tuple(x.transpose(2, 0, 1, 3).reshape(new, chunks.heads, -1) for x in (out, tolerance))  # type: ignore[return-value]


class Run:
    """The chunks in a card's memory: a pool in which everything that must not be read is poison."""

    def __init__(
        self, card: Card, chunks: Chunks, rng: np.random.Generator, *, layers: int = 2, pool: int = 0
    ) -> None:
        """pool: bytes of a pool so large that only pages at its far end are used; 0: pages as needed."""
        self._card, self._chunks = card, chunks
        lengths = chunks.lengths
        counts = [-(-length // 16) for length in lengths]
        first_pages = [chunks.seen_from(sequence) // 16 for sequence in range(len(lengths))]
        used = sum(counts) - sum(first_pages)
        page_stride = layers * 2 * chunks.kv_heads * 16 * chunks.head_dim
        self.shape = Shape(chunks.heads, chunks.kv_heads, chunks.head_dim, chunks.half, page_stride, chunks.fp8)
        dtype = chunks.keys[0].dtype
        contents = np.zeros((used + 3, layers, 2, chunks.kv_heads, 16, chunks.head_dim), dtype)
        contents.view(np.uint8)[...] = 0xFF  # NaN
        page_bytes = page_stride * dtype.itemsize
        base = pool // page_bytes - len(contents) if pool else 0
        numbers = iter(rng.permutation(len(contents))[:used])
        self.table_stride = max(counts) + 1
        table = np.full((len(lengths), self.table_stride), NEVER, np.int32)
        for sequence, length in enumerate(lengths):
            for page in range(first_pages[sequence], counts[sequence]):
                number = next(numbers)
                table[sequence, page] = base + number
                start, end = max(16 * page, chunks.seen_from(sequence)), min(16 * page + 16, length)
                for kv, stored in enumerate((chunks.keys[sequence], chunks.values[sequence])):
                    contents[number, layers - 1, kv, :, start - 16 * page : end - 16 * page] = stored[:, start:end]
        if pool:
            pages = card.pool(pool)
            card.write(pages.address + base * page_bytes, contents)
        else:
            pages = card.upload(contents)
        self.table = table
        self._addresses = {
            "q": card.upload(chunks.q).address,
            "pages": pages.address + (layers - 1) * page_bytes // layers,
            "table": card.upload(table).address,
        }

    def blocks(self, rows: int = 0) -> Blocks:
        """rows: of the form to take; 0 for what a card would."""
        gpu = self._card.gpu if not rows else Gpu((9, 0), 1 if rows == 128 else 1 << 20, 232_448)
        blocks = attention_prefill.split_rows(
            gpu, self.shape, self._chunks.starts, np.array(self._chunks.lengths, np.int32)
        )
        assert blocks.rows == rows or not rows
        return blocks

    def output(self) -> Buffer:
        return self._card.output(self._chunks.q.shape, self._chunks.q.dtype)

    def plan(self, out: Buffer, blocks: Blocks) -> Launch:
        chunks = self._chunks
        return attention_prefill.plan(
            self.shape,
            Tensors(out=out.address, blocks=self._card.upload(blocks.table).address, **self._addresses),
            blocks,
            table_stride=self.table_stride, scale=chunks.scale, window=chunks.window, cap=chunks.cap,
            key_scale=chunks.key_scale, value_scale=chunks.value_scale,
        )  # fmt: skip

    def result(self, rows: int = 0) -> Array:
        """As it lies in memory: [tokens, heads, head_dim]."""
        out = self.output()
        self._card.run(self.plan(out, self.blocks(rows)))
        return self._card.read(out)


def check(card: Card, chunks: Chunks, rng: np.random.Generator, *, rows: int = 0, **options: Any) -> Array:
    """Runs the batch and holds every element to its bound. Returns the output as it lies in memory."""
    result = Run(card, chunks, rng, **options).result(rows)
    for sequence, new in enumerate(chunks.new):
        if not new:
            continue
        start = chunks.starts[sequence]
        out, tolerance = expected(chunks, sequence)
        what = f"sequence {sequence}, {new} of {chunks.lengths[sequence]} tokens, [token, head, element]"
        hold(from_half(result[start : start + new]), out, tolerance, what)
    return result
