"""The CPU library's device against the numpy device: the same snapshot, the same steps, teacher-forced."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight.device import choice, native_library
from pilotlight.device.base import AttentionShape, StepShape
from pilotlight.device.native_device import NativeDevice
from pilotlight.device.native_places import anonymous
from pilotlight.errors import UnavailableError
from pilotlight.model.model import Model
from pilotlight.settings import Settings, from_kwargs
from tests.device.pairs import CASES, Pair, config_of, ragged_steps, snapshot_of, tokens_of, write_snapshot
from tests.model.harness import Context, Runner, load
from tests.models import llama_tensors, write_checkpoint, write_tiny

from .conftest import opened

# Of a row's spread. Measured over these cases: 1.5e-6, 0.0006 and 0.0061, the last where the CPU multiplies in bf16.
ERROR = {"float32": 5e-6, "float16": 0.001, "bfloat16": 0.01, "int8": 0.001}


@pytest.fixture(autouse=True)
def library(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of these tests, and not whatever is installed."""
    monkeypatch.setattr(native_library, "find", lambda: file)


def native(directory: Path, **settings: Any) -> Model:
    model = load(directory, device="cpu", **{"max_num_seqs": 8, "max_model_len": 256} | settings)
    assert isinstance(model.device, NativeDevice)
    return model


def pair(directory: Path) -> Pair:
    numpy = load(directory, device="cpu", dtype="float32", max_num_seqs=8, max_model_len=256)
    return Pair(native(directory), numpy)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first case's snapshot."""
    return snapshot_of(tmp_path_factory.mktemp("models"), "grouped heads of 64")


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_numpy_devices(tmp_path: Path, case: str, dtype: str) -> None:
    both = pair(snapshot_of(tmp_path, case, dtype))
    decided = sum(both.step(step).compare(ERROR[dtype]) for step in ragged_steps())
    assert decided > 50  # of 155 rows


def test_a_prompt_is_the_same_however_it_is_cut(plain: Path) -> None:
    runner = Runner(native(plain))
    prompt = tokens_of(1, 100)
    found = []
    for cuts in ([0, 100], [0, 50, 100], [0, 1, 64, 99, 100], [0, 20, 80, 100]):
        sequence = runner.sequence()
        for start, end in itertools.pairwise(cuts):
            chunk = runner.logits([(sequence, prompt[start:end])])
        found.append(np.concatenate([chunk, runner.logits([(sequence, [7])])]))
    assert all((each == found[0]).all() for each in found)


def test_a_row_does_not_depend_on_its_neighbours(plain: Path) -> None:
    runner = Runner(native(plain))
    alone, among = runner.sequence(), [runner.sequence() for _ in range(5)]
    prompts = [tokens_of(seed, 20 + seed) for seed in range(5)]
    expected = runner.logits([(alone, prompts[3])])[0]
    assert (runner.logits(list(zip(among, prompts, strict=True)))[3] == expected).all()
    for token in (5, 6, 7):
        expected = runner.logits([(alone, [token])])[0]
        steps = [(sequence, [token + n]) for n, sequence in zip((0, 1, 2, 0, 3), among, strict=True)]
        assert (runner.logits(steps)[3] == expected).all()


def test_a_prefix_that_is_there_already_serves_another_sequence(plain: Path) -> None:
    runner = Runner(native(plain))
    first, second = tokens_of(1, 64), tokens_of(2, 30)
    owner, whole = runner.sequence(), runner.sequence()
    runner.logits([(owner, first), (whole, first)])
    reader = Context(owner.pages[:4], 64)
    both = runner.logits([(reader, second), (whole, second)])
    assert (both[0] == both[1]).all()


def test_one_program_serves_all_steps(plain: Path) -> None:
    """A step that ran through `compute`, and the same step later, when it is not called any more."""
    model = native(plain)
    prompts = [tokens_of(seed, 20 + seed) for seed in range(5)]
    runs = []
    for _ in range(2):
        runner = Runner(model)
        sequences = [runner.sequence() for _ in prompts]
        tokens = model.run(runner.batch(list(zip(sequences, prompts, strict=True)))).tokens
        found = [tokens]
        for count in (5, 2, 4):
            step = [(sequence, [token]) for sequence, token in zip(sequences[:count], tokens, strict=False)]
            found.append(model.run(runner.batch(step)).tokens)
        runs.append(found)
    assert runs[0] == runs[1]
    assert [len(tokens) for tokens in runs[0]] == [5, 5, 2, 4]


def test_A10_a_nan_spoils_its_own_row_alone(tmp_path: Path) -> None:
    config = config_of()
    tensors = llama_tensors(config)
    tensors["model.embed_tokens.weight"][9] = np.nan
    runner = Runner(native(write_checkpoint(tmp_path, config, tensors)))
    prompts = [[1, 2, 3], [4, 9, 5], [7, 7, 7]]
    alone = [runner.model.run(runner.batch([(runner.sequence(), prompt)])).tokens[0] for prompt in prompts]
    together = runner.model.run(runner.batch([(runner.sequence(), prompt) for prompt in prompts])).tokens
    assert alone == together
    assert [token == -1 for token in together] == [False, True, False]


# --- memory -----------------------------------------------------------------------------------------------------


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_a_step_takes_no_more_than_was_planned(plain: Path) -> None:
    """Pages take nothing before they are written, and activations what their plan says."""
    device = NativeDevice(opened(1))
    shape, step = sizes()
    device._kv_type = 0
    pages = 10_000
    planned = device.activation_bytes(shape, step)
    before = resident()
    device.allocate(shape, step, pages, np.ones((512, 32), np.float32), np.zeros((512, 32), np.float32))
    assert device.page_bytes(shape) * pages > 500e6
    assert resident() - before < 2e6 + planned


def sizes(tokens: int = 512, seqs: int = 32) -> tuple[AttentionShape, StepShape]:
    shape = AttentionShape(num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64, rotary_dim=64, page_size=16)
    return shape, StepShape(576, 1536, 49152, tokens, seqs, 64, 20, 512)


def test_activations_grow_with_the_step() -> None:
    device = NativeDevice(opened(1))
    small, large = (device.activation_bytes(*sizes(tokens)) for tokens in (64, 512))
    assert large - small > 448 * 4 * (4 * 576 + 2 * 576 + 1536)
    assert large < 100e6


def test_half_weights_stay_half(plain: Path, tmp_path: Path) -> None:
    """And what a Hugging Face directory has in pieces is put together in its own dtype."""
    config = config_of()
    tensors = {name: tensor.astype(np.float16) for name, tensor in llama_tensors(config).items()}
    directory = write_checkpoint(tmp_path / "hub", config, tensors)
    weights = native(directory).weights
    snapshot = native(write_snapshot(tmp_path / "other", "float16", config, tensors)).weights
    assert weights.keys() == snapshot.keys()
    for name, weight in weights.items():
        other = snapshot[name]
        if name.endswith("norm.weight"):
            assert weight.dtype == np.float32
            assert (weight == other).all()
        else:
            assert weight.memory.nbytes == weight.rows * weight.columns * 2
            assert (weight.memory == other.memory).all()
            assert not other.memory.flags.owndata


def test_memory_that_the_system_does_not_promise_is_told() -> None:
    with pytest.raises(UnavailableError, match=r"MB for K/V and activations: Cannot allocate memory; a smaller --kv"):
        anonymous(1 << 52)


# --- which device, and what is said -----------------------------------------------------------------------------


@pytest.fixture
def settings() -> Settings:
    return from_kwargs(model="m", device="cpu")


def test_without_the_library_numpy_serves_and_says_so(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native_library, "find", lambda: tmp_path / "nothing.so")
    assert type(choice.open_device(settings)).__name__ == "NumpyDevice"
    assert caplog.messages == [
        "the CPU computes with numpy, which is several times slower: "
        f"{tmp_path}/nothing.so: the CPU library is not there; `pilotlight build native` makes it"
    ]


def test_a_library_that_does_not_load_is_told(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "broken.so"
    file.write_bytes(b"no library")
    monkeypatch.setattr(native_library, "find", lambda: file)
    assert type(choice.open_device(settings)).__name__ == "NumpyDevice"
    assert f"{file}: the CPU library does not load (" in caplog.text


@pytest.mark.parametrize("part", [0, 0.001, 0.5, 0.9, 0.99999])
def test_a_library_that_was_cut_is_told(file: Path, tmp_path: Path, part: float) -> None:
    """And not mapped, since a process dies that reads past a file's end."""
    whole = file.read_bytes()
    cut = tmp_path / "cut.so"
    cut.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(
        UnavailableError, match=r"does not load \(it is .*\); `pilotlight build native` makes it anew"
    ):
        native_library.Library(cut, 1)


def test_a_library_of_another_version_is_not_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library.abi, "ABI", 99)
    with pytest.raises(UnavailableError, match="is of another version; `pilotlight build native` makes it anew"):
        native_library.Library(file, 1)


def test_heads_that_no_kernel_takes_are_refused(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path, head_dim=320)
    with pytest.raises(UnavailableError, match=r"^the CPU library: heads are of size 320, .*; with --dtype float32"):
        native(directory)
