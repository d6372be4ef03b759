"""Jobs through RunPod's SDK and the real engine: what a job gets is what a client of the HTTP API gets."""

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from pilotlight.front.routes import ROUTES
from tests.front.runpod.job_api import JobApi
from tests.front.servers import ServerProcess, stream
from tests.models import write_chain
from tests.tokenizers import byte_tokenizer

TEXT = "Hello, wörld 😀!"
MESSAGES = [{"role": "user", "content": "hi?"}]
CHAT = {"messages": MESSAGES, "temperature": 0, "model": "m"}


@pytest.fixture(scope="module")
def api() -> Iterator[JobApi]:
    with JobApi() as api:
        yield api


@pytest.fixture(scope="module")
def server(api: JobApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Answers TEXT and ends, whatever it is asked. Its key is for those who come over HTTP."""
    vocabulary = byte_tokenizer([TEXT[:5], TEXT[5:9], "rld "])
    end = vocabulary.id("<|im_end|>")
    chain = [256, 257, 258, *vocabulary.bytes("😀!"), end]
    path = write_chain(tmp_path_factory.mktemp("models") / "chain", chain, vocabulary, eos=end)
    with ServerProcess(path, "--api-key", "secret", "--runpod-queue", env=api.environ) as server:
        server.wait_for("taking jobs from RunPod's queue, 32 at once")
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    headers = {"Authorization": "Bearer secret"}
    with httpx.Client(base_url=server.ready(), headers=headers, timeout=20) as client:
        yield client


def lasting(value: Any) -> Any:
    """A reply without what differs from request to request."""
    if isinstance(value, dict):
        return {key: lasting(item) for key, item in value.items() if key not in ("id", "created", "cached_tokens")}
    return [lasting(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("path", [route.path for route in ROUTES if route.method == "GET"])
def test_every_route_is_a_job_s(api: JobApi, client: httpx.Client, path: str) -> None:
    path = path.replace("{name:path}", "m")
    (output,) = api.output({"openai_route": path, "openai_input": None})
    reply = client.get(path)
    assert reply.status_code == 200
    if path == "/metrics":  # which counts on
        assert "pilotlight:engine_up" in output
        assert output.count("\n") == reply.text.count("\n")
    else:
        assert output == reply.json()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2}),
        ("/v1/completions", {"model": "m", "prompt": "hi", "max_tokens": 9, "temperature": 0, "n": 2}),
    ],
)
def test_job_gets_the_reply_of_the_route(api: JobApi, client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    (output,) = api.output({"openai_route": path, "openai_input": body})
    assert lasting(output) == lasting(client.post(path, json=body).json())
    for choice in output["choices"]:
        assert (choice["message"]["content"] if "chat" in path else choice["text"]) == TEXT


def test_plain_forms_and_a_model_that_is_not_named(api: JobApi, server: ServerProcess) -> None:
    sampling = {"temperature": 0, "max_tokens": 2}
    (chat,) = api.output({"messages": MESSAGES, "sampling_params": sampling})
    assert chat["object"] == "chat.completion"
    assert chat["choices"][0]["message"]["content"] == TEXT[:9]
    (text,) = api.output({"prompt": "hi?", "sampling_params": sampling})
    assert text["object"] == "text_completion"
    assert text["choices"][0]["text"] == TEXT[:9]
    (text,) = api.output({"prompt": "hi?", "sampling_params": None})
    assert text["model"] == "m"
    (chat,) = api.output({"openai_input": {"messages": MESSAGES, "model": None}})
    assert chat["model"] == "m"
    *_, last = api.output({"prompt": "hi?", "stream": True, "sampling_params": sampling})
    assert last.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT | {"stream_options": {"include_usage": True}}),
        ("/v1/completions", {"model": "m", "prompt": "hi", "max_tokens": 9, "temperature": 0}),
    ],
)
def test_stream_is_the_route_s_event_for_event(
    api: JobApi, client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    parts = api.output({"openai_route": path, "openai_input": body | {"stream": True}})
    assert all(part.startswith("data: ") and part.endswith("\n\n") for part in parts)
    events = [event.removeprefix("data: ") for event in "".join(parts).split("\n\n")]
    assert events[-2:] == ["[DONE]", ""]
    assert lasting([json.loads(event) for event in events[:-2]]) == lasting(stream(client, path, body)[:-1])


@pytest.mark.parametrize(
    ("given", "status", "param", "message"),
    [
        (None, 400, "input", "input: expected an object"),
        ("hi", 400, "input", "input: expected an object"),
        ([CHAT], 400, "input", "input: expected an object"),
        ({}, 400, "input", "input: expected openai_route and openai_input, or prompt, or messages"),
        ({"prompt": "x", "sampling_params": [1]}, 400, "sampling_params", "sampling_params: expected an object"),
        ({"openai_route": 5}, 400, "openai_route", "openai_route: expected a path"),
        ({"openai_route": "/v1/ünknown"}, 400, "openai_route", "openai_route: expected a path"),
        ({"openai_route": "/v1/chat/completions"}, 400, "messages", "messages: this field is required"),
        ({"openai_route": "/v1/completions", "openai_input": "hi"}, 400, None, "must be a JSON object"),
        ({"openai_route": "/v1/completions", "openai_input": {"prompt": math.nan}}, 400, None, "not valid JSON"),
        ({"openai_route": "/v1/embeddings", "openai_input": {"input": "x"}}, 404, None, "no GET /v1/embeddings"),
        ({"openai_route": "v1/models"}, 404, None, "there is no GET v1/models"),
        ({"openai_route": "/v1/models/a%20b%3F"}, 404, "model", "the model 'a b?' is not served here"),
        ({"prompt": "x", "sampling_params": {"temperature": 9}}, 400, "temperature", "from 0 to 2, got 9"),
        ({"openai_input": CHAT | {"model": "other"}}, 404, "model", "is not served here, only m"),
        ({"openai_input": CHAT | {"temperature": 9, "stream": True}}, 400, "temperature", "from 0 to 2, got 9"),
        ({"prompt": "x" * 300}, 400, "prompt", "prompt"),
        ({"prompt": "\ud800"}, 400, None, "not valid JSON"),
    ],
)
def test_bad_job_ends_in_an_error_that_is_an_object(
    api: JobApi, server: ServerProcess, given: Any, status: int, param: str | None, message: str
) -> None:
    (error,) = api.output(given)
    assert set(error) == {"object", "message", "type", "param", "code", "status"}
    assert (error["object"], error["status"], error["param"]) == ("error", status, param)
    assert message in error["message"]
    assert "Traceback" not in server.log


def test_jobs_that_are_none_do_not_keep_the_others(api: JobApi, server: ServerProcess) -> None:
    good = [{"id": f"good-{index}", "input": {"openai_route": "/version"}} for index in range(2)]
    api.put_raw(good[0], {"input": {}}, 5, {"id": None, "input": {}}, {"id": "bare"}, good[1])
    for job in good:
        assert list(api.result(job["id"])["output"][0]) == ["version"]
    assert api.result("bare")["output"][0]["message"] == "input: expected an object"
    server.wait_for("RunPod sent 3 jobs without an id")
