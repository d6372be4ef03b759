"""What a model takes of a GPU's memory: refused by arithmetic before it is taken, and told where it is not there."""

import gc
import re
from pathlib import Path

import pytest

from pilotlight.device.cuda import device, driver, memory
from pilotlight.device.cuda.errors import CudaError
from pilotlight.errors import UnavailableError
from tests.model.harness import load
from tests.models import llama_tensors
from tests.softgpu.fixtures import Soft

from .bench import config_of, write_snapshot

PLENTY = 1 << 40


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take no memory, and no step is reached here: loading them would be most of these tests' time."""
    monkeypatch.setattr(device, "_MODULES", ())


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = config_of(max_position_embeddings=4096)
    return write_snapshot(tmp_path_factory.mktemp("models"), "bfloat16", config, llama_tensors(config))


def slabs_of(snapshot: Path, monkeypatch: pytest.MonkeyPatch, **settings: object) -> list[tuple[str, int]]:
    """What is allocated, in turn: the names and the bytes."""
    taken: list[tuple[str, int]] = []
    allocate = memory.allocate

    def note(nbytes: int, what: str) -> int:
        taken.append((what, nbytes))
        return allocate(nbytes, what)

    with monkeypatch.context() as patch:
        patch.setattr(memory, "allocate", note)
        with pytest.raises(KeyError):  # the first step finds no kernel
            load(snapshot, device="cuda", **settings)
    return taken


def test_each_allocation_in_turn_may_fail(soft: Soft, snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that has less than it says: other processes take memory too. Whatever was taken is given back."""
    soft.reset()
    slabs = slabs_of(snapshot, monkeypatch, max_model_len=256)
    assert [what for what, _ in slabs] == ["weights", "activations", "KV cache of 512 pages"]
    before = 0
    for what, nbytes in slabs:
        gc.collect()
        soft.reset(memory_bytes=before + nbytes // 2, free_memory_off=-PLENTY)
        with pytest.raises(
            CudaError, match=rf"^{what}: the GPU has no {nbytes / 1e6:,.1f} MB in one piece, "
        ) as caught:
            load(snapshot, device="cuda", max_model_len=256)
        assert (caught.value.code, caught.value.exit_code) == (2, 69)
        caught.value.__traceback__ = None
        del caught
        gc.collect()
        free, total = driver.memory_info()
        assert free - PLENTY == total  # the driver's word less the knob's
        before += nbytes + -nbytes % (2 << 20)


def test_what_is_planned_for_is_what_is_taken(soft: Soft, snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that just fits, at full utilization, no allocation fails."""
    soft.reset(memory_bytes=256 << 20)
    slabs = slabs_of(snapshot, monkeypatch, gpu_memory_utilization=1.0, max_num_seqs=1024)
    assert (256 << 20) * 0.95 < sum(nbytes for _, nbytes in slabs) <= 256 << 20


def test_J09_a_context_that_does_not_fit_is_refused_with_the_largest_that_does(
    soft: Soft, snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"gpu_memory_utilization": 1.0, "max_num_seqs": 4}
    soft.reset()
    (_, weights), (_, activations), (_, pages) = slabs_of(snapshot, monkeypatch, max_model_len=4096, **settings)
    soft.reset(memory_bytes=weights + activations + pages // 8)
    with pytest.raises(UnavailableError, match="the largest context that fits is --max-model-len") as caught:
        load(snapshot, device="cuda", max_model_len=4096, **settings)
    (largest,) = map(int, re.findall(r"--max-model-len (\d+)$", str(caught.value)))
    assert 16 <= largest < 4096
    slabs_of(snapshot, monkeypatch, max_model_len=largest, **settings)


def test_J09_a_gpu_that_does_not_hold_the_weights(soft: Soft, snapshot: Path) -> None:
    soft.reset(memory_bytes=2 << 20)
    with pytest.raises(UnavailableError, match=r"the model does not fit: weights 1\.9 MB, activations "):
        load(snapshot, device="cuda")


def test_cuts_follow_each_other_aligned() -> None:
    cuts = memory.Cuts()
    assert [cuts.take(nbytes) for nbytes in (1, 256, 300, 0, 5)] == [0, 256, 512, 1024, 1024]
    assert cuts.nbytes == 1280
