"""What a model takes of a GPU's memory: refused by arithmetic before it is taken, and told where it is not there."""

import gc
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from pilotlight.device.base import AttentionShape, StepShape
from pilotlight.device.cuda import activations, device, driver, graphs, memory
from pilotlight.device.cuda.errors import CudaError
from pilotlight.errors import UnavailableError
from tests.model.harness import load
from tests.models import llama_tensors
from tests.softgpu.fixtures import Soft

from .bench import config_of, write_snapshot

PLENTY = 1 << 40


@pytest.fixture(autouse=True)
def no_kernels(soft: Soft, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """They take no memory, and no step is reached here: loading them would be most of these tests' time."""
    monkeypatch.setattr(device, "_MODULES", ())
    yield
    gc.collect()  # what a test had goes before its card does


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


def refusal(snapshot: Path) -> CudaError | None:
    """What loading raises; None where all is taken, and the first step finds no kernel."""
    with pytest.raises((CudaError, KeyError)) as caught:
        load(snapshot, device="cuda", max_model_len=256)
    return caught.value.with_traceback(None) if isinstance(caught.value, CudaError) else None


@pytest.mark.parametrize("call", ["cuStreamCreate", "cuEventCreate", "cuMemsetD8Async"])
def test_each_call_of_a_kind_in_turn_may_be_without_memory(soft: Soft, snapshot: Path, call: str) -> None:
    """One line, and nothing is kept. Where the n-th fails and nobody notices, there are less than n."""
    for nth in count(1):
        soft.reset(fail_call=call, fail_at=nth, fail_error=2)
        error = refusal(snapshot)
        gc.collect()
        if error is None:
            break
        assert (error.code, error.exit_code) == (2, 69)
        assert str(error).startswith(f"{call}: CUDA_ERROR_OUT_OF_MEMORY (2), ")
        assert "; free memory of the GPU (nvidia-smi lists who holds it)" in str(error)
        free, total = driver.memory_info()
        assert free == total
    assert nth > 1


@pytest.mark.parametrize("code", [2, 801])
def test_host_memory_that_cannot_be_locked_is_used_as_it_is(
    soft: Soft, snapshot: Path, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    soft.reset(host_register_error=code)
    assert refusal(snapshot) is None
    assert "host memory is not page-locked, copies are slower: cuMemHostRegister" in caplog.text


def test_what_is_planned_for_is_what_is_taken(soft: Soft, snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that just fits, at full utilization, no allocation fails; what is left is for the graphs."""
    soft.reset(memory_bytes=512 << 20)
    slabs = slabs_of(snapshot, monkeypatch, gpu_memory_utilization=1.0, max_num_seqs=1024)
    taken = sum(nbytes for _, nbytes in slabs) + graphs.reserved_bytes(1024)
    assert (512 << 20) * 0.95 < taken <= 512 << 20


def test_J09_a_context_that_does_not_fit_is_refused_with_the_largest_that_does(
    soft: Soft, snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"gpu_memory_utilization": 1.0, "max_num_seqs": 4}
    soft.reset()
    (_, weights), (_, activations), (_, pages) = slabs_of(snapshot, monkeypatch, max_model_len=4096, **settings)
    soft.reset(memory_bytes=weights + activations + graphs.reserved_bytes(4) + pages // 8)
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"vocab_size": (1 << 18) + 1}, "a vocabulary of 262145, and the kernels sample from 262144 tokens at most"),
        ({"hidden_size": 252}, "hidden_size 252 is no multiple of 8, which the kernels need"),
    ],
)
def test_shapes_that_no_kernel_takes(changes: dict[str, int], words: str | None) -> None:
    shape = AttentionShape(num_layers=1, num_heads=4, num_kv_heads=2, head_dim=64, rotary_dim=64, page_size=16)
    step = StepShape(
        hidden_size=256,
        intermediate_size=256,
        vocab_size=1 << 18,
        num_tokens=512,
        num_seqs=32,
        num_logits=64,
        num_logprobs=20,
        max_length=4096,
    )
    assert activations.objection(shape, replace(step, **changes)) == words
