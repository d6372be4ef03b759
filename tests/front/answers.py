"""One request asked in every way (streamed or not, alone or beside neighbours), whose answers must not differ."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from tests.front.servers import ServerProcess, stream

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
GREEDY = {"model": "m", "temperature": 0}
NEIGHBOURS = 3


@dataclass
class Answer:
    """What a client sees of a request, by choice where there are several."""

    texts: list[str]
    finishes: list[str]
    stop_reasons: list[Any]
    usage: dict[str, Any]
    logprobs: list[list[Any]]  # chat: entries; completions: (token, logprob, top, offset)

    @property
    def text(self) -> str:
        (text,) = self.texts
        return text

    @property
    def finish(self) -> str:
        (finish,) = self.finishes
        return finish


def ask(client: httpx.Client, path: str, body: dict[str, Any]) -> Answer:
    """Not streamed; greedy unless the body says otherwise."""
    response = client.post(path, json=GREEDY | body)
    assert response.status_code == 200, response.text
    reply = response.json()
    choices = sorted(reply["choices"], key=lambda choice: choice["index"])
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return Answer(
        [choice["message"]["content"] if path == CHAT else choice["text"] for choice in choices],
        [choice["finish_reason"] for choice in choices],
        [choice["stop_reason"] for choice in choices],
        reply["usage"],
        [_entries(choice["logprobs"]) for choice in choices],
    )


def ask_streamed(client: httpx.Client, path: str, body: dict[str, Any]) -> Answer:
    """The same from a stream, put together as a client does."""
    events = stream(client, path, GREEDY | body | {"stream_options": {"include_usage": True}})
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == [], events[-2]
    answers: dict[int, Answer] = {}
    for event in events[:-2]:
        for choice in event["choices"]:
            answer = answers.setdefault(choice["index"], Answer([""], [], [], {}, [[]]))
            assert not answer.finishes, "something follows the end of a choice"
            answer.texts[0] += choice["delta"].get("content", "") if path == CHAT else choice["text"]
            answer.logprobs[0] += _entries(choice["logprobs"])
            if choice["finish_reason"] is not None:
                answer.finishes.append(choice["finish_reason"])
                answer.stop_reasons.append(choice["stop_reason"])
    ordered = [answers[index] for index in range(len(answers))]
    return Answer(
        [answer.text for answer in ordered],
        [answer.finish for answer in ordered],
        [answer.stop_reasons[0] for answer in ordered],
        events[-2]["usage"],
        [answer.logprobs[0] for answer in ordered],
    )


def ask_every_way(server: ServerProcess, path: str, body: dict[str, Any], neighbour: dict[str, Any]) -> Answer:
    """Streamed and not, alone and beside neighbours; all answers are equal. A plain request and /health follow."""
    with server.client() as client, ThreadPoolExecutor(NEIGHBOURS + 2) as pool:
        alone = ask(client, path, body)
        plain = ask(client, COMPLETIONS, neighbour)
        others = [pool.submit(ask, client, COMPLETIONS, neighbour) for _ in range(NEIGHBOURS)]
        beside = [pool.submit(way, client, path, body) for way in (ask, ask_streamed)]
        for answer in (ask_streamed(client, path, body), *(future.result() for future in beside)):
            assert is_same(answer, alone), (answer, alone)
        for other in (*(future.result() for future in others), ask(client, COMPLETIONS, neighbour)):
            assert is_same(other, plain), (other, plain)
        assert client.get("/health").status_code == 200
    return alone


def is_same(one: Any, other: Any) -> bool:
    """Equal, but for what depends on who came before (cached tokens) and the last digits of log-probabilities."""
    match one, other:
        case float(), float():
            return math.isclose(one, other, abs_tol=1e-3)
        case (list(), list()) | (tuple(), tuple()):
            return len(one) == len(other) and all(map(is_same, one, other))
        case dict(), dict():
            return one.keys() == other.keys() and all(
                is_same(one[name], other[name]) for name in one if name != "prompt_tokens_details"
            )
        case Answer(), Answer():
            return is_same(vars(one), vars(other))
        case _:
            return bool(one == other)


def _entries(logprobs: dict[str, Any] | None) -> list[Any]:
    if logprobs is None:
        return []
    if "content" in logprobs:
        return list(logprobs["content"])
    columns = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return list(zip(*(logprobs[name] for name in columns), strict=True))
