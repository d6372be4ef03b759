"""The forward pass against transformers: every family, rotary scaling, bias and window, at every kind of step."""

import itertools

import numpy as np
import pytest

from tests.model.cases import (
    CHANGES,
    LENGTH_DEPENDENT,
    LENGTHS,
    TOLERANCE,
    VOCABULARY,
    config_of,
    prompt_of,
    tensors_of,
)
from tests.model.harness import Context, Runner, load
from tests.model.reference import LOGITS, last_logits
from tests.models import write_checkpoint

GOLDEN = np.load(LOGITS)
FIXED = [case for case in CHANGES if case not in LENGTH_DEPENDENT]


@pytest.fixture(scope="module", params=itertools.product(FIXED, ["auto", "float32"]), ids="-".join)
def case(request, tmp_path_factory):
    """A case's name and its model: by the CPU library where it is built, and by numpy."""
    name, dtype = request.param
    config = config_of(name)
    directory = write_checkpoint(tmp_path_factory.mktemp("model"), config, tensors_of(config))
    return name, load(directory, dtype=dtype, max_num_seqs=64, max_num_batched_tokens=1024)


def assert_close(found, expected):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= TOLERANCE * (expected.max() - expected.min())


def test_goldens_tell_the_cases_apart():
    same = {"llama": {"mistral"}, "qwen2": {"qwen2_window_off"}}
    for case in CHANGES:
        for other in set(CHANGES) - {case} - same.get(case, set()):
            if case not in same.get(other, set()):
                spread = np.abs(GOLDEN[case] - GOLDEN[other]).max(axis=1)
                assert (spread > TOLERANCE * np.ptp(GOLDEN[case])).any(), (case, other)


def test_prefill(case):
    name, model = case
    runner = Runner(model)
    for length, expected in zip(LENGTHS, GOLDEN[name], strict=True):
        assert_close(runner.logits([(runner.sequence(), prompt_of(length))])[0], expected)


def test_decode_after_a_prefix(case):
    name, model = case
    runner = Runner(model)
    for length, expected in zip(LENGTHS[1:], GOLDEN[name][1:], strict=True):
        tokens, sequence = prompt_of(length), runner.sequence()
        prefix = max(1, length - 9)
        runner.logits([(sequence, tokens[:prefix])])
        for token in tokens[prefix:]:
            logits = runner.logits([(sequence, [token])])
        assert_close(logits[0], expected)


def test_decode_from_the_first_token(case):
    name, model = case
    runner = Runner(model)
    sequence = runner.sequence()
    for position, token in enumerate(prompt_of(64)):
        logits = runner.logits([(sequence, [token])])
        if position + 1 in LENGTHS:
            assert_close(logits[0], GOLDEN[name][LENGTHS.index(position + 1)])


def test_chunked_prefill(case):
    name, model = case
    runner = Runner(model)
    tokens = prompt_of(300)
    for chunk in (37, 150):
        sequence = runner.sequence()
        for start in range(0, 300, chunk):
            logits = runner.logits([(sequence, tokens[start : start + chunk])])
        assert_close(logits[0], GOLDEN[name][-1])


def test_ragged_batch(case):
    """All prompts in one prefill step but for their last four tokens, which are decoded together."""
    name, model = case
    runner = Runner(model)
    prompts = [prompt_of(length) for length in LENGTHS[1:]]
    sequences = [runner.sequence() for _ in prompts]
    runner.logits([(sequence, prompt[:-4]) for sequence, prompt in zip(sequences, prompts, strict=True)])
    for back in (4, 3, 2, 1):
        logits = runner.logits(
            [(sequence, [prompt[-back]]) for sequence, prompt in zip(sequences, prompts, strict=True)]
        )
    for row, expected in zip(logits, GOLDEN[name][1:], strict=True):
        assert_close(row, expected)


def test_batch_wide_enough_for_the_other_matrix_product(case):
    """60 sequences at once, each the same: every row is what one alone gives."""
    name, model = case
    runner = Runner(model)
    sequences = [runner.sequence() for _ in range(60)]
    for token in prompt_of(7):
        logits = runner.logits([(sequence, [token]) for sequence in sequences])
    for row in logits:
        assert_close(row, GOLDEN[name][1])


@pytest.mark.parametrize("name", sorted(LENGTH_DEPENDENT))
@pytest.mark.parametrize("index", range(len(LENGTHS)))
def test_scalings_by_length(name, index, tmp_path):
    """dynamic and longrope equal transformers on a prompt as long as the configured context."""
    config = config_of(name)
    directory = write_checkpoint(tmp_path, config, tensors_of(config))
    length = LENGTHS[index]
    runner = Runner(load(directory, max_model_len=length))
    tokens, sequence = prompt_of(length), runner.sequence()
    if length > 1:
        runner.logits([(sequence, tokens[:-1])])
    assert_close(runner.logits([(sequence, tokens[-1:])])[0], GOLDEN[name][index])


@pytest.mark.parametrize("name", ["llama_theta", "llama_llama3"])
def test_H04_H06_old_and_new_spelling_of_rope_are_one_model(name, tmp_path):
    config = config_of(name)
    tensors = tensors_of(config)
    scaling = config.pop("rope_scaling", {"rope_type": "default"})
    config["rope_parameters"] = scaling | {"rope_theta": config.pop("rope_theta")}
    config["dtype"] = config.pop("torch_dtype")
    runner = Runner(load(write_checkpoint(tmp_path, config, tensors)))
    for length, expected in zip(LENGTHS, GOLDEN[name], strict=True):
        assert_close(runner.logits([(runner.sequence(), prompt_of(length))])[0], expected)


@pytest.mark.parametrize("head_dim", [None, "absent"])
def test_H08_head_dim_null_or_absent_is_hidden_size_over_heads(head_dim, tmp_path):
    config = config_of("qwen2")
    assert config["head_dim"] is None
    if head_dim == "absent":
        del config["head_dim"]
    runner = Runner(load(write_checkpoint(tmp_path, config, tensors_of(config))))
    assert runner.model.spec.head_dim == 64
    assert_close(runner.logits([(runner.sequence(), prompt_of(300))])[0], GOLDEN["qwen2"][-1])


def test_embedding_rows_beyond_the_tokenizer_count(tmp_path):
    config = config_of("llama")
    runner = Runner(load(write_checkpoint(tmp_path, config, tensors_of(config))))
    logits = runner.logits([(runner.sequence(), [VOCABULARY - 1, 0])])
    assert logits.shape == (1, VOCABULARY)
    assert np.isfinite(logits).all()


def test_a_sequence_is_not_disturbed_by_what_a_page_held_before(tmp_path):
    config = config_of("llama")
    model = load(write_checkpoint(tmp_path, config, tensors_of(config)))
    first = Runner(model)
    sequence = first.sequence()
    first.logits([(sequence, prompt_of(300))])
    again = Context(sequence.pages)
    assert_close(first.logits([(again, prompt_of(40))])[0], GOLDEN["llama"][LENGTHS.index(40)])


@pytest.mark.reference
@pytest.mark.parametrize("name", CHANGES)
def test_goldens_are_what_transformers_says_now(name):
    pytest.importorskip("transformers")
    expected = last_logits(config_of(name))
    assert np.abs(GOLDEN[name] - expected).max() <= 1e-5 * np.ptp(expected)
