"""`deploy push`: shown first, sent once when told to, to a loopback server that answers as RunPod's API does."""

import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pilotlight.deploy.command import command
from pilotlight.deploy.push import KEY, URL, push
from pilotlight.deploy.reading import read_deployment
from pilotlight.errors import UnavailableError, UsageError
from tests.deploy.renderings import HERE

SMALL = HERE / "small.yml"
BODY = json.loads((HERE / "golden" / "small_runpod.json").read_text())
SECRET = "rpa_0123456789"
CREATED = {
    "id": "4m7x2k9q",
    "name": "small",
    "type": "LOAD_BALANCER",
    "requestUrls": {"base": "https://4m7x2k9q.api.runpod.ai", "health": "https://4m7x2k9q.api.runpod.ai/ping"},
}


@dataclass
class Api:
    """What the server answers next, and what it was asked."""

    url: str = ""
    status: int = 201
    answer: bytes = json.dumps(CREATED).encode()
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def api() -> Iterator[Api]:
    state = Api()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            state.asked.append((self.command, self.path, dict(self.headers), content))
            self.send_response(state.status)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(state.answer)))
            self.end_headers()
            self.wfile.write(state.answer)

        def do_GET(self) -> None:
            state.asked.append((self.command, self.path, dict(self.headers), b""))
            self.send_error(500)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.url = f"http://127.0.0.1:{server.server_port}/v2/serverless"
        yield state
        server.shutdown()
        thread.join()


def send(api: Api) -> None:
    push(read_deployment(SMALL), send=True, environ={KEY: SECRET}, url=api.url)


def test_request_is_shown_and_not_sent(
    api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    assert command(["push", str(SMALL), "--target", "runpod"]) == 0
    out = capsys.readouterr().out
    head, body, end = out.split("\n\n")
    assert head.splitlines()[:2] == [f"POST {URL}", "Authorization: Bearer (hidden: RUNPOD_API_KEY)"]
    assert URL == "https://api.runpod.io/v2/serverless"
    assert json.loads(body) == BODY
    assert end == "not sent: --yes sends it\n"
    assert SECRET not in out
    assert api.asked == []


def test_yes_sends_what_was_shown_and_prints_what_was_created(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    send(api)
    ((method, path, headers, content),) = api.asked
    assert (method, path) == ("POST", "/v2/serverless")
    assert headers["Authorization"] == f"Bearer {SECRET}"
    assert headers["Content-Type"] == "application/json"
    assert json.loads(content) == BODY
    out = capsys.readouterr().out
    assert out.split("\n\n")[1].encode() == content
    assert out.split("\n\n")[2] == (
        "created small with the id 4m7x2k9q\n"
        "  base: https://4m7x2k9q.api.runpod.ai\n"
        "  health: https://4m7x2k9q.api.runpod.ai/ping\n"
    )
    assert SECRET not in out


def test_command_sends_with_the_environment_s_key(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, SECRET)
    monkeypatch.setattr("pilotlight.deploy.command.push", partial(push, url=api.url))
    assert command(["push", str(SMALL), "--target", "runpod", "--yes"]) == 0
    assert len(api.asked) == 1


@pytest.mark.parametrize("key", [None, "", " x", "a\nb", "schlüssel"])
def test_without_a_key_nothing_is_sent(api: Api, key: str | None) -> None:
    environ = {} if key is None else {KEY: key}
    with pytest.raises(UsageError, match="RUNPOD_API_KEY holds no key"):
        push(read_deployment(SMALL), send=True, environ=environ, url=api.url)
    assert api.asked == []


def test_example_s_image_is_not_deployed(api: Api, tmp_path: Path) -> None:
    file = tmp_path / "d.yml"
    file.write_text(SMALL.read_text().replace("ghcr.io/someone", "registry.example.com"))
    with pytest.raises(UsageError, match=r"d\.yml:3: image: is the example's; push yours to a registry"):
        push(read_deployment(file), send=True, environ={KEY: SECRET}, url=api.url)
    assert api.asked == []


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (
            400,
            {"title": "Bad Request", "status": 400, "detail": "invalid pool", "errors": ["$.gpu: X\nY", "b"]},
            "RunPod answered 400: invalid pool; $.gpu: X Y; b",
        ),
        (
            401,
            {"title": "Unauthorized", "status": 401, "detail": ""},
            "RunPod answered 401: Unauthorized; RUNPOD_API_KEY must hold a key that may create endpoints",
        ),
        (
            401,
            {"detail": f"no such key: {SECRET}"},
            "RunPod answered 401: no such key: (hidden: RUNPOD_API_KEY)"
            "; RUNPOD_API_KEY must hold a key that may create endpoints",
        ),
        (400, {"detail": "\x1b[2Jgone\x07"}, "RunPod answered 400: ?[2Jgone?"),
        (400, {"detail": "a", "errors": "one text"}, "RunPod answered 400: a; one text"),
        (400, {"detail": "x" * 5000}, "RunPod answered 400: " + "x" * 1000),
        (400, b"[" * 100_000, "RunPod answered 400: Bad Request"),
        (201, b"[" * 100_000, "RunPod answered 201 with what is no JSON object; look into its console"),
        (422, {"title": "Unprocessable", "detail": "no", "errors": None}, "RunPod answered 422: no"),
        (429, "slow down", "RunPod answered 429: Too Many Requests"),
        (502, b"<html>\n</html>", "RunPod answered 502: Bad Gateway"),
        (201, b"<html>", "RunPod answered 201 with what is no JSON object; look into its console"),
        (201, [1], "RunPod answered 201 with what is no JSON object; look into its console"),
    ],
)
def test_refusal_is_one_clear_line(api: Api, status: int, answer: Any, said: str) -> None:
    api.status, api.answer = status, answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    with pytest.raises(UnavailableError) as caught:
        send(api)
    assert str(caught.value) == said
    assert SECRET not in str(caught.value)
    assert len(api.asked) == 1


@pytest.mark.parametrize("addresses", [["a"], "a", 5, None, {}])
def test_endpoint_without_addresses_is_created_all_the_same(
    api: Api, capsys: pytest.CaptureFixture[str], addresses: Any
) -> None:
    api.answer = json.dumps({"id": SECRET, "name": "a\x1bb", "requestUrls": addresses}).encode()
    send(api)
    out = capsys.readouterr().out
    assert out.endswith("\n\ncreated a?b with the id (hidden: RUNPOD_API_KEY)\n")
    assert SECRET not in out


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed_with_the_key(api: Api, status: int) -> None:
    api.status, api.headers = status, {"Location": api.url + "/elsewhere"}
    with pytest.raises(UnavailableError, match=f"RunPod answered {status}: "):
        send(api)
    assert [asked[:2] for asked in api.asked] == [("POST", "/v2/serverless")]


def test_server_that_is_not_there_is_named() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v2/serverless"
    with pytest.raises(UnavailableError) as caught:
        push(read_deployment(SMALL), send=True, environ={KEY: SECRET}, url=url)
    assert str(caught.value) == f"{url}: [Errno 111] Connection refused; RunPod's console says whether it was created"
