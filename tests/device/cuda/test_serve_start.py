"""`pilotlight serve --device cuda` on a GPU that cannot be used: one line, an exit code, and nobody left waiting; and
on one that costs more time or memory than others.
"""

import os
import re
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from tests.front.servers import ServerProcess
from tests.models import llama_tensors, write_chain

from .bench import config_of, write_snapshot
from .servers import CHAIN, COMPLETIONS, TEXT, CudaServer, ask, body_of

PLAIN, GENERAL = {"prompt": "1 "}, {"prompt": "1 ", "logprobs": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain(tmp_path_factory.mktemp("models") / "chain", CHAIN, loop=True, head_dim=64)


class Waiting:
    """A request that is made as soon as the address is bound, long before there is an engine."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._told: str | None = None
        self._thread = Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        try:
            response = httpx.post(self._server.listening() + COMPLETIONS, json=body_of("1 "), timeout=50)
        except httpx.TimeoutException:
            return
        except httpx.TransportError as error:
            self._told = type(error).__name__
        else:
            self._told = "answered" if response.status_code == 200 else response.json()["error"]["code"]

    def told(self) -> str:
        """How it ended: "answered", an error's code, or that the connection did."""
        self._thread.join(60)
        assert self._told, "a client is left waiting"
        return self._told


def refusal(server: ServerProcess, words: str, code: int = 69) -> None:
    """It ends with this one line and code, and nobody is left waiting."""
    waiting = Waiting(server)
    assert server.exit_code(50) == code
    (line,) = re.findall(r"^pilotlight: .*", server.log, re.MULTILINE)
    assert re.search(words, line), line
    assert "Traceback" not in server.log
    assert waiting.told() != "answered"


@pytest.mark.parametrize(
    ("knobs", "code", "words"),
    [
        ({"devices": 0}, 69, r"cuInit: CUDA_ERROR_NO_DEVICE \(100\), .*no GPU is visible"),
        ({"driver_version": 12010}, 69, r"the NVIDIA driver is of CUDA 12\.1, and at least 12\.2"),
        ({"init_error": 803}, 69, r"\(803\), .*reboot the host after a driver update"),
        ({"context_error": 46}, 69, r"\(46\), .*exclusive mode"),
        ({"capability": 75}, 69, r"compute capability 7\.5\): too old for these kernels"),
        ({"capability": 110, "ptx_jit_error": 221}, 69, r"\(221\), .*libnvidia-ptxjitcompiler"),
        ({"memory_bytes": 1 << 20}, 69, r"the model does not fit: weights \d\.\d MB"),
        ({"launch_error": 719, "fault_at_launch": 3}, 70, r"\(719\), .*; the GPU is lost to this process"),
    ],
)
def test_a_gpu_that_cannot_be_used(model: Path, knobs: dict[str, int], code: int, words: str) -> None:
    with CudaServer(model, **knobs) as server:
        refusal(server, words, code)


def test_no_driver(model: Path) -> None:
    path = os.environ.get("LD_LIBRARY_PATH", "")
    with ServerProcess(model, "--device", "cuda", env={"LD_LIBRARY_PATH": path}) as server:
        refusal(server, r"libcuda\.so\.1, which comes with the NVIDIA driver, cannot be loaded")


def test_a_model_that_no_kernel_takes(tmp_path: Path) -> None:
    config = config_of(head_dim=32)
    with CudaServer(write_snapshot(tmp_path, "bfloat16", config, llama_tensors(config))) as server:
        refusal(server, r"cuda:0: no attention kernel for heads of 32 \(there are 64, 96, 128, 256\)")


def test_a_gpu_that_hangs_in_the_first_step(model: Path) -> None:
    with CudaServer(model, "--engine-timeout", "4", hang_at_launch=9) as server:
        refusal(server, r"the engine exited with code 70 \(its last lines say why\) while it loaded the model", 70)
        server.wait_for(r"a step has not ended within 3\.6 s, the GPU hangs; its last launches, the latest first: \w")


@pytest.mark.slow
def test_a_fabric_that_does_not_become_ready(model: Path) -> None:
    """It is waited for as long as an H200's may take."""
    with CudaServer(model, init_error=802) as server:
        server.wait_for("cuInit: the NVSwitch fabric is not ready yet, trying for 30 s")
        refusal(server, r"\(802\), .*nvidia-fabricmanager must run there.* \(waited for 30 s\)")


def test_what_costs_time_alone(model: Path, tmp_path: Path) -> None:
    """All at once: 802 for a while, then PTX, of which a loud line tells, and memory that cannot be page-locked. The
    driver is newer than the bindings."""
    knobs = {"init_error": 802, "init_error_seconds": 0.3, "capability": 110, "driver_version": 13000}
    knobs |= {"host_register_error": 801, "adversarial": True, "block_order": "shuffle"}
    with CudaServer(model, report=tmp_path / "report.json", **knobs) as server:
        waiting = Waiting(server)
        with server.client() as client:
            assert ask(client, "1 ", max_tokens=5)["text"] == TEXT[:5]
        assert waiting.told() == "answered"
        server.wait_for("THE DRIVER COMPILES PTX NOW")
        server.wait_for("host memory is not page-locked, copies are slower")
        assert server.stop().findings == []


# --- calls that fail, one after another --------------------------------------------------------------------------


def attempt(model: Path, call: str, nth: int) -> str:
    """Starts a server whose `nth` such call finds no memory, and has it answer if it serves: its log."""
    with CudaServer(model, fail_call=call, fail_at=nth) as server:
        waiting = Waiting(server)
        if waiting.told() == "answered":
            with server.client() as client:
                for fields in (PLAIN, GENERAL, PLAIN):
                    assert ask(client, **fields, max_tokens=20)["text"] == TEXT[:20]
            server.terminate()
            assert server.exit_code() == 0
        else:
            assert server.exit_code(50) == 69
            assert len(re.findall(r"^pilotlight: ", server.log, re.MULTILINE)) == 1
        assert "Traceback" not in server.log
        return server.log


REFUSED = {  # the call's name in the message, where it is another, and what is said beside
    "cuMemAlloc": r"(weights|activations|KV cache of \d+ pages): the GPU has no \d.* in one piece, ",
    "cuStreamCreate": "cuStreamCreate: CUDA_ERROR_OUT_OF_MEMORY",
    "cuEventCreate": "cuEventCreate: CUDA_ERROR_OUT_OF_MEMORY",
    "cuModuleLoadDataEx": r"cuModuleLoadData \(.*\): CUDA_ERROR_OUT_OF_MEMORY",
}
SURVIVED = {
    "cuMemHostRegister": "host memory is not page-locked, copies are slower",
    "cuGraphInstantiate": "no graph_step.*, its like are launched kernel by kernel: .*CUDA_ERROR_OUT_OF_MEMORY",
}


@pytest.mark.parametrize("call", ["cuMemAlloc", "cuModuleLoadDataEx"])
def test_a_call_without_memory_ends_it_with_one_line(model: Path, call: str) -> None:
    assert re.search(rf"^pilotlight: {REFUSED[call]}", attempt(model, call, 2), re.MULTILINE)


def test_a_graph_without_memory_is_done_without(model: Path) -> None:
    assert re.search(SURVIVED["cuGraphInstantiate"], attempt(model, "cuGraphInstantiate", 1))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("call", [*REFUSED, *SURVIVED])
def test_each_call_of_a_kind_in_turn_may_be_without_memory(model: Path, call: str) -> None:
    """Until there are no more of them, and nothing is said."""
    words = rf"^pilotlight: {REFUSED[call]}" if call in REFUSED else SURVIVED[call]
    for nth in count(1):
        log = attempt(model, call, nth)
        if not re.search(words, log, re.MULTILINE):
            break
    assert "serving m at" in log
    assert nth > 2


# --- which GPU ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "visible", "knobs"),
    [("cuda:1", None, {"devices": 2}), ("cuda:1", "2,0", {"devices": 3}), ("cuda", None, {"mig": True})],
)
def test_a_gpu_by_its_number(model: Path, device: str, visible: str | None, knobs: dict[str, Any]) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    with CudaServer(model, "--device", device, env=env, **knobs) as server, server.client() as client:
        server.wait_for(rf"serving m at .* \({'cuda:0' if device == 'cuda' else device} .*, bfloat16")
        assert ask(client, "1 ")["text"] == TEXT[:12]


@pytest.mark.parametrize(
    ("device", "visible", "words"),
    [
        ("cuda", "", r"cuInit: CUDA_ERROR_NO_DEVICE \(100\), .*look at CUDA_VISIBLE_DEVICES"),
        ("cuda:1", "1", r"--device cuda:1: there is no such GPU; CUDA_VISIBLE_DEVICES=1 shows cuda:0"),
    ],
)
def test_a_gpu_that_is_not_shown(model: Path, device: str, visible: str, words: str) -> None:
    with CudaServer(model, "--device", device, env={"CUDA_VISIBLE_DEVICES": visible}, devices=2) as server:
        refusal(server, words)
