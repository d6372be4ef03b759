"""A card with models on it, and the numpy device with the same: what they make of the same steps, side by side."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from pilotlight.build.snapshot import build_snapshot
from pilotlight.device.base import SampleRow
from pilotlight.device.cuda import device as cuda_device
from pilotlight.device.cuda.images import Image
from pilotlight.device.cuda.launch import Gpu
from pilotlight.device.cuda.modules import Kernels
from pilotlight.model import decoder
from pilotlight.model.model import Model
from tests import softgpu
from tests.model.harness import GREEDY, Context, Runner, load
from tests.models import llama_config, write_checkpoint

PTX = Path(__file__).parents[3] / "ptx"
SMS = 132  # the soft GPU's: enough that products of few rows are split

Steps = Sequence[tuple[int, Sequence[int]]]  # sequence by number, its new tokens


class Bench:
    """The card is opened once: loading the kernels is most of what a small model's start takes on the soft GPU."""

    def __init__(self, *, soft: bool) -> None:
        self.soft = soft
        self._patch = pytest.MonkeyPatch()

    def reset(self) -> None:
        if self.soft:
            softgpu.load()
            softgpu.reset(ptx_directory=PTX, sm_count=SMS)
        self._patch.undo()
        make = cuda_device.Kernels
        kept: list[Kernels] = []

        def kernels(gpu: Gpu, images: Iterable[Image]) -> Kernels:
            if not kept:
                kept.append(make(gpu, images))
                self._patch.setattr(kept[0], "close", lambda: None)
            return kept[0]

        self._patch.setattr(cuda_device, "Kernels", kernels)

    def load(self, directory: Path, **settings: Any) -> Model:
        return load(directory, device="cuda", **{"max_num_seqs": 8, "kv_cache_memory_bytes": 1 << 24} | settings)

    def pair(self, directory: Path, **settings: Any) -> "Pair":
        return Pair(self.load(directory, **settings), load(directory, device="cpu", max_num_seqs=8, **settings))

    def __enter__(self) -> Self:
        self.reset()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        if self.soft:
            softgpu.reset()


def config_of(**changes: Any) -> dict[str, Any]:
    """A small model whose heads and sizes the kernels take."""
    return llama_config(
        **{"hidden_size": 256, "num_attention_heads": 4, "head_dim": 64, "intermediate_size": 256} | changes
    )


def write_snapshot(directory: Path, dtype: str, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    """A snapshot with its weights in `dtype`, made as a user makes it."""
    source = write_checkpoint(directory / "source", config, tensors)
    build_snapshot(str(source), directory / "snapshot", dtype)
    return directory / "snapshot"


@dataclass
class Rows:
    """Logits of every new token of a step, [tokens, vocabulary] each."""

    cuda: np.ndarray
    cpu: np.ndarray

    def compare(self, error: float) -> int:
        """Asserts that they agree within `error` of the spread of a row's logits, and on the best token wherever that
        leaves no doubt; in how many rows it leaves none.
        """
        spread = self.cpu.max(axis=1) - self.cpu.min(axis=1)
        off = np.abs(self.cuda - self.cpu).max(axis=1)
        assert np.isfinite(self.cuda).all()
        assert (off <= error * spread).all(), (off / spread).max()
        best = np.sort(self.cpu, axis=1)
        decided = best[:, -1] - best[:, -2] > 2 * error * spread
        assert (self.cuda.argmax(axis=1) == self.cpu.argmax(axis=1))[decided].all()
        return int(decided.sum())


class Pair:
    """A model on both devices; each step runs on both, in pages that are handed out alike."""

    def __init__(self, cuda: Model, cpu: Model) -> None:
        self.cuda, self.cpu = Runner(cuda), Runner(cpu)
        self._contexts: dict[int, tuple[Context, Context]] = {}

    def step(self, steps: Steps) -> Rows:
        for number, _ in steps:
            self._contexts.setdefault(number, (self.cuda.sequence(), self.cpu.sequence()))
        given = [(self._contexts[number], tokens) for number, tokens in steps]
        return Rows(
            all_logits(self.cuda, [(contexts[0], tokens) for contexts, tokens in given]),
            all_logits(self.cpu, [(contexts[1], tokens) for contexts, tokens in given]),
        )


def all_logits(runner: Runner, steps: Sequence[tuple[Context, Sequence[int]]]) -> np.ndarray:
    """One step; the logits of all of its tokens."""
    batch = runner.batch(steps)
    count = len(batch.tokens)
    batch.sample_rows = np.arange(count, dtype=np.int32)
    batch.rows = [SampleRow(GREEDY, 0, (), ()) for _ in range(count)]
    model = runner.model
    hidden = decoder.forward(model.spec, model.device, model.weights, batch, batch.sample_rows)
    parts = []
    for first in range(0, count, 64):
        rows = model.device.rows(hidden, np.arange(first, min(first + 64, count), dtype=np.int32))
        parts.append(on_host(model, decoder.logits(model.spec, model.device, model.weights, rows)))
    return np.concatenate(parts)


def last_logits(runner: Runner, steps: Sequence[tuple[Context, Sequence[int]]]) -> np.ndarray:
    """One step; the logits of each sequence's last token."""
    batch = runner.batch(steps)
    model = runner.model
    hidden = decoder.forward(model.spec, model.device, model.weights, batch, batch.sample_rows)
    return on_host(model, decoder.logits(model.spec, model.device, model.weights, hidden))


def on_host(model: Model, logits: Any) -> np.ndarray:
    return np.array(logits) if model.device.name == "cpu" else model.device.read(logits)
