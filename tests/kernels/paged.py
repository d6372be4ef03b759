"""A batch of paged attention: its inputs, what must come out, and its place in a card's memory.

Apart from the tests because a pool in which everything that must not be read is poison takes some building.
Every element is held to a bound of its own, from what the kernel rounds. With u the rounding of the half type (2^-8
in bf16, 2^-11 in fp16), p the weights and A = sum p |v|, the weights' rounding before P . V gives u A, the output's
gives u |out|. The scores' error e moves each weight by the factor 1 + e, twice (itself and their sum); approximate
2^x, 1/x and fp32 sums are covered by 2^-18 A. e is 2^-20 of the largest sum of |q| |k|, four times what the tensor
cores' truncation of fp32 sums can give. fp16 weights below 2^-14 are off by 2^-25 at most each.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilotlight.device.cuda import attention
from pilotlight.device.cuda.attention import Shape, Tensors
from pilotlight.device.cuda.launch import NULL, Gpu, Half, Launch

from .harness import Buffer, Card, from_half, to_half

ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
NEVER = 0x7FFFFFFF  # a page number that no table entry within a sequence's length has


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
    """A batch: q as it lies in memory, and each sequence's K and V likewise, [kv_heads, length, head_dim]."""

    heads: int
    kv_heads: int
    head_dim: int
    half: Half
    q: NDArray[Any]
    keys: list[NDArray[Any]]
    values: list[NDArray[Any]]
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

    def seen_from(self, length: int) -> int:
        return max(length - self.window, 0) if self.window else 0

    def decoded(self, sequence: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """K and V that the query sees, in float64."""
        keys, values = (
            (E4M3[x] if self.fp8 else from_half(x)).astype(np.float64)[:, self.seen_from(x.shape[1]) :]
            for x in (self.keys[sequence], self.values[sequence])
        )
        return keys * np.float32(self.key_scale), values * np.float32(self.value_scale)


def random_problem(
    rng: np.random.Generator,
    model: tuple[int, int, int],
    lengths: list[int],
    *,
    half: Half = "bfloat16",
    fp8: bool = False,
    spread: float = 1.0,
    **more: Any,
) -> Problem:
    """Scores have about `spread` as their standard deviation."""
    heads, kv_heads, head_dim = model

    def stored(length: int) -> NDArray[Any]:
        x = rng.standard_normal((kv_heads, length, head_dim), np.float32)
        if fp8:  # the codes of e4m3, NaN left out; of magnitude 2^-9 to 30
            return (rng.integers(0, 0x5F, x.shape, np.uint8) | rng.integers(0, 2, x.shape, np.uint8) << 7).astype(
                np.uint8
            )
        return to_half(x, half)

    if fp8:
        more = {"key_scale": 0.125, "value_scale": 0.375} | more
    return Problem(
        heads, kv_heads, head_dim, half,
        q=to_half(spread * rng.standard_normal((len(lengths), heads, head_dim), np.float32), half),
        keys=[stored(length) for length in lengths],
        values=[stored(length) for length in lengths],
        **{"scale": head_dim**-0.5} | more,
    )  # fmt: skip


def expected(problem: Problem, sequence: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Output and tolerance of one sequence: [heads, head_dim] each."""
    keys, values = problem.decoded(sequence)
    q = from_half(problem.q[sequence]).astype(np.float64).reshape(problem.kv_heads, -1, problem.head_dim)
    scores = problem.scale * (q @ keys.swapaxes(1, 2))
    if problem.cap:
        scores = problem.cap * np.tanh(scores / problem.cap)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out, mass = weights @ values, weights @ np.abs(values)
    blur = 2.0**-20 * problem.scale * (np.abs(q) @ np.abs(keys).swapaxes(1, 2)).max()
    u = ROUNDING[problem.half]
    tolerance = (u + 2 * blur + 2.0**-18) * mass + u * np.abs(out)
    if problem.half == "float16":
        tolerance += 2.0**-25 * (np.abs(values).sum(axis=1, keepdims=True) + 1)
    shape = (problem.heads, problem.head_dim)
    return out.reshape(shape), tolerance.reshape(shape)


class Run:
    """The problem in a card's memory: a pool in which everything that must not be read is poison."""

    def __init__(
        self, gpu: Card, problem: Problem, rng: np.random.Generator, *, layers: int = 2, pool: int = 0
    ) -> None:
        """pool: bytes of a pool so large that only pages at its far end are used; 0: pages as needed."""
        self._gpu, self._problem = gpu, problem
        lengths = problem.lengths
        counts = [-(-length // 16) for length in lengths]
        self.table_stride = max(*counts, 1) + 1
        first_pages = [problem.seen_from(length) // 16 for length in lengths]
        used = sum(counts) - sum(first_pages)
        tile = 16 * problem.head_dim
        page_stride = layers * 2 * problem.kv_heads * tile
        self.shape = Shape(
            problem.heads,
            problem.kv_heads,
            problem.head_dim,
            problem.half,
            page_stride,
            problem.fp8,  # type: ignore[arg-type]
        )
        dtype = problem.keys[0].dtype
        contents = np.full(((used + 3), layers, 2, problem.kv_heads, 16, problem.head_dim), 0, dtype)
        contents.view(np.uint8)[...] = 0xFF  # NaN
        page_bytes = page_stride * dtype.itemsize
        base = pool // page_bytes - len(contents) if pool else 0
        numbers = iter(rng.permutation(len(contents))[:used])
        table = np.full((len(lengths), self.table_stride), NEVER, np.int32)
        for sequence, length in enumerate(lengths):
            for page in range(first_pages[sequence], counts[sequence]):
                number = next(numbers)
                table[sequence, page] = base + number
                start, end = max(16 * page, problem.seen_from(length)), min(16 * page + 16, length)
                for kv, stored in enumerate((problem.keys[sequence], problem.values[sequence])):
                    contents[number, layers - 1, kv, :, start - 16 * page : end - 16 * page] = stored[:, start:end]
        if pool:
            pages = gpu.pool(pool)
            gpu.write(pages.address + base * page_bytes, contents)
        else:
            pages = gpu.upload(contents)
        self.table, self.counts = table, counts
        self._lengths = gpu.upload(np.array(lengths, np.int32))
        self.tensors = Tensors(
            out=NULL,
            q=gpu.upload(problem.q).address,
            pages=pages.address + (layers - 1) * page_bytes // layers,
            table=gpu.upload(table).address,
            lengths=self._lengths.address,
        )

    def launches(self, out: Buffer, *, max_length: int = 0, card: Gpu | None = None) -> tuple[Launch, ...]:
        problem = self._problem
        max_length = max_length or max(1, *problem.lengths)
        sequences = len(problem.lengths)
        needed = attention.workspace_bytes(self.shape, sequences, max_length, problem.window)
        self.workspace = self._gpu.output((needed,), np.uint8)
        return attention.decode(
            card or self._gpu.gpu,
            self.shape,
            replace(self.tensors, out=out.address, workspace=self.workspace.address if needed else NULL),
            sequences=sequences,
            table_stride=self.table_stride,
            max_length=max_length,
            scale=problem.scale,
            window=problem.window,
            cap=problem.cap,
            key_scale=problem.key_scale,
            value_scale=problem.value_scale,
        )

    def output(self) -> Buffer:
        return self._gpu.output(self._problem.q.shape, self._problem.q.dtype)

    def result(self, **options: Any) -> NDArray[Any]:
        """As it lies in memory: [sequences, heads, head_dim]."""
        out = self.output()
        self._gpu.run(*self.launches(out, **options))
        self._gpu.read(self.workspace)  # its fences
        return self._gpu.read(out)


def hold(got: NDArray[Any], out: NDArray[Any], tolerance: NDArray[Any], what: str) -> None:
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


def check(gpu: Card, problem: Problem, rng: np.random.Generator, **options: Any) -> NDArray[Any]:
    """Runs the problem and holds every element to its bound. Returns the output as it lies in memory."""
    result = Run(gpu, problem, rng, **options).result()
    for sequence, length in enumerate(problem.lengths):
        if length == 0:
            assert (result[sequence].view(np.uint8) == 0xFF).all(), "a row of length 0 was written"
            continue
        out, tolerance = expected(problem, sequence)
        hold(from_half(result[sequence]), out, tolerance, f"sequence {sequence} of length {length}, [head, element]")
    return result
