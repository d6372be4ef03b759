"""What people use: the openai package (sync, async, streamed) and curl, against the running server."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator

import openai
import pytest

from tests.front.servers import ServerProcess
from tests.models import write_chain
from tests.tokenizers import byte_tokenizer

TEXT = "Hello, wörld 😀!"
MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Answers TEXT and ends, whatever it is asked."""
    vocabulary = byte_tokenizer([TEXT[:5], TEXT[5:9], "rld "])
    end = vocabulary.id("<|im_end|>")
    chain = [256, 257, 258, *vocabulary.bytes("😀!"), end]
    path = write_chain(tmp_path_factory.mktemp("models") / "chain", chain, vocabulary, eos=end)
    with ServerProcess(path, "--api-key", "secret") as server:
        server.ready()
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.ready()}/v1", api_key="secret", max_retries=0) as client:
        yield client


def test_openai_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="m", messages=MESSAGES, temperature=0, logprobs=True, top_logprobs=2)
    (choice,) = reply.choices
    assert choice.message.content == TEXT
    assert choice.finish_reason == "stop"
    assert reply.usage
    assert reply.usage.completion_tokens == 9
    assert choice.logprobs
    assert choice.logprobs.content
    assert b"".join(bytes(entry.bytes or []) for entry in choice.logprobs.content[:-1]).decode() == TEXT


def test_openai_chat_stream(client: openai.OpenAI) -> None:
    text, usage = "", None
    with client.chat.completions.create(
        model="m", messages=MESSAGES, temperature=0, stream=True, stream_options={"include_usage": True}
    ) as chunks:
        for chunk in chunks:
            usage = chunk.usage or usage
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == TEXT
    assert usage
    assert usage.completion_tokens == 9


def test_openai_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="m", messages=MESSAGES, temperature=0) as events:
        for _ in events:
            pass
        final = events.get_final_completion()
    assert final.choices[0].message.content == TEXT
    assert final.choices[0].finish_reason == "stop"


def test_openai_completions(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model="m", prompt=["a", "b"], max_tokens=2, temperature=0, logprobs=1, echo=True
    )
    assert [choice.text for choice in reply.choices] == ["a" + TEXT[:9], "b" + TEXT[:9]]
    assert reply.choices[0].logprobs
    assert reply.choices[0].logprobs.text_offset == [0, 1, 6]
    chunks = client.completions.create(model="m", prompt="a", max_tokens=9, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT


def test_openai_async(server: ServerProcess) -> None:
    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.ready()}/v1", api_key="secret", max_retries=0) as client:

            async def streamed() -> str:
                chunks = await client.chat.completions.create(
                    model="m", messages=MESSAGES, temperature=0, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

            async def whole() -> str | None:
                reply = await client.chat.completions.create(model="m", messages=MESSAGES, temperature=0)
                return reply.choices[0].message.content

            assert set(await asyncio.gather(*(ask() for ask in [streamed, whole] * 5))) == {TEXT}

    asyncio.run(run())


def test_openai_errors_are_of_its_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="m", messages=MESSAGES, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    assert [model.id for model in client.models.list()] == ["m"]
    assert client.models.retrieve("m").owned_by == "pilotlight"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl_sees_events_as_they_come(server: ServerProcess) -> None:
    body = {"model": "m", "messages": MESSAGES, "temperature": 0, "stream": True}
    headers = ["-H", "Authorization: Bearer secret", "-H", "Content-Type: application/json"]
    ran = subprocess.run(
        ["curl", "-sSN", f"{server.ready()}/v1/chat/completions", *headers, "-d", json.dumps(body)],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    *events, done, end = ran.stdout.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content", "") for delta in deltas) == TEXT
