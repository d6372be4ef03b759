"""The GPU as a device: each op of base.py is a launch or two of our kernels, enqueued on one stream.

Nothing is allocated after `allocate`, addresses are the same at every step, and no op of a decode step depends on
anything but how many sequences it has: such steps are replayed as graphs. Only `finish` waits for the GPU. What the
device took it gives back when nobody has it any more; at the process's end that is left to the driver.
"""

import logging
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np

from ...errors import ModelDataError, UnavailableError, amount
from ...timeline import Timeline
from ..base import Activation, AttentionShape, Batch, Float32, R, Sampled, Stage, StepShape
from ..layout import Layout
from . import (
    activations,
    attention,
    attention_prefill,
    driver,
    embed,
    gate,
    graphs,
    images,
    linear,
    loader,
    memory,
    norm,
    rope_and_cache,
)
from .context import Context
from .errors import CudaError
from .graphs import Graphs, Key
from .launch import NULL, Half, Launch
from .modules import Kernels
from .records import GENERAL
from .sampler import Sampler
from .step import Metadata, Step
from .tensor import Tensor, Weight
from .watch import Watch

_MODULES = ("norm", "linear", "attention_decode", "attention_prefill", "embed", "rope_and_cache", "gate", "sample")
_HALF, _FLOAT = 2, 4  # bytes
_DTYPES: dict[str, Half] = {"BF16": "bfloat16", "F16": "float16", "F32": "bfloat16"}

_log = logging.getLogger(__name__)


class CudaDevice:
    """Implements `base.Device`. Not thread-safe; one engine drives it, from any one thread at a time."""

    default_kv_bytes: int | None = None
    gathers_pages = False
    lookahead = True

    def __init__(self, ordinal: int = 0, *, fp8_pages: bool = False, step_seconds: float = 120.0) -> None:
        """Opens the GPU. Raises CudaError, saying what to do, for one that cannot be used.

        fp8_pages: K/V are kept as e4m3, at the scale 1, instead of in the weights' dtype. step_seconds: what a step
        may take; a GPU that takes longer hangs, and the process ends.
        """
        self._context = context = Context(ordinal)
        self.name = f"cuda:{ordinal}"
        self.title = f"{self.name} {context.name}"
        self.dtype = ""
        self._half: Half
        self._fp8_pages = fp8_pages
        self._step_seconds = step_seconds
        self.gpu = context.gpu
        self._stream = driver.create_stream()
        self._owned = ExitStack()
        self._owned.callback(driver.destroy_stream, self._stream)
        weakref.finalize(self, _give_back, context, self._stream, self._owned).atexit = False
        available = images.Images(images.directory(), self.gpu.capability, context.title)
        self._images = [available.read(module) for module in _MODULES]
        self._kernels: Kernels
        self._places: activations.Activations
        self._metadata: Metadata
        self._sampler: Sampler
        self._graphs: Graphs
        self._watch: Watch
        self._heads: attention.Shape
        self._is_torn = False  # a call that enqueues has not come to its end
        _log.info("%s: %s, %s free", self.name, context.title, amount(self.available_bytes()))

    # --- memory -----------------------------------------------------------------------------------------------

    def available_bytes(self) -> int:
        """What is free, less what the kernels will take."""
        return max(0, driver.memory_info()[0] - sum(len(image.data) for image in self._images))

    def weight_bytes(self, layout: Layout) -> int:
        """Raises ModelDataError for int8, and for several dtypes: a kernel takes all of its inputs in one."""
        first = layout.tensors[0]
        for tensor in layout.tensors:
            if tensor.dtype == "I8":
                raise ModelDataError(
                    f"tensor {tensor.name!r} is of int8, which only the CPU computes with: use --device cpu, or make "
                    "a snapshot with `pilotlight build snapshot --dtype bfloat16`"
                )
            if tensor.dtype != first.dtype:
                raise ModelDataError(
                    f"tensor {tensor.name!r} is of dtype {tensor.dtype}, {first.name!r} of {first.dtype}: the GPU "
                    "computes in one; make a snapshot of one dtype with `pilotlight build snapshot --dtype bfloat16`"
                )
        return layout.nbytes // 2 if first.dtype == "F32" else layout.nbytes

    def load(self, layout: Layout, timeline: Timeline) -> dict[str, Weight]:
        """Weights as they are in bfloat16 and float16; fp32 is rounded to bfloat16 as it is read, with a warning.

        The driver loads the kernels meanwhile.
        """
        nbytes = self.weight_bytes(layout)
        stored = layout.tensors[0].dtype
        self.dtype = self._half = _DTYPES[stored]
        if stored == "F32":
            _log.warning(
                "the weights are fp32 and are rounded to bfloat16 while they are read; half of the bytes to read are "
                "saved by a snapshot of `pilotlight build snapshot --dtype bfloat16`"
            )
        with timeline.span("memory"):
            slab = self._take(nbytes, "weights")

        def read() -> None:
            length = sum(extent.length for extent in layout.extents)
            with timeline.span("weights", length, thread="weights", after="memory"):
                loader.load(self._context, layout.extents, slab, narrow=stored == "F32")

        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            with timeline.span("kernels", sum(len(image.data) for image in self._images)):
                self._kernels = Kernels(self.gpu, self._images)
                self._owned.callback(self._kernels.close)
                self._watch = Watch(self.name, self._step_seconds, self._kernels.recent)
                self._owned.callback(self._watch.close)
            with timeline.span("wait for weights", after="weights"):
                reading.result()
        ratio = 2 if stored == "F32" else 1
        return {
            tensor.name: Weight(slab + tensor.offset // ratio, tensor.shape[0], int(np.prod(tensor.shape[1:])))
            for tensor in layout.tensors
        }

    def page_bytes(self, shape: AttentionShape) -> int:
        return shape.num_layers * self._layer_bytes(shape)

    def activation_bytes(self, shape: AttentionShape, step: StepShape) -> int:
        if objection := activations.objection(shape, step):
            raise UnavailableError(f"{self.name}: {objection}; use --device cpu")
        return activations.place(self.gpu, shape, step).nbytes + graphs.reserved_bytes(step.num_seqs)

    def allocate(self, shape: AttentionShape, step: StepShape, num_pages: int, cos: Float32, sin: Float32) -> None:
        places = activations.place(self.gpu, shape, step)
        self._slab = self._take(places.nbytes, "activations")
        self._pages = self._take(num_pages * self.page_bytes(shape), f"KV cache of {num_pages} pages")
        self._places, self._shape, self._largest = places, shape, step
        self._heads = attention.Shape(
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            self._half,
            page_stride=shape.num_layers * _layer_elements(shape),
            fp8_pages=self._fp8_pages,
        )
        self._metadata = Metadata(shape, step, self._slab + places.metadata, self._owned)
        launch = partial(self._kernels.launch, stream=self._stream)  # and not ours: nothing owned may hold the device
        self._sampler = Sampler(step, self._slab + places.sampler, launch, self._stream, self._owned)
        self._graphs = Graphs(step.num_seqs, self._stream, self._kernels.remember, self.name)
        self._owned.callback(self._graphs.close)
        self._order = np.arange(step.num_seqs, dtype=np.int32)
        for table, offset in ((cos, places.cos), (sin, places.sin)):
            table = np.ascontiguousarray(table)
            driver.copy_to_device(self._slab + offset, table.ctypes.data, table.nbytes, self._stream)
            driver.synchronize_stream(self._stream)  # before the table goes

    def _take(self, nbytes: int, what: str) -> int:
        address = memory.allocate(nbytes, what)
        self._owned.callback(driver.free, address)
        return address

    # --- a step ---------------------------------------------------------------------------------------------------

    def begin(self, batch: Batch) -> Step:
        with self._watch:
            self._context.bind()
            self._mend()
            self._is_torn = True
            self._sampler.join(batch)
            blocks = None
            if not batch.is_decode:
                blocks = attention_prefill.split_rows(self.gpu, self._heads, batch.starts, batch.lengths)
            bucket = self._graphs.bucket(len(batch.tokens)) if self._is_replayed(batch) else None
            step = self._metadata.upload(batch, self._sampler.records, blocks, bucket, self._stream)
            self._is_torn = False
            return step

    def run(self, step: Step, stage: Stage, compute: Callable[[], R]) -> R:
        """Replays a graph where there is one for such steps, or makes it; what is in none is launched as it comes."""
        if step.number != self._metadata.count:
            raise ValueError(f"step {step.number} is run after step {self._metadata.count} was begun in its place")
        with self._watch:
            self._is_torn = True
            chooses = stage != "forward"
            if chooses:
                self._sampler.upload_masks(step)
            if step.bucket is None:
                result = compute()
            else:
                result = self._graphs.run(Key(step.bucket, stage, chooses and step.is_plain), compute)
            if chooses:
                self._sampler.results.fetch(step, self._stream)
            self._is_torn = False
            return result

    def finish(self, step: Step) -> Sampled:
        with self._watch:
            self._context.bind()
            return self._sampler.results.read(step)

    def prepare(self, compute: Callable[[Step], object]) -> bool:
        """Captures the next graph of those that most steps are replayed by."""
        key = self._graphs.missing()
        if key is None:
            return False
        step = self._metadata.idle(key.bucket, 0 if key.is_plain else GENERAL)
        with self._watch:
            self._context.bind()
            self._graphs.capture(key, lambda: compute(step))
        return True

    def _mend(self) -> None:
        """After an interrupt, which comes anywhere: no copy reads the host's memory, and no count is half made."""
        if self._is_torn:
            driver.synchronize_stream(self._stream)
            self._sampler.clear()

    def _is_replayed(self, batch: Batch) -> bool:
        """Whether each sequence has one token, in order sampled: what graphs are made of."""
        count = len(batch.tokens)
        return (
            count == len(batch.lengths) == len(batch.rows) <= len(self._order)
            and not len(batch.score_rows)
            and bool((batch.sample_rows == self._order[:count]).all())
        )

    def embed(self, step: Step, table: Weight) -> Tensor:
        out = Tensor(self._slab + self._places.residual, step.count, table.width)
        self._launch(
            embed.plan(
                *(out.address, table.address, step.places.tokens, step.count, table.width, table.rows),
                dtype=self._half,
                ids=self._sampler.ids,
            )
        )
        return out

    def norm(self, x: Tensor, weight: Weight, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y = Tensor(self._slab + self._places.normed, x.rows, x.width)
        if residual is None and x.splits:
            raise ValueError("a split product is normed with a residual: there is no place for their sum")
        if x.rows:
            self._launch(
                norm.plan(
                    *(y.address, x.address, weight.address, x.rows, x.width),
                    dtype=self._half,
                    eps=eps,
                    residual=residual.address if residual else NULL,
                    sum_out=residual.address if residual else NULL,
                    splits=x.splits,
                )
            )
        return y, residual or x

    def linear(self, x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
        """With few tokens, where the weight's rows alone do not fill the GPU, k is split: the next op adds it up."""
        splits = linear.split_count(self.gpu, x.rows, weight.rows, x.width)
        is_split = splits > 1
        y = Tensor(self._slab + self._places.linear, x.rows, weight.rows, splits if is_split else 0)
        self._launch(
            linear.plan(
                *(self.gpu, y.address, x.address, weight.address, x.rows, weight.rows, x.width),
                dtype=self._half,
                bias=bias.address if bias else NULL,
                wide=is_split,
                splits=splits,
            )
        )
        return y

    def rope_and_cache(self, step: Step, qkv: Tensor, layer: int) -> Tensor:
        q = Tensor(self._slab + self._places.q, qkv.rows, self._heads.heads * self._heads.head_dim)
        tensors = rope_and_cache.Tensors(
            q=q.address,
            pages=self._layer_pages(layer),
            qkv=qkv.address,
            cos=self._slab + self._places.cos,
            sin=self._slab + self._places.sin,
            positions=step.places.positions,
            slots=step.places.slots,
        )
        self._launch(
            rope_and_cache.plan(
                self._heads, tensors, tokens=qkv.rows, rotary_dim=self._shape.rotary_dim, splits=qkv.splits
            )
        )
        return q

    def attention(self, step: Step, q: Tensor, layer: int, scale: float, window: int | None) -> Tensor:
        out = Tensor(self._slab + self._places.attended, q.rows, q.width)
        pages, places = self._layer_pages(layer), step.places
        tensors = (out.address, q.address, pages, places.tail, places.table_starts)
        if step.blocks is not None:
            chunks = attention_prefill.Tensors(*tensors, blocks=places.blocks)
            self._launch(attention_prefill.plan(self._heads, chunks, step.blocks, scale=scale, window=window or 0))
            return out
        launches = attention.decode(
            self.gpu,
            self._heads,
            attention.Tensors(*tensors, places.lengths, workspace=self._slab + self._places.workspace),
            sequences=step.count,
            max_length=self._largest.max_length,
            scale=scale,
            window=window or 0,
        )
        for launch in launches:
            self._launch(launch)
        return out

    def gated_linear(self, x: Tensor, weight: Weight, activation: Activation, bias: Weight | None = None) -> Tensor:
        """In one launch, but where k is split: then the gate adds it up."""
        out = Tensor(self._slab + self._places.gated, x.rows, weight.rows // 2)
        if linear.split_count(self.gpu, x.rows, weight.rows, x.width) == 1:
            self._launch(
                linear.plan(
                    *(self.gpu, out.address, x.address, weight.address, x.rows, out.width, x.width),
                    dtype=self._half,
                    bias=bias.address if bias else NULL,
                    activation=activation,
                    gated=True,
                )
            )
            return out
        gate_up = self.linear(x, weight, bias)
        self._launch(
            gate.plan(
                *(out.address, gate_up.address, out.rows, out.width),
                dtype=self._half,
                activation=activation,
                splits=gate_up.splits,
            )
        )
        return out

    def wanted(self, step: Step, x: Tensor) -> Tensor:
        """What is wanted of a decode step is all of it; a run of neighbours is a view; others are gathered."""
        if step.bucket is not None:
            return x
        rows = np.concatenate([step.batch.sample_rows, step.batch.score_rows])
        first, count = int(rows[0]) if len(rows) else 0, len(rows)
        if np.array_equal(rows, np.arange(first, first + count)) and (not x.splits or count in (0, x.rows)):
            return self.part(x, first, count)
        places = self._places
        is_residual = x.address == self._slab + places.residual
        out = Tensor(self._slab + (places.residual_rows if is_residual else places.rows), count, x.width, x.splits)
        halves = x.width * (_FLOAT // _HALF if x.splits else 1)  # of a row, which is copied as it is
        for split in range(max(x.splits, 1)):
            to, source = (tensor.address + split * tensor.rows * halves * _HALF for tensor in (out, x))
            self._launch(embed.plan(to, source, step.places.rows, count, halves, x.rows, dtype=self._half))
        return out

    def part(self, x: Tensor, first: int, count: int) -> Tensor:
        return replace(x, address=x.address + first * x.width * _HALF, rows=count)

    def logits(self, x: Tensor, weight: Weight) -> Tensor:
        """fp32, as one split."""
        if x.rows > self._largest.num_logits:
            raise ValueError(f"logits of {x.rows} rows at once, there is room for {self._largest.num_logits}")
        y = Tensor(self._slab + self._places.logits, x.rows, weight.rows, splits=1)
        self._launch(
            linear.plan(
                *(self.gpu, y.address, x.address, weight.address, x.rows, weight.rows, x.width),
                dtype=self._half,
                wide=True,
            )
        )
        return y

    def sample(self, step: Step, logits: Tensor) -> None:
        self._sampler.choose(step, logits.address)

    def score(self, step: Step, logits: Tensor, first: int) -> None:
        self._sampler.score(step, logits.address, first, logits.rows)

    # --- the stream -----------------------------------------------------------------------------------------------

    def _layer_pages(self, layer: int) -> int:
        return self._pages + layer * self._layer_bytes(self._shape)

    def _layer_bytes(self, shape: AttentionShape) -> int:
        return _layer_elements(shape) * (1 if self._fp8_pages else _HALF)

    def _launch(self, launch: Launch) -> None:
        self._kernels.launch(launch, self._stream)


def _give_back(context: Context, stream: driver.Stream, owned: ExitStack) -> None:
    """What a device took, once its last work is done. A lost GPU gives nothing back before the process ends.

    Comes whenever the device is dropped, between two calls for another one too.
    """
    try:
        with context.bound():
            driver.synchronize_stream(stream)
            owned.close()
    except CudaError as error:
        _log.debug("memory of a GPU is not given back: %s", error)


def _layer_elements(shape: AttentionShape) -> int:
    """Of one layer's part of a page: [2 (K, V), kv_heads, 16, head_dim]."""
    return 2 * shape.num_kv_heads * shape.page_size * shape.head_dim
