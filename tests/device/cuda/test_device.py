"""The CUDA device against the numpy device: the same snapshot, the same steps, teacher-forced."""

import gc
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight.device.cuda import driver
from pilotlight.errors import ModelDataError, UnavailableError
from tests.device.pairs import CASES, ragged_steps, snapshot_of, tokens_of
from tests.model.harness import Context, Runner
from tests.models import llama_tensors, write_checkpoint

from .bench import Bench, all_logits, config_of, last_logits, write_snapshot

pytestmark = pytest.mark.gpu

# Of a row's spread. Measured over these cases: 0.010 and 0.001.
ERROR = {"bfloat16": 0.015, "float16": 0.002}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first case's snapshot."""
    return snapshot_of(tmp_path_factory.mktemp("models"), "grouped heads of 64")


@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, "bfloat16") for case in CASES), ("grouped heads of 64", "float16")]
)
def test_logits_are_the_numpy_devices(bench: Bench, tmp_path: Path, case: str, dtype: str) -> None:
    pair = bench.pair(snapshot_of(tmp_path, case, dtype), max_model_len=256)
    assert pair.ours.model.device.dtype == dtype
    decided = sum(pair.step(step).compare(ERROR[dtype]) for step in ragged_steps())
    assert decided > 50  # of 155 rows


def test_a_prompt_is_the_same_however_it_is_cut(bench: Bench, plain: Path) -> None:
    """Chunks of 17 to 64 tokens take one form of each kernel: equal to the last bit. So is what is decoded then."""
    runner = Runner(bench.load(plain, max_model_len=256))
    prompt = tokens_of(1, 100)
    found = []
    for cuts in ([0, 50, 100], [0, 64, 100], [0, 20, 80, 100]):
        sequence = runner.sequence()
        for start, end in itertools.pairwise(cuts):
            chunk = last_logits(runner, [(sequence, prompt[start:end])])
        found.append(np.concatenate([chunk, last_logits(runner, [(sequence, [7])])]))
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


def test_a_prefix_that_is_there_already_serves_another_sequence(bench: Bench, plain: Path) -> None:
    runner = Runner(bench.load(plain, max_model_len=256))
    first, second = tokens_of(1, 64), tokens_of(2, 30)
    owner, whole = runner.sequence(), runner.sequence()
    last_logits(runner, [(owner, first)])
    reader = Context(owner.pages[:4], 64)
    last_logits(runner, [(whole, first)])
    both = last_logits(runner, [(reader, second), (whole, second)])
    assert (both[0] == both[1]).all()


def test_a_decode_row_does_not_depend_on_its_neighbours(bench: Bench, plain: Path) -> None:
    runner = Runner(bench.load(plain, max_model_len=256))
    alone, among = runner.sequence(), [runner.sequence() for _ in range(5)]
    prompts = [tokens_of(seed, 20 + seed) for seed in range(5)]
    last_logits(runner, [(alone, prompts[3])])
    for sequence, prompt in zip(among, prompts, strict=True):
        last_logits(runner, [(sequence, prompt)])
    for token in (5, 6, 7):
        expected = last_logits(runner, [(alone, [token])])[0]
        rows = last_logits(
            runner, [(sequence, [token + n]) for n, sequence in zip((0, 1, 2, 0, 3), among, strict=True)]
        )
        assert (rows[3] == expected).all()


@pytest.mark.parametrize("case", ["grouped heads of 64", "split down"])
def test_wanted_rows_are_gathered(bench: Bench, tmp_path: Path, case: str) -> None:
    """A prompt's last tokens, out of a step's middle: of a whole product, and of one that is split."""
    runner = Runner(bench.load(snapshot_of(tmp_path, case), max_model_len=256))
    steps = [(runner.sequence(), tokens_of(seed, count)) for seed, count in enumerate((5, 17, 30))]
    lasts = last_logits(runner, steps)
    again = all_logits(runner, [(runner.sequence(), tokens) for _, tokens in steps])
    assert (lasts == again[[4, 21, 51]]).all()


def test_fp8_pages_hold_twice_the_tokens_and_cost_some_precision(bench: Bench, plain: Path) -> None:
    settings = {"max_model_len": 256, "kv_cache_memory_bytes": 1 << 20}
    whole, small = (bench.load(plain, kv_cache_dtype=dtype, **settings) for dtype in ("auto", "fp8"))
    assert (whole.num_pages, small.num_pages) == (64, 128)
    logits = []
    for model in (whole, small):
        runner = Runner(model)
        sequence = runner.sequence()
        last_logits(runner, [(sequence, tokens_of(1, 70))])
        logits.append([last_logits(runner, [(sequence, [token])])[0] for token in range(4)])
    off = np.abs(np.array(logits[0]) - np.array(logits[1])).max() / np.ptp(np.array(logits[0]))
    assert 0.001 < off < 0.05  # e4m3 has 4 bits


def test_A10_a_nan_spoils_its_own_row_alone(bench: Bench, tmp_path: Path) -> None:
    config = config_of()
    tensors = llama_tensors(config)
    tensors["model.embed_tokens.weight"][9] = np.nan
    runner = Runner(bench.load(write_checkpoint(tmp_path, config, tensors), max_model_len=256))
    prompts = [[1, 2, 3], [4, 9, 5], [7, 7, 7]]
    alone = [runner.model.run(runner.batch([(runner.sequence(), prompt)])).tokens[0] for prompt in prompts]
    together = runner.model.run(runner.batch([(runner.sequence(), prompt) for prompt in prompts])).tokens
    assert alone == together
    assert [token == -1 for token in together] == [False, True, False]


def test_fp32_weights_are_rounded_as_they_are_read(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of()
    tensors = llama_tensors(config)
    wide = write_snapshot(tmp_path / "wide", "float32", config, tensors)
    narrow = write_snapshot(tmp_path / "narrow", "bfloat16", config, tensors)
    logits = []
    for snapshot in (wide, narrow):
        runner = Runner(bench.load(snapshot, max_model_len=256))
        assert runner.model.device.dtype == "bfloat16"
        logits.append(last_logits(runner, [(runner.sequence(), tokens_of(0, 20))]))
    assert (logits[0] == logits[1]).all()
    assert "the weights are fp32 and are rounded to bfloat16" in caplog.text


def test_int8_is_refused(bench: Bench, tmp_path: Path) -> None:
    config = config_of()
    with pytest.raises(ModelDataError, match=r"of int8, which only the CPU computes with: use --device cpu, or make"):
        bench.load(write_snapshot(tmp_path, "int8", config, llama_tensors(config)))


def test_tensors_of_two_dtypes_are_refused(bench: Bench, tmp_path: Path) -> None:
    config = config_of()
    tensors = {name: tensor.astype(np.float16) for name, tensor in llama_tensors(config).items()}
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float32)
    with pytest.raises(ModelDataError, match=r"'norm.weight' is of dtype F32, 'embed.weight' of F16.*--dtype"):
        bench.load(write_checkpoint(tmp_path, config, tensors))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 32}, r"heads of 32 \(there are 64, 96, 128, 256\); use --device cpu"),
        ({"hidden_size": 252}, "hidden_size 252 is no multiple of 8"),
        ({"intermediate_size": 100}, "intermediate_size 100 is no multiple of 8"),
    ],
)
def test_models_that_no_kernel_takes_are_refused(
    bench: Bench, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config = config_of(**changes)
    with pytest.raises(UnavailableError, match=message):
        bench.load(write_snapshot(tmp_path, "bfloat16", config, llama_tensors(config)))


def test_what_a_model_took_is_given_back(bench: Bench, plain: Path) -> None:
    gc.collect()  # other tests' models
    model = bench.load(plain, max_model_len=256)
    held = driver.memory_info()[0]
    del model
    gc.collect()
    free = driver.memory_info()[0]
    assert free > held
    for _ in range(2):
        model = bench.load(plain, max_model_len=256)
        assert driver.memory_info()[0] == held
        del model
        gc.collect()
        assert driver.memory_info()[0] == free
