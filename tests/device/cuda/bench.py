"""A card with models on it, and the numpy device with the same: what they make of the same steps, side by side."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from pilotlight.device.base import Batch
from pilotlight.device.cuda import device as cuda_device
from pilotlight.device.cuda import driver
from pilotlight.device.cuda.device import CudaDevice
from pilotlight.device.cuda.images import Image
from pilotlight.device.cuda.launch import Gpu
from pilotlight.device.cuda.modules import Kernels
from pilotlight.model.model import Model
from tests import softgpu
from tests.device import pairs
from tests.device.pairs import config_of as config_of
from tests.device.pairs import write_snapshot as write_snapshot
from tests.model.harness import Context, Runner, load

PTX = Path(__file__).parents[3] / "ptx"
SMS = 132  # the soft GPU's: enough that products of few rows are split


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

    def pair(self, directory: Path, **settings: Any) -> pairs.Pair:
        numpy = load(directory, device="cpu", dtype="float32", max_num_seqs=8, **settings)
        return pairs.Pair(self.load(directory, **settings), numpy, on_host)

    def __enter__(self) -> Self:
        self.reset()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
        if self.soft:
            softgpu.reset()


def twin(sequence: Context) -> Context:
    """Another sequence in the same pages: what it computes at the same positions is the same, and written again."""
    return Context(list(sequence.pages), sequence.length)


def all_logits(runner: Runner, steps: Sequence[tuple[Context, Sequence[int]]]) -> np.ndarray:
    """One step; the logits of all of its tokens."""
    return pairs.all_logits(runner, steps, on_host)


def last_logits(runner: Runner, steps: Sequence[tuple[Context, Sequence[int]]]) -> np.ndarray:
    """One step; the logits of each sequence's last token."""
    return logits_of(runner.model, runner.batch(steps))


def logits_of(model: Model, batch: Batch) -> np.ndarray:
    """One step; the logits of the rows that are sampled."""
    return pairs.logits_of(model, batch, on_host)


def on_host(model: Model, logits: Any) -> np.ndarray:
    device = model.device
    if device.name == "cpu":
        return np.array(logits)
    assert isinstance(device, CudaDevice)
    return read(device, logits.address, (logits.rows, logits.width))


def read(device: CudaDevice, address: int, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """What lies in the device's memory, once its stream is done."""
    out = np.empty(shape, dtype)
    driver.copy_to_host(out.ctypes.data, address, out.nbytes, device._stream)
    driver.synchronize_stream(device._stream)
    return out
