"""The HTTP surface: key, CORS, shapes of errors, limits, keep-alives, the queue's bound. With the scripted engine."""

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from pilotlight import __version__
from tests.front.servers import ServerProcess, metric, sse, stream
from tests.models import write_tiny

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
COMPLETION = {"model": "m", "prompt": "hi", "max_tokens": 4}
KEY = "clé-💡"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[ServerProcess]:
    """Open to all, with room for two running sequences and two that wait."""
    limits = ("--max-num-seqs", "2", "--max-waiting-requests", "2", "--max-request-bytes", "100000")
    patch = "from pilotlight.front import streaming; streaming.KEEP_ALIVE_SECONDS = 0.1"
    with ServerProcess(model, *limits, names="m,alias", fake={"interval": 0.002}, patch=patch) as server:
        server.ready()
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.ready(), timeout=20) as client:
        yield client
        assert client.get("/health").status_code == 200
        assert client.post("/v1/completions", json=COMPLETION).status_code == 200


@pytest.fixture(scope="module")
def guarded(model: Path) -> Iterator[httpx.Client]:
    """A server with a key and CORS."""
    flags = ("--allowed-origins", "https://app.example")
    with ServerProcess(model, *flags, fake={}, env={"PILOTLIGHT_API_KEY": KEY}) as server, server.client() as client:
        yield client


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object, whose shape is checked."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] in ("invalid_request_error", "not_found_error", "authentication_error", "server_error")
    return error


# --- what there is --------------------------------------------------------------------------------------------


def test_every_path_answers(client: httpx.Client) -> None:
    assert "POST /v1/chat/completions" in client.get("/").json()["routes"]
    assert client.get("/version").json() == {"version": __version__}
    for path in ("/health", "/v1/health/live", "/v1/health/ready", "/ping"):
        assert client.get(path).json() == {"status": "ok"}
        head = client.head(path)
        assert (head.status_code, head.content) == (200, b"")


def test_J03_the_models_are_listed_under_their_served_names(client: httpx.Client, model: Path) -> None:
    models = client.get("/v1/models").json()
    assert models["object"] == "list"
    assert [card["id"] for card in models["data"]] == ["m", "alias"]
    card = client.get("/v1/models/alias").json()
    assert card | {"created": 0} == {
        "id": "alias",
        "object": "model",
        "created": 0,
        "owned_by": "pilotlight",
        "root": str(model),
        "parent": None,
        "max_model_len": 256,
    }
    assert isinstance(card["created"], int)
    assert error_of(client.get("/v1/models/other"), 404)["code"] == "model_not_found"
    for name in ("m", "alias"):
        assert client.post("/v1/completions", json=COMPLETION | {"model": name}).json()["model"] == name
    assert error_of(client.post("/v1/completions", json=COMPLETION | {"model": str(model)}), 404)["param"] == "model"


def test_metrics_are_prometheus_text(client: httpx.Client) -> None:
    before = metric(client, "request_success_total", ',finished_reason="length"')
    client.post("/v1/completions", json=COMPLETION | {"n": 2})
    assert metric(client, "request_success_total", ',finished_reason="length"') == before + 2
    response = client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    sample = re.compile(r'pilotlight:[a-z0-9_]+\{model_name="m"(,[a-z_]+="[^"]+")*\} (\+Inf|[0-9.e+-]+)')
    names = set()
    for line in response.text.splitlines():
        if line.startswith("# TYPE "):
            names.add(line.split()[2])
        elif not line.startswith("# HELP "):
            assert sample.fullmatch(line), line
            assert re.sub(r"_(bucket|sum|count)$", "", line.partition("{")[0]) in names
    assert {
        "pilotlight:num_requests_running",
        "pilotlight:num_requests_waiting",
        "pilotlight:kv_cache_usage_perc",
        "pilotlight:prefix_cache_hits_total",
        "pilotlight:engine_restarts_total",
        "pilotlight:time_to_first_token_seconds",
        "pilotlight:request_time_per_output_token_seconds",
        "pilotlight:e2e_request_latency_seconds",
    } <= names
    count = metric(client, "time_to_first_token_seconds_count")
    assert count == metric(client, "time_to_first_token_seconds_bucket", ',le="+Inf"')
    assert metric(client, "generation_tokens_total") >= 8


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("streaming", [False, True])
def test_G16_errors_have_openais_shape(client: httpx.Client, path: str, streaming: bool) -> None:
    good = (CHAT if "chat" in path else COMPLETION) | {"stream": streaming}
    without_model = {name: value for name, value in good.items() if name != "model"}
    assert error_of(client.post(path, json=without_model), 400)["param"] == "model"
    assert error_of(client.post(path, json=good | {"model": "nope"}), 404) == {
        "message": "the model 'nope' is not served here, only m, alias",
        "type": "not_found_error",
        "param": "model",
        "code": "model_not_found",
    }
    assert error_of(client.post(path, json=good | {"temperature": "hot"}), 400)["param"] == "temperature"
    assert error_of(client.post(path, json=good | {"tools": [{"type": "function"}]}), 400)["param"] == "tools"
    assert error_of(client.post(path, content=b"{", headers={"content-type": "application/json"}), 400)
    assert error_of(client.get(path), 405)["code"] == "method_not_allowed"
    assert client.get(path).headers["allow"] == "POST"


def test_G16_a_base_url_without_v1_is_told(client: httpx.Client) -> None:
    error = error_of(client.post("/chat/completions", json={}), 404)
    assert error["message"] == "there is no POST /chat/completions; did you mean /v1/chat/completions?"
    assert "did you mean /v1/models/m?" in error_of(client.get("/models/m"), 404)["message"]
    for path in ("/chat", "/v1/chat/completion", "/completions"):  # the last one takes POST
        assert "GET / lists" in error_of(client.get(path), 404)["message"]


def test_G16_unknown_paths_and_content_types(client: httpx.Client) -> None:
    assert "GET /v1/nope" in error_of(client.get("/v1/nope"), 404)["message"]
    assert error_of(client.post("/v1/nope", json={}), 404)
    assert error_of(client.post("/v1/completions/", json={}), 404)
    assert error_of(client.post("/health", json={}), 405)
    body = json.dumps(COMPLETION)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        headers = {"content-type": kind} if kind else {}
        error = error_of(client.post("/v1/completions", content=body, headers=headers), 415)
        assert "application/json" in error["message"]
    for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
        assert client.post("/v1/completions", content=body, headers={"content-type": kind}).status_code == 200


def test_what_a_client_spells_out_at_length_is_not_repeated_to_it(client: httpx.Client) -> None:
    for response in (
        client.get("/" + "a" * 50_000),
        client.post("/v1/models/" + "a" * 50_000),
        client.get("/v1/models/" + "a" * 50_000),
    ):
        assert response.status_code in (404, 405)
        assert len(error_of(response, response.status_code)["message"]) < 400


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(160),  # TLS
        b"GET /health HTTP/1.1\r\n\r\n",  # without Host
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"1" * 5000 + b"\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nnone\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000,
    ],
    ids=["TLS", "no host", "endless length", "no chunk", "endless header"],
)
def test_G16_bytes_that_are_no_http_are_an_error_of_the_same_shape(server: ServerProcess, sent: bytes) -> None:
    with _connection(server) as connection:
        connection.sendall(sent)
        head, _, body = _all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"connection: close" in head.lower()
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_bytes_that_are_no_http_behind_a_refusal_end_the_connection_without_a_word(server: ServerProcess) -> None:
    with _connection(server) as connection:
        connection.sendall(b"POST /nope HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        refusal = b""
        while not refusal.endswith(b"}}"):  # whole, but the server awaits the rest of the body
            refusal += connection.recv(1 << 16)
        assert b" 404 " in refusal
        connection.sendall(b"none\r\n")
        assert _all(connection) == b""
    assert "Traceback" not in server.log


def test_a_connection_that_asks_for_nothing_is_closed(model: Path) -> None:
    patch = "from pilotlight.front import web; web.IDLE_CONNECTION_SECONDS = 0.3"
    body = json.dumps(COMPLETION).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        % len(body)
    )
    with ServerProcess(model, fake={"prefill": 1.0}, patch=patch) as server:
        asks = [_connection(server) for _ in range(2)]  # one awaits its answer meanwhile, the other sends its body
        asks[0].sendall(head + b"\r\n" + body)
        asks[1].sendall(head + b"\r\n" + body[:-1])
        for sent in (b"", b"G", head):
            with _connection(server) as idle:
                idle.sendall(sent)
                assert _all(idle) == b""
        with _connection(server) as idle:
            idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert _all(idle).endswith(b'{"status":"ok"}')
        asks[1].sendall(body[-1:])
        for ask in asks:
            with ask:
                assert _all(ask).startswith(b"HTTP/1.1 200 OK\r\n")


def _connection(server: ServerProcess) -> socket.socket:
    address = urlsplit(server.ready())
    return socket.create_connection((address.hostname, address.port), 10)


def _all(connection: socket.socket) -> bytes:
    """Everything up to the end that the server makes."""
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_C09_non_finite_numbers_are_refused_as_json(client: httpx.Client) -> None:
    for text in ("NaN", "Infinity", "-Infinity", "1e999"):
        body = json.dumps(COMPLETION)[:-1] + f', "temperature": {text}}}'
        error_of(client.post("/v1/completions", content=body, headers={"content-type": "application/json"}), 400)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"9999999": 5}}, "logit_bias"),
        ({"logit_bias": {"-1": 5}}, "logit_bias"),
        ({"logit_bias": {"320": 1}}, "logit_bias"),
        ({"stop_token_ids": [320]}, "stop_token_ids"),
        ({"stop_token_ids": list(range(257))}, "stop_token_ids"),
        ({"allowed_token_ids": [5, 320]}, "allowed_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        ({"prompt": [320]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": 100_000}, "logprobs"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [0] * 256}, "prompt"),
    ],
)
def test_C02_C20_H19_B14_what_the_model_cannot_take_is_refused(
    client: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    for streaming in (False, True):
        error = error_of(client.post("/v1/completions", json=COMPLETION | fields | {"stream": streaming}), 400)
        assert error["param"] == param
        assert error["code"] == ("context_length_exceeded" if fields.get("prompt") == [0] * 256 else None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"320": 1}}, "logit_bias"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "messages"),
    ],
)
def test_C02_C20_what_the_model_cannot_take_is_named_as_the_chat_request_does(
    client: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    error = error_of(client.post("/v1/chat/completions", json=CHAT | fields), 400)
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")


@pytest.mark.parametrize("fields", [{"prompt": [319]}, {"logit_bias": {"319": 5}}, {"stop_token_ids": [319]}])
def test_H19_the_models_last_id_is_accepted(client: httpx.Client, fields: dict[str, Any]) -> None:
    assert client.post("/v1/completions", json=COMPLETION | fields).status_code == 200


def test_D21_a_model_without_a_template_says_so_and_completes(model: Path, tmp_path: Path) -> None:
    from tests.models import llama_config, llama_tensors, write_checkpoint

    config = llama_config()
    base = write_checkpoint(tmp_path / "base", config, llama_tensors(config), chat_template=None)
    with ServerProcess(base, fake={}) as server, server.client() as client:
        error = error_of(client.post("/v1/chat/completions", json=CHAT), 400)
        assert error["code"] == "no_chat_template"
        assert "no chat template" in error["message"]
        assert client.post("/v1/completions", json=COMPLETION).status_code == 200


# --- key and CORS ---------------------------------------------------------------------------------------------


def authorized(client: httpx.Client, *values: bytes) -> httpx.Response:
    headers = [(b"authorization", value) for value in values]
    return client.post("/v1/completions", json=COMPLETION, headers=headers)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [b"Bearer"],
        [b"bearer k"],
        ["Bearer café".encode("latin-1")],
        ["Bearer café".encode()],
        [f"Bearer {KEY}x".encode()],
        [f"Basic {KEY}".encode()],
        [KEY.encode()],
        [b"Bearer k", b"Bearer l"],
        [f"Bearer {KEY}".encode(), b"Bearer l"],
        [b"Bearer " + b"k" * 5000],
    ],
)
def test_G08_a_wrong_key_is_401_whatever_its_bytes(guarded: httpx.Client, values: list[bytes]) -> None:
    response = authorized(guarded, *values)
    assert error_of(response, 401)["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("value", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER  {KEY}"])
def test_G08_the_right_key_works(guarded: httpx.Client, value: str) -> None:
    assert authorized(guarded, value.encode()).status_code == 200


def test_key_comes_beside_an_authorization_that_the_platform_s_gateway_takes(guarded: httpx.Client) -> None:
    def status(*keys: str, authorization: str = "Bearer rpa_GATEWAY") -> int:
        named = [("authorization", authorization), *(("x-api-key", key) for key in keys)]
        headers = [(name.encode(), value.encode()) for name, value in named]
        return guarded.post("/v1/completions", json=COMPLETION, headers=headers).status_code

    assert status(KEY) == 200
    assert status() == 401
    assert status(f"{KEY}x") == 401
    assert status("wrong", authorization=f"Bearer {KEY}") == 401  # it alone decides, where it is there
    assert status(KEY, KEY) == 401


def test_G08_health_ping_and_version_are_open_and_everything_else_is_closed(guarded: httpx.Client) -> None:
    for path in ("/health", "/v1/health/live", "/v1/health/ready", "/ping", "/version"):
        assert guarded.get(path).status_code == 200
    for path in (
        "/",
        "/metrics",
        "/v1/models",
        "/v1/models/m",
        "/v1/chat/completions",
        "/nope",
        "/health/",
        "//health",
    ):
        error_of(guarded.get(path), 401)


def test_G10_a_preflight_needs_no_key_and_a_refusal_can_be_read(guarded: httpx.Client) -> None:
    origin = {"origin": "https://app.example"}
    asked = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-lang",
    }
    preflight = guarded.options("/v1/chat/completions", headers=origin | asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    refused = guarded.post("/v1/completions", json=COMPLETION, headers=origin)
    error_of(refused, 401)
    assert refused.headers["access-control-allow-origin"] == "https://app.example"
    other = guarded.post("/v1/completions", json=COMPLETION, headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


# --- size and time --------------------------------------------------------------------------------------------


def test_G12_a_body_over_the_limit_is_413_before_it_is_read(client: httpx.Client) -> None:
    body = json.dumps(COMPLETION | {"prompt": "x" * 20_000_000}).encode()
    began = time.monotonic()
    error = error_of(client.post("/v1/completions", content=body, headers={"content-type": "application/json"}), 413)
    assert "100000 bytes" in error["message"]
    assert time.monotonic() - began < 5

    def chunks() -> Iterator[bytes]:  # chunked: no length is announced
        for start in range(0, 2_000_000, 50_000):
            yield body[start : start + 50_000]

    error_of(client.post("/v1/completions", content=chunks(), headers={"content-type": "application/json"}), 413)


def test_G12_who_asks_before_sending_is_answered_before_sending(server: ServerProcess) -> None:
    """curl does so with a large body: Expect: 100-continue."""
    with socket.create_connection(_address(server.ready()), 10) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: 20000000\r\nexpect: 100-continue\r\n\r\n"
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("path", "kind", "status"),
    [
        (b"/v1/completions", b"application/json", 413),
        (b"/v1/completions", b"text/plain", 415),
        (b"/nope", b"application/json", 404),
        (b"/health", b"application/json", 405),
    ],
)
def test_a_refusal_is_read_by_a_client_that_sends_on(
    server: ServerProcess, path: bytes, kind: bytes, status: int
) -> None:
    """The answer comes before the body; the connection is not reset under a client that sends it all the same."""
    size = 5_000_000
    with socket.create_connection(_address(server.ready()), 10) as connection:
        connection.sendall(
            b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (path, kind, size)
        )
        received = connection.recv(10_000)
        assert received.startswith(b"HTTP/1.1 %d " % status)
        connection.sendall(b"x" * size)
        while b'"code":' not in received:
            received += connection.recv(10_000)
        if status != 413:  # the connection goes on
            connection.sendall(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
            assert connection.recv(10_000).startswith(b"HTTP/1.1 200 ")


def test_G12_a_huge_prompt_is_refused_cheaply_and_freezes_nothing(model: Path) -> None:
    flags = ("--max-request-bytes", str(64 * 1024 * 1024))
    with ServerProcess(model, *flags, fake={"interval": 0.005, "max_model_len": 256}) as server:
        address = server.ready()
        replies: list[httpx.Response] = []

        def send() -> None:
            body = COMPLETION | {"prompt": "lorem ipsum " * 1_700_000}
            replies.append(httpx.post(f"{address}/v1/completions", json=body, timeout=30))

        with httpx.Client(base_url=address, timeout=20) as client:
            sender = threading.Thread(target=send)
            sender.start()
            slowest = 0.0
            while sender.is_alive():
                began = time.monotonic()
                assert client.get("/health").status_code == 200
                slowest = max(slowest, time.monotonic() - began)
                sender.join(0.02)
        assert error_of(replies[0], 400)["code"] == "context_length_exceeded"
        assert slowest < 1


def chat_logprobs() -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", CHAT | {"n": 32, "max_tokens": 240, "logprobs": True, "top_logprobs": 20}


def biases_of_many_prompts() -> tuple[str, dict[str, Any]]:
    prompts = [[1]] * 1000
    return "/v1/completions", COMPLETION | {"prompt": prompts, "logit_bias": {str(token): 1 for token in range(1024)}}


@pytest.mark.parametrize("request_of", [chat_logprobs, biases_of_many_prompts])
def test_C20_a_small_request_for_much_freezes_nothing(
    model: Path, request_of: Callable[[], tuple[str, dict[str, Any]]]
) -> None:
    """What it costs is spread: nobody else waits for a large part of the time that it takes itself."""
    path, body = request_of()
    with ServerProcess(model, fake={"tokens_per_step": 4, "vocab_size": 2000}) as server, server.client() as client:
        replies: list[httpx.Response] = []
        sender = threading.Thread(target=lambda: replies.append(client.post(path, json=body)))
        front = psutil.Process(server.process.pid)

        def worked() -> float:
            """Seconds of the front's own: those for which a busy machine lets it wait are not its fault."""
            times = front.cpu_times()
            return times.user + times.system

        with server.client() as observer:
            observer.get("/health")
            slowest, began = 0.0, worked()
            sender.start()
            while sender.is_alive():
                asked = worked()
                observer.get("/health")
                slowest = max(slowest, worked() - asked)
                sender.join(0.005)
        assert replies[0].status_code == 200
        assert slowest < max((worked() - began) * 0.75, 0.3)  # in one piece it was nine tenths


def test_G14_headers_come_at_once_and_comments_while_nothing_else_does(model: Path) -> None:
    patch = "from pilotlight.front import streaming; streaming.KEEP_ALIVE_SECONDS = 0.1"
    with (
        ServerProcess(model, fake={"prefill": 1.0}, patch=patch) as server,
        server.client() as client,
    ):
        began = time.monotonic()
        with client.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as response:
            assert time.monotonic() - began < 0.8
            assert response.headers["x-accel-buffering"] == "no"
            assert response.headers["cache-control"] == "no-cache"
            lines = list(response.iter_lines())
        comments = [line for line in lines if line.startswith(":")]
        assert 3 <= len(comments) <= (time.monotonic() - began) / 0.1
        assert lines.index(comments[-1]) < next(at for at, line in enumerate(lines) if line.startswith("data: "))
        assert lines[-2:] == ["data: [DONE]", ""]
        # What is found before stays an HTTP error.
        error_of(client.post("/v1/chat/completions", json=CHAT | {"stream": True, "n": 0}), 400)


def test_the_queue_is_bounded(server: ServerProcess) -> None:
    """Two run, two wait, the fifth is turned away; there is room again when they are gone."""
    with httpx.Client(base_url=server.ready(), timeout=20) as client:
        endless = COMPLETION | {"max_tokens": 250, "stream": True, "n": 2}
        with client.stream("POST", "/v1/completions", json=endless) as first:
            assert first.status_code == 200
            with client.stream("POST", "/v1/completions", json=endless) as second:
                assert second.status_code == 200
                refused = client.post("/v1/completions", json=COMPLETION)
                assert error_of(refused, 503)["code"] == "queue_full"
                assert int(refused.headers["retry-after"]) > 0
                assert metric(client, "requests_rejected_total") >= 1
                for response in (first, second):
                    response.read()
        assert client.post("/v1/completions", json=COMPLETION).status_code == 200
        too_many = client.post("/v1/completions", json=COMPLETION | {"n": 5})
        assert error_of(too_many, 400)["param"] == "n"


def test_a_keep_alive_connection_serves_many_requests(server: ServerProcess) -> None:
    connection = http.client.HTTPConnection(*_address(server.ready()), timeout=10)
    used = set()
    for _ in range(3):
        for body in (COMPLETION, COMPLETION | {"stream": True}, COMPLETION | {"temperature": 9}):
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            assert connection.getresponse().read()
            assert connection.sock is not None
            used.add(connection.sock.getsockname())
    connection.close()
    assert len(used) == 1


# --- streams --------------------------------------------------------------------------------------------------


STREAMS = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"stop": ["b"]}),
    ("/v1/chat/completions", CHAT | {"n": 2}),
    ("/v1/chat/completions", CHAT | {"stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", CHAT | {"logprobs": True, "max_tokens": 1}),
    ("/v1/completions", COMPLETION),
    ("/v1/completions", COMPLETION | {"stop": "c"}),
    ("/v1/completions", COMPLETION | {"n": 3}),
    ("/v1/completions", COMPLETION | {"prompt": ["hi", "yo"]}),
    ("/v1/completions", COMPLETION | {"echo": True, "logprobs": 1}),
]


@pytest.mark.parametrize(
    "behaviour", [{}, {"end": True, "tokens": [97, 98, 99, 97]}, {"error_after": 0}, {"tokens_per_step": 3}], ids=str
)
def test_B24_every_stream_ends_with_done(model: Path, behaviour: dict[str, Any]) -> None:
    """Normal ends, stop strings, the length, several choices, and errors."""
    with ServerProcess(model, fake=behaviour) as server, server.client() as client:
        for path, body in STREAMS:
            events = stream(client, path, body)
            assert events[-1] == "[DONE]"
            assert events.count("[DONE]") == 1
            if "error_after" in behaviour:
                assert events[-2]["error"]["message"] == "the logits hold NaN"
            else:
                reasons = [choice["finish_reason"] for event in events[:-1] for choice in event["choices"]]
                assert {"stop", "length"} & set(reasons)
                assert set(reasons) <= {"stop", "length", None}  # B06


def test_A10_a_broken_choice_is_one_error_and_its_neighbour_is_right(model: Path) -> None:
    with (
        ServerProcess(model, fake={"error_after": 4, "interval": 0.01}) as server,
        server.client() as client,
    ):
        with client.stream("POST", "/v1/completions", json=COMPLETION | {"max_tokens": 9, "stream": True}) as broken:
            fine = client.post("/v1/completions", json=COMPLETION | {"max_tokens": 4})
            assert fine.json()["choices"][0]["text"] == "abca"
            events = list(sse(broken))
        assert events[-2]["error"] == {
            "message": "the logits hold NaN",
            "type": "server_error",
            "param": None,
            "code": "generation_failed",
        }
        error_of(client.post("/v1/completions", json=COMPLETION | {"max_tokens": 9}), 500)
        assert client.get("/health").status_code == 200
        assert metric(client, "request_success_total", ',finished_reason="error"') == 2


def test_B10_an_impossible_token_is_minus_9999(model: Path) -> None:
    with (
        ServerProcess(model, fake={"logprob": "-inf"}) as server,
        server.client() as client,
    ):
        response = client.post("/v1/completions", json=COMPLETION | {"logprobs": 2})
        assert "Infinity" not in response.text
        logprobs = response.json()["choices"][0]["logprobs"]
        assert logprobs["token_logprobs"] == [-9999.0] * 4
        assert set(logprobs["top_logprobs"][0].values()) == {-9999.0}
        response = client.post("/v1/chat/completions", json=CHAT | {"logprobs": True, "top_logprobs": 2})
        (entry, *_) = response.json()["choices"][0]["logprobs"]["content"]
        assert [entry["logprob"], *(top["logprob"] for top in entry["top_logprobs"])] == [-9999.0] * 3


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port
