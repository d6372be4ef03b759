"""Cases B over HTTP: usage, finish reasons, chunks, log-probabilities, forms of a prompt. Through the real engine."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.front.answers import CHAT, COMPLETIONS, ask, ask_every_way
from tests.front.servers import ServerProcess, stream
from tests.models import write_chain, write_tiny
from tests.tokenizers import byte_tokenizer

NEIGHBOUR = {"prompt": "zzz", "max_tokens": 5}
MESSAGES = [{"role": "user", "content": "hi"}]
WORDS = ["one ", "two ", "three ", "是", "end"]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """After any prompt: WORDS, the bytes of 😊, and again."""
    vocabulary = byte_tokenizer(WORDS)
    tokens = [*range(256, 256 + len(WORDS)), *vocabulary.bytes("😊")]
    path = write_chain(tmp_path_factory.mktemp("models") / "chain", tokens, vocabulary, loop=True)
    with ServerProcess(path, "--max-num-seqs", "8") as server:
        server.ready()
        yield server


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(write_tiny(tmp_path_factory.mktemp("models") / "tiny")) as server:
        server.ready()
        yield server


@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": "hi"})])
def test_B01_B03_B04_usage_comes_once_after_the_end(chain: ServerProcess, path: str, body: dict[str, Any]) -> None:
    with chain.client() as client:
        body = {"model": "m", "max_tokens": 3} | body
        *chunks, last, done = stream(client, path, body | {"stream_options": {"include_usage": True}})
        assert done == "[DONE]"
        assert last["choices"] == []
        prompt_tokens = last["usage"]["prompt_tokens"]
        assert last["usage"] | {"prompt_tokens_details": None} == {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 3,
            "total_tokens": prompt_tokens + 3,
            "prompt_tokens_details": None,
        }
        assert prompt_tokens == ask(client, path, body).usage["prompt_tokens"]
        assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks)
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        # Without the option no chunk has the key.
        assert not any("usage" in event for event in stream(client, path, body) if event != "[DONE]")


@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": "hi"})])
def test_B05_usage_adds_up_the_choices_and_counts_a_prompt_once(
    chain: ServerProcess, path: str, body: dict[str, Any]
) -> None:
    answer = ask_every_way(chain, path, body | {"n": 3, "max_tokens": 5}, NEIGHBOUR)
    with chain.client() as client:
        alone = ask(client, path, body | {"max_tokens": 5})
    assert answer.texts == [alone.text] * 3
    assert answer.finishes == ["length"] * 3
    assert answer.usage["completion_tokens"] == 15
    assert answer.usage["prompt_tokens"] == alone.usage["prompt_tokens"]


def test_B05_several_prompts_count_each(chain: ServerProcess) -> None:
    body = {"prompt": ["hi", "hello"], "n": 2, "max_tokens": 3}
    answer = ask_every_way(chain, COMPLETIONS, body, NEIGHBOUR)
    assert (answer.usage["prompt_tokens"], answer.usage["completion_tokens"]) == (7, 12)
    assert answer.texts == ["one two three "] * 4


def test_B06_B08_chunks_of_a_chat_stream(chain: ServerProcess) -> None:
    with chain.client() as client:
        events = stream(client, CHAT, {"model": "m", "messages": MESSAGES, "max_tokens": 4})[:-1]
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    choices = [choice for event in events for choice in event["choices"]]
    assert [choice["index"] for choice in choices] == [0] * len(events)
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert choices[-1]["delta"] == {}


def test_B06_chunks_of_a_completion_stream(chain: ServerProcess) -> None:
    with chain.client() as client:
        events = stream(client, COMPLETIONS, {"model": "m", "prompt": "hi", "max_tokens": 4, "n": 2})[:-1]
    assert {event["object"] for event in events} == {"text_completion"}
    for index in (0, 1):
        reasons = [
            choice["finish_reason"] for event in events for choice in event["choices"] if choice["index"] == index
        ]
        assert reasons == [None] * (len(reasons) - 1) + ["length"]


@pytest.mark.parametrize(
    "fields", [{"top_k": 1, "temperature": 1}, {"logit_bias": {str(token): -100 for token in range(250)}}]
)
def test_B10_no_infinity_in_a_reply(tiny: ServerProcess, fields: dict[str, Any]) -> None:
    body = {"model": "m", "prompt": "hi", "logprobs": 5, "max_tokens": 4} | fields
    with tiny.client() as client:
        response = client.post(COMPLETIONS, json=body)
        assert response.status_code == 200
        assert "NaN" not in response.text
        assert "Infinity" not in response.text
        for value in response.json()["choices"][0]["logprobs"]["token_logprobs"]:
            assert -9999 <= value <= 0


def test_B12_echo_with_logprobs_has_an_entry_for_every_token(tiny: ServerProcess) -> None:
    with tiny.client() as client:
        body = {"model": "m", "prompt": "abcdef", "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
        (choice,) = client.post(COMPLETIONS, json=body).json()["choices"]
        logprobs = choice["logprobs"]
        assert {len(logprobs[name]) for name in logprobs} == {7}
        assert logprobs["tokens"][:6] == list("abcdef")
        assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5, 6]
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        # Each prompt token's value is what the model gives it after the tokens before.
        for length in range(1, 6):
            asked = {"prompt": "abcdef"[:length], "logprobs": 20, "max_tokens": 1}
            ((_, _, following, _),) = ask(client, COMPLETIONS, asked).logprobs[0]
            best = max(logprobs["top_logprobs"][length].values())
            assert math.isclose(best, max(following.values()), abs_tol=1e-3)
            if "abcdef"[length] in following:
                expected = following["abcdef"[length]]
                assert math.isclose(logprobs["token_logprobs"][length], expected, abs_tol=1e-3)
    ask_every_way(tiny, COMPLETIONS, body, NEIGHBOUR)


def test_B14_a_request_after_refused_ones_is_served(chain: ServerProcess) -> None:
    with chain.client() as client:
        for prompt in ("", [""], [], [[]], ["a", ""]):
            assert client.post(COMPLETIONS, json={"model": "m", "prompt": prompt}).status_code == 400
        assert ask(client, COMPLETIONS, {"prompt": "a", "max_tokens": 1}).text == "one "


def test_B16_echo_of_token_ids_is_their_text(chain: ServerProcess) -> None:
    hi, yo = list(b"hi"), list(b"yo")
    answer = ask_every_way(chain, COMPLETIONS, {"prompt": [hi, yo], "echo": True, "max_tokens": 2}, NEIGHBOUR)
    assert answer.texts == ["hione two ", "yoone two "]
    answer = ask_every_way(chain, COMPLETIONS, {"prompt": hi, "echo": True, "max_tokens": 1, "n": 2}, NEIGHBOUR)
    assert answer.texts == ["hione "] * 2


def test_B17_bytes_of_logprobs_join_to_the_character(chain: ServerProcess) -> None:
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 1, "max_tokens": 9}
    answer = ask_every_way(chain, CHAT, body, NEIGHBOUR)
    assert answer.text == "one two three 是end😊"
    entries = answer.logprobs[0]
    assert len(entries) == 9
    assert [entry["bytes"] for entry in entries[5:]] == [[0xF0], [0x9F], [0x98], [0x8A]]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == answer.text
    assert entries[5]["token"] == "bytes:\\xf0"


def test_B19_a_token_is_its_text_and_not_its_internal_spelling(chain: ServerProcess) -> None:
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 1, "max_tokens": 4}
    entry = ask_every_way(chain, CHAT, body, NEIGHBOUR).logprobs[0][3]
    assert (entry["token"], entry["bytes"]) == ("是", [230, 152, 175])
    assert entry["top_logprobs"][0] | {"logprob": 0} == {"token": "是", "bytes": [230, 152, 175], "logprob": 0}


def test_B21_logprobs_have_the_endpoints_shape(chain: ServerProcess) -> None:
    with chain.client() as client:
        body = {"model": "m", "max_tokens": 2}
        reply = client.post(CHAT, json=body | {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}).json()
        logprobs = reply["choices"][0]["logprobs"]
        assert set(logprobs) == {"content", "refusal"}
        for entry in logprobs["content"]:
            assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
            assert len(entry["top_logprobs"]) == 2
        reply = client.post(COMPLETIONS, json=body | {"prompt": "hi", "logprobs": 2}).json()
        logprobs = reply["choices"][0]["logprobs"]
        assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
        assert [len(top) for top in logprobs["top_logprobs"]] == [2, 2]
        assert logprobs["text_offset"] == [0, 4]
        refused = client.post(CHAT, json=body | {"messages": MESSAGES, "top_logprobs": 2})
        assert refused.status_code == 400
        # Without the question, no answer to it.
        assert client.post(COMPLETIONS, json=body | {"prompt": "hi"}).json()["choices"][0]["logprobs"] is None


def test_C20_zero_alternatives_are_the_chosen_token_alone(chain: ServerProcess) -> None:
    answer = ask_every_way(chain, COMPLETIONS, {"prompt": "hi", "logprobs": 0, "max_tokens": 2}, NEIGHBOUR)
    assert [(token, list(top)) for token, _, top, _ in answer.logprobs[0]] == [("one ", ["one "]), ("two ", ["two "])]
    answer = ask_every_way(chain, CHAT, {"messages": MESSAGES, "logprobs": True, "max_tokens": 2}, NEIGHBOUR)
    assert [entry["top_logprobs"] for entry in answer.logprobs[0]] == [[], []]


def test_logprobs_are_of_the_raw_logits(chain: ServerProcess) -> None:
    """CHAIN's logits are exact: the identity through one final norm, then a one-hot row of the head."""
    with chain.client() as client:
        size = 288  # of the vocabulary, rounded up to 32
        one = math.sqrt(size) / math.sqrt(1 + size * 1e-5)  # RMSNorm of a unit vector, eps 1e-5
        expected = one - float(np.log(np.exp(np.float64(one)) + size - 1))
        for fields in ({}, {"temperature": 0.1}, {"logit_bias": {"256": 5}}, {"repetition_penalty": 2}):
            answer = ask(
                client, COMPLETIONS, {"prompt": "hi", "logprobs": 0, "max_tokens": 1, "temperature": 0} | fields
            )
            assert math.isclose(answer.logprobs[0][0][1], expected, rel_tol=1e-4), fields


def test_B22_a_limit_beyond_the_context_ends_at_its_end(chain: ServerProcess) -> None:
    answer = ask_every_way(chain, COMPLETIONS, {"prompt": "Hi", "max_tokens": 10_000}, NEIGHBOUR)
    assert answer.finish == "length"
    assert answer.usage["total_tokens"] == 256


def test_J15_without_a_limit(chain: ServerProcess) -> None:
    answer = ask_every_way(chain, CHAT, {"messages": MESSAGES}, NEIGHBOUR)
    assert (answer.finish, answer.usage["total_tokens"]) == ("length", 256)
    answer = ask_every_way(chain, COMPLETIONS, {"prompt": "hi"}, NEIGHBOUR)
    assert (answer.finish, answer.usage["completion_tokens"]) == ("length", 16)


def test_cached_prompt_tokens_are_reported(chain: ServerProcess) -> None:
    prompt = "a prompt that is long enough to fill two pages of the cache"
    with chain.client() as client:
        first = ask(client, COMPLETIONS, {"prompt": prompt, "max_tokens": 1})
        second = ask(client, COMPLETIONS, {"prompt": prompt, "max_tokens": 1, "n": 2})
    assert first.usage["prompt_tokens_details"] == {"cached_tokens": 0}
    cached = second.usage["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < len(prompt)
    assert cached % 16 == 0
