"""Requests to valid types: nulls, types, ranges, the policy for what is not supported."""

import json
import logging
from typing import Any

import pytest

from pilotlight.front import protocol
from pilotlight.front.errors import ApiError
from pilotlight.front.protocol import ChatRequest, CompletionRequest, decode, parse_chat, parse_completion
from pilotlight.params import SamplingParams

USER = {"role": "user", "content": "hi"}

# Every optional field of the two endpoints that a typed client may send as null.
NULLABLE = [
    "temperature",
    "top_p",
    "n",
    "stop",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "presence_penalty",
    "frequency_penalty",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "response_format",
    "stream",
    "stream_options",
    "user",
    "metadata",
    "store",
    "service_tier",
    "reasoning_effort",
    "prediction",
    "modalities",
    "audio",
    "top_k",
    "min_p",
    "repetition_penalty",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "priority",
    "best_of",
    "suffix",
    "echo",
]


def chat(**fields: Any) -> ChatRequest:
    return parse_chat(_without_nulls({"model": "m", "messages": [USER], **fields}), {})


def completion(**fields: Any) -> CompletionRequest:
    return parse_completion(_without_nulls({"model": "m", "prompt": "hi", **fields}), {})


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """Through JSON's bytes, as a server gets it."""
    return decode(json.dumps(fields).encode())


def refused(parse: Any, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as raised:
        parse(**fields)
    assert raised.value.status == 400
    assert "\n" not in raised.value.message
    return raised.value


@pytest.mark.parametrize("name", NULLABLE)
def test_C01_null_is_the_same_as_absent(name: str) -> None:
    assert chat(**{name: None}) == chat()
    assert completion(**{name: None}) == completion()


def test_C01_all_nulls_at_once() -> None:
    nulls = dict.fromkeys(NULLABLE)
    assert chat(**nulls) == chat()
    assert completion(**nulls) == completion()


def test_C01_null_within_stream_options_and_messages() -> None:
    assert not chat(stream=True, stream_options={"include_usage": None}).include_usage
    message = USER | {"name": None, "tool_calls": None}
    assert chat(messages=[message]).messages == [USER]


@pytest.mark.parametrize(
    ("logit_bias", "accepted"),
    [
        ({}, True),
        ({"5": 1}, True),
        ({"5": -100, "6": 100.0}, True),
        ({"abc": 1}, False),
        ({"1.5": 1}, False),
        ({"-1": 5}, False),
        ({"5": "x"}, False),
        ({"5": 1000}, False),
        ({"5": None}, False),
        ([5], False),
    ],
)
def test_C03_logit_bias(logit_bias: Any, accepted: bool) -> None:
    for parse in (chat, completion):
        if accepted:
            assert parse(logit_bias=logit_bias).params.logit_bias == logit_bias
        else:
            assert refused(parse, logit_bias=logit_bias).param == "logit_bias"


@pytest.mark.parametrize("seed", [2**63, 2**64, 10**20, -(2**63) - 1, "100", 1.5, True])
def test_C04_a_seed_that_is_no_signed_64_bit_integer_is_refused(seed: Any) -> None:
    for parse in (chat, completion):
        assert refused(parse, seed=seed).param == "seed"


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63)])
def test_C04_every_signed_64_bit_integer_is_a_seed(seed: int) -> None:
    assert chat(seed=seed).params.seed == seed


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"])
def test_C09_numbers_that_are_not_finite_are_no_json(field: str, text: str) -> None:
    with pytest.raises(ApiError, match="not valid JSON") as raised:
        decode(b'{"model": "m", "%s": %s}' % (field.encode(), text.encode()))
    assert raised.value.status == 400


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", 2.5),
        ("temperature", "1"),
        ("top_p", 0),
        ("top_p", 1.5),
        ("min_p", -0.1),
        ("min_p", 2),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("n", 0),
        ("n", 129),
        ("n", 1.0),
        ("min_tokens", -1),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", ["x"] * 17),
        ("stop_token_ids", [1.5]),
        ("stop_token_ids", "5"),
        ("stop_token_ids", [-1]),
        ("ignore_eos", "yes"),
        ("priority", 2**40),
        ("priority", "high"),
        ("stream", "true"),
        ("stream", 1),
        ("stream_options", True),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", "5"),
        ("max_tokens", 1.5),
    ],
)
def test_C09_values_out_of_range_or_of_another_type_are_refused_by_name(field: str, value: Any) -> None:
    for parse in (chat, completion):
        error = refused(parse, **{field: value})
        assert error.param == field
        assert error.message.startswith(field)


@pytest.mark.parametrize("value", [-0.0, 0, 0.0])
def test_C09_minus_zero_is_greedy(value: float) -> None:
    assert chat(temperature=value).params.temperature == 0


def test_C19_the_newer_name_of_the_token_limit_wins() -> None:
    assert chat(max_tokens=8).params.max_tokens == 8
    assert chat(max_completion_tokens=8).params.max_tokens == 8
    assert chat(max_completion_tokens=8, max_tokens=20).params.max_tokens == 8
    assert completion(max_tokens=8).params.max_tokens == 8
    assert refused(chat, max_completion_tokens=0).param == "max_completion_tokens"


def test_J15_without_a_limit_chat_goes_on_and_completions_stop_at_16() -> None:
    assert chat().params.max_tokens is None
    assert completion().params.max_tokens == 16
    defaults = {"max_tokens": 7, "temperature": 0.5}
    assert parse_chat({"model": "m", "messages": [USER]}, defaults).params.max_tokens == 7
    given = parse_completion({"model": "m", "prompt": "hi", "temperature": 1.0}, defaults).params
    assert (given.max_tokens, given.temperature) == (7, 1.0)


def test_C20_top_logprobs_belongs_to_logprobs() -> None:
    assert chat(logprobs=True).params.logprobs == 0
    assert chat(logprobs=True, top_logprobs=5).params.logprobs == 5
    assert chat(logprobs=False).params.logprobs is None
    assert chat(top_logprobs=0).params.logprobs is None
    assert completion(logprobs=5).params.logprobs == 5
    assert completion(logprobs=0).params.logprobs == 0
    assert refused(chat, logprobs=True, top_logprobs=-1).param == "top_logprobs"
    assert refused(chat, logprobs=5).param == "logprobs"
    assert refused(completion, logprobs=-1).param == "logprobs"
    assert refused(completion, logprobs=True).param == "logprobs"


def test_B21_top_logprobs_without_logprobs_is_refused() -> None:
    assert refused(chat, top_logprobs=2).param == "top_logprobs"
    assert refused(chat, top_logprobs=2, logprobs=False).param == "top_logprobs"


def test_echo_with_logprobs_asks_for_the_prompts_too() -> None:
    assert completion(echo=True, logprobs=3).params.prompt_logprobs == 3
    assert completion(echo=True).params.prompt_logprobs is None
    assert completion(logprobs=3).params.prompt_logprobs is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("store", True),
        ("metadata", {"a": "b"}),
        ("service_tier", "flex"),
        ("parallel_tool_calls", False),
        ("reasoning_effort", "low"),
        ("user", "someone"),
        ("prediction", {"type": "content", "content": "x"}),
        ("safety_identifier", "x"),
        ("prompt_cache_key", "x"),
        ("tools", []),
        ("tool_choice", "none"),
        ("tool_choice", "auto"),
        ("response_format", {"type": "text"}),
        ("modalities", ["text"]),
        ("verbosity", "medium"),
        ("best_of", 1),
        ("suffix", ""),
        ("foo", 1),
    ],
)
def test_C23_fields_without_effect_are_accepted(field: str, value: Any) -> None:
    assert chat(**{field: value}).params == SamplingParams(max_tokens=None)
    assert completion(**{field: value}).params == SamplingParams(max_tokens=16)


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [TOOL]),
        ("tool_choice", "required"),
        ("tool_choice", TOOL),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("structured_outputs", {"json": {}}),
        ("guided_json", {}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("verbosity", "low"),
        ("best_of", 2),
        ("suffix", "x"),
        ("use_beam_search", True),
        ("bad_words", ["x"]),
        ("prompt_logprobs", 1),
        ("chat_template", "{{ 1 }}"),
        ("documents", [{"text": "x"}]),
    ],
)
def test_C23_fields_that_would_change_the_answer_are_refused_by_name(field: str, value: Any) -> None:
    for parse in (chat, completion):
        error = refused(parse, **{field: value})
        assert error.param == field
        assert error.code == "unsupported_parameter"
        assert field in error.message


def test_C23_tools_that_must_not_be_called_need_no_support() -> None:
    assert chat(tools=[TOOL], tool_choice="none") == chat()


def test_C23_an_unknown_field_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_noted", set())
    with caplog.at_level(logging.WARNING):
        chat(fooo=1)
        chat(fooo=2)
        for index in range(200):
            chat(**{f"field{index}": 1})
    assert [record.getMessage() for record in caplog.records if "fooo" in record.getMessage()] == [
        "a request has the unknown field 'fooo', which is ignored"
    ]
    assert len(caplog.records) == 100


def test_reasoning_effort_and_kwargs_reach_the_template() -> None:
    request = chat(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False})
    assert request.template_kwargs == {"enable_thinking": False, "reasoning_effort": "low"}
    for name in ("messages", "tools", "self", "add_generation_prompt"):
        assert refused(chat, chat_template_kwargs={name: 1}).param == "chat_template_kwargs"
    assert refused(chat, chat_template_kwargs=[1]).param == "chat_template_kwargs"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "hi",
        [{}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "banana", "content": "hi"}],
        [{"role": 1, "content": "hi"}],
        [{"role": ["user"], "content": "hi"}],
        [{"role": "user", "content": 5}],
        [{"role": "assistant", "content": None}],
        [{"role": "assistant", "content": None, "tool_calls": []}],
        [{"role": "assistant", "tool_calls": [{"id": "1"}]}],
        [{"role": "assistant", "tool_calls": {"function": {"name": "f"}}}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}],
        ["hi"],
        [USER, None],
    ],
)
def test_D20_messages_that_are_none_are_refused(messages: Any) -> None:
    for stream in (False, True):
        assert refused(chat, messages=messages, stream=stream).param == "messages"


def test_D20_missing_messages() -> None:
    with pytest.raises(ApiError, match="messages: this field is required") as raised:
        parse_chat({"model": "m"}, {})
    assert raised.value.param == "messages"


def test_D05_a_call_needs_no_content() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert chat(messages=history).messages[1] == history[1]


def test_D16_two_ways_to_end_a_prompt_exclude_each_other() -> None:
    answer = {"role": "assistant", "content": "so"}
    both = {"add_generation_prompt": True, "continue_final_message": True}
    assert refused(chat, messages=[USER, answer], **both).param == "continue_final_message"
    assert refused(chat, continue_final_message=True).param == "continue_final_message"
    request = chat(messages=[USER, answer], continue_final_message=True)
    assert (request.add_generation_prompt, request.continue_final_message) == (False, True)
    assert chat().add_generation_prompt
    assert not chat(add_generation_prompt=False).add_generation_prompt


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("hi", ["hi"]),
        (["hi", "yo"], ["hi", "yo"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_B16_the_four_forms_of_a_prompt(prompt: Any, prompts: Any) -> None:
    assert completion(prompt=prompt).prompts == prompts


@pytest.mark.parametrize("prompt", [[], [[]], [[1], []], [1.5], [True], [1, True], [[1, "a"]], [1, "a"], {}, 5, True])
def test_H19_B14_what_is_no_prompt_is_refused(prompt: Any) -> None:
    assert refused(completion, prompt=prompt).param == "prompt"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"null", b"\xff", b'{"a": 1} x', b"[" * 100_000, b'{"a": "\\ud800"}']
)
def test_G16_a_body_that_is_no_json_object(body: bytes) -> None:
    with pytest.raises(ApiError, match="the request body") as raised:
        decode(body)
    assert raised.value.status == 400


@pytest.mark.parametrize("fields", [{}, {"model": None}, {"model": 5}, {"model": ["m"]}])
def test_G16_the_model_is_required(fields: dict[str, Any]) -> None:
    for parse, rest in ((parse_chat, {"messages": [USER]}), (parse_completion, {"prompt": "hi"})):
        with pytest.raises(ApiError) as raised:
            parse(_without_nulls(fields | rest), {})
        assert raised.value.param == "model"


def test_stream_options_need_a_stream() -> None:
    options = {"include_usage": True}
    assert refused(chat, stream_options=options).param == "stream_options"
    assert chat(stream=True, stream_options=options).include_usage
    assert completion(stream=True, stream_options=options).include_usage
    unsupported = {"continuous_usage_stats": True}
    assert refused(chat, stream=True, stream_options=unsupported).param == "stream_options"
