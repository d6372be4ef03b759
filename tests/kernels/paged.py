"""A batch of paged attention: its inputs, what must come out, and its place in a card's memory, for both kernels.

Apart from the tests because a pool in which everything that must not be read is poison takes some building.
Every element is held to a bound of its own, from what the kernels round. With u the rounding of the half type (2^-8
in bf16, 2^-11 in fp16), p the weights and A = sum p |v|, the weights' rounding before P . V gives u A, the output's
gives u |out|; prefill's weights, which are relative to the largest score so far, no longer shrink than to the largest
of all, and give no more. The scores' error e moves each weight by the factor 1 + e, twice (itself and their sum);
approximate 2^x, 1/x and fp32 sums are covered by 2^-18 A. e is 2^-20 of a row's largest sum of |q| |k|, four times
what the tensor cores' truncation of fp32 sums can give. fp16 weights below 2^-14 are off by 2^-25 at most each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pilotlight.device.base import AttentionShape, Batch
from pilotlight.device.cuda import attention, attention_prefill
from pilotlight.device.cuda.attention import Shape
from pilotlight.device.cuda.attention_prefill import Blocks
from pilotlight.device.cuda.launch import NULL, Gpu, Half, Launch
from pilotlight.device.numpy_attention import PagedAttention

from .harness import Buffer, Card, from_half, to_half

Array = NDArray[Any]

ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
NEVER = 0x7FFFFFFF  # in place of a page number that must not be read


def e4m3_table() -> NDArray[np.float32]:
    """The values of the 256 codes; the two of NaN stand as NaN."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    value[code & 0x7F == 0x7F] = np.nan
    return np.where(code & 0x80, -value, value).astype(np.float32)


E4M3 = e4m3_table()


@dataclass
class Problem:
    """A batch: q [tokens, heads, head_dim] as it lies in memory, and each sequence's K and V likewise, [kv_heads,
    length, head_dim]. `new`: how many tokens of each sequence, its last ones, are in q; in decode one each, a row of
    length 0 too."""

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
        return np.cumsum([0, *self.new], dtype=np.int32)

    def seen_from(self, sequence: int) -> int:
        """The first position that a new token of the sequence sees."""
        first = self.lengths[sequence] - self.new[sequence]
        return max(first - self.window + 1, 0) if self.window else 0

    def decoded(self, sequence: int) -> tuple[Array, Array]:
        """K and V of a sequence in float64."""
        keys, values = (
            (E4M3[x] if self.fp8 else from_half(x)).astype(np.float64)
            for x in (self.keys[sequence], self.values[sequence])
        )
        return keys * np.float32(self.key_scale), values * np.float32(self.value_scale)

    def cut(self, new: list[list[int]]) -> list["Problem"]:
        """The same work as several batches, one after the other: new[i][s] tokens of sequence s in the i-th."""
        done, batches = [0] * len(self.new), []
        for part in new:
            rows = [slice(self.starts[s] + done[s], self.starts[s] + done[s] + n) for s, n in enumerate(part)]
            done = [before + n for before, n in zip(done, part, strict=True)]
            ends = [length - whole + n for length, whole, n in zip(self.lengths, self.new, done, strict=True)]
            batches.append(
                replace(
                    self,
                    new=part,
                    q=np.concatenate([self.q[row] for row in rows]),
                    keys=[keys[:, :end] for keys, end in zip(self.keys, ends, strict=True)],
                    values=[values[:, :end] for values, end in zip(self.values, ends, strict=True)],
                )
            )
        return batches


def random_problem(
    rng: np.random.Generator,
    model: tuple[int, int, int],
    sequences: Sequence[tuple[int, int] | int],
    *,
    half: Half = "bfloat16",
    fp8: bool = False,
    spread: float = 1.0,
    **more: Any,
) -> Problem:
    """model: heads, kv_heads, head_dim. sequences: of each (length, new tokens), or its length, with one new token.
    Scores have about `spread` as their standard deviation."""
    heads, kv_heads, head_dim = model
    pairs = [(each, 1) if isinstance(each, int) else each for each in sequences]

    def stored(length: int) -> Array:
        shape = (kv_heads, length, head_dim)
        if fp8:  # the codes of e4m3, NaN left out; of magnitude 2^-9 to 30
            return rng.integers(0, 0x5F, shape, np.uint8) | (rng.integers(0, 2, shape, np.uint8) << np.uint8(7))
        return to_half(rng.standard_normal(shape, np.float32), half)

    if fp8:
        more = {"key_scale": 0.125, "value_scale": 0.375} | more
    tokens = sum(new for _, new in pairs)
    return Problem(
        heads, kv_heads, head_dim, half, [new for _, new in pairs],
        q=to_half(spread * rng.standard_normal((tokens, heads, head_dim), np.float32), half),
        keys=[stored(length) for length, _ in pairs],
        values=[stored(length) for length, _ in pairs],
        **{"scale": head_dim**-0.5} | more,
    )  # fmt: skip


def batch_of(
    positions: ArrayLike,
    slots: ArrayLike,
    starts: ArrayLike,
    lengths: ArrayLike,
    *,
    pages: ArrayLike,
    page_starts: ArrayLike,
) -> Batch:
    """A step as the numpy device takes it: of tokens 0, none of which is sampled."""
    nothing = np.empty(0, np.int32)
    return Batch(
        tokens=np.zeros(len(np.asarray(positions)), np.int32),
        positions=np.asarray(positions, np.int32),
        slots=np.asarray(slots, np.int32),
        starts=np.asarray(starts, np.int32),
        lengths=np.asarray(lengths, np.int32),
        pages=np.asarray(pages, np.int32),
        page_starts=np.asarray(page_starts, np.int32),
        sample_rows=nothing,
        rows=[],
        numbers=nothing,
        admissions=nothing.astype(np.int64),
        sample_positions=nothing,
        score_rows=nothing,
        score_targets=nothing,
    )


def expected(problem: Problem, sequence: int) -> tuple[Array, Array]:
    """Output and tolerance of one sequence's new tokens, in float64: [new, heads, head_dim] each."""
    first, new, length = problem.seen_from(sequence), problem.new[sequence], problem.lengths[sequence]
    keys, values = (x[:, None, first:] for x in problem.decoded(sequence))
    q = from_half(problem.q[problem.starts[sequence] :][:new]).astype(np.float64)
    q = q.reshape(new, problem.kv_heads, -1, problem.head_dim).transpose(1, 2, 0, 3)  # [kv_heads, group, new, .]
    age = np.arange(length - new, length)[:, None] - np.arange(first, length)
    unseen = (age < 0) | (age >= (problem.window or length))
    scores = problem.scale * (q @ keys.swapaxes(2, 3))
    if problem.cap:
        scores = problem.cap * np.tanh(scores / problem.cap)
    scores[..., unseen] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out, mass = weights @ values, weights @ np.abs(values)
    sizes = np.where(unseen, 0.0, np.abs(q) @ np.abs(keys).swapaxes(2, 3))
    blur = 2.0**-20 * problem.scale * sizes.max(axis=-1, keepdims=True)
    u = ROUNDING[problem.half]
    tolerance = (u + 2 * blur + 2.0**-18) * mass + u * np.abs(out)
    if problem.half == "float16":
        tolerance += 2.0**-25 * (np.where(unseen, 0.0, 1.0) @ np.abs(values) + 1)
    return tuple(x.transpose(2, 0, 1, 3).reshape(new, problem.heads, -1) for x in (out, tolerance))  # type: ignore[return-value]


class Run:
    """The problem in a card's memory: a pool in which everything that must not be read is poison, and a table that
    ends with the last sequence's last page."""

    def __init__(
        self, card: Card, problem: Problem, rng: np.random.Generator, *, layers: int = 2, pool: int = 0
    ) -> None:
        """pool: bytes of a pool so large that only pages at its far end are used; 0: pages as needed."""
        self._card, self._problem = card, problem
        counts = [-(-length // 16) for length in problem.lengths]
        seen_from = [problem.seen_from(sequence) for sequence in range(len(counts))]
        used = sum(counts) - sum(start // 16 for start in seen_from)
        page_stride = layers * 2 * problem.kv_heads * 16 * problem.head_dim
        self.shape = Shape(
            problem.heads, problem.kv_heads, problem.head_dim, problem.half, page_stride, problem.fp8
        )  # fmt: skip
        dtype = problem.keys[0].dtype
        contents = np.zeros((used + 3, layers, 2, problem.kv_heads, 16, problem.head_dim), dtype)
        contents.view(np.uint8)[...] = 0xFF  # NaN
        page_bytes = page_stride * dtype.itemsize
        base = pool // page_bytes - len(contents) if pool else 0
        numbers = iter(rng.permutation(len(contents))[:used])
        self.table = np.full(sum(counts), NEVER, np.int32)
        self.table_starts = np.cumsum([0, *counts], dtype=np.int32)
        for sequence, length in enumerate(problem.lengths):
            for page in range(seen_from[sequence] // 16, counts[sequence]):
                number = next(numbers)
                self.table[self.table_starts[sequence] + page] = base + number
                start, end = max(16 * page, seen_from[sequence]), min(16 * page + 16, length)
                for kv, stored in enumerate((problem.keys[sequence], problem.values[sequence])):
                    contents[number, layers - 1, kv, :, start - 16 * page : end - 16 * page] = stored[:, start:end]
        if pool:
            pages = card.pool(pool)
            card.write(pages.address + base * page_bytes, contents)
        else:
            pages = card.upload(contents)
        self.addresses = {
            "q": card.upload(problem.q).address,
            "pages": pages.address + (layers - 1) * page_bytes // layers,
            "table": card.upload(self.table).address,
            "table_starts": card.upload(self.table_starts[:-1]).address,
        }
        self._options = {
            "scale": problem.scale, "window": problem.window, "cap": problem.cap,
            "key_scale": problem.key_scale, "value_scale": problem.value_scale,
        }  # fmt: skip

    def output(self) -> Buffer:
        return self._card.output(self._problem.q.shape, self._problem.q.dtype)

    def numpy_result(self) -> Array:
        """What the numpy device gives of the same rounded q, K and V in half precision: as q."""
        problem = self._problem
        shape = AttentionShape(
            1, problem.heads, problem.kv_heads, problem.head_dim, problem.head_dim, page_size=16
        )  # fmt: skip
        rope = np.zeros((max(problem.lengths), problem.head_dim // 2), np.float32)
        device = PagedAttention(shape, len(self.table) + 3, rope, rope)
        positions = [np.arange(n)[-new:] for n, new in zip(problem.lengths, problem.new, strict=True)]
        for sequence, length in enumerate(problem.lengths):
            stored = from_half(np.concatenate([problem.keys[sequence], problem.values[sequence]]))
            for position in range(problem.seen_from(sequence), length):
                page = self.table[self.table_starts[sequence] + position // 16]
                device.pages()[page, 0, :, position % 16] = stored[:, position]
        table = np.where(self.table == NEVER, 0, self.table)
        slots = np.full(len(problem.q), -1)
        batch = batch_of(
            np.concatenate(positions), slots, problem.starts, problem.lengths,
            pages=table, page_starts=self.table_starts,
        )  # fmt: skip
        out = device.attend(device.begin(batch), from_half(problem.q), 0, problem.scale, problem.window or None)
        return out.reshape(problem.q.shape)


class DecodeRun(Run):
    """With decode's own tensors."""

    def __init__(self, card: Card, problem: Problem, rng: np.random.Generator, **options: Any) -> None:
        super().__init__(card, problem, rng, **options)
        lengths = card.upload(np.array(problem.lengths, np.int32))
        self.tensors = attention.Tensors(out=NULL, lengths=lengths.address, **self.addresses)

    def launches(self, out: Buffer, *, max_length: int = 0, card: Gpu | None = None) -> tuple[Launch, ...]:
        problem = self._problem
        max_length = max_length or max(1, *problem.lengths)
        sequences = len(problem.lengths)
        needed = attention.workspace_bytes(self.shape, sequences, max_length, problem.window)
        self.workspace = self._card.output((needed,), np.uint8)
        tensors = replace(self.tensors, out=out.address, workspace=self.workspace.address if needed else NULL)
        return attention.decode(
            card or self._card.gpu, self.shape, tensors, sequences=sequences, max_length=max_length, **self._options
        )

    def result(self, **options: Any) -> Array:
        """As it lies in memory: [sequences, heads, head_dim]."""
        out = self.output()
        self._card.run(*self.launches(out, **options))
        self._card.read(self.workspace)  # its fences
        return self._card.read(out)


class PrefillRun(Run):
    """With prefill's list of blocks."""

    def blocks(self, rows: int = 0) -> Blocks:
        """rows: of the form to take; 0 for what a card would."""
        gpu = self._card.gpu if not rows else Gpu((9, 0), 1 if rows == 128 else 1 << 20, 232_448)
        lengths = np.array(self._problem.lengths, np.int32)
        blocks = attention_prefill.split_rows(gpu, self.shape, self._problem.starts, lengths)
        assert blocks.rows == rows or not rows
        return blocks

    def plan(self, out: Buffer, blocks: Blocks) -> Launch:
        listed = self._card.upload(blocks.table).address
        tensors = attention_prefill.Tensors(out=out.address, blocks=listed, **self.addresses)
        return attention_prefill.plan(self.shape, tensors, blocks, **self._options)

    def result(self, rows: int = 0) -> Array:
        """As it lies in memory: [tokens, heads, head_dim]."""
        out = self.output()
        self._card.run(self.plan(out, self.blocks(rows)))
        return self._card.read(out)


def hold(got: Array, out: Array, tolerance: Array, what: str) -> None:
    """Fails, naming the worst element, where one is further off than its tolerance, which may be 0."""
    error = np.abs(got - out)
    wrong = ~(error <= tolerance)  # a NaN too
    if wrong.any():
        with np.errstate(divide="ignore", invalid="ignore"):
            excess = np.where(np.isnan(error), np.inf, error / tolerance)
        worst = np.unravel_index(np.argmax(np.where(wrong, excess, 0.0)), error.shape)
        raise AssertionError(
            f"{what} {[int(i) for i in worst]}: {got[worst]} instead of {out[worst]}, tolerance {tolerance[worst]}"
        )


def hold_result(result: Array, problem: Problem) -> None:
    """Holds every element, as it lies in memory, to its bound; a row of length 0 must not have been written."""
    for sequence, (length, new) in enumerate(zip(problem.lengths, problem.new, strict=True)):
        got = result[problem.starts[sequence] :][:new]
        if length == 0:
            assert (got.view(np.uint8) == 0xFF).all(), "a row of length 0 was written"
        elif new:
            out, tolerance = expected(problem, sequence)
            what = f"sequence {sequence}, {new} of {length} tokens, [token, head, element]"
            hold(from_half(got), out, tolerance, what)
