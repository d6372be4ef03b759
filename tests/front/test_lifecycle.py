"""Start, death, drain and exit codes of the whole server, and clients that go away. With the scripted engine."""

import http.client
import json
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from tests.front.servers import ServerProcess, Streams, eventually, metric, sse
from tests.models import write_tiny

ENDLESS = {"model": "m", "prompt": "hi", "max_tokens": 250, "stream": True}
SHORT = {"model": "m", "prompt": "hi", "max_tokens": 4}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


# --- start ----------------------------------------------------------------------------------------------------


def test_requests_are_held_while_the_model_loads(model: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with ServerProcess(model, fake={"ready_when": str(go)}) as server:
        address = server.listening()
        with httpx.Client(base_url=address, timeout=20) as client:
            assert client.get("/health").status_code == 503
            assert client.get("/v1/health/ready").json()["error"]["code"] == "engine_starting"
            assert client.get("/v1/health/live").status_code == 200
            assert client.get("/ping").status_code == 503
            assert client.get("/v1/models").json()["data"][0]["max_model_len"] is None
            malformed = client.post("/v1/completions", json=SHORT | {"temperature": 9})
            assert malformed.status_code == 400  # without waiting for the engine
            assert not any("serving" in line for line in server.lines)
            loaded = threading.Timer(0.5, go.touch)
            loaded.start()
            assert client.post("/v1/completions", json=SHORT).json()["choices"][0]["text"] == "abca"
            loaded.join()
            assert client.get("/health").status_code == 200


def test_requests_that_are_held_count_as_waiting(model: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    limits = ("--max-num-seqs", "1", "--max-waiting-requests", "1")
    with ServerProcess(model, *limits, fake={"ready_when": str(go)}) as server:
        address = server.listening()
        statuses: list[int] = []
        threads = [
            threading.Thread(
                target=lambda: statuses.append(
                    httpx.post(f"{address}/v1/completions", json=SHORT, timeout=20).status_code
                )
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: len(statuses) == 2)
        go.touch()
        for thread in threads:
            thread.join()
        assert statuses == [503, 503, 200, 200]


def test_a_client_that_leaves_while_the_model_loads_frees_its_place(model: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    limits = ("--max-num-seqs", "1", "--max-waiting-requests", "1")
    with ServerProcess(model, *limits, fake={"ready_when": str(go)}) as server:
        address = server.listening()
        for path, body in (("/v1/completions", SHORT), ("/v1/chat/completions", CHAT)):
            for _ in range(2):  # as many as there are places
                with pytest.raises(httpx.ReadTimeout):
                    httpx.post(f"{address}{path}", json=body, timeout=0.5)
        last = threading.Timer(0.5, go.touch)
        last.start()
        assert httpx.post(f"{address}/v1/completions", json=SHORT, timeout=20).status_code == 200
        last.join()


@pytest.mark.parametrize(
    ("env", "names"),
    [({}, None), ({"PILOTLIGHT_SERVED_MODEL_NAME": ""}, None), ({"PILOTLIGHT_SERVED_MODEL_NAME": "a,b"}, ["a", "b"])],
)
def test_J03_the_name_from_the_environment_replaces_the_models_own(
    model: Path, env: dict[str, str], names: list[str] | None
) -> None:
    with ServerProcess(model, names=None, env=env, fake={}) as server, server.client() as client:
        served = names or [str(model)]
        assert [card["id"] for card in client.get("/v1/models").json()["data"]] == served
        for name in {str(model), "a", "b", model.name}:
            reply = client.post("/v1/completions", json=SHORT | {"model": name})
            assert reply.status_code == (200 if name in served else 404)
        without = {key: value for key, value in SHORT.items() if key != "model"}
        assert client.post("/v1/completions", json=without).json()["error"]["param"] == "model"


def test_a_start_says_where_it_serves_and_where_the_time_went(model: Path) -> None:
    with ServerProcess(model, "--log-level", "debug", fake={}) as server:
        assert server.ready() == server.listening()
        server.wait_for(r"ready in \d+ ms: .*front imports \d+")
        server.wait_for(r"^engine load +\|.*\| +\d+ ms")


def test_a_misspelt_variable_is_told_once(model: Path) -> None:
    misspelt = {"PILOTLIGHT_MAXNUMSEQS": "3", "PILOTLIGHT_SERVICE_HOST": "10.0.0.11"}
    with ServerProcess(model, fake={}, env=misspelt) as server:
        server.ready()
        assert server.log.count("is no variable of the server") == 1
        assert (
            "PILOTLIGHT_MAXNUMSEQS is no variable of the server; did you mean PILOTLIGHT_MAX_NUM_SEQS?" in server.log
        )


def test_a_request_does_not_wait_longer_than_it_was_told(model: Path) -> None:
    with ServerProcess(model, "--startup-timeout", "0.2", fake={"ready_delay": 60}) as server:
        refused = httpx.post(f"{server.listening()}/v1/completions", json=SHORT, timeout=20)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_starting"
        assert int(refused.headers["retry-after"]) > 0


class Held:
    """A request that the server has, and cannot answer while it loads. A context."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)
        self._connection.request("POST", "/v1/completions", json.dumps(SHORT), {"content-type": "application/json"})
        # Connections are taken in the order in which they come: whose later one is answered has taken this one too.
        eventually(lambda: httpx.get(f"{address}/ping").status_code == 503)

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def status(self) -> int:
        """Of the answer; waits for it."""
        response = self._connection.getresponse()
        response.read()
        return response.status


@pytest.mark.parametrize("code", [65, 69])
def test_J01_a_model_that_cannot_be_loaded_ends_it_with_one_line_and_no_retry(
    model: Path, tmp_path: Path, code: int
) -> None:
    is_loaded = tmp_path / "loaded"
    fake = {"ready_when": str(is_loaded), "fatal": ["weights: 4 bytes are missing", code]}
    with ServerProcess(model, fake=fake) as server, Held(server.listening()) as held:
        is_loaded.touch()
        assert server.exit_code() == code
        assert held.status() == 503
        assert server.lines[-1] == "pilotlight: weights: 4 bytes are missing\n"
        assert "Traceback" not in server.log


def test_J01_an_engine_that_dies_while_it_loads_ends_it_with_70(model: Path) -> None:
    with ServerProcess(model, fake={"exit_before_ready": 3}) as server:
        assert server.exit_code() == 70
        assert server.lines[-1] == "pilotlight: the engine exited with code 3 while it loaded the model\n"


def test_a_broken_tokenizer_ends_it_with_65(tmp_path: Path) -> None:
    broken = write_tiny(tmp_path / "broken")
    (broken / "tokenizer.json").write_text("{")
    with ServerProcess(broken, fake={"ready_delay": 60}) as server:
        assert server.exit_code() == 65
        assert "tokenizer.json" in server.lines[-1]
        assert "Traceback" not in server.log


def test_a_taken_port_ends_it_with_69(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with ServerProcess(model, "--port", port, fake={}) as server:
            assert server.exit_code() == 69
            assert len(server.lines) == 1
            assert f"127.0.0.1:{port} (Address already in use)" in server.lines[0]


def test_a_model_that_is_not_there_ends_it_with_66(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "nowhere", fake={}) as server:
        assert server.exit_code() == 66
        assert len(server.lines) == 1


# --- death of the engine --------------------------------------------------------------------------------------


def test_G04_ten_streams_hear_of_a_killed_engine_within_a_second(model: Path) -> None:
    with ServerProcess(model, fake={"interval": 0.05}) as server, server.client() as client:
        streams = Streams(server.ready(), 10, ENDLESS)
        streams.wait_begun()
        killed_at = time.monotonic()
        os.kill(server.engine_pid(), signal.SIGKILL)
        streams.wait_ended()
        for events, ended_at in zip(streams.events, streams.ended_at, strict=True):
            assert ended_at - killed_at < 1
            assert events[-2]["error"] == {
                "message": "the engine died while it worked on this request",
                "type": "server_error",
                "param": None,
                "code": "engine_died",
            }
            assert events[-1] == "[DONE]"
        eventually(lambda: client.get("/health").status_code == 200)
        assert client.post("/v1/completions", json=SHORT).json()["choices"][0]["text"] == "abca"
        assert metric(client, "engine_restarts_total") == 1
        assert metric(client, "request_success_total", ',finished_reason="error"') == 10
        assert "was killed by SIGKILL" in server.log


def test_J05_after_too_many_deaths_it_exits_with_70_and_the_reason(model: Path) -> None:
    flags = ("--max-engine-deaths", "2")
    patch = "from pilotlight.front import supervisor; supervisor.FIRST_BACKOFF = 1.0"  # time to see that it is away
    with ServerProcess(model, *flags, fake={"die_after": 1}, patch=patch) as server, server.client() as client:
        refused = client.post("/v1/completions", json=SHORT)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_died"
        assert client.get("/health").status_code == 503
        eventually(lambda: client.get("/health").status_code == 200)
        assert client.post("/v1/completions", json=SHORT).status_code == 503
        assert server.exit_code() == 70
        assert "the engine died 2 times within ten minutes" in server.lines[-1]
        assert "SIGKILL" in server.lines[-1]


def test_G04_while_the_engine_is_away_requests_are_turned_away_at_once(model: Path) -> None:
    patch = "from pilotlight.front import supervisor; supervisor.FIRST_BACKOFF = 2.0"
    with ServerProcess(model, fake={}, patch=patch) as server, server.client() as client:
        os.kill(server.engine_pid(), signal.SIGKILL)
        eventually(lambda: client.get("/health").status_code == 503)
        began = time.monotonic()
        refused = client.post("/v1/completions", json=SHORT)
        assert time.monotonic() - began < 1
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_restarting"
        assert client.get("/v1/models").status_code == 200
        assert client.get("/v1/health/live").status_code == 200
        assert client.get("/ping").status_code == 503
        assert metric(client, "engine_up") == 0
        eventually(lambda: client.post("/v1/completions", json=SHORT).status_code == 200)


def test_G04_a_hanging_engine_is_replaced(model: Path, tmp_path: Path) -> None:
    fake = {"stall_after": 2, "once": str(tmp_path / "once")}
    with ServerProcess(model, "--engine-timeout", "0.5", fake=fake) as server, server.client() as client:
        streams = Streams(server.ready(), 1, ENDLESS)
        streams.wait_begun()
        plain = client.post("/v1/completions", json=SHORT)
        assert plain.status_code == 503
        assert plain.json()["error"]["code"] == "engine_hung"
        streams.wait_ended()
        assert streams.events[0][-2]["error"]["code"] == "engine_hung"
        eventually(lambda: client.post("/v1/completions", json=SHORT).status_code == 200)
        assert "--engine-timeout" in server.log


def test_without_descriptors_connections_wait_and_the_log_stays_short(model: Path) -> None:
    with ServerProcess(model, fake={}) as server, ExitStack() as idle:
        address = server.ready()
        front = psutil.Process(server.process.pid)
        front.rlimit(resource.RLIMIT_NOFILE, (32, 32))

        def exhaust() -> None:
            host, port = address.removeprefix("http://").split(":")
            for _ in range(64):
                idle.enter_context(socket.create_connection((host, int(port))))
            eventually(lambda: front.num_fds() == 32)

        exhaust()
        server.wait_for("no file descriptor is left")
        idle.close()
        assert httpx.get(f"{address}/health", timeout=10).status_code == 200
        exhaust()
        server.terminate()
        assert server.exit_code() == 0
        assert server.log.count("no file descriptor") == 1
        assert "Traceback" not in server.log


def test_the_engine_ends_when_the_server_is_killed(model: Path) -> None:
    with ServerProcess(model, fake={}) as server:
        server.ready()
        pid = server.engine_pid()
        server.process.kill()
        server.process.wait(10)
        eventually(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid))


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


# --- drain ----------------------------------------------------------------------------------------------------


def test_G06_running_streams_are_finished_and_new_requests_refused(model: Path) -> None:
    with ServerProcess(model, fake={"interval": 0.01}) as server:
        streams = Streams(server.ready(), 10, ENDLESS)
        streams.wait_begun()
        with server.client() as waiting, server.client() as newcomer:
            assert waiting.get("/health").status_code == 200  # its connection is open
            server.terminate()
            server.wait_for("stopping")
            for client in (waiting, newcomer):
                refused = client.post("/v1/completions", json=SHORT)
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "shutting_down"
                assert refused.headers["connection"] == "close"
            assert newcomer.get("/health").status_code == 503
            assert newcomer.get("/v1/health/ready").status_code == 503
            assert newcomer.get("/v1/health/live").status_code == 200
        streams.wait_ended()
        for events in streams.events:
            assert events[-1] == "[DONE]"
            assert events[-2]["choices"][0]["finish_reason"] == "length"
            assert sum(len(event["choices"][0]["text"]) for event in events[:-1]) == 250
        assert server.exit_code() == 0


def test_G06_a_request_that_is_being_tokenised_is_finished_too(model: Path) -> None:
    patch = (
        "import time; from pilotlight.front import service; encode = service.encode\n"
        "def slow(*args, **options):\n"
        "    print('encoding', file=sys.stderr, flush=True); time.sleep(1); return encode(*args, **options)\n"
        "service.encode = slow"
    )
    with ServerProcess(model, fake={}, patch=patch) as server:
        address = server.ready()
        replies: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: replies.append(httpx.post(f"{address}/v1/completions", json=SHORT, timeout=20))
        )
        thread.start()
        server.wait_for("encoding")
        server.terminate()
        thread.join(20)
        assert replies[0].json()["choices"][0]["text"] == "abca"
        assert server.exit_code() == 0


def test_G07_an_idle_server_is_gone_in_about_a_second(model: Path) -> None:
    with ServerProcess(model, fake={}) as server, server.client() as client:
        assert client.get("/health").status_code == 200  # its connection stays open
        began = time.monotonic()
        server.terminate()
        assert server.exit_code() == 0
        assert time.monotonic() - began < 2
        assert "stopping: nothing runs" in server.log


def test_G07_an_endless_stream_ends_at_the_limit_with_an_error_event(model: Path) -> None:
    with ServerProcess(model, "--shutdown-timeout", "0.5", fake={"interval": 0.05}) as server:
        streams = Streams(server.ready(), 2, ENDLESS)
        streams.wait_begun()
        began = time.monotonic()
        server.terminate()
        streams.wait_ended()
        for events in streams.events:
            assert events[-2]["error"]["code"] == "shutting_down"
            assert events[-1] == "[DONE]"
        assert server.exit_code() == 0
        assert 0.5 <= time.monotonic() - began < 4


def test_G07_a_client_that_does_not_read_does_not_hold_it_up(model: Path) -> None:
    fake = {"tokens": list(range(97, 123)), "tokens_per_step": 50, "max_model_len": 4_000_000, "pages": 250_000}
    with ServerProcess(model, "--shutdown-timeout", "0.5", fake=fake) as server, _deaf_client(server.ready()):
        with server.client() as client:
            eventually(lambda: metric(client, "generation_tokens_total") > 10_000)
        began = time.monotonic()
        server.terminate()
        assert server.exit_code() == 0
        assert time.monotonic() - began < 6


def _deaf_client(address: str) -> socket.socket:
    """Asks for an answer of megabytes and reads its first line only."""
    deaf = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    body = b'{"model": "m", "prompt": "hi", "max_tokens": 3000000, "stream": true}'
    deaf.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    assert deaf.recv(100).startswith(b"HTTP/1.1 200")
    return deaf


@pytest.mark.parametrize(
    ("environ", "flags", "status"),
    [
        ({"RUNPOD_ENDPOINT_ID": "4m7x2k9q"}, [], 204),
        ({"RUNPOD_POD_ID": "9q"}, ["--ping-loading-status", "503"], 503),
        ({"PILOTLIGHT_PING_LOADING_STATUS": "204"}, [], 204),
    ],
    ids=["at RunPod", "there, told otherwise", "elsewhere, told so"],
)
def test_ping_says_204_while_loading_where_that_is_not_ready(
    model: Path, tmp_path: Path, environ: dict[str, str], flags: list[str], status: int
) -> None:
    go = tmp_path / "go"
    with ServerProcess(model, *flags, fake={"ready_when": str(go)}, env=environ) as server:
        address = server.listening()
        loading = httpx.get(f"{address}/ping")
        assert (loading.status_code, loading.content == b"") == (status, status == 204)
        go.touch()
        server.ready()
        assert httpx.get(f"{address}/ping").status_code == 200


def test_port_health_is_a_second_port_of_the_same_server(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {"RUNPOD_ENDPOINT_ID": "4m7x2k9q", "PORT_HEALTH": str(port)}
    with ServerProcess(model, fake={}, env=environ) as server:
        address = server.ready()
        assert address != f"http://127.0.0.1:{port}"
        for each in (address, f"http://127.0.0.1:{port}"):
            assert httpx.get(f"{each}/ping").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_code() == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/ping")


def test_port_health_that_is_taken_is_told_by_its_name(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with ServerProcess(model, fake={}, env={"PORT_HEALTH": str(port)}) as server:
            assert server.exit_code() == 69
            server.wait_for(rf"cannot listen on 127.0.0.1:{port} \(.*\); choose another --host or --health-port$")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_G07_a_signal_while_the_model_loads_ends_it(model: Path, number: signal.Signals) -> None:
    with ServerProcess(model, fake={"ready_delay": 60}) as server, Held(server.listening()) as held:
        began = time.monotonic()
        server.process.send_signal(number)
        assert server.exit_code() == 0
        assert time.monotonic() - began < 4
        assert held.status() == 503
        assert "Traceback" not in server.log


def test_G07_a_signal_before_anything_is_imported_ends_it(model: Path) -> None:
    """The server stops itself at the moment when its heavy imports would begin."""
    patch = (
        "import os, signal, logging; begin = logging.basicConfig;"
        "logging.basicConfig = lambda **options: (begin(**options), os.kill(os.getpid(), signal.SIGTERM))"
    )
    with ServerProcess(model, fake={"ready_delay": 60}, patch=patch) as server:
        assert server.exit_code() == 0
        assert server.log == ""


@pytest.mark.parametrize("moment", ["main.raise_file_limit", "main.spawn_engine", "selectors.DefaultSelector"])
def test_G07_a_signal_where_python_drops_exceptions_ends_it(model: Path, moment: str) -> None:
    """One that is raised in a destructor, as in the import system's own callbacks, is printed and forgotten."""
    patch = f"""
import asyncio, os, selectors, signal
class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
make = {moment}
{moment} = lambda *given: Dropped() and make(*given)
"""
    with ServerProcess(model, fake={"ready_delay": 60}, patch=patch) as server:
        assert server.exit_code() == 0
        assert server.log == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_G07_a_second_signal_while_python_ends_changes_nothing(model: Path, number: signal.Signals) -> None:
    patch = f"import atexit, os; atexit.register(lambda: os.kill(os.getpid(), {int(number)}))"
    with ServerProcess(model, fake={}, patch=patch) as server:
        server.ready()
        server.terminate()
        assert server.exit_code() == 0
        assert "Traceback" not in server.log


def test_G07_a_second_signal_leaves_at_once(model: Path) -> None:
    with ServerProcess(model, fake={"interval": 0.05}) as server:
        streams_ended = threading.Event()

        def read() -> None:
            try:
                httpx.post(f"{server.ready()}/v1/completions", json=ENDLESS, timeout=20)
            except httpx.TransportError:
                streams_ended.set()

        thread = threading.Thread(target=read)
        thread.start()
        with server.client() as client:
            eventually(lambda: metric(client, "num_requests_running") == 1)
        pid = server.engine_pid()
        server.terminate()
        server.wait_for("stopping")
        began = time.monotonic()
        server.terminate()
        assert server.exit_code() == 0
        assert time.monotonic() - began < 1
        assert streams_ended.wait(10)
        thread.join()
        eventually(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid))


# --- clients that go away -------------------------------------------------------------------------------------


def _leave_stream_unread(client: httpx.Client) -> None:
    with client.stream("POST", "/v1/completions", json=ENDLESS):
        pass


def _leave_after_two_events(client: httpx.Client) -> None:
    with client.stream("POST", "/v1/completions", json=ENDLESS) as response:
        events = sse(response)
        next(events)
        next(events)


def _leave_without_stream(client: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=ENDLESS | {"stream": False}, timeout=0.3)


@pytest.fixture(scope="module")
def slow(model: Path) -> Iterator[ServerProcess]:
    """Two sequences at a time, a step in 20 ms: an endless request takes five seconds."""
    with ServerProcess(model, "--max-num-seqs", "2", fake={"interval": 0.02}) as server:
        yield server


@pytest.mark.parametrize("leave", [_leave_stream_unread, _leave_after_two_events, _leave_without_stream])
def test_G01_a_client_that_leaves_stops_its_request(
    slow: ServerProcess, leave: Callable[[httpx.Client], None]
) -> None:
    with slow.client() as observer:
        aborted = metric(observer, "request_success_total", ',finished_reason="abort"')
        with slow.client() as client:
            leave(client)
        eventually(lambda: metric(observer, "request_success_total", ',finished_reason="abort"') == aborted + 1, 2)
        eventually(lambda: metric(observer, "num_requests_running") == 0, 2)
        assert metric(observer, "kv_cache_pages", ',state="used"') == 0


def test_G01_a_client_that_leaves_the_queue_frees_its_place(slow: ServerProcess) -> None:
    with slow.client() as observer, ExitStack() as running:
        for _ in range(2):
            running.enter_context(observer.stream("POST", "/v1/completions", json=ENDLESS))
        for streaming in (True, False):
            with slow.client() as client:
                if streaming:
                    with client.stream("POST", "/v1/completions", json=ENDLESS):
                        eventually(lambda: metric(observer, "num_requests_waiting") == 1)
                else:
                    _leave_without_stream(client)
            eventually(lambda: metric(observer, "num_requests_waiting") == 0, 2)
        assert metric(observer, "num_requests_running") == 2
    with slow.client() as observer:
        eventually(lambda: metric(observer, "num_requests_running") == 0, 2)


def test_G01_a_client_that_leaves_during_prefill(model: Path) -> None:
    with ServerProcess(model, fake={"prefill": 60}) as server, server.client() as observer:
        for leave in (_leave_stream_unread, _leave_without_stream):
            with server.client() as client:
                leave(client)
        eventually(lambda: metric(observer, "request_success_total", ',finished_reason="abort"') == 2)
        eventually(lambda: metric(observer, "num_requests_running") == 0)


def test_a_stop_string_ends_the_sequence_in_the_engine_too(slow: ServerProcess) -> None:
    with slow.client() as client:
        reply = client.post("/v1/completions", json=ENDLESS | {"stream": False, "stop": "c"}).json()
        assert reply["choices"][0]["text"] == "ab"
        assert reply["usage"]["completion_tokens"] == 3
        eventually(lambda: metric(client, "num_requests_running") == 0, 2)
