"""An engine's steps: graphs replayed in one stream, a ring of registered host buffers, two steps in flight."""

from typing import Any

import numpy as np
import pytest

from tests.softgpu.fixtures import Soft

from . import calls
from .calls import code, ok, start

SEEDS = range(8)
WORDS = 64


class Engine:
    """Doubles what it keeps and adds what the step brings, a digit a step, in one graph a step."""

    def __init__(self, slots: int = 2) -> None:
        start()
        self._twice, self._copied = calls.functions(
            calls.module(
                calls.entry("twice", _FROM_BUFFER),
                calls.entry("copied", "ld.global.u32 %r3, [%rd1];\nst.global.u32 [%rd1+256], %r3;"),
            ),
            "twice",
            "copied",
        )
        self.block = calls.words(3 * WORDS)  # what came, what is kept, what goes back
        self.stream = ok("cuStreamCreate", calls.NON_BLOCKING)
        # Page-aligned host memory of the process's own, registered.
        self._memory = np.zeros((2 * slots + 1) * 1024, np.uint32)
        offset = -self._memory.ctypes.data % 4096 // 4
        self.sent, self.returned = self._memory[offset:][: 2 * slots * 1024].reshape(2, slots, 1024)[:, :, :WORDS]
        ok("cuMemHostRegister", self.sent.ctypes.data, 2 * slots * 4096, 0)
        self.done = [ok("cuEventCreate", 2) for _ in range(slots)]
        self.graph = self._capture()

    def _capture(self) -> Any:
        for kernel in (self._twice, self._copied):
            calls.warm(kernel)
        ok("cuStreamBeginCapture", self.stream, calls.THREAD_LOCAL)
        calls.launch(self._twice, self.block, 0, stream=self.stream, block=(WORDS, 1, 1))
        calls.launch(self._copied, self.block + 4 * WORDS, 0, stream=self.stream, block=(WORDS, 1, 1))
        executable = ok("cuGraphInstantiate", ok("cuStreamEndCapture", self.stream), 0)
        ok("cuGraphUpload", executable, self.stream)
        return executable

    def start(self, step: int, value: int) -> None:
        slot = step % len(self.done)
        self.sent[slot] = value
        ok("cuMemcpyHtoDAsync", self.block, self.sent[slot].ctypes.data, 4 * WORDS, self.stream)
        ok("cuGraphLaunch", self.graph, self.stream)
        ok(
            "cuMemcpyDtoHAsync",
            self.returned[slot].ctypes.data,
            self.block + 8 * WORDS,
            4 * WORDS,
            self.stream,
        )
        ok("cuEventRecord", self.done[slot], self.stream)

    def result(self, step: int, *, poll: bool = False) -> list[int]:
        slot = step % len(self.done)
        if poll:
            while (result := code("cuEventQuery", self.done[slot])) == calls.NOT_READY:
                pass
            assert result == 0
        else:
            ok("cuEventSynchronize", self.done[slot])
        return sorted(set(self.returned[slot].tolist()))


# kept = 2 * kept + came: the word at %rd1 came, the one 256 bytes on is kept.
_FROM_BUFFER = """\
ld.global.u32 %r1, [%rd1];
ld.global.u32 %r3, [%rd1+256];
shl.b32 %r3, %r3, 1;
add.u32 %r3, %r3, %r1;
st.global.u32 [%rd1+256], %r3;"""

DIGITS = [1, 0, 1, 1, 0, 0, 1, 0, 1]
SUMS = [int("".join(map(str, DIGITS[: step + 1])), 2) for step in range(len(DIGITS))]


@pytest.mark.parametrize("poll", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_two_steps_in_flight(soft: Soft, seed: int, poll: bool) -> None:
    soft.reset(seed=seed, strict_copies=True)
    engine = Engine()
    before = soft.counters()
    results = []
    engine.start(0, DIGITS[0])
    for step in range(1, len(DIGITS)):
        engine.start(step, DIGITS[step])
        results.append(engine.result(step - 1, poll=poll))
    results.append(engine.result(len(DIGITS) - 1))
    assert results == [[value] for value in SUMS]
    after = soft.counters()
    steps = len(DIGITS)

    def grown(group: str, name: str) -> int:
        return after[group][name] - before[group].get(name, 0)

    assert grown("calls", "cuGraphLaunch") == grown("driver", "graph_launches") == steps
    assert grown("driver", "graph_kernel_nodes") == 2 * steps
    assert [grown("calls", name) for name in ("cuMemAlloc", "cuLaunchKernel", "cuGraphInstantiate")] == [0, 0, 0]
    # Every launch of the kernel was a replay's.
    assert [after["kernels"]["twice"][what] for what in ("launches", "replays")] == [steps, steps]
    assert grown("driver", "h2d_async_bytes") == grown("driver", "d2h_async_bytes") == 4 * WORDS * steps


def test_the_buffer_of_a_step_in_flight_must_not_be_written(soft: Soft) -> None:
    engine = Engine()
    engine.start(0, 1)
    engine.sent[0, 5] = 2
    engine.result(0)
    (found,) = soft.take_findings("source-changed")
    assert f"{4 * WORDS} bytes" in found.where


def test_a_result_read_before_its_event_is_poison(soft: Soft) -> None:
    engine = Engine()
    engine.start(0, 1)
    assert set(engine.returned[0].tolist()) == {0xFFFFFFFF}
    assert engine.result(0) == [1]


def test_an_event_of_another_stream_waits_for_the_replay(soft: Soft) -> None:
    engine = Engine()
    side, event = ok("cuStreamCreate", calls.NON_BLOCKING), ok("cuEventCreate", 2)
    engine.start(0, 1)
    ok("cuStreamWaitEvent", side, engine.done[0], 0)
    ok("cuEventRecord", event, side)
    ok("cuEventSynchronize", event)
    assert engine.returned[0].tolist() == [1] * WORDS
    assert code("cuEventQuery", engine.done[0]) == 0
    assert code("cuStreamQuery", side) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_an_executable_graph_destroyed_in_flight_runs_to_its_end(soft: Soft, seed: int) -> None:
    soft.reset(seed=seed)
    engine = Engine()
    free = ok("cuMemGetInfo")[0]
    engine.start(0, 1)
    ok("cuGraphExecDestroy", engine.graph)
    assert ok("cuMemGetInfo")[0] == free  # the call waits for nothing, so its memory is not free yet
    assert code("cuGraphLaunch", engine.graph, engine.stream) == calls.INVALID_VALUE
    assert engine.result(0) == [1]
    ok("cuCtxSynchronize")
    assert ok("cuMemGetInfo")[0] > free
