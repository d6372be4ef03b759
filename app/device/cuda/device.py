"""The GPU as a device: each op of base.py is a launch or two of our kernels, enqueued on one stream.

Nothing is allocated after `allocate`, addresses are the same at every step, and no op of a decode step depends on
anything but how many sequences it has: such a step can be captured as a graph. Only sampling waits for the GPU. What
the device took it gives back when nobody has it any more; at the process's end that is left to the driver.
"""

import logging
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import numpy as np

from ...errors import ModelDataError, UnavailableError, amount
from ...messages import TokenLogprob
from .. import sampling
from ..base import Activation, AttentionShape, Batch, Float32, Int32, SampleRow, StepShape
from ..layout import Layout
from . import (
    activations,
    attention,
    attention_prefill,
    driver,
    embed,
    gate,
    images,
    linear,
    loader,
    memory,
    norm,
    rope_and_cache,
)
from .context import Context
from .errors import CudaError, DeviceLostError
from .launch import NULL, Half, Launch
from .modules import Kernels
from .step import Metadata, Step

_MODULES = ("norm", "linear", "attention_decode", "attention_prefill", "embed", "rope_and_cache", "gate")
_HALF, _FLOAT = 2, 4  # bytes
_DTYPES: dict[str, Half] = {"BF16": "bfloat16", "F16": "float16", "F32": "bfloat16"}

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in device memory: [rows, width] half, or fp32 [splits, rows, width], which the next op adds up."""

    address: int
    rows: int
    width: int
    splits: int = 0


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix [rows, width], or a vector of `rows`."""

    address: int
    rows: int
    width: int


class CudaDevice:
    """Implements `base.Device`. Not thread-safe; one engine drives it, from any one thread at a time."""

    default_kv_bytes: int | None = None
    gathers_pages = False

    def __init__(self, ordinal: int = 0, *, fp8_pages: bool = False) -> None:
        """Opens the GPU. Raises CudaError, saying what to do, for one that cannot be used.

        fp8_pages: K/V are kept as e4m3, at the scale 1, instead of in the weights' dtype.
        """
        self._context = context = Context(ordinal)
        self.name = f"cuda:{ordinal}"
        self.dtype = ""
        self._half: Half
        self._fp8_pages = fp8_pages
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
        self._heads: attention.Shape
        self._step: Step
        _log.info("%s: %s, %s free", self.name, context.title, amount(self.available_bytes()))

    # --- memory -----------------------------------------------------------------------------------------------

    def available_bytes(self) -> int:
        """What is free, less what the kernels will take."""
        return max(0, driver.memory_info()[0] - sum(len(image.data) for image in self._images))

    def weight_bytes(self, layout: Layout) -> int:
        """Raises ModelDataError for tensors of several dtypes: a kernel takes all of its inputs in one."""
        first = layout.tensors[0]
        for tensor in layout.tensors:
            if tensor.dtype != first.dtype:
                raise ModelDataError(
                    f"tensor {tensor.name!r} is of dtype {tensor.dtype}, {first.name!r} of {first.dtype}: the GPU "
                    "computes in one; make a snapshot of one dtype with `pilotlight build snapshot --dtype bfloat16`"
                )
        return layout.nbytes // 2 if first.dtype == "F32" else layout.nbytes

    def load(self, layout: Layout) -> dict[str, Weight]:
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
        slab = self._take(nbytes, "weights")
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(loader.load, self._context, layout.extents, slab, narrow=stored == "F32")
            self._kernels = Kernels(self.gpu, self._images)
            self._owned.callback(self._kernels.close)
            reading.result()
        ratio = 2 if stored == "F32" else 1
        return {
            tensor.name: Weight(slab + tensor.offset // ratio, tensor.shape[0], int(np.prod(tensor.shape[1:])))
            for tensor in layout.tensors
        }

    def page_bytes(self, shape: AttentionShape) -> int:
        return shape.num_layers * self._layer_bytes(shape)

    def activation_bytes(self, shape: AttentionShape, step: StepShape) -> int:
        if shape.head_dim not in attention.HEAD_DIMS or shape.page_size != attention.PAGE_TOKENS:
            there_are = ", ".join(map(str, attention.HEAD_DIMS))
            raise UnavailableError(
                f"{self.name}: no attention kernel for heads of {shape.head_dim} (there are {there_are}); "
                "use --device cpu"
            )
        for what, size in (("hidden_size", step.hidden_size), ("intermediate_size", step.intermediate_size)):
            if size % 8:
                raise UnavailableError(
                    f"{self.name}: {what} {size} is no multiple of 8, which the kernels need; use --device cpu"
                )
        return activations.place(self.gpu, shape, step).nbytes

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
        self._metadata = Metadata(shape, step, self._slab + places.metadata)
        self._owned.callback(self._metadata.close)
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
        self._context.bind()
        blocks = None
        if not batch.is_decode:
            blocks = attention_prefill.split_rows(self.gpu, self._heads, batch.starts, batch.lengths)
        self._step = self._do(self._metadata.upload, batch, blocks, self._stream)
        return self._step

    def embed(self, step: Step, table: Weight) -> Tensor:
        out = Tensor(self._slab + self._places.residual, step.count, table.width)
        self._launch(
            embed.plan(out.address, table.address, step.tokens, step.count, table.width, table.rows, dtype=self._half)
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
            positions=step.positions,
            slots=step.slots,
        )
        self._launch(
            rope_and_cache.plan(
                self._heads, tensors, tokens=qkv.rows, rotary_dim=self._shape.rotary_dim, splits=qkv.splits
            )
        )
        return q

    def attention(self, step: Step, q: Tensor, layer: int, scale: float, window: int | None) -> Tensor:
        out = Tensor(self._slab + self._places.attended, q.rows, q.width)
        pages, stride = self._layer_pages(layer), self._metadata.stride
        if step.blocks is not None:
            chunks = attention_prefill.Tensors(out.address, q.address, pages, step.page_table, step.block_table)
            self._launch(
                attention_prefill.plan(
                    self._heads, chunks, step.blocks, table_stride=stride, scale=scale, window=window or 0
                )
            )
            return out
        launches = attention.decode(
            self.gpu,
            self._heads,
            attention.Tensors(
                *(out.address, q.address, pages, step.page_table, step.lengths),
                workspace=self._slab + self._places.workspace,
            ),
            sequences=step.sequences,
            table_stride=stride,
            max_length=self._largest.max_length,
            scale=scale,
            window=window or 0,
        )
        for launch in launches:
            self._launch(launch)
        return out

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        out = Tensor(self._slab + self._places.gated, gate_up.rows, gate_up.width // 2)
        self._launch(
            gate.plan(
                *(out.address, gate_up.address, gate_up.rows, out.width),
                dtype=self._half,
                activation=activation,
                splits=gate_up.splits,
            )
        )
        return out

    def rows(self, x: Tensor, rows: Int32) -> Tensor:
        """A run of neighbours is a view; the step's own rows are gathered, as the embedding's are."""
        first, count = int(rows[0]) if len(rows) else 0, len(rows)
        is_run = np.array_equal(rows, np.arange(first, first + count))
        if is_run and not x.splits:
            return Tensor(x.address + first * x.width * _HALF, count, x.width)
        if is_run and count in (0, x.rows):
            return Tensor(x.address, count, x.width, x.splits)
        if not np.array_equal(rows, self._step.wanted[:count]):
            raise ValueError("rows are a run of neighbours, or those that the step samples and scores")
        places = self._places
        is_residual = x.address == self._slab + places.residual
        out = Tensor(self._slab + (places.residual_rows if is_residual else places.rows), count, x.width, x.splits)
        halves = x.width * (_FLOAT // _HALF if x.splits else 1)  # of a row, which is copied as it is
        for split in range(max(x.splits, 1)):
            to, source = (tensor.address + split * tensor.rows * halves * _HALF for tensor in (out, x))
            self._launch(embed.plan(to, source, self._step.rows, count, halves, x.rows, dtype=self._half))
        return out

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

    # --- sampling, on the host ------------------------------------------------------------------------------------

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> tuple[list[int], list[TokenLogprob | None]]:
        return sampling.sample(self.read(logits), rows)

    def score(self, logits: Tensor, targets: Int32, top: int) -> list[TokenLogprob]:
        return sampling.score(self.read(logits), targets, top)

    def read(self, logits: Tensor) -> Float32:
        """What `logits` gave, on the host: [R, vocab]. Waits for the step."""
        out = np.empty((logits.rows, logits.width), np.float32)
        self._do(driver.copy_to_host, out.ctypes.data, logits.address, out.nbytes, self._stream)
        self._do(driver.synchronize_stream, self._stream)
        return out

    # --- the stream -----------------------------------------------------------------------------------------------

    def _layer_pages(self, layer: int) -> int:
        return self._pages + layer * self._layer_bytes(self._shape)

    def _layer_bytes(self, shape: AttentionShape) -> int:
        return _layer_elements(shape) * (1 if self._fp8_pages else _HALF)

    def _launch(self, launch: Launch) -> None:
        self._do(self._kernels.launch, launch, self._stream)

    def _do(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Makes the call. Where the GPU is lost, what it did last is logged: that is where the fault came from."""
        try:
            return call(*arguments, **named)
        except DeviceLostError:
            _log.error("%s is lost; its last launches, the latest first: %s", self.name, self._kernels.recent())
            raise


def _give_back(context: Context, stream: driver.Stream, owned: ExitStack) -> None:
    """What a device took, once its last work is done. A lost GPU gives nothing back before the process ends."""
    try:
        context.bind()
        driver.synchronize_stream(stream)
        owned.close()
    except CudaError as error:
        _log.debug("memory of a GPU is not given back: %s", error)


def _layer_elements(shape: AttentionShape) -> int:
    """Of one layer's part of a page: [2 (K, V), kv_heads, 16, head_dim]."""
    return 2 * shape.num_kv_heads * shape.page_size * shape.head_dim
