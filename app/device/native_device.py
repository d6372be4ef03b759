"""The CPU through the library of kernels/cpu: ops are recorded into a program, and a step runs it by one call.

Everything that a program reads and writes has a fixed place, the counts of a step's rows too; so the program that
the first step of its kind records serves all later ones, whatever their batch.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..timeline import Timeline
from . import host
from . import native_abi as abi
from .base import Activation, AttentionShape, Batch, Float32, R, Sampled, Stage, StepShape
from .layout import Layout
from .mapped import loading
from .native_library import Library, Program
from .native_places import Places, Slab, anonymous, plan_places
from .native_sampling import Logprobs, Sampler
from .native_weights import Matrix, Weight, load_weights, loaded_bytes

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "I8": "int8"}
_TOKENS, _SEQUENCES, _WANTED, _SAMPLED = range(4)  # indices into the slab's counts


@dataclass(slots=True)
class Step:
    batch: Batch
    samples: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """fp32 [count, width] at a fixed place; how many rows it has stands in memory, and changes with the step."""

    address: int
    count: int  # address of an int32
    width: int

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """For numpy: the rows as they are now."""
        return {"data": (self.address, False), "shape": (self.rows, self.width), "typestr": "<f4", "version": 3}

    @property
    def rows(self) -> int:
        return ctypes.c_int32.from_address(self.count).value


class NativeDevice:
    """Implements `base.Device`. Not thread-safe; one engine drives it.

    An op that is called outside `run` is done at once.
    """

    name = "cpu"
    # Host memory is shared with everything else on the machine, so K/V do not claim all of it by default.
    default_kv_bytes: int | None = 1 << 30
    gathers_pages = False
    lookahead = False

    def __init__(self, library: Library) -> None:
        self._library = library
        self.title = f"cpu native {library.level}"
        self.dtype = ""
        self._kv_type = abi.F32
        self._cache: abi.Cache
        self._pages: NDArray[np.uint8]
        self._slab: Slab
        self._at: dict[str, int]  # addresses of the slab's places
        self._sampler: Sampler
        self._scores: Logprobs
        self._ops: list[abi.Op] | None = None  # while a program is recorded
        self._programs: dict[tuple[Stage, bool], tuple[Program, Any]] = {}
        self._samples = 0  # of the step that was begun last
        self._pieces: list[NDArray[np.int32]] = []  # counts of the rows that it scores at once

    # --- memory -----------------------------------------------------------------------------------------------

    def available_bytes(self) -> int:
        return host.available_bytes()

    def weight_bytes(self, layout: Layout) -> int:
        """The K/V of fp32 weights are fp32, those of any others fp16."""
        dtype = layout.tensors[0].dtype
        self.dtype, self._kv_type = _DTYPES[dtype], abi.F32 if dtype == "F32" else abi.F16
        return loaded_bytes(layout)

    def load(self, layout: Layout, timeline: Timeline) -> dict[str, Weight]:
        with loading(layout, timeline):
            return load_weights(layout)

    def page_bytes(self, shape: AttentionShape) -> int:
        itemsize = 4 if self._kv_type == abi.F32 else 2
        return shape.num_layers * 2 * shape.num_kv_heads * shape.page_size * shape.head_dim * itemsize

    def activation_bytes(self, shape: AttentionShape, step: StepShape) -> int:
        cache = self._cache_of(shape, 0)
        self._library.check(abi.op(abi.RopeAndCache(cache=cache)))
        self._library.check(abi.op(abi.Attention(cache=cache)))
        return self._place(shape, step).nbytes

    def allocate(self, shape: AttentionShape, step: StepShape, num_pages: int, cos: Float32, sin: Float32) -> None:
        self._pages = anonymous(num_pages * self.page_bytes(shape))
        self._cache = self._cache_of(shape, self._pages.ctypes.data)
        self._slab = Slab(self._place(shape, step))
        self._at = self._slab.addresses
        self._cos, self._sin = np.ascontiguousarray(cos), np.ascontiguousarray(sin)
        self._sampler = Sampler(step.num_logits, step.vocab_size, step.num_logprobs)
        self._num_logits = step.num_logits
        self._scores = Logprobs(step.num_tokens, min(step.num_logprobs, step.vocab_size))

    def _place(self, shape: AttentionShape, step: StepShape) -> Places:
        cache, library = self._cache_of(shape, 0), self._library
        widest = max(step.hidden_size, shape.num_heads * shape.head_dim, step.intermediate_size)
        rows = max(step.num_tokens, step.num_logits)
        scratch = {
            "packed": library.packed_bytes(rows, widest),
            "attention": library.attention_bytes(cache, step.num_tokens, step.num_seqs, step.max_length),
            "sampling": library.sample_bytes(step.vocab_size),
        }
        return plan_places(shape, step, scratch)

    def _cache_of(self, shape: AttentionShape, pages: int) -> abi.Cache:
        return abi.Cache(
            pages,
            shape.num_layers,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.rotary_dim,
            shape.page_size,
            self._kv_type,
        )

    # --- a step -----------------------------------------------------------------------------------------------

    def begin(self, batch: Batch) -> Step:
        put, samples = self._slab.put, len(batch.sample_rows)
        wanted = np.concatenate([batch.sample_rows, batch.score_rows])
        put("counts", np.array([len(batch.tokens), len(batch.lengths), len(wanted), samples], np.int32))
        put("tokens", batch.tokens)
        put("positions", batch.positions)
        put("slots", batch.slots)
        put("starts", batch.starts)
        put("lengths", batch.lengths)
        put("pages", batch.pages)
        put("page_starts", batch.page_starts)
        put("wanted", wanted)
        put("targets", batch.score_targets)
        put("top", np.array([batch.score_top], np.int32))
        self._samples = samples
        self._pieces.clear()
        return Step(batch, samples)

    def run(self, step: Step, stage: Stage, compute: Callable[[], R]) -> R:
        """Steps that score are rare, and cut their rows each in their own way: their programs are not kept."""
        if stage != "forward" and step.samples:
            self._sampler.fill(step.batch)
        if len(step.batch.score_rows):
            program, found = self._record(compute)
        else:
            key = stage, step.samples > 0
            if key not in self._programs:
                self._programs[key] = self._record(compute)
            program, found = self._programs[key]
        program.run()
        return found

    def prepare(self, compute: Callable[[Step], object]) -> bool:
        return False

    def finish(self, step: Step) -> Sampled:
        batch = step.batch
        tokens, logprobs = self._sampler.read(batch.rows)
        targets = enumerate(batch.score_targets.tolist())
        return Sampled(tokens, logprobs, [self._scores.read(row, token, batch.score_top) for row, token in targets])

    def _record(self, compute: Callable[[], R]) -> tuple[Program, R]:
        """A program of the ops that `compute` calls, and what it gives."""
        ops: list[abi.Op] = []
        self._ops = ops
        try:
            found = compute()
        finally:
            self._ops = None
        return self._library.program(ops), found

    def _do(self, record: abi.Record) -> None:
        op = abi.op(record)
        if self._ops is None:
            self._library.program([op]).run()
        else:
            self._ops.append(op)

    # --- ops --------------------------------------------------------------------------------------------------

    def embed(self, step: Step, table: Matrix) -> Tensor:
        out = self._tensor("residual", _TOKENS, table.columns)
        self._do(abi.Embed(out.count, self._at["tokens"], out.address, table.record))
        return out

    def norm(self, x: Tensor, weight: Float32, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y = Tensor(self._at["normed"], x.count, x.width)
        added = residual.address if residual else None
        self._do(abi.Norm(x.count, x.address, added, weight.ctypes.data, y.address, x.width, eps))
        return y, residual or x

    def linear(self, x: Tensor, weight: Matrix, bias: Float32 | None = None) -> Tensor:
        return self._linear("linear", x, weight, bias)

    def logits(self, x: Tensor, weight: Matrix) -> Tensor:
        if x.rows > self._num_logits:
            raise ValueError(f"logits of {x.rows} rows at once, there is room for {self._num_logits}")
        return self._linear("logits", x, weight, None)

    def _linear(self, place: str, x: Tensor, weight: Matrix, bias: Float32 | None) -> Tensor:
        y = Tensor(self._at[place], x.count, weight.rows)
        self._do(abi.Linear(x.count, x.address, _address(bias), y.address, self._at["packed"], weight.record))
        return y

    def gated_linear(self, x: Tensor, weight: Matrix, activation: Activation, bias: Float32 | None = None) -> Tensor:
        y = Tensor(self._at["gated"], x.count, weight.rows // 2)
        linear = x.count, x.address, _address(bias), y.address, self._at["packed"], weight.record
        self._do(abi.GatedLinear(*linear, abi.ACTIVATIONS[activation]))
        return y

    def rope_and_cache(self, step: Step, qkv: Tensor, layer: int) -> Tensor:
        at, cache = self._at, self._cache
        q = Tensor(at["q"], qkv.count, cache.heads * cache.head_dim)
        tables = self._cos.ctypes.data, self._sin.ctypes.data
        self._do(
            abi.RopeAndCache(qkv.count, at["positions"], at["slots"], *tables, qkv.address, q.address, cache, layer)
        )
        return q

    def attention(self, step: Step, q: Tensor, layer: int, scale: float, window: int | None) -> Tensor:
        at = self._at
        out = Tensor(at["attended"], q.count, q.width)
        batch = self._count(_SEQUENCES), at["starts"], at["lengths"], at["pages"], at["page_starts"]
        self._do(
            abi.Attention(*batch, q.address, out.address, at["attention"], self._cache, layer, window or 0, scale)
        )
        return out

    def wanted(self, step: Step, x: Tensor) -> Tensor:
        place = "residual_rows" if x.address == self._at["residual"] else "rows"
        out = self._tensor(place, _WANTED, x.width)
        self._do(abi.Gather(out.count, self._at["wanted"], x.address, out.address, x.width))
        return out

    def part(self, x: Tensor, first: int, count: int) -> Tensor:
        """The sampled rows, whose number each step reads from memory. Or some of the scored rows, whose number may be
        fixed, since the program of a step that scores is not kept.
        """
        if first == 0 and x.count == self._count(_WANTED) and count == self._samples:
            return Tensor(x.address, self._count(_SAMPLED), x.width)
        self._pieces.append(np.array([count], np.int32))
        return Tensor(x.address + first * x.width * 4, self._pieces[-1].ctypes.data, x.width)

    def sample(self, step: Step, logits: Tensor) -> None:
        sampler = self._sampler
        logprobs = sampler.logprobs
        self._do(
            abi.Sample(
                logits.count,
                logits.address,
                sampler.address,
                sampler.tokens.ctypes.data,
                *logprobs.addresses(0),
                self._at["sampling"],
                logits.width,
                logprobs.most_top,
            )
        )

    def score(self, step: Step, logits: Tensor, first: int) -> None:
        at, scores = self._at, self._scores
        self._do(
            abi.Score(
                logits.count,
                logits.address,
                at["targets"] + 4 * first,
                *scores.addresses(first),
                at["top"],
                at["sampling"],
                logits.width,
                scores.most_top,
            )
        )

    def _tensor(self, place: str, count: int, width: int) -> Tensor:
        return Tensor(self._at[place], self._count(count), width)

    def _count(self, index: int) -> int:
        return self._at["counts"] + 4 * index


def _address(array: Float32 | None) -> int | None:
    return None if array is None else array.ctypes.data
