"""Cases D over HTTP: conversations through a model's template, and what is wrong with them as a 400."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers.processors import TemplateProcessing

from tests.front.answers import CHAT, COMPLETIONS, ask, ask_streamed
from tests.front.servers import ServerProcess
from tests.models import write_chain
from tests.tokenizers import byte_tokenizer

USER = {"role": "user", "content": "hi"}

# Begins with BOS, refuses a system role and an order that does not alternate, writes calls with `items`.
STRICT = """{{ bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- if message.role == 'user' and loop.index0 and messages[loop.index0 - 1].role == 'user' %}
{{- raise_exception('Roles must alternate') }}{% endif %}
{%- for call in message.tool_calls or [] %}
{%- for name, value in call.function.arguments | items %}{{ name }}={{ value }};{% endfor %}
{%- endfor %}
{{- message.content }}
{%- endfor %}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    vocabulary = byte_tokenizer()
    bos = "<|im_start|>"
    vocabulary.tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, vocabulary.id(bos))]
    )
    path = write_chain(
        tmp_path_factory.mktemp("models") / "strict",
        vocabulary.bytes("ok"),
        vocabulary,
        loop=True,
        chat_template=STRICT,
        tokenizer_config={"bos_token": bos},
    )
    with ServerProcess(path) as server:
        server.ready()
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
        assert ask(client, CHAT, {"messages": [USER], "max_tokens": 2}).text == "ok"
    assert "Traceback" not in server.log


def refused(client: httpx.Client, **fields: Any) -> str:
    """The message of the 400, which is the same for a stream."""
    body = {"model": "m", "messages": [USER], "max_tokens": 2} | fields
    replies = [client.post(CHAT, json=body | {"stream": streaming}) for streaming in (False, True)]
    assert [reply.status_code for reply in replies] == [400, 400]
    assert replies[0].json() == replies[1].json()
    assert replies[0].json()["error"]["param"] in fields
    return str(replies[0].json()["error"]["message"])


def prompt_tokens(client: httpx.Client, path: str, **fields: Any) -> int:
    return int(ask(client, path, fields | {"max_tokens": 1}).usage["prompt_tokens"])


def test_D01_there_is_one_bos(client: httpx.Client) -> None:
    assert prompt_tokens(client, CHAT, messages=[USER]) == 1 + 2
    assert prompt_tokens(client, COMPLETIONS, prompt="hi") == 1 + 2
    assert prompt_tokens(client, COMPLETIONS, prompt="<|im_start|>hi") == 1 + 2  # its own BOS is enough
    assert prompt_tokens(client, COMPLETIONS, prompt="hi", add_special_tokens=False) == 2
    assert prompt_tokens(client, COMPLETIONS, prompt=[104, 105]) == 2  # token ids are taken as they are


def test_B14_an_empty_prompt_is_the_bos_alone_where_there_is_one(client: httpx.Client) -> None:
    assert prompt_tokens(client, COMPLETIONS, prompt="") == 1


def test_D02_a_templates_refusal_is_a_400_with_its_words(client: httpx.Client) -> None:
    system = {"role": "system", "content": "be brief"}
    assert "System role not supported" in refused(client, messages=[system, USER])
    assert "Roles must alternate" in refused(client, messages=[USER, USER])


def test_D03_text_parts_are_joined_and_other_parts_refused(client: httpx.Client) -> None:
    parts = [{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}]
    assert prompt_tokens(client, CHAT, messages=[{"role": "user", "content": parts}]) == 1 + len("hi\nyou")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    assert "text only" in refused(client, messages=[{"role": "user", "content": [*parts, image]}])
    for part in ({}, {"type": "text"}, {"type": "text", "text": 5}, 5, None):
        assert "content" in refused(client, messages=[{"role": "user", "content": [part]}])


@pytest.mark.parametrize("arguments", ['{"city": "Paris"}', "", "[1]", "not json", None])
def test_D05_D07_calls_in_the_history_are_rendered_or_refused(client: httpx.Client, arguments: str | None) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    history = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    reply = client.post(CHAT, json={"model": "m", "messages": history, "max_tokens": 2})
    assert reply.status_code in (200, 400)
    if arguments == '{"city": "Paris"}':
        assert reply.status_code == 200
        assert reply.json()["usage"]["prompt_tokens"] >= 1 + len("hicity=Paris;sunny")


def test_D16_a_message_can_be_continued(client: httpx.Client) -> None:
    history = [USER, {"role": "assistant", "content": "so"}]
    assert prompt_tokens(client, CHAT, messages=history, continue_final_message=True) == 1 + len("hiso")
    refused(client, messages=history, continue_final_message=True, add_generation_prompt=True)
    refused(client, continue_final_message=True)


def test_D18_a_template_from_a_request_is_refused(client: httpx.Client) -> None:
    assert "does not support" in refused(client, chat_template="{{ 1 }}")


def test_D18_G12_a_slow_template_is_stopped_and_freezes_nothing(tmp_path: Path) -> None:
    slow = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}x"
    path = write_chain(tmp_path / "slow", [97, 98], loop=True, chat_template=slow)
    patch = (
        "from pilotlight.text import sandbox, template;"
        "sandbox.render.__defaults__ = (1.0,); template._TRIAL_SECONDS = 0.05"
    )
    with ServerProcess(path, fake={}, patch=patch) as server, server.client() as client, server.client() as other:
        stuck = {"model": "m", "messages": [USER]}
        with pytest.raises(httpx.ReadTimeout):
            client.post(CHAT, json=stuck, timeout=0.5)
        slowest = 0.0
        for _ in range(20):
            began = time.monotonic()
            assert other.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 1
        assert ask_streamed(other, COMPLETIONS, {"prompt": "x", "max_tokens": 3}).text == "abc"
        reply = other.post(CHAT, json=stuck)
        assert reply.status_code == 400
        assert "template" in reply.json()["error"]["message"]


@pytest.mark.parametrize("messages", [[], None, "hi", [{}], [{"role": "user"}], [{"role": "banana", "content": "x"}]])
def test_D20_messages_that_are_none_are_a_400(client: httpx.Client, messages: Any) -> None:
    assert "messages" in refused(client, messages=messages)
