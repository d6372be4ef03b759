"""The front's record of its start, up to the first token of an answer: what /startup, the log and the trace say.

Apart from the server and the service because both write into it and routes read it. Once the first token is out it
is closed, and all that a request pays is a look at one flag.
"""

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from starlette.types import Message, Send

from .. import __version__
from ..ledger import Segment, chrome_trace, critical_path, summary, unattributed, waterfall
from ..messages import Ready, Span
from ..timeline import Exec, Timeline

log = logging.getLogger(__name__)


class _Request:
    """What a request has done so far, and until when."""

    def __init__(self, arrived: float) -> None:
        self.spans: list[Span] = []
        self.until = arrived


# Each request runs in a task of its own, and so in a context of its own: a copy of the one in which its bytes came.
_request: ContextVar[_Request | None] = ContextVar("request", default=None)
_received: ContextVar[float | None] = ContextVar("received", default=None)


class Startup:
    """Spans of both processes, and the moments that they lead to. Lives on the event loop."""

    def __init__(self, timeline: Timeline, exec: Exec, trace_file: str | None) -> None:
        """timeline: the front's. trace_file: where the trace is written, at the first token or else at the end."""
        self.timeline = timeline
        self._exec = exec
        self._trace_file = trace_file
        self._engine: list[Span] = []
        self._waiting: Span | None = None  # for the engine
        self._is_open = True  # no token is out yet
        self._ready: float | None = None
        self._first_token: float | None = None
        self._device: str | None = None

    # --- the start ------------------------------------------------------------------------------------------------

    def note_loading(self) -> None:
        """The event loop and the server are made, and the text side is about to be loaded."""
        self._note_server(time.monotonic())

    def _note_server(self, until: float) -> None:
        """Records the time since the last such span or import. A request that comes before the loading waited for the
        first part alone, so there are two of them then."""
        last = next(span for span in reversed(self.timeline.spans) if span.thread == "main")
        self.timeline.add("server", last.end or last.start, until)

    def note_listening(self) -> None:
        """The text side is loaded: what the start waits for now is the engine's word."""
        self._waiting = self.timeline.begin("wait for engine", thread="text", after="report")

    def note_ready(self, ready: Ready) -> None:
        """The first engine is ready."""
        self._ready = time.monotonic()
        if self._waiting is not None:
            self._waiting.end = self._ready
        self._device, self._engine = ready.device, ready.spans

    def note_engine(self, spans: list[Span]) -> None:
        """All that the first engine has done so far."""
        self._engine = spans

    # --- the first request ----------------------------------------------------------------------------------------

    def watched(self, protocol: Callable[..., Any]) -> Callable[..., Any]:
        """`protocol`, whose instances note when a client's bytes come, as long as no token is out."""

        def make(*args: Any, **options: Any) -> Any:
            connection = protocol(*args, **options)
            if self._is_open:
                receive = connection.data_received

                def noting(data: bytes) -> None:
                    if self._is_open:
                        _received.set(time.monotonic())
                    else:
                        connection.data_received = receive
                    receive(data)

                connection.data_received = noting
            return connection

        return make

    def arrive(self) -> float:
        """A request is with its handler: time.monotonic()."""
        now = time.monotonic()
        if self._is_open:
            received = _received.get() or now
            request = _Request(received)
            _request.set(request)
            if self._ready is not None and self._ready < received:
                request.until = self._ready
                self._mark(request, "wait for a request", "wait for engine", received)
            elif (served := self._server_end) is None:
                self._note_server(received)
            elif served < received:  # on the path if the request takes longer than the loading
                request.until = served
                self._mark(request, "no request yet", "server", received)
            self._mark(request, "accept", "server", now)
        return now

    def mark(self, name: str, after: str = "") -> None:
        """What the current request did since its last mark is `name`, for which it awaited the end of `after`."""
        if self._is_open and (request := _request.get()) is not None:
            self._mark(request, name, after, time.monotonic())

    def first_writer(self, send: Send) -> Send:
        """`send` itself; while no token is out, one that notes when the first body has been sent."""
        request = _request.get()
        if not self._is_open or request is None:
            return send
        is_first = True

        async def noting(message: Message) -> None:
            nonlocal is_first
            if not is_first or message["body"].startswith(b":"):  # a comment
                await send(message)
                return
            is_first = False
            self.mark("wait for token", after="prefill")
            await send(message)
            self.note_token("write")

        return noting

    def note_token(self, name: str) -> None:
        """The current request's first token is out; `name` is its last step. Only the first request is recorded."""
        if self._is_open and (request := _request.get()) is not None:
            now = self._first_token = time.monotonic()
            self._mark(request, name, "prefill", now)
            self.timeline.spans.extend(request.spans)
            self.close()

    def close(self) -> None:
        """Nothing is noted from here on. Writes the trace, once."""
        self._is_open = False
        file, self._trace_file = self._trace_file, None
        if file is not None:
            self._write_trace(file)

    def _mark(self, request: _Request, name: str, after: str, now: float) -> None:
        request.spans.append(Span("front", name, request.until, now, thread="request", after=after))
        request.until = now

    # --- what is told ---------------------------------------------------------------------------------------------

    def report(self, name: str, state: str) -> dict[str, Any]:
        """GET /startup's answer: seconds since the exec of process 1."""
        begin, end = self._exec.time, self._end
        path = self._path()
        critical = {id(segment.span) for segment in path}
        return {
            "object": "startup",
            "version": __version__,
            "model": name,
            "device": self._device,
            "state": state,
            "origin": self._exec.origin,
            "seconds": {
                "port_open": self._since_exec(self._port_open),
                "ready": self._since_exec(self._ready),
                "first_token": self._since_exec(self._first_token),
            },
            "unattributed": unattributed(path, begin, begin if end is None else end),
            "spans": [
                {
                    "process": span.process,
                    "name": span.name,
                    "start": span.start - begin,
                    "end": self._since_exec(span.end),
                    "bytes": span.bytes or None,
                    "critical": id(span) in critical,
                }
                for span in sorted(self._spans, key=lambda span: span.start)
            ],
        }

    def summary(self) -> str:
        """One line for the log, once ready."""
        assert self._ready is not None
        return summary(self._spans, self._exec.time, self._ready)

    def waterfall(self) -> list[str]:
        return waterfall(self._spans)

    def seconds(self) -> tuple[dict[str, float], dict[str, float]]:
        """How long each phase took, and from exec until what: for metrics. Only what is over."""
        phases: dict[str, float] = {}
        for span in self._spans:
            if span.end is not None:
                phase = f"{span.process} {span.name}"
                phases[phase] = phases.get(phase, 0.0) + span.end - span.start
        moments = {"ready": self._ready, "first_token": self._first_token}
        return phases, {name: moment - self._exec.time for name, moment in moments.items() if moment is not None}

    @property
    def _spans(self) -> list[Span]:
        return self.timeline.spans + self._engine

    @property
    def _end(self) -> float | None:
        return self._ready if self._first_token is None else self._first_token

    @property
    def _port_open(self) -> float | None:
        return next((span.end for span in self.timeline.spans if span.name == "listen"), None)

    @property
    def _server_end(self) -> float | None:
        """Since when a request that comes finds a server, so far as that has been noted."""
        return next((span.end for span in reversed(self.timeline.spans) if span.name == "server"), None)

    def _path(self) -> list[Segment]:
        end = self._end
        return [] if end is None else critical_path(self._spans, end)

    def _since_exec(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self._exec.time

    def _write_trace(self, file: str) -> None:
        """Whole or not at all: into a file beside it, which then takes its name."""
        import orjson

        trace = chrome_trace(self._spans, self._path(), self._exec.time, time.monotonic())
        target = os.path.realpath(file)  # a link stays one
        beside = f"{target}.{os.getpid()}"
        try:
            try:
                with open(beside, "wb") as stream:
                    stream.write(orjson.dumps(trace))
                os.replace(beside, target)
            except OSError:
                with suppress(OSError):
                    os.unlink(beside)
                raise
        except OSError as error:
            log.error("--startup-trace %s: cannot be written: %s", file, error.strerror)
