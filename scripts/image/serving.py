"""The running container: its answer, the ledger of its start, what it may do, and how it leaves.

Each way to leave has a container of its own: SIGTERM while it loads, while it idles (as root, as some platforms run
it) and under streams.
"""

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

from .containers import MODEL, PODMAN, Server, inspect, run, say

STARTS = 5
STREAMS, TOKENS = 3, 64
PROMPT_EXIT = 3.0  # seconds that a container with nothing to finish may take to be gone


def check() -> dict[str, Any]:
    """The starts, for the record."""
    starts = _measure_starts()
    with Server("streams") as server:
        server.wait_until_ready()
        _check_answer(server)
        _check_confinement(server)
        _check_streams_end(server)
    _check_idle_exit()
    _check_loading_exit()
    return starts


def _measure_starts() -> dict[str, Any]:
    """Containers one after the other, all as strict as can be; the ledger of the median one, its path printed."""
    starts: list[tuple[float, dict[str, Any]]] = []
    for _ in range(STARTS):
        with Server("start") as server:
            seconds = server.wait_until_ready()
            body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 1}
            assert server.request("POST", "/v1/completions", body)[0] == 200
            starts.append((seconds, _read_ledger(server)))
            server.signal(signal.SIGTERM)
            assert server.exit_code() == 0
    starts.sort(key=lambda start: start[1]["seconds"]["ready"])
    outside, ledger = starts[len(starts) // 2]
    for process, name, start, end in ledger["critical_path"]:
        say(f"start: {start * 1e3:6.0f} ms  {process} {name}, to {end * 1e3:.0f} ms")
    inside = [start["seconds"]["ready"] for _, start in starts]
    say(
        f"median of {STARTS} starts: ready {ledger['seconds']['ready']:.3f} s after the start of process 1 "
        f"({inside[0]:.3f} to {inside[-1]:.3f}), {outside:.2f} s after podman run"
    )
    return {
        "starts": STARTS,
        "ready_s": inside,
        "podman_run_to_ready_s": [round(seconds, 3) for seconds, _ in starts],
        "median": ledger,
    }


def _check_answer(server: Server) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    body = {"model": MODEL, "messages": [question], "temperature": 0}
    status, answer = server.request("POST", "/v1/chat/completions", body)
    assert status == 200, answer
    text = json.loads(answer)["choices"][0]["message"]["content"]
    say(f"the container answers: {text!r}")
    assert "Paris" in text


def _read_ledger(server: Server) -> dict[str, Any]:
    """What of /startup is recorded."""
    status, body = server.request("GET", "/startup")
    assert status == 200, body
    ledger = json.loads(body)
    assert ledger["state"] == "ready"
    seconds = ledger["seconds"]
    assert 0 < seconds["port_open"] < seconds["ready"] < seconds["first_token"]
    path = [span for span in ledger["spans"] if span["critical"]]
    assert path, ledger
    return {
        "device": ledger["device"],
        "origin": ledger["origin"],
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "unattributed": round(ledger["unattributed"], 4),
        # process, name, start and end in seconds
        "critical_path": [
            [span["process"], span["name"], round(span["start"], 4), round(span["end"], 4)] for span in path
        ],
    }


def _check_confinement(server: Server) -> None:
    """What the processes in the container may do, and what the server has left on its one writable disk: nothing."""
    assert server.execute("id -u") == "65532"
    run([*PODMAN, "exec", server.name, *inspect()["Healthcheck"]["Test"][1:]], quiet=True)
    assert server.execute("touch /srv/x /model/x /venv/x 2>/dev/null || echo refused") == "refused"
    assert server.execute("grep CapEff /proc/1/status").split()[1].strip("0") == ""
    assert server.execute("grep NoNewPrivs /proc/1/status").split()[1] == "1"
    assert server.execute("tr '\\0' ' ' </proc/1/cmdline").split()[-2:] == ["/venv/bin/pilotlight", "serve"]
    assert server.execute("find /tmp -type f") == ""


def _check_streams_end(server: Server) -> None:
    """SIGTERM under streams: they run to their ends, a new request is refused, the container leaves with 0."""
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": TOKENS, "ignore_eos": True}
    streams = [server.stream(body | {"seed": number}) for number in range(STREAMS)]
    for events in streams:
        next(events)
    stopped_at = server.signal(signal.SIGTERM)
    while not _is_refused(server):
        assert time.monotonic() - stopped_at < PROMPT_EXIT, "a request after SIGTERM was not refused"
    for events in streams:
        assert _last(events)["usage"]["completion_tokens"] == TOKENS
    code = server.exit_code()
    say(f"SIGTERM under {STREAMS} streams: all ended, left with {code} after {time.monotonic() - stopped_at:.1f} s")
    assert code == 0


def _last(events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    last: dict[str, Any] = {}
    for event in events:
        last = event
    return last


def _is_refused(server: Server) -> bool:
    try:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 1}
        return server.request("POST", "/v1/completions", body)[0] == 503
    except ConnectionError:
        return True


def _check_idle_exit() -> None:
    with Server("root", "serve", "--max-model-len", "512", options=["--user", "0:0"]) as server:
        server.wait_until_ready()
        assert server.execute("id -u") == "0"
        stopped_at = server.signal(signal.SIGTERM)
        _require_prompt_exit(server, stopped_at, "idle, as root")


def _check_loading_exit() -> None:
    with Server("loading", "--max-model-len", "512") as server:
        server.wait_for_port()
        stopped_at = server.signal(signal.SIGTERM)
        _require_prompt_exit(server, stopped_at, "while it loads")
        assert "serving" not in server.log, "it was ready before the signal came: nothing was tested"


def _require_prompt_exit(server: Server, stopped_at: float, what: str) -> None:
    code = server.exit_code()
    seconds = time.monotonic() - stopped_at
    say(f"SIGTERM {what}: left with {code} after {seconds:.2f} s")
    assert code == 0
    assert seconds < PROMPT_EXIT
