"""Process 1 once its libraries are imported: the HTTP server's run, from the first connection to the exit code.

the text side and the engine load --> serving --SIGTERM--> drain --> exit 0
              |                          |
              +--------------------------+-- failure --> every request is told --> its exit code
"""

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PilotlightError
from ..messages import Ready
from ..settings import Settings
from ..text.assets import load_text
from ..timeline import Exec, Timeline
from .app import build_app
from .errors import ApiError
from .process import EngineProcess, address_of, reap_orphans
from .service import Service, context_of
from .startup import Startup
from .supervisor import Supervisor, shutting_down
from .web import FLUSH_SECONDS, Connection, WebServer

if TYPE_CHECKING:
    from .runpod.queue import RunPodQueue

ACCEPT_SECONDS = 0.005  # for health checks that wait in the socket: the text side would take Python's lock from them
REST_SECONDS = 0.1  # without a request, before something is prepared that none has asked for
NO_DESCRIPTORS_SECONDS = 60.0  # between two log lines about it

log = logging.getLogger(__name__)


class Server:
    """Owns the event loop's tasks, the signals and the way out."""

    def __init__(
        self,
        settings: Settings,
        names: Sequence[str],
        command: Sequence[str],
        process: EngineProcess,
        listeners: Sequence[socket.socket],
        timeline: Timeline,
        exec: Exec,
        job_listener: socket.socket | None = None,
    ) -> None:
        """`settings.model` is the resolved directory; `names` are the API's for it. Made on the running loop.

        The first of `listeners` is the address that is told. `job_listener` is where RunPod's test API takes jobs,
        instead of the queue.
        """
        self._settings = settings
        self._listeners = listeners
        self._startup = Startup(timeline, exec, settings.startup_trace)
        self._address = address_of(listeners[0])
        self._told_to_stop = asyncio.Event()
        self._said_no_descriptors = float("-inf")  # when, on the loop's clock
        self._supervisor = Supervisor(settings, command, process, self._announce, self._startup.note_engine)
        self._service = Service(settings, names, self._supervisor, self._startup)
        self._job_listener = job_listener
        self._queue: RunPodQueue | None = None

    async def run(self) -> int:
        """Serves until it is told to stop; the exit code. Raises PilotlightError where it cannot go on."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_loop_error)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal)
        if os.getpid() == 1:
            loop.add_signal_handler(signal.SIGCHLD, lambda: reap_orphans(keep=self._supervisor.engine_pid))
        is_debug = self._settings.log_level == "debug"
        web = WebServer(build_app(self._service), access_log=is_debug, http=self._startup.watched(Connection))
        serving = loop.create_task(web.serve(sockets=list(self._listeners)))
        loading = loop.create_task(self._load())
        stopping = loop.create_task(self._told_to_stop.wait())
        log.info("listening at %s, loading %s", self._address, self._service.names[0])
        has_failed = False
        try:
            ends: set[asyncio.Future[Any]] = {stopping, self._supervisor.failure, serving}
            if self._settings.runpod_queue:
                from .runpod.queue import RunPodQueue

                self._queue = RunPodQueue(self._service, self._job_listener)
                ends.add(self._queue.ended)
            await asyncio.wait({loading, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._supervisor.failure.done():
                raise self._supervisor.failure.result()
            if self._queue is not None and self._queue.ended.done():
                self._queue.ended.result()
            await self._drain(self._settings.shutdown_timeout)
        except PilotlightError:
            has_failed = True
            await self._drain(0)
            raise
        finally:
            loading.cancel()
            stopping.cancel()
            logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # what it cuts off now has been told
            await web.stop(serving, at_once=has_failed)
            if self._queue is not None:
                await self._queue.close()
            self._startup.close()
            self._service.close()
            await self._supervisor.close()
        return 0

    async def _load(self) -> None:
        """Loads the text side beside the event loop, then listens to the engine, which has been loading meanwhile."""
        service = self._service
        await asyncio.sleep(ACCEPT_SECONDS)
        self._startup.note_loading()
        with self._startup.timeline.span("text", thread="text", after="server"):
            text = await service.in_pool(partial(load_text, Path(self._settings.model), self._settings.chat_template))
        service.set_text(text)
        self._startup.note_listening()
        await self._supervisor.attach()
        if text.template is not None:
            await self._rest()
            await service.in_pool(text.template.prepare)

    async def _rest(self) -> None:
        """Until the engine is ready and nobody waits for an answer: who came during the start comes first."""
        with suppress(ApiError):
            await self._supervisor.wait_ready()
        await asyncio.sleep(REST_SECONDS)
        while self._service.drain.is_busy:
            await self._service.drain.until_idle()
            await asyncio.sleep(REST_SECONDS)

    async def _drain(self, seconds: float) -> None:
        """Answers what runs, for so long at most, and turns everything else away."""
        service, supervisor = self._service, self._supervisor
        service.drain.begin()
        service.stop_waiting()
        if self._queue is not None:
            self._queue.stop()
        if not await service.drain.idle(seconds):
            supervisor.fail_all(shutting_down())
            await service.drain.idle(FLUSH_SECONDS)

    def _on_stop_signal(self) -> None:
        if self._told_to_stop.is_set():
            self._supervisor.kill()
            os._exit(0)
        self._service.drain.begin()
        if self._service.drain.is_busy:
            log.info(
                "stopping: running requests get %g s; a second signal stops at once", self._settings.shutdown_timeout
            )
        else:
            log.info("stopping: nothing runs")
        self._told_to_stop.set()

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """asyncio reports every accept that finds no descriptor, thousands a second, each with a traceback."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            if loop.time() - self._said_no_descriptors >= NO_DESCRIPTORS_SECONDS:
                self._said_no_descriptors = loop.time()
                log.error("no file descriptor is left, new connections wait (%s); raise ulimit -n", error.strerror)
        elif not (isinstance(error, ValueError) and self._listeners[0].fileno() < 0):  # its retry, after the end
            loop.default_exception_handler(context)

    def _announce(self, ready: Ready) -> None:
        name = self._service.names[0]
        startup = self._startup
        if self._supervisor.restarts:
            startup.close()
            log.info("the engine is ready again")
            return
        startup.note_ready(ready)
        log.info("%s", startup.summary())
        if sys.stderr.isatty() or self._settings.log_level == "debug":
            with suppress(OSError):  # as logging does: a log that is full or closed is no reason to fail
                print("\n".join(startup.waterfall()), file=sys.stderr)
        log.info(
            "serving %s at %s (%s, %s, context %d tokens)",
            name,
            self._address,
            ready.device,
            ready.dtype,
            context_of(ready),
        )
