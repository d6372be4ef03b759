"""GET /startup, the trace, the log line and the gauges: one record of the start, whole, and never written over."""

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message

from pilotlight.front.startup import Startup
from pilotlight.timeline import Exec, Timeline
from scripts.bench_server import free_port
from tests.front.servers import ROOT, ServerProcess, eventually, metric, stream
from tests.models import write_chain

CHAIN = tuple(range(97, 123))  # a to z, and again
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BODY = {"model": "m", "prompt": "abc", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain(tmp_path_factory.mktemp("models") / "chain", CHAIN, loop=True)


@contextmanager
def started(model: Path, *flags: str, **options: Any) -> Iterator[tuple[ServerProcess, httpx.Client]]:
    """A server whose exec is timed here, as scripts/measure_startup does it."""
    env = options.pop("env", {}) | {"PILOTLIGHT_EXEC_TIME": repr(time.monotonic())}
    with ServerProcess(model, *flags, env=env, **options) as server, server.client() as client:
        yield server, client


def ledger(client: httpx.Client) -> dict[str, Any]:
    response = client.get("/startup")
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


def settled(client: httpx.Client) -> dict[str, Any]:
    """Once the engine has said all that it says of its start, which is after the first token."""
    eventually(lambda: any(each["name"] == "prepare" and each["end"] for each in ledger(client)["spans"]))
    return ledger(client)


def span(found: dict[str, Any], process: str, name: str) -> dict[str, Any]:
    (only,) = [each for each in found["spans"] if (each["process"], each["name"]) == (process, name)]
    return dict(only)


def check_complete(found: dict[str, Any], answer: str = "wait for token") -> None:
    """What must hold of any start up to its first token."""
    seconds = found["seconds"]
    end = seconds["first_token"]
    assert 0 < seconds["port_open"] < seconds["ready"] < end
    assert 0 <= found["unattributed"] <= max(0.05 * end, 0.010)
    path = sorted((each for each in found["spans"] if each["critical"]), key=lambda each: each["end"])
    assert path[0]["process"] == "front"
    assert (path[0]["name"], path[0]["start"]) == ("python", 0.0)
    assert path[-1]["end"] == end
    # Told twice: what the path does not cover is what is unattributed.
    covered, reached = 0.0, 0.0
    for each in path:
        covered += max(0.0, each["end"] - max(each["start"], reached))
        reached = max(reached, each["end"])
    assert end - covered <= found["unattributed"] + 1e-6
    for each in found["spans"]:
        assert each["start"] >= 0
        assert each["end"] is None or each["end"] >= each["start"]
    starts = [each["start"] for each in found["spans"]]
    assert starts == sorted(starts)
    names = {(each["process"], each["name"]) for each in found["spans"]}
    assert names >= {
        *(("front", name) for name in ("python", "first imports", "listen", "start engine", "settings", "imports")),
        *(("front", name) for name in ("server", "text", "accept", "read request", "tokenize", "submit", answer)),
        *(("engine", name) for name in ("python", "first imports", "imports", "config", "device", "plan", "weights")),
        *(("engine", name) for name in ("kv cache", "report", "wait for work", "prefill")),
    }


@pytest.mark.parametrize("dtype", ["auto", "float32"], ids=["native", "numpy"])
def test_a_queued_request_s_start_is_complete(model: Path, dtype: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    env = {"PILOTLIGHT_EXEC_TIME": repr(began := time.monotonic())}
    with ServerProcess(model, "--device", "cpu", "--dtype", dtype, "--startup-trace", str(trace), env=env) as server:
        with httpx.Client(base_url=server.listening(), timeout=30) as client:
            events = stream(client, COMPLETIONS, BODY)
            took = time.monotonic() - began
            assert events[0]["choices"][0]["text"] == "d"
            found = settled(client)
            eventually(trace.exists)
        server.terminate()
        assert server.exit_code() == 0
    check_complete(found)
    assert found["object"] == "startup"
    assert found["origin"] == "environment"
    assert found["state"] == "ready"
    assert found["model"] == "m"
    assert found["device"].startswith("cpu numpy" if dtype == "float32" else "cpu native ")
    assert found["seconds"]["first_token"] < took
    assert span(found, "engine", "weights")["bytes"] > 1000
    spawned = span(found, "engine", "python")["start"]
    assert found["seconds"]["port_open"] <= spawned <= span(found, "front", "start engine")["end"]
    said = re.search(r"ready in (\d+) ms: ", server.log)
    assert said
    assert int(said[1]) == pytest.approx(found["seconds"]["ready"] * 1000, abs=1)
    events = [event for event in json.loads(trace.read_bytes())["traceEvents"] if event["ph"] == "X"]
    for before, after in itertools.pairwise(sorted(events, key=lambda event: (event["tid"], event["ts"]))):
        if before["tid"] == after["tid"]:
            assert before["ts"] + before["dur"] <= after["ts"] + 0.2, "a row's events may not overlap"
    drawn = {event["name"] for event in events}
    assert drawn | {"prepare"} == {each["name"] for each in found["spans"]}
    assert [file.name for file in tmp_path.iterdir()] == [trace.name], "it is written beside, and takes its name"


def test_a_late_request_s_wait_is_a_span_of_its_own(model: Path) -> None:
    with started(model, "--device", "cpu") as (_, client):
        before = ledger(client)
        assert before["seconds"]["first_token"] is None
        assert before["state"] == "ready"
        assert before["unattributed"] <= max(0.05 * before["seconds"]["ready"], 0.010)
        last = max((each for each in before["spans"] if each["critical"]), key=lambda each: each["end"])
        assert (last["name"], last["end"]) == ("wait for engine", before["seconds"]["ready"])
        assert client.post(COMPLETIONS, json=BODY | {"model": "other"}).status_code == 404  # which is no answer
        stream(client, COMPLETIONS, BODY)
        found = settled(client)
        check_complete(found)
        waited = span(found, "front", "wait for a request")
        assert waited["critical"]
        assert waited["start"] == pytest.approx(found["seconds"]["ready"])
        stream(client, CHAT, {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2})
        assert ledger(client) == found
        assert metric(client, "startup_seconds", ',until="ready"') == found["seconds"]["ready"]
        assert metric(client, "startup_seconds", ',until="first_token"') == found["seconds"]["first_token"]
        weights = span(found, "engine", "weights")
        told = metric(client, "startup_phase_seconds", ',phase="engine weights"')
        assert told == pytest.approx(weights["end"] - weights["start"])


def test_an_answer_that_is_not_streamed_ends_the_start_when_it_is_whole(model: Path) -> None:
    with started(model, "--device", "cpu") as (_, client):
        assert client.post(COMPLETIONS, json=BODY).status_code == 200
        found = ledger(client)
    check_complete(found, answer="answer")
    assert span(found, "front", "answer")["end"] == found["seconds"]["first_token"]
    assert span(found, "engine", "prefill")["critical"]


def test_while_it_loads_the_start_is_told_as_far_as_it_has_come(model: Path, tmp_path: Path) -> None:
    may_be_ready = tmp_path / "go"
    with (
        ServerProcess(model, fake={"ready_when": str(may_be_ready)}) as server,
        httpx.Client(base_url=server.listening(), timeout=30) as client,
    ):
        eventually(lambda: any(each["name"] == "wait for engine" for each in ledger(client)["spans"]))
        found = ledger(client)
        assert (found["state"], found["device"]) == ("starting", None)
        assert (found["seconds"]["ready"], found["seconds"]["first_token"]) == (None, None)
        assert span(found, "front", "wait for engine")["end"] is None
        assert span(found, "front", "text")["end"] is not None
        assert not any(each["critical"] for each in found["spans"])
        may_be_ready.touch()
        server.ready()
        found = ledger(client)
        assert span(found, "front", "wait for engine")["end"] == found["seconds"]["ready"]
        assert span(found, "engine", "load")["bytes"] == 1000


def test_without_an_exec_time_the_kernel_s_is_used_and_nonsense_is_told(model: Path) -> None:
    with ServerProcess(model, fake={}, env={"PILOTLIGHT_EXEC_TIME": "1e99"}) as server, server.client() as client:
        assert ledger(client)["origin"] == "proc"
        assert len(re.findall("PILOTLIGHT_EXEC_TIME='1e99' is passed over", server.log)) == 1
    with ServerProcess(model, fake={}) as server, server.client() as client:
        assert ledger(client)["origin"] == "proc"
        assert "EXEC_TIME" not in server.log


@pytest.mark.parametrize("first_token", [True, False], ids=["after the first token", "before any token"])
def test_an_engine_s_restart_does_not_touch_the_record(model: Path, tmp_path: Path, first_token: bool) -> None:
    with started(model, fake={"die_after": 4, "once": str(tmp_path / "died")}) as (server, client):
        if first_token:
            stream(client, COMPLETIONS, BODY | {"max_tokens": 2})
        before = ledger(client)
        with httpx.Client(base_url=server.ready(), timeout=30) as other:
            if first_token:
                stream(other, COMPLETIONS, BODY | {"max_tokens": 50})
            else:
                os.kill(server.engine_pid(), signal.SIGKILL)
        server.wait_for("the engine is ready again")
        assert len(stream(client, COMPLETIONS, BODY)) > 1
        after = ledger(client)
    assert after["seconds"]["first_token"] == before["seconds"]["first_token"]
    assert (after["seconds"]["first_token"] is None) != first_token
    assert after == before | {"state": "ready"}


def test_the_trace_is_written_at_the_end_if_no_token_came(model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    with started(model, "--startup-trace", str(trace), fake={}) as (server, _):
        assert not trace.exists()
        server.terminate()
        assert server.exit_code() == 0
    assert {event["name"] for event in json.loads(trace.read_bytes())["traceEvents"]} >= {"python", "load", "text"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is not a file"),
        ("folder", "is not a file"),
        ("pipe", "is not a file"),
        ("link", "is not a file"),
        ("device", "is not a file"),
        ("not there/trace.json", "there is no directory "),
    ],
)
def test_a_trace_that_could_not_be_written_is_refused_at_the_start(
    model: Path, tmp_path: Path, name: str, said: str
) -> None:
    """A file that is written beside and renamed would take the place of /dev/null too."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    there = set(tmp_path.iterdir())
    file = {"": "", "device": os.devnull}.get(name, str(tmp_path / name))
    with ServerProcess(model, "--startup-trace", file, fake={}) as server:
        assert server.exit_code() == 2
    assert len(server.lines) == 1
    assert f"--startup-trace (or PILOTLIGHT_STARTUP_TRACE) {file!r}: {said}" in server.log
    assert set(tmp_path.iterdir()) == there


def test_a_trace_takes_the_place_of_a_file_and_goes_where_a_link_leads(model: Path, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("old")
    (tmp_path / "link.json").symlink_to("old.json")
    with started(model, "--startup-trace", str(tmp_path / "link.json"), fake={}) as (server, _):
        server.terminate()
        assert server.exit_code() == 0
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "old.json").read_bytes())["traceEvents"]


def test_a_trace_that_cannot_be_written_after_all_is_one_line_and_no_harm(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "there" / "trace.json"
    file.parent.mkdir()
    with started(model, "--startup-trace", str(file), fake={}) as (server, client):
        file.mkdir()
        assert stream(client, COMPLETIONS, BODY)[-1] == "[DONE]"
        server.wait_for(f"--startup-trace {re.escape(str(file))}: cannot be written: Is a directory")
    assert list(file.parent.iterdir()) == [file], "what was written beside is gone"


async def _answer(startup: Startup) -> list[Message]:
    """A streamed answer of two bodies: what was sent."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    startup.arrive()
    startup.mark("tokenize")
    write = startup.first_writer(send)
    for body in (b": keep-alive\n\n", b"data: 1\n\n", b"data: 2\n\n"):
        await write({"type": "http.response.body", "body": body, "more_body": True})
    return sent


def test_a_log_that_cannot_be_written_is_no_reason_to_start_the_engine_again(model: Path) -> None:
    """The waterfall is printed as well as logged: on a full disk, or into a pipe that is closed, that is no death."""
    port = free_port()
    command = [sys.executable, "-m", "pilotlight", "serve", str(model), "--port", str(port), "--log-level", "debug"]
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen(command, stderr=full, cwd=ROOT)

    def is_ready() -> bool:
        with suppress(httpx.TransportError):
            return client.get("/health").status_code == 200
        return False

    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            eventually(is_ready, 30)
            assert metric(client, "engine_restarts_total") == 0
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("comes", ["before the text is loaded", "meanwhile"])
def test_a_request_s_bytes_are_awaited_from_the_server_s_first_moment(comes: str) -> None:
    """Its body may take longer than all that is loaded meanwhile, so that the path leads through it."""

    async def run() -> None:
        now = time.monotonic()
        timeline = Timeline("front")
        timeline.add("listen", now - 1.5, now - 1.0)
        timeline.add("imports", now - 1.0, now - 0.5)
        startup = Startup(timeline, Exec(now - 1.5, "environment"), None)
        if comes == "meanwhile":
            timeline.add("server", now - 0.5, now - 0.3)
        task = asyncio.create_task(_answer(startup))
        await asyncio.sleep(0)
        if comes != "meanwhile":
            startup.note_loading()
        await task
        found = startup.report("m", "ready")
        assert found["unattributed"] < 0.01
        critical = {each["name"] for each in found["spans"] if each["critical"]}
        assert critical >= {"imports", "server"}
        assert ("no request yet" in critical) == (comes == "meanwhile")
        for before, after in itertools.pairwise(span for span in timeline.spans if span.thread == "main"):
            assert before.end == after.start

    asyncio.run(run())


def test_the_first_of_several_answers_closes_the_record_and_later_ones_pay_nothing() -> None:
    class Connection:
        def __init__(self) -> None:
            self.received: list[bytes] = []

        def data_received(self, data: bytes) -> None:
            self.received.append(data)

    async def run() -> None:
        timeline = Timeline("front")
        timeline.add("listen", 1.0, 2.0)
        startup = Startup(timeline, Exec(0.5, "proc"), None)
        early = startup.watched(Connection)()
        assert [len(await task) for task in [asyncio.create_task(_answer(startup)) for _ in range(3)]] == [3] * 3
        names = [span.name for span in timeline.spans]
        assert names == ["listen", "server", "accept", "tokenize", "wait for token", "write"]
        found = startup.report("m", "ready")
        assert len(await asyncio.create_task(_answer(startup))) == 3
        startup.note_token("answer")
        assert startup.report("m", "ready") == found

        async def send(message: Message) -> None:
            pass

        assert startup.first_writer(send) is send
        early.data_received(b"1")
        assert "noting" not in repr(early.data_received)
        early.data_received(b"2")
        assert early.received == [b"1", b"2"]
        assert "data_received" not in vars(startup.watched(Connection)())

    asyncio.run(run())


def test_the_ledger_needs_the_api_key(model: Path) -> None:
    with started(model, "--api-key", "secret", fake={}) as (_, client):
        assert client.get("/startup").status_code == 401
        assert client.get("/startup", headers={"authorization": "Bearer secret"}).json()["object"] == "startup"
