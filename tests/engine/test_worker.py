"""Process 2 as the front sees it: what goes over the line, and how it ends."""

import fcntl
import gc
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pilotlight.engine import worker
from pilotlight.engine.engine import Engine
from pilotlight.messages import (
    Abort,
    Fatal,
    FrameReader,
    Ready,
    Sampling,
    Shutdown,
    Spans,
    Start,
    StepDone,
    Submit,
    ToEngine,
    ToFront,
    decode_to_front,
    encode,
)
from pilotlight.settings import Settings, from_kwargs
from pilotlight.timeline import Timeline
from tests.engine.conftest import CHAIN
from tests.engine.oracle import Collector, MakeOracle, Oracle, engine_of, expected, submit

SECONDS = 60  # longest wait for anything


class Front:
    """The other end of the line."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        line.settimeout(SECONDS)
        self._frames = FrameReader()
        self._messages: list[ToFront] = []
        self.spans: list[Spans] = []

    def send(self, *messages: ToEngine) -> None:
        self.line.sendall(b"".join(map(encode, messages)))

    def next(self) -> ToFront | None:
        """The next message but for Spans, which are collected; None at the end of the line."""
        while not self._messages:
            data = self.line.recv(65536)
            if not data:
                return None
            for message in map(decode_to_front, self._frames.feed(data)):
                (self.spans if isinstance(message, Spans) else self._messages).append(message)
        return self._messages.pop(0)

    def steps(self, until: Callable[[Collector, StepDone], bool]) -> tuple[Collector, list[StepDone]]:
        """Steps up to the one after which `until` holds, and their outputs."""
        collector, steps = Collector(), list[StepDone]()
        while not steps or not until(collector, steps[-1]):
            step = self.next()
            assert isinstance(step, StepDone)
            collector.add(step.outputs)
            steps.append(step)
        return collector, steps


@contextmanager
def engine_process(settings: Settings) -> Iterator[tuple[Front, "subprocess.Popen[bytes]"]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "pilotlight.engine", str(theirs.fileno()), "cpu"]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
        theirs.close()
        front = Front(ours)
        front.send(Start(settings))
        try:
            yield front, process
        finally:
            process.kill()
            process.communicate()


def chain_submit(id_: int, max_tokens: int = 5) -> Submit:
    return Submit(id_, [200], Sampling(max_tokens, temperature=0.0))


def finished(collector: Collector, id_: int) -> bool:
    return id_ in collector.outputs and collector.outputs[id_][-1].finish is not None


def test_a_process_serves_from_start_to_shutdown(chain_directory: Path) -> None:
    with engine_process(from_kwargs(device="cpu", model=str(chain_directory), max_model_len=100)) as (front, process):
        ready = front.next()
        assert isinstance(ready, Ready)
        assert (ready.max_model_len, ready.vocab_size, ready.page_size) == (100, 288, 16)
        assert (ready.device.split()[0], ready.dtype) == ("cpu", "float32")
        assert ready.pages >= 7
        assert {"python", "imports", "weights"} <= {span.name for span in ready.spans}
        told = [[span.name for span in spans.spans if span.end is None] for spans in front.spans]
        assert ["config"] in told, "it is told as it begins"
        assert all(running == [spans.spans[-1].name] for running, spans in zip(told, front.spans, strict=True))
        assert all(span.process == "engine" and span.start <= span.end for span in ready.spans)

        # The front decides when to leave: signals that reach the whole process group change nothing.
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGINT)
        front.send(chain_submit(0), chain_submit(1, max_tokens=60))
        collector, _ = front.steps(lambda collector, step: finished(collector, 0))
        assert collector.tokens(0) == list(CHAIN[:5])

        front.send(Abort([1]))
        _, steps = front.steps(lambda collector, step: not step.stats.running)
        assert (steps[-1].outputs, steps[-1].stats.pages_used) == ([], 0)

        front.send(Shutdown())
        assert front.next() is None
        assert process.wait(SECONDS) == 0


@pytest.mark.parametrize("busy", [False, True])
def test_the_end_of_the_line_ends_the_process(chain_directory: Path, busy: bool) -> None:
    with engine_process(from_kwargs(device="cpu", model=str(chain_directory))) as (front, process):
        assert isinstance(front.next(), Ready)
        if busy:
            front.send(*[chain_submit(id_, max_tokens=250) for id_ in range(8)])
            front.next()
        front.line.close()
        assert process.wait(SECONDS) == 0


def test_a_front_that_is_killed_takes_the_engine_along(chain_directory: Path) -> None:
    """Even where somebody else keeps the line open."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        code = (
            "import subprocess, sys, time\n"
            f"command = [sys.executable, '-m', 'pilotlight.engine', '{theirs.fileno()}', 'cpu']\n"
            "subprocess.Popen(command, close_fds=False)\n"
            "time.sleep(1000)"
        )
        parent = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()])
        theirs.close()
        front = Front(ours)
        front.send(Start(from_kwargs(device="cpu", model=str(chain_directory))))
        assert isinstance(front.next(), Ready)
        parent.kill()
        parent.wait(SECONDS)
        assert front.next() is None


def test_a_model_that_cannot_be_loaded_is_fatal_with_its_code(tmp_path: Path) -> None:
    with engine_process(from_kwargs(device="cpu", model=str(tmp_path))) as (front, process):
        fatal = front.next()
        assert isinstance(fatal, Fatal)
        assert "config.json" in fatal.message
        assert "\n" not in fatal.message
        assert front.next() is None
        assert process.wait(SECONDS) == fatal.exit_code == 65


@contextmanager
def worker_thread(monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any]) -> Iterator[tuple[Front, list[int]]]:
    """`worker.work` in a thread with another `load`, so that a test can give it a model of its own."""
    monkeypatch.setattr(worker, "load", load)
    ours, theirs = socket.socketpair()
    codes: list[int] = []

    def run() -> None:
        try:
            codes.append(worker.work(worker.Line(theirs), Timeline("engine")))
        except worker.LineClosedError:
            codes.append(0)
        finally:
            theirs.close()

    thread = threading.Thread(target=run)
    thread.start()
    with ours:
        yield Front(ours), codes
    thread.join(SECONDS)
    gc.unfreeze()  # the worker's, once it was ready
    assert not thread.is_alive()


def test_the_line_may_have_a_large_descriptor() -> None:
    """As an engine's has that is started again while the front has a thousand connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip(f"at most {hard} files may be open here")
    ours, theirs = socket.socketpair()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        large = socket.socket(fileno=fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 1500))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with ours, theirs, large:
        line = worker.Line(large)
        line.rest()
        Front(ours).send(Shutdown())
        line.rest()
        assert line.next() == Shutdown()


def ready_engine(model: Any) -> tuple[Engine, Ready]:
    return engine_of(model), Ready(200, 50, 16, 16, "test", "int", [])


def start() -> Start:
    return Start(from_kwargs(model="m"))


def test_every_step_is_one_message(monkeypatch: pytest.MonkeyPatch, oracle: MakeOracle, lookahead: bool) -> None:
    with worker_thread(monkeypatch, lambda settings, timeline: ready_engine(oracle())) as (front, codes):
        items = [submit(0, [1] * 100, max_tokens=3), submit(1, [2], max_tokens=9), submit(2, [3] * 300)]
        front.send(start(), *items)
        assert isinstance(front.next(), Ready)
        collector, steps = front.steps(lambda collector, step: all(finished(collector, id_) for id_ in range(3)))
        begun = list(range(1, steps[-1].stats.steps + 1))
        assert [step.stats.steps for step in steps] == (begun + begun[-1:] if lookahead else begun)
        assert collector.result(0) == expected(items[0], 200)
        assert collector.result(1) == expected(items[1], 200)
        assert "300 tokens" in str(collector.outputs[2][0].error)
        front.send(Shutdown())
        assert front.next() is None
    assert codes == [0]


def test_an_exception_in_a_step_is_fatal_with_its_trace_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Broken(Oracle):
        def start(self, batch: object) -> Any:
            raise FloatingPointError("the device failed\nbadly")

    with worker_thread(monkeypatch, lambda settings, timeline: ready_engine(Broken())) as (front, codes):
        front.send(start())
        assert isinstance(front.next(), Ready)
        front.send(submit(0, [1]))
        assert front.next() == Fatal("the engine failed: FloatingPointError: the device failed", 70)
        assert front.next() is None
    assert codes == [70]
    assert "Traceback" in capfd.readouterr().err


def test_an_exception_is_told_where_the_log_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Oracle):
        def start(self, batch: object) -> Any:
            raise FloatingPointError("the device failed")

    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr("sys.stderr", full)
        with worker_thread(monkeypatch, lambda settings, timeline: ready_engine(Broken())) as (front, codes):
            front.send(start())
            assert isinstance(front.next(), Ready)
            front.send(submit(0, [1]))
            assert front.next() == Fatal("the engine failed: FloatingPointError: the device failed", 70)
        with suppress(OSError):
            full.close()
    assert codes == [70]


class Preparing(Oracle):
    """Has `left` pieces of work for idle moments; after each, `then` is called with what is left."""

    def __init__(self, left: int, then: Callable[[int], None] = lambda left: None) -> None:
        super().__init__()
        self.left = left
        self.then = then
        self.asked = 0

    def prepare(self) -> bool:
        self.asked += 1
        self.left -= 1
        self.then(self.left)
        return self.left > 0


def test_idle_moments_prepare_until_nothing_is_left_and_then_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[bool] = []
    arrived = worker.Line.arrived

    def noted(line: worker.Line, *, wait: bool) -> list[ToEngine]:
        waits.append(wait)
        if wait:
            is_idle.set()
        return arrived(line, wait=wait)

    is_idle = threading.Event()
    monkeypatch.setattr(worker.Line, "arrived", noted)
    model = Preparing(5)
    with worker_thread(monkeypatch, lambda settings, timeline: ready_engine(model)) as (front, codes):
        front.send(start())
        assert isinstance(front.next(), Ready)
        assert is_idle.wait(SECONDS)
        assert (waits, model.asked) == ([False] * 6 + [True], 5)  # it looks for messages before each, and rests first
        is_idle.clear()
        front.send(submit(0, [1], max_tokens=3))
        front.steps(lambda collector, step: finished(collector, 0))
        assert is_idle.wait(SECONDS)
        assert (waits[7:], model.asked) == ([False] * 3 + [True], 6)  # asked again, once, and blocked
        front.send(Shutdown())
    assert codes == [0]


def test_a_request_does_not_wait_for_what_is_prepared_in_idle_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes in the middle of the second piece of work, and has its answer before the third."""
    item = submit(0, [1], max_tokens=3)
    steps_before: list[int] = []
    fronts: list[Front] = []

    def then(left: int) -> None:
        if left == 98:
            fronts[0].send(item)
        if left == 97:
            steps_before.append(len(model.batches))
            went_on.set()

    model, went_on = Preparing(100, then), threading.Event()

    with worker_thread(monkeypatch, lambda settings, timeline: ready_engine(model)) as (front, codes):
        fronts.append(front)
        front.send(start())
        assert isinstance(front.next(), Ready)
        collector, _ = front.steps(lambda collector, step: finished(collector, 0))
        assert collector.result(0) == expected(item, 200)
        assert went_on.wait(30)
        front.send(Shutdown())
        assert front.next() is None
    assert steps_before == [3]
    assert codes == [0]


def test_a_failure_in_an_idle_moment_is_fatal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def then(left: int) -> None:
        raise RuntimeError("cuGraphInstantiate: out of memory")

    with worker_thread(monkeypatch, lambda settings, timeline: ready_engine(Preparing(9, then))) as (front, codes):
        front.send(start())
        assert isinstance(front.next(), Ready)
        assert front.next() == Fatal("the engine failed: RuntimeError: cuGraphInstantiate: out of memory", 70)
        assert front.next() is None
    assert codes == [70]
    assert "Traceback" in capfd.readouterr().err


def test_an_abort_with_a_step_under_way_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Oracle(lookahead=True)
    with worker_thread(monkeypatch, lambda settings, timeline: ready_engine(model)) as (front, codes):
        front.send(start(), submit(0, [1] * 5, max_tokens=190))
        assert isinstance(front.next(), Ready)
        front.steps(lambda collector, step: len(collector.tokens(0)) == 3)
        front.send(Abort([0]))
        _, steps = front.steps(lambda collector, step: not step.stats.running)
        assert (steps[-1].outputs, steps[-1].stats.pages_used) == ([], 0)
        front.send(Shutdown())
        assert front.next() is None
    assert model.under_way == []
    assert codes == [0]


def test_an_exception_while_loading_is_fatal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def load(settings: Settings, timeline: Timeline) -> Any:
        raise MemoryError

    with worker_thread(monkeypatch, load) as (front, codes):
        front.send(start())
        assert front.next() == Fatal("the engine failed: MemoryError: ", 70)
    assert codes == [70]
    capfd.readouterr()


def test_a_front_that_does_not_speak_the_protocol_is_fatal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with worker_thread(monkeypatch, lambda settings, timeline: ready_engine(Oracle())) as (front, codes):
        front.send(Shutdown())
        fatal = front.next()
        assert isinstance(fatal, Fatal)
        assert "expected Start first" in fatal.message
    assert codes == [70]
    capfd.readouterr()


def test_G03_half_of_two_hundred_requests_dropped_at_random(chain_directory: Path) -> None:
    """32 at a time; what is finished is right, and nothing is left of the rest."""
    dice = random.Random(0)
    settings = from_kwargs(device="cpu", model=str(chain_directory), log_level="debug", max_num_batched_tokens=64)
    with engine_process(settings) as (front, _):
        assert isinstance(front.next(), Ready)
        to_drop = set(dice.sample(range(200), 100))
        waiting, running, collector = list(range(200)), set[int](), Collector()
        last: StepDone | None = None
        while waiting or running or last is None or last.stats.pages_used:
            while waiting and len(running) < 32:
                id_ = waiting.pop(0)
                prompt = [200 + id_ % 5] * dice.randint(1, 100)
                front.send(Submit(id_, prompt, Sampling(dice.randint(1, 40), temperature=0.0)))
                running.add(id_)
            last = front.next()
            assert isinstance(last, StepDone), last
            collector.add([output for output in last.outputs if output.id in running])
            running -= {output.id for output in last.outputs if output.finish}
            dropped = {id_ for id_ in running & to_drop if dice.random() < 0.2}
            if dropped:
                front.send(Abort(sorted(dropped)))
                running -= dropped
        assert (last.stats.running, last.stats.waiting, last.stats.pages_used) == (0, 0, 0)
        chain = [*CHAIN, *CHAIN]
        for id_ in set(range(200)) - to_drop:
            tokens = collector.tokens(id_)
            assert finished(collector, id_)
            assert tokens == chain[: len(tokens)]
