"""A loaded model: weights and KV pages on a device, and `run`, which takes one engine step through it."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..device.base import AttentionShape, Batch, Device, Sampled, Step, StepShape, Tensor
from ..device.choice import open_device
from ..device.layout import Layout
from ..settings import PAGE_SIZE, Settings
from ..timeline import Timeline
from . import decoder
from .checkpoint import open_checkpoint, untied
from .config import read_config
from .families import describe
from .plan import Memory, Plan, plan_pages
from .rope import rotary_table
from .spec import ModelSpec

_SCORED_AT_ONCE = 64  # rows of prompt logits: each is as wide as the vocabulary

_log = logging.getLogger(__name__)


class Model:
    """A model that is ready to run. Its pages belong to whoever plans the batches."""

    def __init__(
        self, spec: ModelSpec, device: Device, weights: Mapping[str, Tensor], max_model_len: int, num_pages: int
    ) -> None:
        self.spec = spec
        self.device = device
        self.max_model_len = max_model_len
        self.num_pages = num_pages
        self.lookahead = device.lookahead
        self.weights = weights
        self._has_run = False

    def start(self, batch: Batch) -> "Running":
        """Begins an engine step: K/V of the batch's tokens written, the named rows sampled and scored."""
        self._has_run = True
        device = self.device
        step = device.begin(batch)
        if any(row.mask for row in batch.rows):
            return Running(self, step, device.run(step, "forward", lambda: self.forward(step)))
        device.run(step, "step", lambda: self.choose(step, self.forward(step)))
        return Running(self, step)

    def run(self, batch: Batch) -> Sampled:
        """A step from its beginning to its end."""
        running = self.start(batch)
        running.complete()
        return running.result()

    def prepare(self) -> bool:
        """Does a little of what later steps would have to wait for. Returns whether there may be more."""
        if not self._has_run:
            self.warm_up()
        return self.device.prepare(lambda step: self.choose(step, self.forward(step)))

    def warm_up(self) -> None:
        """One token that leaves no K/V: whatever the first step pays for is paid before the first request."""
        self.run(_one_token())

    def forward(self, step: Step) -> Tensor:
        """Hidden states of the rows that the step wants."""
        return decoder.forward(self.spec, self.device, self.weights, step)

    def logits(self, hidden: Tensor) -> Tensor:
        return decoder.logits(self.spec, self.device, self.weights, hidden)

    def choose(self, step: Step, hidden: Tensor) -> None:
        """Samples and scores, given what `forward` gave."""
        device = self.device
        if step.samples:
            device.sample(step, self.logits(device.part(hidden, 0, step.samples)))
        count = len(step.batch.score_rows)
        for first in range(0, count, _SCORED_AT_ONCE):
            rows = device.part(hidden, step.samples + first, min(_SCORED_AT_ONCE, count - first))
            device.score(step, self.logits(rows), first)


class Running:
    """A step under way."""

    def __init__(self, model: Model, step: Step, hidden: Tensor | None = None) -> None:
        self._model = model
        self._step = step
        self._hidden = hidden  # where nothing is sampled yet

    def complete(self) -> None:
        """Samples, where rows have masks: those depend on the last step's tokens, which are known by now."""
        model, step, hidden = self._model, self._step, self._hidden
        if hidden is not None:
            model.device.run(step, "sample", lambda: model.choose(step, hidden))
            self._hidden = None

    def result(self) -> Sampled:
        """Waits for the step, which must be complete."""
        return self._model.device.finish(self._step)


def load_model(directory: Path, settings: Settings, timeline: Timeline) -> Model:
    """Opens a snapshot or a Hugging Face directory and makes it ready on the device.

    The context is as long as `--max-model-len` says, or as the model allows and the memory holds (see plan.py).
    Raises ModelDataError for files that are not what they should be, UnavailableError for what does not fit.
    """
    with timeline.span("config"):
        description = describe(untied(directory, read_config(directory)))
        spec = description.spec
        layout = open_checkpoint(directory, description.tensors, verify=settings.verify)
    with timeline.span("device", after="context"):
        device = open_device(settings)
    with timeline.span("plan"):
        shape, step = _shapes(spec, settings)
        memory = _memory(device, layout, shape, step)
        plan = plan_pages(
            spec,
            memory,
            page_size=PAGE_SIZE,
            utilization=settings.gpu_memory_utilization,
            max_num_seqs=settings.max_num_seqs,
            max_model_len=settings.max_model_len,
            kv_bytes=settings.kv_cache_memory_bytes,
        )
        cos, sin = rotary_table(spec.rope, plan.max_model_len)  # here: the weights may still be on their way
    weights = device.load(layout, timeline)
    with timeline.span("kv cache"):
        device.allocate(shape, replace(step, max_length=plan.max_model_len), plan.num_pages, cos, sin)
    model = Model(spec, device, weights, plan.max_model_len, plan.num_pages)
    if device.lookahead:  # a GPU: that its kernels run is known before it counts as ready
        with timeline.span("first forward"):
            model.warm_up()
    _log_loaded(spec, memory, plan)
    return model


def _shapes(spec: ModelSpec, settings: Settings) -> tuple[AttentionShape, StepShape]:
    """What the settings allow of the model. Steps have the model's own length until the memory is planned."""
    attention = AttentionShape(
        spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.rope.dim, PAGE_SIZE
    )
    step = StepShape(
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        vocab_size=spec.vocab_size,
        num_tokens=max(settings.max_num_batched_tokens, settings.max_num_seqs),
        num_seqs=settings.max_num_seqs,
        num_logits=max(settings.max_num_seqs, _SCORED_AT_ONCE),
        num_logprobs=settings.max_logprobs,
        max_length=settings.max_model_len or spec.max_position,
    )
    return attention, step


def _memory(device: Device, layout: Layout, shape: AttentionShape, step: StepShape) -> Memory:
    weights = device.weight_bytes(layout)  # first: the pages' dtype may depend on it
    page = device.page_bytes(shape)
    return Memory(
        available=device.available_bytes(),
        weights=weights,
        activations=device.activation_bytes(shape, step),
        page=page,
        page_scratch=-(-page // shape.num_layers) if device.gathers_pages else 0,
        default_kv=device.default_kv_bytes,
    )


def _one_token() -> Batch:
    """A step of one token that writes no K/V and samples nothing; its logits are made, for the sake of their cost."""
    zero, none = np.zeros(1, np.int32), np.zeros(0, np.int32)
    return Batch(
        tokens=zero,
        positions=zero,
        slots=np.array([-1], np.int32),
        starts=np.array([0, 1], np.int32),
        lengths=np.array([1], np.int32),
        pages=zero,
        page_starts=np.array([0, 1], np.int32),
        sample_rows=none,
        rows=[],
        numbers=none,
        admissions=np.zeros(0, np.int64),
        sample_positions=none,
        score_rows=zero,
        score_targets=zero,
    )


def _log_loaded(spec: ModelSpec, memory: Memory, plan: Plan) -> None:
    _log.info(
        "%s with %d layers: weights %.0f MB, context %d tokens, KV cache %d pages of %d tokens (%.0f MB)",
        spec.family,
        spec.num_layers,
        memory.weights / 1e6,
        plan.max_model_len,
        plan.num_pages,
        PAGE_SIZE,
        plan.num_pages * memory.page / 1e6,
    )
