"""The worker's life beside the scripted engine: many jobs at once, stops, an engine's death, the ways out."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.front.runpod.job_api import JobApi
from tests.front.servers import ServerProcess, eventually, metric
from tests.models import write_tiny

LONG = {"prompt": "hi", "sampling_params": {"max_tokens": 120}, "stream": True}
SHORT = {"prompt": "hi", "sampling_params": {"max_tokens": 4}}
TAKING = "taking jobs from RunPod's queue"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def api() -> Iterator[JobApi]:
    with JobApi() as api:
        yield api


def worker(model: Path, api: JobApi, *flags: str, fake: dict[str, Any], patch: str = "") -> ServerProcess:
    return ServerProcess(model, "--runpod-queue", *flags, fake=fake, env=api.environ, patch=patch)


def events(api: JobApi, id: str) -> list[str]:
    return "".join(part["output"] for part in api.parts[id]).split("\n\n")


def test_jobs_run_at_once_and_one_alone_can_be_stopped(model: Path, api: JobApi) -> None:
    with worker(model, api, "--max-num-seqs", "4", fake={"interval": 0.02}) as server, server.client() as client:
        server.wait_for(f"{TAKING}, 4 at once")
        ids = api.put(*[LONG] * 4)
        last = api.put(SHORT)[0]
        eventually(lambda: metric(client, "num_requests_running") == 4)
        api.wait(lambda: any(set(ids) == set(ping.get("job_id", [""])[0].split(",")) for ping in api.pings))
        assert max(api.takes) == 4
        assert not api.results
        api.stop(ids[1])
        assert api.result(last)["output"][0]["choices"][0]["text"] == "abca"  # in the place of the stopped one
        assert metric(client, "request_success_total", ',finished_reason="abort"') == 1
        for id in (ids[0], *ids[2:]):
            assert "".join(api.result(id)["output"]).endswith("data: [DONE]\n\n")
        assert ids[1] not in api.results
        assert len(psutil.Process(server.process.pid).children()) == 1  # the engine: the ping is no fork


def test_jobs_wait_for_an_engine_that_is_restarted(model: Path, api: JobApi, tmp_path: Path) -> None:
    fake = {"once": str(tmp_path / "died"), "die_after": 3}
    patch = "from pilotlight.front import supervisor; supervisor.FIRST_BACKOFF = 1.0"
    with worker(model, api, "--max-num-seqs", "4", fake=fake, patch=patch) as server:
        server.wait_for(TAKING)
        dead = api.put(SHORT)[0]
        error = api.result(dead)["output"][0]
        assert (error["object"], error["code"], error["status"]) == ("error", "engine_died", 503)
        later = api.put(*[SHORT] * 4)
        for id in later:
            assert api.result(id)["output"][0]["choices"][0]["text"] == "abca"
        server.wait_for("the engine is ready again")


def test_engine_that_fails_to_load_takes_no_job(model: Path, api: JobApi) -> None:
    api.put(SHORT)
    with worker(model, api, fake={"ready_delay": 2.0, "fatal": ["weights: 4 bytes are missing", 65]}) as server:
        assert server.exit_code() == 65
        assert server.lines[-1] == "pilotlight: weights: 4 bytes are missing\n"
    assert not api.takes
    assert not api.pings


def test_sigterm_does_not_wait_for_the_poll(model: Path, api: JobApi) -> None:
    with worker(model, api, fake={}) as server:
        server.wait_for(TAKING)
        api.wait(lambda: api.polls)
        told = time.monotonic()
        server.terminate()
        assert server.exit_code() == 0
        assert time.monotonic() - told < 5
        api.wait(lambda: any("job-take" in path for path in api.gone))
        assert "Traceback" not in server.log


def test_sigterm_before_anything_is_loaded(model: Path, api: JobApi) -> None:
    with worker(model, api, fake={"ready_delay": 60}) as server:
        server.listening()  # the SDK's import begins
        server.terminate()
        assert server.exit_code() == 0
        assert "Traceback" not in server.log
    assert not api.takes


def test_sigterm_lets_jobs_finish(model: Path, api: JobApi) -> None:
    with worker(model, api, fake={"interval": 0.01}) as server:
        server.wait_for(TAKING)
        running = api.put(LONG)[0]
        api.wait(lambda: api.parts[running])
        server.terminate()
        server.wait_for("stopping")
        late = api.put(SHORT)[0]
        api.accepts.clear()
        api.result(running)
        with pytest.raises(subprocess.TimeoutExpired):  # an answer counts once RunPod has it
            server.exit_code(1.5)
        api.accepts.set()
        assert server.exit_code() == 0
        assert events(api, running)[-2:] == ["data: [DONE]", ""]
        assert "".join(api.results[running]["output"]).count('"text":"a"') == 40
        assert late not in api.parts


def test_jobs_that_outlast_the_drain_are_told(model: Path, api: JobApi) -> None:
    with worker(model, api, "--shutdown-timeout", "0.2", fake={"interval": 0.2}) as server:
        server.wait_for(TAKING)
        streamed, whole = api.put(LONG, LONG | {"stream": False})  # 24 s
        api.wait(lambda: api.parts[streamed])
        server.terminate()
        assert server.exit_code() == 0
        *_, error, done, _ = events(api, streamed)
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert done == "data: [DONE]"
        assert api.results[whole]["output"][0]["code"] == "shutting_down"
        assert "Traceback" not in server.log


def test_sdk_s_test_api(model: Path) -> None:
    flags = ("--runpod-queue", "--rp_serve_api", "--rp_api_host", "127.0.0.1", "--rp_api_port", "0")
    with ServerProcess(model, *flags, fake={}) as server:
        address = server.wait_for(r"RunPod's test API at (http://\S+)")[1]
        with httpx.Client(base_url=address, timeout=20) as client:
            done = client.post("/runsync", json={"input": SHORT}).json()
            assert done["status"] == "COMPLETED"
            assert done["output"][0]["choices"][0]["text"] == "abca"
            id = client.post("/run", json={"input": SHORT | {"stream": True}}).json()["id"]
            parts = client.post(f"/stream/{id}").json()["stream"]
            assert "".join(part["output"] for part in parts).endswith("data: [DONE]\n\n")
            id = client.post("/run", json={"input": {}}).json()["id"]
            (error,) = client.post(f"/status/{id}").json()["output"]
            assert error["status"] == 400
        assert httpx.get(f"{server.ready()}/health").status_code == 200
        server.terminate()
        assert server.exit_code() == 0
