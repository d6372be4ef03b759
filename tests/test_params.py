"""Ranges of SamplingParams and what the engine is told."""

import math
from typing import Any

import pytest

from pilotlight.errors import ModelDataError, UsageError
from pilotlight.messages import Sampling, Submit, decode_to_engine, encode
from pilotlight.params import ParameterError, SamplingParams, check_prompt, generation_defaults, to_sampling

VOCAB = 320


def sampling(*, room: int = 100, **arguments: Any) -> Sampling:
    return to_sampling(SamplingParams(**arguments), room=room, vocab_size=VOCAB, max_logprobs=20)


def refused(**arguments: Any) -> str:
    """The field that the error names."""
    with pytest.raises(ParameterError) as caught:
        sampling(**arguments)
    assert str(caught.value).startswith(caught.value.field + ": ")
    assert "\n" not in str(caught.value)
    return caught.value.field


def test_an_error_is_a_usage_error_and_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"^temperature: expected a number from 0 to 2, got 3$"):
        SamplingParams(temperature=3)
    with pytest.raises(UsageError):
        SamplingParams(temperature=3)


def test_defaults() -> None:
    told = sampling(seed=0)
    assert told == Sampling(max_tokens=16)


@pytest.mark.parametrize(
    "key", [9999999, -1, VOCAB, "9999999", "-1", str(VOCAB), "abc", "1.5", " 5", "", "٥", 1.5, True]
)
def test_C02_C03_logit_bias_keys(key: Any) -> None:
    assert refused(logit_bias={key: 5}) == "logit_bias"


@pytest.mark.parametrize("value", ["x", 1000, -100.5, math.nan, math.inf, None, True, 10**400])
def test_C03_logit_bias_values(value: Any) -> None:
    assert refused(logit_bias={"5": value}) == "logit_bias"


def test_C03_logit_bias_accepted() -> None:
    assert sampling(logit_bias={}).logit_bias == ()
    assert sampling(logit_bias={"5": 1, "7": -100}).logit_bias == ((5, 1.0), (7, -100.0))
    assert sampling(logit_bias={5: 1, "5": 2}).logit_bias == ((5, 2.0),)
    assert refused(logit_bias=[5]) == "logit_bias"


@pytest.mark.parametrize("seed", [2**63, 2**64, 10**20, -(2**63) - 1, "100", 1.5, True, 10**100])
def test_C04_seed_refused(seed: Any) -> None:
    assert refused(seed=seed) == "seed"


@pytest.mark.parametrize(("seed", "told"), [(0, 0), (-1, 2**64 - 1), (2**63 - 1, 2**63 - 1), (-(2**63), 2**63)])
def test_C04_seed_accepted(seed: int, told: int) -> None:
    assert sampling(seed=seed).seed == told


def test_a_request_without_a_seed_gets_the_servers_or_a_drawn_one() -> None:
    def seed(default: int | None) -> int:
        told = to_sampling(SamplingParams(), room=1, vocab_size=VOCAB, max_logprobs=0, default_seed=default)
        return told.seed

    assert seed(7) == 7
    assert seed(None) != seed(None)


@pytest.mark.parametrize(
    ("top_k", "told"), [(9999999, 0), (VOCAB, 0), (VOCAB + 1, 0), (0, 0), (-1, 0), (1, 1), (40, 40)]
)
def test_C06_top_k(top_k: int, told: int) -> None:
    assert sampling(top_k=top_k).top_k == told


@pytest.mark.parametrize("top_k", [-2, 1.0, "3", True])
def test_C06_top_k_refused(top_k: Any) -> None:
    assert refused(top_k=top_k) == "top_k"


@pytest.mark.parametrize("penalty", [0, -1, math.nan, math.inf, 1e300])
def test_C07_repetition_penalty_refused(penalty: float) -> None:
    assert refused(repetition_penalty=penalty) == "repetition_penalty"


def test_C07_repetition_penalty_extremes() -> None:
    assert sampling(repetition_penalty=1e-9).repetition_penalty == 1e-9
    assert sampling(repetition_penalty=1e9).repetition_penalty == 1e9


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, 2.5, "1", True, 10**400])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_C09_not_a_number_in_range(field: str, value: Any) -> None:
    if (field, value) == ("repetition_penalty", 2.5):
        assert sampling(repetition_penalty=2.5).repetition_penalty == 2.5
    else:
        assert refused(**{field: value}) == field


@pytest.mark.parametrize("field", ["presence_penalty", "frequency_penalty"])
def test_C09_penalties(field: str) -> None:
    for value in (math.nan, math.inf, -2.1, 2.1, "1"):
        assert refused(**{field: value}) == field
    assert getattr(sampling(**{field: -2}), field) == -2.0


def test_C09_greedy() -> None:
    for temperature in (0, 0.0, -0.0, 1e-30):
        told = sampling(temperature=temperature).temperature
        assert told == 0.0
        assert math.copysign(1, told) == 1
    assert sampling(temperature=2).temperature == 2.0
    assert refused(top_p=0) == "top_p"
    assert sampling(top_p=1, min_p=1).min_p == 1.0


def test_C20_logprobs() -> None:
    for field in ("logprobs", "prompt_logprobs"):
        for value in (16384, -1, 21, 1.5, True):
            assert refused(**{field: value}) == field
        assert getattr(sampling(**{field: 20}), field) == 20
        assert getattr(sampling(**{field: 0}), field) == 0


def test_n() -> None:
    for value in (0, 129, -1, 1.0):
        assert refused(n=value) == "n"
    assert SamplingParams(n=128).n == 128


def test_C19_max_tokens_is_bounded_by_the_context() -> None:
    assert sampling(max_tokens=8, room=100).max_tokens == 8
    assert sampling(max_tokens=10000, room=100).max_tokens == 100
    assert sampling(max_tokens=None, room=100).max_tokens == 100
    assert refused(max_tokens=0) == "max_tokens"
    assert refused(min_tokens=9, max_tokens=8) == "min_tokens"
    assert refused(min_tokens=-1) == "min_tokens"


@pytest.mark.parametrize("huge", [2**63, 2**64, 10**100])
@pytest.mark.parametrize("field", SamplingParams.__struct_fields__)
def test_a_number_without_bounds_is_refused_or_fits_the_line(field: str, huge: int) -> None:
    arguments: dict[str, Any] = {"max_tokens": None} | {field: huge}
    if field in ("max_tokens", "min_tokens", "top_k"):
        submit = Submit(1, [1], sampling(**arguments))
        assert decode_to_engine(encode(submit)[4:]) == submit
    else:
        assert refused(**arguments) == field


def test_min_tokens_is_bounded_by_the_context() -> None:
    assert sampling(max_tokens=None, min_tokens=10**30, room=100).min_tokens == 100
    assert sampling(max_tokens=10**30, min_tokens=10**30, room=100).min_tokens == 100


def test_stop_strings() -> None:
    assert SamplingParams().stop_strings == ()
    assert SamplingParams(stop="a").stop_strings == ("a",)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")
    assert SamplingParams(stop="a" * 1024).stop_strings == ("a" * 1024,)
    for value in ("", ["a", ""], ["a"] * 17, [1], 5, {"a": 1}, ["a", "a" * 1025]):
        assert refused(stop=value) == "stop"


def test_H19_stop_token_ids_are_of_the_model() -> None:
    assert sampling(stop_token_ids=[300, 5]).stop_token_ids == (300, 5)
    assert sampling(stop_token_ids=[300, 5] * 1000).stop_token_ids == (300, 5)
    for value in ([VOCAB], [-1], [1.5], [True], "5", 5):
        assert refused(stop_token_ids=value) == "stop_token_ids"


def test_stop_tokens_and_biases_are_no_more_than_a_device_keeps() -> None:
    assert len(sampling(stop_token_ids=list(range(256)) * 2).stop_token_ids) == 256
    with pytest.raises(ParameterError, match=r"^stop_token_ids: at most 256 tokens are taken, got 257$"):
        SamplingParams(stop_token_ids=list(range(257)))
    told = to_sampling(
        SamplingParams(logit_bias=dict.fromkeys(range(1024), 1)), room=1, vocab_size=2000, max_logprobs=0
    )
    assert len(told.logit_bias) == 1024
    with pytest.raises(ParameterError, match=r"^logit_bias: at most 1024 tokens are taken, got 1025$"):
        SamplingParams(logit_bias={str(token): 1 for token in range(1025)})


def test_allowed_token_ids() -> None:
    def told(tokens: list[int]) -> set[int]:
        mask = sampling(allowed_token_ids=tokens).allowed_tokens
        assert len(mask) % 4 == 0
        return {8 * index + bit for index, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1}

    assert sampling().allowed_tokens == b""
    assert sampling(allowed_token_ids=[0]).allowed_tokens == b"\1\0\0\0"
    for tokens in ([300, 5, 300], [31], [32], [VOCAB - 1], list(range(VOCAB))):
        assert told(tokens) == set(tokens)
    for value in ([], [VOCAB], [5, -1], [1.5], [True], ["5"], "5", 5, {5: 1}):
        assert refused(allowed_token_ids=value) == "allowed_token_ids"
    with pytest.raises(ParameterError, match=r"^allowed_token_ids: it is empty, so that no token could be chosen"):
        SamplingParams(allowed_token_ids=())


def test_most_of_a_large_vocabulary_is_little_on_the_line() -> None:
    """Each of the 128 choices of a request brings it."""
    params = SamplingParams(allowed_token_ids=list(range(150_000)))
    told = to_sampling(params, room=1, vocab_size=151_936, max_logprobs=0)
    assert len(encode(Submit(1, [1], told))) < 20_000


def test_an_eos_outside_the_model_is_left_out() -> None:
    told = to_sampling(SamplingParams(), room=1, vocab_size=VOCAB, max_logprobs=0, eos_token_ids=[5, VOCAB, -1])
    assert told.eos_token_ids == (5,)


def test_switches() -> None:
    for field in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
        assert refused(**{field: 1}) == field


@pytest.mark.parametrize("token", [VOCAB, -1, 1.5, True, "a", None])
def test_H19_prompt_ids_refused(token: Any) -> None:
    with pytest.raises(ParameterError) as caught:
        check_prompt([1, token], vocab_size=VOCAB, max_model_len=10)
    assert caught.value.field == "prompt"


def test_prompt_length() -> None:
    assert check_prompt([300] * 9, vocab_size=VOCAB, max_model_len=10) == 1
    with pytest.raises(ParameterError, match=r"it has 10 tokens.*context is 10 tokens"):
        check_prompt([1] * 10, vocab_size=VOCAB, max_model_len=10)
    with pytest.raises(ParameterError, match="empty"):
        check_prompt([], vocab_size=VOCAB, max_model_len=10)


def test_generation_defaults() -> None:
    config = {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": None,
        "max_new_tokens": 30,
        "do_sample": True,
        "eos_token_id": 5,
    }
    assert generation_defaults(config) == {"temperature": 0.6, "top_k": 20, "max_tokens": 30}
    with pytest.raises(ModelDataError, match=r"generation_config\.json .*top_p"):
        generation_defaults({"top_p": 7})


def test_a_number_that_python_will_not_print_is_still_one_line() -> None:
    assert refused(seed=10**5000) == "seed"
    assert refused(stop=["a", 10**5000]) == "stop"
