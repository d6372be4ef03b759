"""Cases C over HTTP: parameters and sampling, through the real engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.front.answers import CHAT, COMPLETIONS, GREEDY, ask, ask_every_way, is_same
from tests.front.servers import ServerProcess
from tests.models import write_chain, write_tiny
from tests.tokenizers import byte_tokenizer

NEIGHBOUR = {"prompt": "zzz", "max_tokens": 5, "temperature": 0}
MESSAGES = [{"role": "user", "content": "hi"}]
PROMPT = {"prompt": "hi", "max_tokens": 12}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(write_tiny(tmp_path_factory.mktemp("models") / "tiny"), "--max-num-seqs", "8") as server:
        server.ready()
        yield server


@pytest.mark.parametrize(
    "name",
    ["top_p", "n", "stop", "logit_bias", "tools", "tool_choice", "response_format", "stream_options"],
)
def test_C01_null_is_the_same_as_absent(tiny: ServerProcess, name: str) -> None:
    with tiny.client() as client:
        body = {"messages": MESSAGES, "max_tokens": 5, "seed": 1, "temperature": 1}
        assert is_same(ask(client, CHAT, body | {name: None}), ask(client, CHAT, body))


@pytest.mark.parametrize("top_k", [9_999_999, 320, 321, 0, -1])
def test_C06_a_top_k_beyond_the_vocabulary_is_no_limit(tiny: ServerProcess, top_k: int) -> None:
    body = PROMPT | {"temperature": 1, "seed": 7}
    answer = ask_every_way(tiny, COMPLETIONS, body | {"top_k": top_k}, NEIGHBOUR | {"top_k": 1})
    with tiny.client() as client:
        assert answer.text == ask(client, COMPLETIONS, body).text


@pytest.mark.parametrize("penalty", [1e-9, 1e9])
def test_C07_extreme_penalties_give_finite_logits(tiny: ServerProcess, penalty: float) -> None:
    body = PROMPT | {"repetition_penalty": penalty, "temperature": 1, "seed": 7}
    assert ask_every_way(tiny, COMPLETIONS, body, NEIGHBOUR).usage["completion_tokens"] == 12


@pytest.mark.parametrize("penalty", [0, -1])
def test_C07_zero_and_negative_penalties_are_refused(tiny: ServerProcess, penalty: float) -> None:
    with tiny.client() as client:
        response = client.post(COMPLETIONS, json={"model": "m"} | PROMPT | {"repetition_penalty": penalty})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "repetition_penalty"


def test_C09_minus_zero_is_greedy(tiny: ServerProcess) -> None:
    with tiny.client() as client:
        greedy = ask(client, COMPLETIONS, PROMPT | {"temperature": 0}).text
        assert ask(client, COMPLETIONS, PROMPT | {"temperature": -0.0}).text == greedy


def test_C11_a_seed_holds_beside_a_request_without_one(tiny: ServerProcess) -> None:
    body = PROMPT | {"temperature": 0.8, "seed": 42}
    with tiny.client() as client:
        unseeded = {ask(client, COMPLETIONS, PROMPT | {"temperature": 0.8}).text for _ in range(3)}
        assert len(unseeded) > 1
    for _ in range(2):
        ask_every_way(tiny, COMPLETIONS, body, NEIGHBOUR)


@pytest.mark.parametrize(
    "body", [{"prompt": "hi", "n": 4}, {"prompt": ["hi"] * 4}, {"prompt": ["hi"] * 2, "n": 2}], ids=str
)
def test_C13_choices_and_prompts_under_one_seed_differ_and_repeat(tiny: ServerProcess, body: dict[str, Any]) -> None:
    answer = ask_every_way(tiny, COMPLETIONS, body | {"max_tokens": 12, "temperature": 1, "seed": 7}, NEIGHBOUR)
    assert len(set(answer.texts)) == 4


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """a b c d e and again; EOS only where a bias forces it."""
    vocabulary = byte_tokenizer()
    path = write_chain(
        tmp_path_factory.mktemp("models") / "chain",
        vocabulary.bytes("abcde"),
        vocabulary,
        loop=True,
        eos=vocabulary.id("<|endoftext|>"),
    )
    with ServerProcess(path) as server:
        server.ready()
        yield server


@pytest.mark.parametrize("min_tokens", [0, 1, 4])
def test_C15_min_tokens_come_before_the_end(chain: ServerProcess, min_tokens: int) -> None:
    end = byte_tokenizer().id("<|endoftext|>")
    body = PROMPT | {"logit_bias": {str(end): 100}, "min_tokens": min_tokens}
    answer = ask_every_way(chain, COMPLETIONS, body, NEIGHBOUR)
    assert (answer.text, answer.finish) == ("abcd"[:min_tokens], "stop")
    assert answer.usage["completion_tokens"] == min_tokens + 1


def test_C15_stop_strings_wait_for_min_tokens_too(chain: ServerProcess) -> None:
    answer = ask_every_way(chain, COMPLETIONS, PROMPT | {"stop": "b", "min_tokens": 3}, NEIGHBOUR)
    assert (answer.text, answer.finish) == ("abcdea", "stop")


def test_C17_only_generated_tokens_are_penalized(chain: ServerProcess) -> None:
    """The prompt is full of the token that comes first; a penalty on it would let another win."""
    body = {"prompt": "aaaaaaaaz", "max_tokens": 1, "temperature": 0}
    for fields in ({"frequency_penalty": 2}, {"presence_penalty": 2}):
        assert ask_every_way(chain, COMPLETIONS, body | fields, NEIGHBOUR).text == "a"
    with chain.client() as client:
        # One logit is 17, the others 0: 2 a piece, the token has fallen behind when it has come nine times.
        stuck = body | {"max_tokens": 100, "frequency_penalty": 2}
        assert ask(client, COMPLETIONS, stuck).text[:46] == "abcde" * 9 + "\0"
        assert ask(client, COMPLETIONS, stuck).text != ask(client, COMPLETIONS, body | {"max_tokens": 100}).text
        # repetition_penalty counts the prompt: divided by a huge number, "a" loses.
        assert ask(client, COMPLETIONS, body | {"repetition_penalty": 1e9, "logit_bias": {"98": 1}}).text == "b"


def test_C19_the_token_limit_is_kept(chain: ServerProcess) -> None:
    body = {"messages": MESSAGES}
    for fields in (
        {"max_tokens": 8},
        {"max_completion_tokens": 8},
        {"max_completion_tokens": 8, "max_tokens": 20},
    ):
        assert ask_every_way(chain, CHAT, body | fields, NEIGHBOUR).usage["completion_tokens"] == 8


def test_ignore_eos_goes_on(chain: ServerProcess) -> None:
    end = byte_tokenizer().id("<|endoftext|>")
    body = PROMPT | {"logit_bias": {str(end): 100}, "ignore_eos": True}
    answer = ask_every_way(chain, COMPLETIONS, body, NEIGHBOUR)
    assert (answer.text, answer.finish, answer.usage["completion_tokens"]) == ("", "length", 12)


@pytest.mark.parametrize(("path", "prompt"), [(COMPLETIONS, {"prompt": "hi"}), (CHAT, {"messages": MESSAGES})])
def test_no_token_comes_that_is_not_allowed(
    chain: ServerProcess, tiny: ServerProcess, path: str, prompt: dict[str, Any]
) -> None:
    end = byte_tokenizer().id("<|endoftext|>")
    body = prompt | {"max_tokens": 6, "allowed_token_ids": [98, 97, 122], "logit_bias": {str(end): 100}}
    # "c" follows "b" and may not come; of equals the first is taken. The end that the bias asks for never comes.
    answer = ask_every_way(chain, path, body, NEIGHBOUR)
    assert (answer.text, answer.finish) == ("ababab", "length")
    stopped = ask_every_way(chain, path, body | {"allowed_token_ids": [97, end], "stop_token_ids": [98]}, NEIGHBOUR)
    assert (stopped.text, stopped.finish, stopped.stop_reasons) == ("", "stop", [None])
    allowed = list(b"xyz")
    drawn = prompt | {"max_tokens": 30, "temperature": 2, "seed": 1, "n": 2, "allowed_token_ids": allowed}
    for text in ask_every_way(tiny, path, drawn, NEIGHBOUR).texts:
        assert set(text) == set("xyz")
        assert len(text) == 30


def test_nothing_that_may_come_is_an_error_of_that_request(chain: ServerProcess) -> None:
    end = byte_tokenizer().id("<|endoftext|>")
    with chain.client() as client:
        body = GREEDY | PROMPT | {"allowed_token_ids": [end], "min_tokens": 2}
        response = client.post(COMPLETIONS, json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (500, "generation_failed")
        assert "every token is banned" in response.json()["error"]["message"]
        assert ask(client, COMPLETIONS, PROMPT).text == "abcdeabcdeab"


def test_the_models_own_defaults_hold_where_a_request_says_nothing(tmp_path: Path) -> None:
    generation = {"temperature": 0.1, "max_new_tokens": 3, "do_sample": True}
    path = write_chain(tmp_path / "chain", [97, 98, 99, 100], loop=True, generation=generation)
    with ServerProcess(path) as server, server.client() as client:
        answer = ask(client, CHAT, {"messages": MESSAGES, "temperature": None})
        assert (answer.text, answer.finish) == ("abc", "length")
        assert ask(client, COMPLETIONS, {"prompt": "x", "max_tokens": 5}).text == "abcda"


def test_a_server_seed_makes_requests_without_one_repeatable(tmp_path: Path) -> None:
    with ServerProcess(write_tiny(tmp_path / "tiny"), "--seed", "3") as server, server.client() as client:
        body = PROMPT | {"temperature": 1, "n": 2}
        first, second = (ask(client, COMPLETIONS, body).texts for _ in range(2))
        assert first == second
        assert first[0] != first[1]
