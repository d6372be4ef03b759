"""Keeps one engine running: its start, its death, its restarts, and the decision to give up.

    starting --ready--> ready --death--> restarting --ready--> ready ...
        |                                    |
        +-- fatal, or any death ---> failure +-- fatal, or too many deaths in ten minutes ---> failure

`failure` is what the server exits with. The supervisor owns the engine's process and its line; requests reach the
engine through `submit` and `abort` only.
"""

import asyncio
import logging
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal

from ..errors import EXIT_ENGINE, EngineDiedError, PilotlightError
from ..messages import Fatal, Ready, Span, Spans, Stats, StepDone, Submit
from ..settings import Settings
from .engine_client import Channel, EngineClient
from .errors import ApiError, unavailable
from .process import EngineProcess, describe_exit, start_engine

DEATH_WINDOW = 600.0  # seconds for which a death counts towards max_engine_deaths
FIRST_BACKOFF, LONGEST_BACKOFF = 0.2, 30.0  # seconds before a restart; each death in the window doubles them
EXIT_GRACE = 1.0  # seconds from the end of the line to SIGKILL
KILL_GRACE = 30.0  # seconds from there to the end; a process that waits inside a driver may never get to it
WATCH_INTERVAL = 0.5

_COUNTERS = (
    "preemptions",
    "prompt_tokens",
    "generated_tokens",
    "prefix_queried_tokens",
    "prefix_hit_tokens",
    "steps",
    "step_seconds",
)

log = logging.getLogger(__name__)


class Supervisor:
    def __init__(
        self,
        settings: Settings,
        command: Sequence[str],
        process: EngineProcess,
        on_ready: Callable[[Ready], None] = lambda ready: None,
        on_spans: Callable[[list[Span]], None] = lambda spans: None,
    ) -> None:
        """`process` runs already; `command` starts its successors.

        `on_ready` is called when an engine is ready, `on_spans` with all that the first one's start has done so far.
        """
        self._settings = settings
        self._command = command
        self._process = process
        self._announce = on_ready
        self._note = on_spans
        self._client = EngineClient(self)
        self._transport: asyncio.BaseTransport | None = None
        self._alive = True  # the process is not collected yet
        self._loaded = False  # it has said that it is ready
        self._started_at = time.monotonic()
        self._fatal: Fatal | None = None  # why it cannot go on: as it said, or as we found
        self._killed_at = math.inf
        self._deaths: deque[float] = deque()
        self._left_start = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._past = Stats()  # counters of the engines that died
        self.state: Literal["starting", "ready", "restarting", "failed", "stopped"] = "starting"
        self.ready: Ready | None = None  # while an engine is ready
        self.stats = Stats()  # of the engine that runs now
        self.restarts = 0
        self.failure: asyncio.Future[PilotlightError] = asyncio.get_running_loop().create_future()

    @property
    def engine_pid(self) -> int:
        return self._process.pid

    @property
    def outstanding(self) -> int:
        """Sequences in the engine: running and waiting."""
        return self._client.outstanding

    def counter(self, name: str) -> float:
        """One of Stats' counters over all engines so far."""
        return float(getattr(self._past, name) + getattr(self.stats, name))

    async def attach(self) -> None:
        """Begins to listen to the engine, and to watch that it answers."""
        await self._connect()
        self._spawn(self._watch())

    async def wait_ready(self) -> Ready:
        """The engine, awaited while the server starts. Raises ApiError (503) where none is ready by then."""
        if self.state == "starting":
            with suppress(TimeoutError):
                await asyncio.wait_for(self._left_start.wait(), self._settings.startup_timeout)
        if self.ready is None:
            raise self.not_ready()
        return self.ready

    def not_ready(self) -> ApiError:
        """Why a request is turned away now."""
        match self.state:
            case "stopped":
                return shutting_down()
            case "failed":
                return unavailable("the engine cannot run, the server is stopping", "engine_failed", close=True)
            case "restarting":
                return unavailable("the engine died and is being started again; retry shortly", "engine_restarting")
            case _:
                return unavailable("the model is still being loaded; retry shortly", "engine_starting")

    def submit(self, sequences: Sequence[Submit], channel: Channel) -> None:
        """Raises ApiError (503) unless an engine is ready."""
        if self.ready is None:
            raise self.not_ready()
        self._client.submit(sequences, channel)

    def abort(self, ids: Iterable[int]) -> None:
        if self.ready is not None:
            self._client.abort(ids)

    def fail_all(self, error: ApiError) -> None:
        """Every request in the engine ends with `error`."""
        self._client.fail_all(error)

    def stop_waiting(self) -> None:
        """Turns away the requests that wait for a start that will not be finished."""
        if self.state != "ready":
            self.state = "stopped"
        self._left_start.set()

    def kill(self) -> None:
        """Ends the engine at once."""
        if self._alive:  # else its id may be another process's by now
            self._killed_at = min(self._killed_at, time.monotonic())
            os.kill(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Ends the engine: asked first, killed if it loads or is in the middle of something long."""
        self.state, self.ready = "stopped", None
        self._left_start.set()
        for task in self._tasks:
            task.cancel()
        self.fail_all(shutting_down())
        if self._transport is not None:
            if not self._transport.is_closing():
                self._client.shutdown()
            self._transport.close()
        else:
            self._process.line.close()
        if self._alive:
            await self._collect(EXIT_GRACE if self._loaded else 0.0)

    # --- the engine's own words (engine_client.Listener) -------------------------------------------------

    def on_ready(self, ready: Ready) -> None:
        if self.state == "stopped":
            return
        self.state, self.ready, self._loaded = "ready", ready, True
        self._left_start.set()
        self._announce(ready)

    def on_spans(self, spans: Spans) -> None:
        if not self._deaths:
            self._note(spans.spans)

    def on_step(self, step: StepDone) -> None:
        self.stats = step.stats

    def on_fatal(self, fatal: Fatal) -> None:
        self._fatal = fatal

    def on_lost(self) -> None:
        if self.state == "stopped":
            return
        is_first = self.state == "starting"
        self.state, self.ready = "restarting", None
        for name in _COUNTERS:
            setattr(self._past, name, getattr(self._past, name) + getattr(self.stats, name))
        self.stats = Stats()
        self.fail_all(unavailable("the engine died while it worked on this request", "engine_died"))
        self._spawn(self._bury(is_first))

    # --- death and restart -------------------------------------------------------------------------------

    async def _bury(self, is_first: bool) -> None:
        """Finds out why the engine died, and starts another or gives up."""
        fatal, self._fatal = self._fatal, None
        status = await self._collect()
        reason = fatal.message if fatal else f"the engine {describe_exit(status)}"
        if fatal and not self._loaded:
            # A bad model or too little memory: a second try would end the same way, and bill for it.
            self._give_up(PilotlightError(reason), fatal.exit_code)
            return
        if is_first:
            self._give_up(EngineDiedError(f"{reason} while it loaded the model"))
            return
        now = time.monotonic()
        self._deaths.append(now)
        while self._deaths[0] < now - DEATH_WINDOW:
            self._deaths.popleft()
        count, limit = len(self._deaths), self._settings.max_engine_deaths
        if count >= limit:
            times = "once" if count == 1 else f"{count} times within ten minutes"
            self._give_up(EngineDiedError(f"the engine died {times} (--max-engine-deaths {limit}); last: {reason}"))
            return
        delay = min(FIRST_BACKOFF * 2 ** (count - 1), LONGEST_BACKOFF)
        log.error("%s; death %d of %d, starting it again in %.1f s", reason, count, limit, delay)
        await asyncio.sleep(delay)
        self.restarts += 1
        try:
            self._process = start_engine(self._command, self._settings)
        except OSError as error:  # no memory or no process id left for a fork
            self._give_up(EngineDiedError(f"{reason}, and cannot be started again: {error}"))
            return
        self._alive, self._loaded, self._started_at = True, False, time.monotonic()
        self._killed_at = math.inf
        await self._connect()

    async def _collect(self, grace: float = EXIT_GRACE) -> int:
        """waitpid's status of an engine whose line is closed; killed if it has not exited after `grace` seconds.

        One that does not end even so is given up, and counts as killed.
        """
        deadline = time.monotonic() + grace
        while not self._is_stuck():
            done, status = os.waitpid(self._process.pid, os.WNOHANG)  # noqa: ASYNC222  # it does not block
            if done:
                self._alive = False
                return status
            if time.monotonic() > deadline:
                self.kill()
            await asyncio.sleep(0.005)
        return signal.SIGKILL

    def _is_stuck(self) -> bool:
        return self._alive and time.monotonic() - self._killed_at > KILL_GRACE

    def _give_up(self, error: PilotlightError, exit_code: int | None = None) -> None:
        if exit_code is not None:
            error.exit_code = exit_code
        self.state = "failed"
        self._left_start.set()
        if not self.failure.done():
            self.failure.set_result(error)

    async def _connect(self) -> None:
        self._client = client = EngineClient(self)
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_unix_connection(lambda: client, sock=self._process.line)

    async def _watch(self) -> None:
        """An engine that owes a step or its first word for too long hangs; only killing it frees its device.

        Only time in which this process ran counts: a container that was paused wakes up behind every deadline.
        """
        looked = time.monotonic()
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            now = time.monotonic()
            asleep = max(now - looked - WATCH_INTERVAL, 0.0)
            looked = now
            self._started_at += asleep
            self._killed_at += asleep
            self._client.excuse(asleep)
            is_loading = self._alive and not self._loaded and self.state in ("starting", "restarting")
            if is_loading and time.monotonic() - self._started_at > self._settings.startup_timeout:
                seconds = f"{self._settings.startup_timeout:g} s"
                self._fatal = Fatal(f"the engine was not ready within {seconds} (--startup-timeout)", EXIT_ENGINE)
                self.kill()
            if self.ready is not None and self._client.silent_for > self._settings.engine_timeout:
                seconds = f"{self._settings.engine_timeout:g} s"
                self._fatal = Fatal(f"the engine finished no step within {seconds} (--engine-timeout)", 1)
                self.ready, self.state = None, "restarting"
                self.fail_all(unavailable(f"the engine gave no answer within {seconds}", "engine_hung"))
                self.kill()
            if self._is_stuck() and self._fatal is not None:  # while it is there its line is open, and nobody tells
                self._give_up(EngineDiedError(f"{self._fatal.message}, and does not end though it was killed"))
                return

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def shutting_down() -> ApiError:
    return unavailable("the server is shutting down", "shutting_down", close=True)
