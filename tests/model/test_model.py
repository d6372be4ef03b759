"""Loading a model and running steps through it: what the engine sees."""

import mmap
import os

import numpy as np
import pytest

from pilotlight.device import host
from pilotlight.errors import ModelDataError, UnavailableError, UsageError
from pilotlight.messages import Sampling
from pilotlight.model.model import load_model
from pilotlight.settings import PAGE_SIZE, from_kwargs
from pilotlight.timeline import Timeline
from tests.hostile.files import safetensors_bytes
from tests.model.cases import LENGTHS, TOLERANCE, config_of, prompt_of, tensors_of
from tests.model.harness import Runner, load, sample_at
from tests.model.reference import LOGITS
from tests.models import llama_config, llama_tensors, write_chain, write_checkpoint, write_tiny

GOLDEN = np.load(LOGITS)
CHAIN = [5, 9, 11, 200, 3, 8, 90]


def test_chain_runs_through_prefill_and_decode(tmp_path):
    runner = Runner(load(write_chain(tmp_path, CHAIN)))
    sequence = runner.sequence()
    tokens = [65, 66, 67]
    answer = []
    for _ in CHAIN:
        tokens = runner.model.run(runner.batch([(sequence, tokens)])).tokens
        answer += tokens
    assert answer == CHAIN


def test_what_a_model_says_of_itself(tmp_path):
    model = load(write_tiny(tmp_path), max_num_seqs=4)
    assert (model.max_model_len, model.num_pages) == (256, 4 * 256 // PAGE_SIZE)
    assert (model.device.name, model.device.dtype, model.spec.vocab_size) == ("cpu", "float32", 320)
    short = load(tmp_path, max_model_len=100, max_num_seqs=4)
    assert (short.max_model_len, short.num_pages) == (100, 4 * 7)


def test_spans_of_a_load(tmp_path):
    timeline = Timeline("engine")
    directory = write_tiny(tmp_path)
    load_model(directory, from_kwargs(model=str(directory)), timeline)
    assert [span.name for span in timeline.spans] == ["config", "device", "plan", "weights", "kv cache"]
    weights = timeline.spans[3]
    assert weights.bytes >= 4 * sum(tensor.size for tensor in llama_tensors(llama_config()).values())
    assert all(span.start <= span.end for span in timeline.spans)


@pytest.mark.parametrize("equal", [True, False])
def test_H01_a_tied_model_with_a_head_of_other_values_uses_that_head_and_says_so(equal, tmp_path, caplog):
    """As transformers 5 does: it ties only what is equal."""
    config = config_of("llama_tied")
    tensors = tensors_of(config)
    embedding = tensors["model.embed_tokens.weight"]
    head = embedding.copy() if equal else -embedding
    runner = Runner(load(write_checkpoint(tmp_path, config, tensors | {"lm_head.weight": head})))
    logits = runner.logits([(runner.sequence(), prompt_of(40))])[0]
    expected = GOLDEN["llama_tied"][LENGTHS.index(40)]
    expected = expected if equal else -expected
    assert np.abs(logits - expected).max() <= TOLERANCE * np.ptp(expected)
    assert ("config.json ties 'lm_head.weight'" in caplog.text) is not equal


@pytest.mark.parametrize("tied", [False, None])
def test_H02_an_untied_model_without_a_head_is_refused(tied, tmp_path):
    config = llama_config(tie_word_embeddings=False)
    tensors = llama_tensors(config)
    del tensors["lm_head.weight"]
    if tied is None:
        del config["tie_word_embeddings"]
    with pytest.raises(ModelDataError, match="lm_head"):
        load(write_checkpoint(tmp_path, config, tensors))


def test_H08_a_checkpoint_of_another_head_dim_is_refused(tmp_path):
    tensors = llama_tensors(llama_config(head_dim=32))
    with pytest.raises(ModelDataError, match=r"q_proj"):
        load(write_checkpoint(tmp_path, llama_config(), tensors))


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_weights_are_widened(dtype, tmp_path):
    """The logits are those of fp32 weights that hold the same numbers."""
    config = config_of("llama")
    table, data, exact = {}, b"", {}
    for name, tensor in tensors_of(config).items():
        bits = tensor.view(np.uint32) >> 16  # bf16 by cutting off
        half = tensor.astype(np.float16) if dtype == "F16" else bits.astype(np.uint16)
        table[name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [len(data), len(data) + half.nbytes]}
        data += half.tobytes()
        exact[name] = half.astype(np.float32) if dtype == "F16" else (bits << 16).view(np.float32)
    write_checkpoint(tmp_path / "half", config, {})
    (tmp_path / "half" / "model.safetensors").write_bytes(safetensors_bytes(table, data))
    write_checkpoint(tmp_path / "exact", config, exact)
    half, full = (Runner(load(tmp_path / name, dtype="float32")) for name in ("half", "exact"))
    assert {tensor.dtype for tensor in half.model.weights.values()} == {np.dtype(np.float32)}
    logits = [runner.logits([(runner.sequence(), prompt_of(40))]) for runner in (half, full)]
    np.testing.assert_array_equal(*logits)


def test_what_does_not_fit_is_refused(tmp_path, monkeypatch):
    directory = write_tiny(tmp_path)
    with pytest.raises(UsageError, match="--max-model-len 300 is beyond the model's own limit of 256"):
        load(directory, max_model_len=300)
    with pytest.raises(UnavailableError, match=r"--kv-cache-memory-bytes 1,000,000\.00 GB"):
        load(directory, kv_cache_memory_bytes=10**15)
    monkeypatch.setattr(host, "available_bytes", lambda: 10**6)
    with pytest.raises(UnavailableError, match=r"the model does not fit: weights 0\.5 MB"):
        load(directory)


def test_pages_claim_no_memory_before_they_are_written(tmp_path):
    """1 GiB of pages, of which a prompt of 300 tokens touches 20."""
    config = llama_config(max_position_embeddings=1 << 20)
    directory = write_checkpoint(tmp_path, config, llama_tensors(config))
    before = resident_bytes()
    model = load(directory, max_num_seqs=64)
    assert model.num_pages == (1 << 30) // (PAGE_SIZE * 2 * 2 * 2 * 16 * 4)  # tokens, layers, k and v, heads, dims
    runner = Runner(model)
    runner.logits([(runner.sequence(), [1] * 300)])
    assert resident_bytes() - before < 256 << 20


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE


# --- sampling and scoring ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = config_of("llama")
    return load(write_checkpoint(tmp_path_factory.mktemp("model"), config, tensors_of(config)))


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def test_a_step_that_samples_nothing_still_fills_the_pages(model):
    runner = Runner(model)
    tokens, sequence = prompt_of(64), runner.sequence()
    sampled = model.run(sample_at(runner.batch([(sequence, tokens[:40])]), []))
    assert (sampled.tokens, sampled.logprobs, sampled.scores) == ([], [], [])
    logits = runner.logits([(sequence, tokens[40:])])[0]
    expected = GOLDEN["llama"][LENGTHS.index(64)]
    assert np.abs(logits - expected).max() <= TOLERANCE * np.ptp(expected)


def test_sampled_tokens_and_logprobs(model):
    runner = Runner(model)
    batch = runner.batch([(runner.sequence(), prompt_of(7)), (runner.sequence(), prompt_of(200))])
    batch.rows[1].sampling = Sampling(max_tokens=1, temperature=0, logprobs=2)
    sampled = model.run(batch)
    first, second = (GOLDEN["llama"][LENGTHS.index(length)] for length in (7, 200))
    assert sampled.tokens == [first.argmax(), second.argmax()]
    assert sampled.logprobs[0] is None
    assert sampled.logprobs[1].logprob == pytest.approx(log_softmax(second).max(), abs=1e-4)
    assert [token for token, _ in sampled.logprobs[1].top] == np.argsort(-second)[:2].tolist()


def test_scores_of_a_prompt(model):
    """More rows than are scored at once, beside one that is sampled."""
    runner = Runner(model)
    tokens = prompt_of(200)
    batch = runner.batch([(runner.sequence(), tokens)])
    batch.score_rows = np.arange(199, dtype=np.int32)
    batch.score_targets = np.array(tokens[1:], np.int32)
    batch.score_top = 3
    sampled = model.run(batch)
    assert sampled.tokens == [GOLDEN["llama"][LENGTHS.index(200)].argmax()]
    assert [score.token for score in sampled.scores] == tokens[1:]
    for length in (1, 7, 40, 64):
        expected = log_softmax(GOLDEN["llama"][LENGTHS.index(length)])
        score = sampled.scores[length - 1]
        assert score.logprob == pytest.approx(expected[tokens[length]], abs=1e-4)
        assert [token for token, _ in score.top] == np.argsort(-expected)[:3].tolist()


def test_A10_a_nan_in_the_head_poisons_no_other_model_step(tmp_path):
    config = llama_config()
    tensors = llama_tensors(config)
    tensors["lm_head.weight"][7] = np.nan
    runner = Runner(load(write_checkpoint(tmp_path, config, tensors)))
    assert runner.model.run(runner.batch([(runner.sequence(), [1, 2, 3])])).tokens == [-1]


def test_A10_a_sequence_with_a_nan_leaves_its_neighbours_alone(tmp_path):
    """Token 9's embedding is NaN: whoever has it gets -1, the others what they get alone."""
    config = llama_config()
    tensors = llama_tensors(config)
    tensors["model.embed_tokens.weight"][9] = np.nan
    runner = Runner(load(write_checkpoint(tmp_path, config, tensors)))
    prompts = [[1, 2, 3], [4, 9, 5, 6], [7] * 40]
    alone = [runner.model.run(runner.batch([(runner.sequence(), prompt)])).tokens[0] for prompt in prompts]
    assert alone[1] == -1
    sequences = [runner.sequence() for _ in prompts]
    together = runner.model.run(runner.batch(list(zip(sequences, prompts, strict=True)))).tokens
    assert together == alone
    step = [(sequence, [8]) for sequence in sequences]
    found = runner.model.run(runner.batch(step)).tokens
    again = [[*prompt, 8] for prompt in prompts]
    assert found == [runner.model.run(runner.batch([(runner.sequence(), prompt)])).tokens[0] for prompt in again]
    assert found[1] == -1


def test_A10_numbers_that_overflow_are_told_and_not_warned_of(tmp_path):
    config = llama_config()
    tensors = llama_tensors(config)
    for part in ("up", "down"):
        tensors[f"model.layers.0.mlp.{part}_proj.weight"] *= np.float32(1e30)
    runner = Runner(load(write_checkpoint(tmp_path, config, tensors)))
    assert runner.model.run(runner.batch([(runner.sequence(), [1, 2, 3])])).tokens == [-1]
    assert runner.model.run(runner.batch([(runner.sequence(), [4])])).tokens == [-1]


def test_J11_a_read_only_directory_stays_as_it_is(tmp_path):
    directory = write_tiny(tmp_path / "model")
    before = sorted(os.listdir(directory))
    for file in directory.iterdir():
        file.chmod(0o444)
    directory.chmod(0o555)
    try:
        load(directory)
        assert sorted(os.listdir(directory)) == before
    finally:
        directory.chmod(0o755)
