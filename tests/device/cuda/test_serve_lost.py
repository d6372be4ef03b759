"""A GPU that is lost or hangs under streams: each of them ends, and the server goes on with a new engine or exits."""

import re
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from tests.front.servers import eventually, metric, sse
from tests.models import write_chain

from .servers import CHAIN, COMPLETIONS, TEXT, CudaServer, ask, body_of, endings

STREAMS = 10  # of which four run at once
TOLD = {"engine_died", "engine_restarting", "length"}  # how a stream may end: "length" before the fault, or behind it

# Launches of the first request's prompt, of a decode step behind it, and whatever comes later; and what is told.
DRAWN = Random(4)
LAUNCHES = [
    (DRAWN.randrange(*among), DRAWN.choice([700, 716, 719])) for among in [(40, 60), (60, 100), *[(100, 2000)] * 6]
]
# Calls that fail while a graph is captured, which may be before anybody asks; in the copy of a step's metadata; in
# the launch of a step, which may find no memory; in the wait for one.
CALLS = [("cuGraphInstantiate", 4, 719)]
MORE_CALLS = [
    *(("cuStreamBeginCapture", 2, 719), ("cuStreamEndCapture", 5, 719), ("cuGraphUpload", 1, 719)),
    *(("cuMemcpyHtoDAsync", 80, 719), ("cuGraphLaunch", 40, 700), ("cuGraphLaunch", 30, 2)),
    ("cuEventSynchronize", 90, 719),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain(tmp_path_factory.mktemp("models") / "chain", CHAIN, loop=True, head_dim=64)


def streams(max_tokens: int = 200) -> list[dict[str, Any]]:
    return [body_of(f"{n} " * (1 + 3 * n), max_tokens=max_tokens) for n in range(STREAMS)]


def meet(server: CudaServer, words: str) -> list[str]:
    """Ten streams meet the fault: all of them end, the log says what happened, and the next engine answers."""
    address = server.ready()
    told = endings(address, streams())
    assert set(told) <= TOLD
    server.wait_for(words)
    server.wait_for(r"death 1 of 3, starting it again in 0\.2 s")
    with httpx.Client(base_url=address, timeout=30) as client:
        eventually(lambda: client.get("/health").status_code == 200, 30)
        assert endings(address, streams(max_tokens=8)) == ["length"] * STREAMS
        assert ask(client, "1 ", max_tokens=30)["text"] == TEXT[:30]
        assert metric(client, "engine_restarts_total") == 1
    server.terminate()
    assert server.exit_code() == 0
    assert "Traceback" not in server.log
    return told


def lose_at(model: Path, tmp_path: Path, launch: int, error: int) -> None:
    with CudaServer(model, launch_error=error, fault_at_launch=launch, faults_once=tmp_path / "fault") as server:
        assert "engine_died" in meet(server, rf"\({error}\), .*lost to this process.*; death 1 of 3")
        server.wait_for(r"cuda:0 is lost; its last launches, the latest first: \w+ \[[\d, ]+\], ")


def test_G04_a_gpu_that_is_lost_in_a_step_ends_every_stream_and_another_engine_goes_on(
    model: Path, tmp_path: Path
) -> None:
    lose_at(model, tmp_path, launch=DRAWN.randrange(100, 1000), error=700)


@pytest.mark.slow
@pytest.mark.parametrize(("launch", "error"), LAUNCHES)
def test_G04_a_gpu_that_is_lost_at_any_launch(model: Path, tmp_path: Path, launch: int, error: int) -> None:
    lose_at(model, tmp_path, launch, error)


@pytest.mark.parametrize(
    ("call", "nth", "error"), [*CALLS, *(pytest.param(*values, marks=pytest.mark.slow) for values in MORE_CALLS)]
)
def test_G04_a_call_that_fails_in_a_step(model: Path, tmp_path: Path, call: str, nth: int, error: int) -> None:
    with CudaServer(model, fail_call=call, fail_at=nth, fail_error=error, faults_once=tmp_path / "fault") as server:
        meet(server, rf"{call}: .*\({error}\), .*; death 1 of 3")


def test_G04_a_gpu_that_is_lost_too_often_ends_the_server(model: Path) -> None:
    with CudaServer(model, "--max-engine-deaths", "2", launch_error=700, fault_at_launch=100) as server:
        address = server.ready()
        for _ in range(2):
            eventually(lambda: httpx.get(address + "/health").status_code == 200, 30)
            assert "engine_died" in endings(address, streams())
        server.wait_for(r"^pilotlight: the engine died 2 times .* CUDA_ERROR_ILLEGAL_ADDRESS \(700\), .*lost to this")
        assert server.exit_code() == 70
        assert len(re.findall("^pilotlight: ", server.log, re.MULTILINE)) == 1


def test_G04_a_gpu_that_hangs_in_a_step_ends_the_engine_before_the_front_does(model: Path, tmp_path: Path) -> None:
    flags = ("--engine-timeout", "4")
    with CudaServer(model, *flags, hang_at_launch=120, faults_once=tmp_path / "fault") as server:
        told = meet(
            server,
            r"cuda:0: a step has not ended within 3\.6 s, the GPU hangs; its last launches, the latest first: "
            r"graph_step_plain \[\d\], ",
        )
        assert "engine_died" in told


def test_a_server_that_is_told_to_stop_while_its_gpu_hangs_does_so(model: Path) -> None:
    with CudaServer(model, "--shutdown-timeout", "1", hang_at_launch=120) as server, server.client() as client:
        with client.stream("POST", COMPLETIONS, json=streams()[0] | {"stream": True}) as response:
            events = sse(response)
            next(events)
            server.terminate()
            assert [event["error"]["code"] for event in events if "error" in event] == ["shutting_down"]
        assert server.exit_code() == 0
