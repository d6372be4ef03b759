"""Process 2: loads the model, then turns messages from the front into engine steps, until the line closes.

Apart from the engine because all that it has of the outside world is here: one socket, no clock, no threads. The
front decides everything else, so signals are left to it.
"""

import ctypes
import gc
import logging
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..device.host import usable_cpus
from ..errors import EXIT_ENGINE, PilotlightError
from ..messages import (
    Abort,
    Fatal,
    FrameReader,
    Ready,
    Shutdown,
    Spans,
    Start,
    StepDone,
    Submit,
    ToEngine,
    ToFront,
    decode_to_engine,
    encode,
)
from ..settings import PAGE_SIZE, Settings
from ..timeline import Timeline, exec_time
from .start_recorder import StartRecorder

if TYPE_CHECKING:
    from ..device import Begun
    from .engine import Engine

_PR_SET_PDEATHSIG = 1  # prctl(2)
_RECEIVE_BYTES = 1 << 18
_REST_MS = 20

_log = logging.getLogger(__name__)


class LineClosedError(Exception):
    """The front is gone: there is nobody to work for."""


class Line:
    """The engine's end of the socket, in messages. Every method raises LineClosedError when the front is gone."""

    def __init__(self, line: socket.socket) -> None:
        self._socket = line
        self._frames = FrameReader()
        self._received: deque[ToEngine] = deque()

    def next(self) -> ToEngine:
        """The next message; waits for it."""
        while not self._received:
            self._read(0)
        return self._received.popleft()

    def arrived(self, *, wait: bool) -> list[ToEngine]:
        """All messages that have come; with `wait`, at least one."""
        if wait and not self._received:
            self._received.append(self.next())
        while self._read(socket.MSG_DONTWAIT):
            pass
        messages = list(self._received)
        self._received.clear()
        return messages

    def rest(self) -> None:
        """Waits for a message, but not for long."""
        if not self._received:
            poll = select.poll()  # select() takes no descriptor beyond 1023, which a busy front may have given
            poll.register(self._socket, select.POLLIN)
            poll.poll(_REST_MS)

    def send(self, message: ToFront) -> None:
        try:
            self._socket.sendall(encode(message))
        except ConnectionError:
            raise LineClosedError from None

    def _read(self, flags: int) -> bool:
        """Reads once. False: nothing had come."""
        try:
            data = self._socket.recv(_RECEIVE_BYTES, flags)
        except BlockingIOError:
            return False
        except ConnectionError:
            raise LineClosedError from None
        if not data:
            raise LineClosedError
        self._received.extend(decode_to_engine(body) for body in self._frames.feed(data))
        return True


def main(descriptor: int, *begun: "Begun") -> int:
    """Runs the engine on the socket that the front left open as `descriptor`; the exit code.

    begun: threads that work since before the imports, and belong on the timeline.
    """
    timeline = Timeline("engine")
    timeline.add_interpreter(exec_time(os.environ).time, time.monotonic())
    for each in begun:
        each.note(timeline)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # The line's end tells of the front's death too, but not in the middle of a long step.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        return work(Line(socket.socket(fileno=descriptor)), timeline)
    except LineClosedError:
        return 0


def work(line: Line, timeline: Timeline) -> int:
    """Loads the model, says so, and serves. A failure is the last thing that the front hears."""
    try:
        with timeline.span("wait for settings", after="settings"):
            start = line.next()
        if not isinstance(start, Start):
            raise TypeError(f"expected Start first, got {type(start).__name__}")
        timeline.on_begin = lambda: line.send(Spans(timeline.spans))
        engine, ready = load(start.settings, timeline)
        timeline.on_begin = None
        line.send(ready)
        gc.freeze()  # what is loaded stays: collections need not look at it again
        gc.enable()
        serve(line, engine, timeline)
    except PilotlightError as error:
        line.send(Fatal(str(error), error.exit_code))
        return error.exit_code
    except LineClosedError:
        raise
    except Exception as error:
        with suppress(OSError):  # a log that is full or closed: the front is to hear of it all the same
            traceback.print_exc()
        reason = (str(error).splitlines() or [""])[0]
        line.send(Fatal(f"the engine failed: {type(error).__name__}: {reason}", EXIT_ENGINE))
        return EXIT_ENGINE
    return 0


def load(settings: Settings, timeline: Timeline) -> "tuple[Engine, Ready]":
    """Loads the model. Returns its engine, and what the front is told of it. Raises PilotlightError."""
    # OpenBLAS counts the machine's CPUs; more threads than a container's quota wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(usable_cpus()))
    with timeline.span("imports"):
        from ..model.model import load_model
        from .engine import Engine

    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)-7s engine: %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
    )
    model = load_model(Path(settings.model), settings, timeline)
    report = timeline.begin("report")  # its end comes before `Ready` is sent, which carries it
    engine = Engine.of(model, settings)
    report.end = time.monotonic()
    ready = Ready(
        max_model_len=engine.max_len,
        vocab_size=model.spec.vocab_size,
        pages=model.num_pages,
        page_size=PAGE_SIZE,
        device=model.device.title,
        dtype=model.device.dtype,
        spans=timeline.spans,
    )
    return engine, ready


def serve(line: Line, engine: "Engine", timeline: Timeline) -> None:
    """One StepDone for each step, until the front says Shutdown. Raises LineClosedError, and what a step raises."""
    recorder = StartRecorder(engine, timeline, line.send, line.rest)
    while True:
        aborted = False
        messages = line.arrived(wait=False)
        if not messages and not engine.has_work:
            prepare = engine.prepare if recorder.is_prepared else recorder.prepare
            if prepare():
                continue
            messages = line.arrived(wait=True)
        for message in messages:
            match message:
                case Submit():
                    engine.submit(message)
                case Abort(ids=ids):
                    engine.abort(ids)
                    aborted = True
                case Shutdown():
                    return
                case Start():
                    raise TypeError("Start came twice")
        if engine.has_work:
            outputs = engine.step() if recorder.has_token else recorder.step()
            line.send(StepDone(outputs, engine.stats))
        elif aborted:
            recorder.give_up()
            line.send(StepDone([], engine.stats))  # no step follows that would tell what is free now
        if not engine.has_work and _log.isEnabledFor(logging.DEBUG):
            engine.check_integrity()
