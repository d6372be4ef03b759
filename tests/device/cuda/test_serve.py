"""`pilotlight serve --device cuda` as a process: its answers, and how it ends where the GPU fails it."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import softgpu
from tests.front.servers import ServerProcess, sse, stream
from tests.models import llama_tensors, write_chain

from .bench import PTX, config_of, write_snapshot

CHAIN = tuple(range(97, 123))  # a to z, and again
TEXT = "abcdefghijklmnopqrstuvwxyz" * 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain(tmp_path_factory.mktemp("models") / "chain", CHAIN, loop=True, head_dim=64)


def serve(model: Path, *flags: str, **knobs: Any) -> ServerProcess:
    environment = softgpu.environment(ptx_directory=PTX, **knobs)
    return ServerProcess(model, "--device", "cuda", "--max-num-seqs", "4", *flags, env=environment)


def ask(client: httpx.Client, number: int, max_tokens: int = 12) -> list[Any]:
    body = {"model": "m", "prompt": f"{number} ", "max_tokens": max_tokens, "temperature": 0}
    return stream(client, "/v1/completions", body)


def text_of(events: list[Any]) -> str:
    return "".join(event["choices"][0]["text"] for event in events[:-1] if event["choices"])


def test_it_answers_streams_that_join_and_leave_without_a_finding(model: Path, tmp_path: Path) -> None:
    """With the oldest driver that is taken, which has none of the functions that came later."""
    report = tmp_path / "report.json"
    with serve(model, report=report, driver_version=12020) as server, server.client() as client:
        with ThreadPoolExecutor(6) as pool:
            lengths = [20, 3, 12, 9, 1, 15]
            answers = list(pool.map(lambda at: ask(client, at, lengths[at]), range(6)))
        assert [text_of(events) for events in answers] == [TEXT[:length] for length in lengths]
        again = [text_of(ask(client, 7, 20)) for _ in range(2)]
        assert again == [TEXT[:20]] * 2
        server.wait_for(r"cuda:0: NVIDIA A100.* \(compute capability 8\.0\), 151\.\d+ GB free")
        server.terminate()
        assert server.exit_code() == 0
    run = json.loads(report.read_text())
    assert run["findings"] == []
    assert run["counters"]["driver"]["launches"] > 100


@pytest.mark.parametrize(
    ("knobs", "code", "words"),
    [
        ({"devices": 0}, 69, r"cuInit: CUDA_ERROR_NO_DEVICE \(100\), .*no GPU is visible"),
        ({"driver_version": 12010}, 69, r"the NVIDIA driver is of CUDA 12\.1, and at least 12\.2"),
        ({"init_error": 803}, 69, r"\(803\), .*reboot the host after a driver update"),
        ({"context_error": 46}, 69, r"\(46\), .*exclusive mode"),
        ({"capability": 75}, 69, r"compute capability 7\.5\): too old for these kernels"),
        ({"memory_bytes": 1 << 20}, 69, r"the model does not fit: weights \d\.\d MB"),
        ({"launch_error": 719, "fault_at_launch": 3}, 70, r"\(719\), .*; the GPU is lost to this process"),
    ],
)
def test_a_gpu_that_cannot_be_used_ends_it_with_one_line(
    model: Path, knobs: dict[str, int], code: int, words: str
) -> None:
    with serve(model, **knobs) as server:
        server.wait_for(rf"^pilotlight: .*{words}")
        assert server.exit_code() == code
        assert "Traceback" not in server.log


def test_no_driver_ends_it_with_one_line(model: Path) -> None:
    path = os.environ.get("LD_LIBRARY_PATH", "")
    with ServerProcess(model, "--device", "cuda", env={"LD_LIBRARY_PATH": path}) as server:
        server.wait_for(r"^pilotlight: libcuda\.so\.1, which comes with the NVIDIA driver, cannot be loaded")
        assert server.exit_code() == 69


def test_a_model_that_no_kernel_takes_ends_it_with_one_line(tmp_path: Path) -> None:
    config = config_of(head_dim=32)
    with serve(write_snapshot(tmp_path, "bfloat16", config, llama_tensors(config))) as server:
        server.wait_for(r"^pilotlight: cuda:0: no attention kernel for heads of 32 \(there are 64, 96, 128, 256\)")
        assert server.exit_code() == 69


def test_a_fabric_that_becomes_ready_and_a_gpu_without_an_image_cost_time_alone(model: Path, tmp_path: Path) -> None:
    """Both at once: 802 for a while, then PTX, of which a loud line tells. The driver is newer than the bindings."""
    report = tmp_path / "report.json"
    knobs = {"init_error": 802, "init_error_seconds": 0.3, "capability": 110, "driver_version": 13000}
    with serve(model, report=report, adversarial=True, block_order="shuffle", **knobs) as server:
        with server.client() as client:
            assert text_of(ask(client, 1, 5)) == TEXT[:5]
        server.wait_for("THE DRIVER COMPILES PTX NOW")
        server.terminate()
        assert server.exit_code() == 0
    assert json.loads(report.read_text())["findings"] == []


def test_G04_a_gpu_that_is_lost_in_a_step_ends_every_stream_and_the_server(model: Path) -> None:
    """Ten streams, four of them running: nobody is left waiting, and the log says what the GPU did last."""
    with serve(model, "--max-engine-deaths", "1", launch_error=700, fault_at_launch=200) as server:
        address = server.ready()

        def ending(number: int) -> str:
            body = {"model": "m", "prompt": f"{number} ", "max_tokens": 200, "temperature": 0, "stream": True}
            with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=30) as response:
                events = [event for event in sse(response) if event != "[DONE]"]
                return events[-1]["error"]["code"] if response.status_code == 200 else str(response.status_code)

        with ThreadPoolExecutor(10) as pool:
            assert set(pool.map(ending, range(10))) == {"engine_died"}
        server.wait_for(r"cuda:0 is lost; its last launches, the latest first: \w+ \[\d+, \d+, \d+\], ")
        server.wait_for(r"^pilotlight: the engine died once .* CUDA_ERROR_ILLEGAL_ADDRESS \(700\), .*lost to this")
        assert server.exit_code() == 70
