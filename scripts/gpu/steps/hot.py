"""Step 9: the kernels that a server spends its time in, at real models' shapes, as shares of the measured roofs.

Weights and pages come from more than four times L2, in turn, as a model's layers do.

A figure is of nodes of a graph, gaps included; share: the floor of scripts/roofline over it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pilotlight.device.base import SampleRow
from pilotlight.device.cuda import attention, attention_prefill, linear, sample
from pilotlight.device.cuda.launch import Gpu, Half, Launch
from pilotlight.messages import Sampling
from pilotlight.model.families import describe
from pilotlight.model.spec import ModelSpec

from .. import cards
from ..job import Job, Skipped, figure
from ..paper import Paper, PaperDevice, PaperStep, decode_step, prefill_step
from ..rig import Rig, random_halves
from ..shapes import SHAPES, TINY

MODELS = ("Llama-3.1-8B", "Qwen2.5-1.5B")
_DTYPE: Half = "bfloat16"
_LEAST_SECONDS_LEFT = 4.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured of a model."""

    few: Sequence[int]  # tokens
    many: Sequence[int]
    decodes: Sequence[tuple[int, int]]  # sequences, context
    prefills: Sequence[tuple[int, int]]  # tokens, before
    rows: Sequence[int]  # sampled at once
    variants: bool
    caches: float  # how many times L2 the weights are that a case rotates over
    nodes: int  # of a graph, at most
    at_least: float  # s, of a timing


FULL = Plan(
    (1, 8, 16, 32, 64), (128, 512, 2048), ((1, 2048), (1, 16384), (16, 2048), (64, 2048), (256, 1024)),
    ((512, 0), (2048, 0), (2048, 6144)), (1, 32, 256), True, 5, 128, 0.01,
)  # fmt: skip
TINY_PLAN = Plan((1,), (80,), ((2, 300),), ((70, 10),), (2,), False, 0, 1, 0.0)


@dataclass(frozen=True, slots=True)
class Case:
    """launches: one after another, of different weights; each moves `nbytes` at least."""

    name: str
    launches: Sequence[Launch]
    each: int  # launches that are one op
    nbytes: int
    operations: int


def run(job: Job) -> None:
    try:
        card = cards.of_figures(job.earlier, "this", "measured")
    except KeyError as missing:
        raise Skipped(f"the roofs were not measured ({missing} is missing)") from None
    plan = TINY_PLAN if job.soft else FULL
    bench = Bench(Rig(), card, plan)
    models = {"tiny": TINY} if job.soft else {name: SHAPES[name] for name in MODELS}
    for model, config in models.items():
        spec = describe(config).spec
        measured: dict[str, dict[str, float]] = {}
        for case in bench.cases(spec):
            if job.seconds_left() < _LEAST_SECONDS_LEFT:
                job.note = f"not all cases in the time: {model} was cut at {case.name}"
                return
            measured[case.name] = bench.measure(case)
            job.put(models={model: measured})


class Bench:
    """Memory that all cases share: one slab that is far larger than L2, and small tensors."""

    def __init__(self, rig: Rig, card: cards.Card, plan: Plan) -> None:
        self._rig, self._card, self._plan = rig, card, plan
        self._slab, self._slab_bytes = 0, 0
        self._numbers = random_halves(4 << 20)

    def cases(self, spec: ModelSpec) -> Iterator[Case]:
        """Of a model, in an order in which the first tell most."""
        for kind in (self._linears, self._decodes, self._prefills, self._samples):
            yield from kind(spec)

    def measure(self, case: Case) -> dict[str, float]:
        ops = len(case.launches) // case.each
        seconds = self._rig.kernel_seconds(case.launches, at_least=self._plan.at_least) / ops
        return {
            "us": figure(seconds * 1e6),
            "gb_s": figure(case.nbytes / seconds / 1e9),
            "tflops": figure(case.operations / seconds / 1e12),
            "share": figure(self._card.microseconds(case.nbytes, case.operations) / seconds / 1e6),
        }

    @property
    def _gpu(self) -> Gpu:
        return self._rig.gpu

    def _room(self, nbytes: int) -> list[int]:
        """Addresses in the slab, `nbytes` apart, of more than four times L2 in all on a card."""
        wanted = max(int(self._plan.caches * self._card.l2_bytes), nbytes)
        if self._slab_bytes < wanted:
            self._slab, self._slab_bytes = self._rig.fill(wanted, self._numbers), wanted
        count = min(max(self._slab_bytes // nbytes, 1), self._plan.nodes)
        return [self._slab + number * (nbytes - nbytes % 256) for number in range(count)]

    # --- linear -----------------------------------------------------------------------------------------------

    def _linears(self, spec: ModelSpec) -> Iterator[Case]:
        qkv = spec.q_size + 2 * spec.kv_size
        matrices = (
            ("qkv", qkv, spec.hidden_size, False),
            ("output", spec.hidden_size, spec.q_size, False),
            ("gate_up", spec.intermediate_size, spec.hidden_size, True),
            ("down", spec.hidden_size, spec.intermediate_size, False),
            ("head", spec.vocab_size, spec.hidden_size, False),
        )
        for name, n, k, gated in matrices:
            for tokens in (*self._plan.few, *(() if name == "head" else self._plan.many)):
                splits = 1 if gated or name == "head" else linear.split_count(self._gpu, tokens, n, k)
                yield self._linear(f"{name} {tokens}", tokens, n, k, gated, splits, wide=name == "head")
        if self._plan.variants:
            yield from self._variants(spec)

    def _linear(
        self, name: str, tokens: int, n: int, k: int, gated: bool, splits: int, *, wide: bool = False, form: str = ""
    ) -> Case:
        rows, wide = (2 * n if gated else n), wide or splits > 1
        x = self._small(2 * tokens * k)
        y = self._small(4 * splits * tokens * n)

        def launch(weight: int) -> Launch:
            made = linear.plan(
                *(self._gpu, y, x, weight, tokens, n, k),
                dtype=_DTYPE,
                activation="silu" if gated else None,
                gated=gated,
                wide=wide,
                splits=splits,
            )
            return _as_form(made, form) if form else made

        nbytes = 2 * (rows * k + tokens * k) + (4 * splits if wide else 2) * tokens * n
        return Case(name, [launch(weight) for weight in self._room(2 * rows * k)], 1, nbytes, 2 * tokens * rows * k)

    def _variants(self, spec: ModelSpec) -> Iterator[Case]:
        """Of what the launch's arithmetic chooses: other splits of k, other tiles and stages."""
        n, k = spec.hidden_size, spec.intermediate_size
        for splits in (1, 2, 4, 8):
            yield self._linear(f"down 1, {splits} splits", 1, n, k, False, splits)
        for tokens in self._plan.many:
            for form in ("tile64_4", "tile64_8", "tile128_3", "tile128_4", "tile128_5"):
                case = self._linear(f"down {tokens}, {form}", tokens, n, k, False, 1, form=form)
                if case.launches[0].shared_bytes <= self._gpu.shared_bytes:
                    yield case

    def _small(self, nbytes: int) -> int:
        """Memory of a case's other tensors, finite numbers. It is not given back: a step is a process."""
        return self._rig.fill(nbytes, self._numbers)

    # --- attention --------------------------------------------------------------------------------------------

    def _decodes(self, spec: ModelSpec) -> Iterator[Case]:
        for sequences, context in self._plan.decodes:
            step = decode_step(sequences, context)
            shape, layers, table, starts = self._pages(spec, sequences, context)
            lengths = self._rig.upload(step.lengths)
            q, out = (self._small(2 * sequences * spec.q_size) for _ in range(2))
            workspace = self._rig.allocate(attention.workspace_bytes(shape, sequences, context))
            launches: list[Launch] = []
            for pages in layers:
                tensors = attention.Tensors(out, q, pages, table, starts, lengths, workspace)
                launches += attention.decode(
                    *(self._gpu, shape, tensors),
                    sequences=sequences,
                    max_length=context,
                    scale=spec.attention_scale,
                )
            each = len(launches) // len(layers)
            yield self._attention(f"decode {sequences} x {context}", spec, step, launches, each, context)

    def _prefills(self, spec: ModelSpec) -> Iterator[Case]:
        for tokens, before in self._plan.prefills:
            step = prefill_step(tokens, before)
            shape, layers, table, starts = self._pages(spec, 1, tokens + before)
            blocks = attention_prefill.split_rows(self._gpu, shape, step.starts, step.lengths)
            listed = self._rig.upload(blocks.table)
            q, out = (self._small(2 * tokens * spec.q_size) for _ in range(2))
            launches = [
                attention_prefill.plan(
                    shape,
                    attention_prefill.Tensors(out, q, pages, table, starts, listed),
                    blocks,
                    scale=spec.attention_scale,
                )
                for pages in layers
            ]
            yield self._attention(f"prefill {tokens} after {before}", spec, step, launches, 1, tokens + before)

    def _pages(self, spec: ModelSpec, sequences: int, context: int) -> tuple[attention.Shape, list[int], int, int]:
        """Layers of pages, and the table of who has which."""
        layer = 2 * spec.num_kv_heads * attention.PAGE_TOKENS * spec.head_dim
        pages = sequences * -(-context // attention.PAGE_TOKENS)
        shape = attention.Shape(spec.num_heads, spec.num_kv_heads, spec.head_dim, _DTYPE, page_stride=layer)
        order = np.random.default_rng(0).permutation(pages).astype(np.int32)
        starts = (np.arange(sequences) * (pages // sequences)).astype(np.int32)
        return shape, self._room(2 * pages * layer), self._rig.upload(order), self._rig.upload(starts)

    def _attention(
        self, name: str, spec: ModelSpec, step: PaperStep, launches: list[Launch], each: int, context: int
    ) -> Case:
        paper = PaperDevice(self._gpu, spec, _DTYPE, fp8_pages=False, max_length=context)
        paper.attention(step, Paper(step.count, spec.q_size), 0, spec.attention_scale, None)
        (work,) = paper.works
        return Case(name, launches, each, work.nbytes, work.operations)

    # --- sampling ---------------------------------------------------------------------------------------------

    def _samples(self, spec: ModelSpec) -> Iterator[Case]:
        vocab = spec.vocab_size
        kinds: dict[str, Sampling] = {
            "greedy": Sampling(max_tokens=1, temperature=0.0),
            "draw": Sampling(max_tokens=1, temperature=0.8),
            "top-p": Sampling(max_tokens=1, temperature=0.8, top_p=0.95),
        }
        for rows in self._plan.rows:
            logits = self._logits(rows, vocab)
            workspace = self._rig.upload(np.zeros(sample.workspace_bytes(rows, vocab), np.uint8))
            results = self._rig.allocate(8 * rows * 21)
            for kind, sampling in kinds.items():
                records = np.array([sample.record(SampleRow(sampling, key, (), ()), vocab) for key in range(rows)])
                tensors = sample.Tensors(
                    *(logits, self._rig.upload(records), self._rig.allocate(4 * rows), workspace, rows),
                    values=results,
                    others=results + 4 * rows * 21,
                )
                launches = sample.plan(tensors, rows=rows, vocab=vocab, stride=vocab, greedy=kind == "greedy")
                nbytes = 4 * rows * vocab * (1 if kind == "greedy" else 2)
                yield Case(f"sample {rows}, {kind}", launches, len(launches), nbytes, 0)

    def _logits(self, rows: int, vocab: int) -> int:
        values = np.random.default_rng(0).standard_normal(min(rows * vocab, 1 << 22), np.float32) * 4
        return self._rig.fill(4 * rows * vocab, values.astype(np.float32))


def _as_form(launch: Launch, form: str) -> Launch:
    """The same product by another tile: "tile128_4"."""
    size, stages = (int(number) for number in form.removeprefix("tile").split("_"))
    tokens, n = launch.arguments[5:7]
    tiles = -(-int(tokens) // size) * -(-int(n) // size)
    entry = f"linear_{form}_{launch.entry.rpartition('_')[2]}"
    return replace(launch, entry=entry, grid=(tiles, 1, 1), shared_bytes=stages * size * 128)
