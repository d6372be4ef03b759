"""A device of paper: it does the ops of a forward pass by writing down what each would launch, move and compute.

The decoder itself runs on it, and every launch is planned by the functions that the CUDA device plans with; so the
kernels, splits and partial sums are those that really run, and a new op in the decoder cannot be forgotten here.

Bytes are each tensor's own, once: what has to pass between memory and the SMs if caches hold the rest. Token ids,
page numbers and lengths are left out. Operations are the tensor cores', a multiply and an add being two.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pilotlight.device.base import Activation, Int32
from pilotlight.device.cuda import (
    attention,
    attention_prefill,
    embed,
    gate,
    linear,
    norm,
    rope_and_cache,
    sample,
)
from pilotlight.device.cuda.launch import Gpu, Half, Launch
from pilotlight.model import decoder
from pilotlight.model.spec import Description, ModelSpec

_HALF, _FLOAT = 2, 4  # bytes
_SOMEWHERE = 1 << 40  # an address


@dataclass(frozen=True, slots=True)
class Work:
    """One op of a step."""

    name: str  # "qkv", "attention"
    launches: tuple[Launch, ...]
    read: int  # bytes
    written: int
    operations: int = 0

    @property
    def nbytes(self) -> int:
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class Paper:
    """A tensor: its shape, and how it lies in memory. `splits`: fp32 [splits, rows, width], else half."""

    rows: int
    width: int
    name: str = ""
    splits: int = 0

    @property
    def nbytes(self) -> int:
        return self.rows * self.width * (_FLOAT * self.splits if self.splits else _HALF)


@dataclass(frozen=True, slots=True)
class PaperStep:
    """starts: [S + 1] and lengths: [S], as in `base.Batch`. Of each sequence the last token is sampled.

    One of length 0 is idle: it fills a decode step up to the number that there is a graph of.
    """

    starts: Int32
    lengths: Int32

    @property
    def count(self) -> int:
        return int(self.starts[-1])

    @property
    def samples(self) -> int:
        return len(self.lengths)

    @property
    def is_decode(self) -> bool:
        return self.count == self.samples


def decode_step(batch: int, context: int, bucket: int = 0) -> PaperStep:
    """One new token for each of `batch` sequences, the context's last, and idle ones up to `bucket`."""
    size = max(batch, bucket)
    lengths = np.where(np.arange(size) < batch, context, 0).astype(np.int32)
    return PaperStep(np.arange(size + 1, dtype=np.int32), lengths)


def prefill_step(tokens: int, before: int = 0) -> PaperStep:
    """A chunk of one prompt, of which `before` tokens are in the pages already."""
    return PaperStep(np.array([0, tokens], np.int32), np.array([before + tokens], np.int32))


@dataclass
class PaperDevice:
    """`greedy`: no row of a step draws, so that sampling takes two launches; else three."""

    gpu: Gpu
    spec: ModelSpec
    half: Half
    fp8_pages: bool
    max_length: int  # of a sequence that the server admits: graphs are made for it
    greedy: bool = False
    works: list[Work] = field(default_factory=list)

    def __post_init__(self) -> None:
        spec = self.spec
        layer = 2 * spec.num_kv_heads * attention.PAGE_TOKENS * spec.head_dim
        self.heads = attention.Shape(
            *(spec.num_heads, spec.num_kv_heads, spec.head_dim, self.half),
            page_stride=spec.num_layers * layer,
            fp8_pages=self.fp8_pages,
        )

    def _work(self, name: str, *launches: Launch, read: int, written: int, operations: int = 0) -> None:
        self.works.append(Work(name, launches, read, written, operations))

    # --- the ops of base.Device -------------------------------------------------------------------------------

    def embed(self, step: PaperStep, table: Paper) -> Paper:
        out = Paper(step.count, table.width)
        launch = embed.plan(
            *(_SOMEWHERE, _SOMEWHERE, _SOMEWHERE, step.count, table.width, table.rows),
            dtype=self.half,
            ids=_SOMEWHERE,
        )
        self._work("embed", launch, read=out.nbytes, written=out.nbytes)
        return out

    def norm(self, x: Paper, weight: Paper, eps: float, residual: Paper | None = None) -> tuple[Paper, Paper]:
        y = Paper(x.rows, x.width)
        fused = _SOMEWHERE if residual else 0
        launch = norm.plan(
            *(_SOMEWHERE, _SOMEWHERE, _SOMEWHERE, x.rows, x.width),
            dtype=self.half,
            eps=eps,
            residual=fused,
            sum_out=fused,
            splits=x.splits,
        )
        beside = y.nbytes if residual else 0
        read = x.nbytes + beside + weight.nbytes
        self._work(_kind(weight), launch, read=read, written=y.nbytes + beside)
        return y, residual or x

    def linear(self, x: Paper, weight: Paper, bias: Paper | None = None) -> Paper:
        splits = linear.split_count(self.gpu, x.rows, weight.rows, x.width)
        y = Paper(x.rows, weight.rows, splits=splits if splits > 1 else 0)
        return self._product(x, weight, bias, y, wide=splits > 1, splits=splits)

    def gated_linear(self, x: Paper, weight: Paper, activation: Activation, bias: Paper | None = None) -> Paper:
        out = Paper(x.rows, weight.rows // 2)
        if linear.split_count(self.gpu, x.rows, weight.rows, x.width) == 1:
            return self._product(x, weight, bias, out, gated=True, activation=activation)
        gate_up = self.linear(x, weight, bias)
        launch = gate.plan(
            *(_SOMEWHERE, _SOMEWHERE, out.rows, out.width),
            dtype=self.half,
            activation=activation,
            splits=gate_up.splits,
        )
        self._work("gate", launch, read=gate_up.nbytes, written=out.nbytes)
        return out

    def rope_and_cache(self, step: PaperStep, qkv: Paper, layer: int) -> Paper:
        q = Paper(qkv.rows, self.spec.q_size)
        launch = rope_and_cache.plan(
            self.heads,
            rope_and_cache.Tensors(*[_SOMEWHERE] * 7),
            tokens=qkv.rows,
            rotary_dim=self.spec.rope.dim,
            splits=qkv.splits,
        )
        table = qkv.rows * self.spec.rope.dim * _FLOAT  # cos and sin
        cached = int(np.diff(step.starts)[step.lengths > 0].sum())
        written = q.nbytes + cached * self._token_bytes()
        self._work("rope_and_cache", launch, read=qkv.nbytes + table, written=written)
        return q

    def attention(self, step: PaperStep, q: Paper, layer: int, scale: float, window: int | None) -> Paper:
        out = Paper(q.rows, q.width)
        launches = self._attention_launches(step, scale, window or 0)
        new = np.diff(step.starts)
        first_seen = np.maximum(step.lengths - new + 1 - window, 0) if window else np.zeros_like(step.lengths)
        cache = int((step.lengths - first_seen).sum()) * self._token_bytes()
        partial = self._partial_bytes(step, window) if step.is_decode else 0
        operations = 4 * self.spec.q_size * _pairs(new, step.lengths, window)
        self._work(
            "attention",
            *launches,
            read=q.nbytes + cache + partial,
            written=out.nbytes + partial,
            operations=operations,
        )
        return out

    def wanted(self, step: PaperStep, x: Paper) -> Paper:
        out = Paper(step.samples, x.width, splits=x.splits)
        if step.is_decode or (step.samples == 1 and not x.splits):  # rows side by side are taken where they are
            return out
        halves = x.width * (_FLOAT // _HALF if x.splits else 1)  # of a row, which is copied as it is
        plan = (_SOMEWHERE, _SOMEWHERE, _SOMEWHERE, out.rows, halves, x.rows)
        launches = [embed.plan(*plan, dtype=self.half) for _ in range(max(x.splits, 1))]
        self._work("wanted", *launches, read=out.nbytes, written=out.nbytes)
        return out

    def logits(self, x: Paper, weight: Paper) -> Paper:
        y = Paper(x.rows, weight.rows, splits=1)
        return self._product(x, weight, None, y, wide=True)

    def sample(self, step: PaperStep, logits: Paper) -> None:
        tensors = sample.Tensors(_SOMEWHERE, _SOMEWHERE, _SOMEWHERE, _SOMEWHERE, logits.rows)
        launches = sample.plan(tensors, rows=logits.rows, vocab=logits.width, stride=logits.width, greedy=self.greedy)
        # A draw looks at the logits once more, behind the scan.
        self._work("sample", *launches, read=logits.nbytes * (1 if self.greedy else 2), written=0)

    # --- what they have in common -----------------------------------------------------------------------------

    def _product(
        self,
        x: Paper,
        weight: Paper,
        bias: Paper | None,
        y: Paper,
        *,
        wide: bool = False,
        splits: int = 1,
        gated: bool = False,
        activation: Activation | None = None,
    ) -> Paper:
        n = y.width
        launch = linear.plan(
            *(self.gpu, _SOMEWHERE, _SOMEWHERE, _SOMEWHERE, x.rows, n, x.width),
            dtype=self.half,
            bias=_SOMEWHERE if bias else 0,
            activation=activation,
            gated=gated,
            wide=wide,
            splits=splits,
        )
        read = x.nbytes + weight.nbytes + (bias.nbytes if bias else 0)
        operations = 2 * x.rows * weight.rows * weight.width
        self._work(_kind(weight), launch, read=read, written=y.nbytes, operations=operations)
        return y

    def _attention_launches(self, step: PaperStep, scale: float, window: int) -> tuple[Launch, ...]:
        if step.is_decode:
            return attention.decode(
                self.gpu,
                self.heads,
                attention.Tensors(*[_SOMEWHERE] * 7),
                sequences=step.samples,
                max_length=self.max_length,
                scale=scale,
                window=window,
            )
        blocks = attention_prefill.split_rows(self.gpu, self.heads, step.starts, step.lengths)
        tensors = attention_prefill.Tensors(*[_SOMEWHERE] * 6)
        return (attention_prefill.plan(self.heads, tensors, blocks, scale=scale, window=window),)

    def _token_bytes(self) -> int:
        """K and V of a token in one layer."""
        return 2 * self.spec.kv_size * (1 if self.fp8_pages else _HALF)

    def _partial_bytes(self, step: PaperStep, window: int | None) -> int:
        """Sums that the splits of a sequence leave for each other: those of a sequence with one split leave none."""
        unit = attention.UNIT_TOKENS
        units = -(-step.lengths // unit)
        if window:
            units = units - np.maximum(step.lengths - window, 0) // unit
        each = np.maximum(-(-units // attention.MAX_SPLITS), 1)  # units of a split
        splits = -(-units // each)
        row = self.spec.num_heads * (self.spec.head_dim + 2) * _FLOAT
        return int(splits[splits > 1].sum()) * row


def step_works(description: Description, device: PaperDevice, step: PaperStep) -> list[Work]:
    """The ops of one step, sampling included, in their order."""
    weights = paper_weights(description)
    device.works = []
    hidden = decoder.forward(device.spec, device, weights, step)  # type: ignore[arg-type]
    device.sample(step, decoder.logits(device.spec, device, weights, hidden))  # type: ignore[arg-type]
    return device.works


def paper_weights(description: Description) -> Mapping[str, Paper]:
    """A matrix [rows, width], or a vector of `rows`."""
    return {
        tensor.name: Paper(tensor.shape[0], int(np.prod(tensor.shape[1:])), tensor.name)
        for tensor in description.tensors
    }


def _kind(weight: Paper) -> str:
    """ "layers.3.qkv.weight" -> "qkv"; the head is that, whether or not it is the embedding."""
    name = weight.name.removesuffix(".weight").rpartition(".")[2]
    return "head" if name == "embed" else name


def _pairs(new: Int32, lengths: Int32, window: int | None) -> int:
    """Of queries and the keys that they see."""
    pairs = 0
    for count, length in zip(new.tolist(), lengths.tolist(), strict=True):
        seen = np.arange(length - count + 1, length + 1, dtype=np.int64)
        pairs += int((np.minimum(seen, window) if window else seen).sum())
    return pairs
