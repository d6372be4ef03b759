"""Faults that knobs inject: calls that fail once, kernels that fault or never end, memory that others take."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import softgpu
from tests.softgpu.fixtures import Soft

from . import calls
from .calls import ROOT, child, code, ok, start
from .test_graphs import captured

MIB = 1 << 20


def register() -> int:
    host = np.zeros(4096, np.uint8)
    result = code("cuMemHostRegister", host.ctypes.data, 4096, 0)
    if result == 0:
        ok("cuMemHostUnregister", host.ctypes.data)
    return result


MAKERS: dict[str, Callable[[], int]] = {
    "cuMemAlloc": lambda: code("cuMemAlloc", 64),
    "cuMemHostAlloc": lambda: code("cuMemHostAlloc", 64, 0),
    "cuMemHostRegister": register,
    "cuModuleLoadData": lambda: code("cuModuleLoadData", calls.KERNELS),
    "cuStreamCreate": lambda: code("cuStreamCreate", calls.NON_BLOCKING),
    "cuEventCreate": lambda: code("cuEventCreate", 2),
    "cuGraphInstantiate": lambda: code("cuGraphInstantiate", ok("cuGraphCreate", 0), 0),
}


class TestCalls:
    @pytest.mark.parametrize("name", MAKERS)
    def test_the_nth_call_fails(self, soft: Soft, name: str) -> None:
        soft.reset(fail_call=name, fail_at=3)
        start()
        assert [MAKERS[name]() for _ in range(5)] == [0, 0, calls.OUT_OF_MEMORY, 0, 0]
        assert soft.counters()["calls"][name] == 5

    def test_with_another_error_at_the_first(self, soft: Soft) -> None:
        soft.reset(fail_call="cuMemHostRegister", fail_error=801)
        start()
        assert register() == calls.NOT_SUPPORTED
        assert register() == 0

    def test_a_call_that_is_refused_anyway_is_not_counted(self, soft: Soft) -> None:
        soft.reset(fail_call="cuMemAlloc", fail_at=2)
        ok("cuInit", 0)
        assert code("cuMemAlloc", 64) == calls.INVALID_CONTEXT
        start()
        assert [code("cuMemAlloc", 64) for _ in range(2)] == [0, calls.OUT_OF_MEMORY]

    def test_what_failed_did_nothing(self, soft: Soft) -> None:
        soft.reset(fail_call="cuMemAlloc")
        start()
        before = ok("cuMemGetInfo")[0]
        assert code("cuMemAlloc", MIB) == calls.OUT_OF_MEMORY
        assert ok("cuMemGetInfo")[0] == before
        assert soft.counters()["driver"]["allocations"] == 0

    def test_no_such_function_stops_the_process(self) -> None:
        script = "from tests.softgpu.driver.calls import *\nstart()"
        run = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env=softgpu.environment(fail_call="cuMemAlloc_v2"),
            capture_output=True,
            text=True,
        )
        assert run.returncode != 0
        assert "fail_call" in run.stderr


class TestLaunches:
    def begin(self, soft: Soft, **knobs: Any) -> tuple[Any, int, Any]:
        soft.reset(**knobs)
        start()
        (add,) = calls.functions(calls.KERNELS, "add")
        return add, calls.words(1), ok("cuStreamCreate", calls.NON_BLOCKING)

    @pytest.mark.parametrize("fault_at", [2, 5, 8])
    def test_a_node_of_a_graph_faults(self, soft: Soft, fault_at: int) -> None:
        """Three launches a replay."""
        add, out, stream = self.begin(soft, launch_error=719, fault_at_launch=fault_at)
        executable = captured(stream, add, out, 1, 1, 1)
        results = []
        for _ in range(3):
            ok("cuGraphLaunch", executable, stream)
            results.append(code("cuStreamSynchronize", stream))
            if results[-1]:
                break
        assert results == [0] * ((fault_at - 1) // 3) + [719]
        assert code("cuGraphLaunch", executable, stream) == 719

    def test_a_kernel_that_hangs_holds_its_stream_and_no_other(self, soft: Soft) -> None:
        add, out, stream = self.begin(soft, hang_at_launch=3)
        other, event = ok("cuStreamCreate", calls.NON_BLOCKING), ok("cuEventCreate", 2)
        for _ in range(2):
            calls.launch(add, out, 1, stream=stream)
        ok("cuStreamSynchronize", stream)
        calls.launch(add, out, 1, stream=stream)
        ok("cuEventRecord", event, stream)
        assert {code("cuEventQuery", event) for _ in range(50)} == {calls.NOT_READY}
        assert {code("cuStreamQuery", stream) for _ in range(50)} == {calls.NOT_READY}
        block = int(ok("cuMemAlloc", 4))
        ok("cuMemsetD32Async", block, 0, 1, other)
        calls.launch(add, block, 4, stream=other)
        ok("cuStreamSynchronize", other)
        assert code("cuEventQuery", event) == calls.NOT_READY

    def test_whoever_waits_for_it_waits(self, soft: Soft) -> None:
        add, out, stream = self.begin(soft, hang_at_launch=2)
        executable = captured(stream, add, out, 1, 1)
        ok("cuGraphLaunch", executable, stream)
        context, codes = ok("cuCtxGetCurrent"), []

        def wait() -> None:
            ok("cuCtxSetCurrent", context)
            codes.append(code("cuStreamSynchronize", stream))

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        assert {code("cuStreamQuery", stream) for _ in range(50)} == {calls.NOT_READY}
        waiting.join(0.05)
        assert waiting.is_alive()
        soft.reset()  # nothing less ends it
        waiting.join()

    @pytest.mark.parametrize("wait", ['ok("cuEventSynchronize", event)', 'ok("cuStreamSynchronize", 0)'])
    def test_a_watchdog_may_leave_meanwhile(self, wait: str) -> None:
        script = f"""
import os, sys, threading
start()
add, = functions(KERNELS, "add")
event = ok("cuEventCreate", 2)
launch(add, words(1), 1)
ok("cuEventRecord", event, 0)

def watch():
    print(json.dumps("left"))
    sys.stdout.flush()
    os._exit(0)

threading.Timer(0.05, watch).start()
{wait}
print(json.dumps("never"))
"""
        assert child(script, hang_at_launch=1) == "left"


ONCE = """
start()
add, = functions(KERNELS, "add")
codes = [code("cuMemAlloc", 64)]
out = words(1)
launch(add, out, 1)
codes.append(code("cuCtxSynchronize"))
print(json.dumps(codes))
"""


@pytest.mark.parametrize(
    ("knobs", "codes"),
    [
        ({"fail_call": "cuMemAlloc", "fail_error": 999}, [999, 0]),
        ({"launch_error": 700, "fault_at_launch": 1}, [0, 700]),
        # Whichever comes first is the one there is.
        ({"launch_error": 700, "fault_at_launch": 1, "fail_call": "cuMemAlloc"}, [2, 0]),
    ],
)
def test_a_process_that_is_started_again_is_spared(tmp_path: Path, knobs: dict[str, Any], codes: list[int]) -> None:
    file = tmp_path / "struck"
    assert child(ONCE, faults_once=file, **knobs) == codes
    assert file.exists()
    assert child(ONCE, faults_once=file, **knobs) == [0, 0]


class TestFreeMemory:
    def test_it_shrinks_from_call_to_call(self, soft: Soft) -> None:
        soft.reset(memory_bytes=1 << 30, free_memory_off=MIB, free_memory_drift=16 * MIB)
        start()
        first, second, third = (ok("cuMemGetInfo")[0] for _ in range(3))
        assert first == (1 << 30) - MIB
        assert (first - second, second - third) == (16 * MIB, 16 * MIB)
        for _ in range(70):
            free, total = ok("cuMemGetInfo")
        assert (free, total) == (0, 1 << 30)

    def test_more_may_be_reported_than_there_is(self, soft: Soft) -> None:
        soft.reset(memory_bytes=64 * MIB, free_memory_off=-MIB)
        start()
        assert code("cuMemAlloc", ok("cuMemGetInfo")[0]) == calls.OUT_OF_MEMORY
