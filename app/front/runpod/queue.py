"""The queue worker's life within the server: the SDK is imported while the model loads, and runs until told to stop.

With a listening socket it is the SDK's test API instead, which takes jobs over HTTP.
"""

import asyncio
import logging
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from ...errors import PilotlightError, UnavailableError
from ..app import inner_app
from ..process import address_of
from ..service import Service
from ..web import WebServer
from .jobs import Jobs
from .launch import NEEDS_EXTRA

log = logging.getLogger(__name__)


class RunPodQueue:
    def __init__(self, service: Service, test_listener: socket.socket | None) -> None:
        """Begins to work, on the running loop."""
        self._service = service
        self._test_listener = test_listener
        self._stopped = asyncio.Event()
        self.ended = asyncio.create_task(self._run())  # with a PilotlightError, unless it was told to stop

    def stop(self) -> None:
        """Takes no more jobs; those that were taken count as requests that the drain waits for."""
        self._stopped.set()

    async def close(self) -> None:
        """Ends what still runs."""
        self.ended.cancel()
        await asyncio.wait({self.ended})

    async def _run(self) -> None:
        try:
            sdk = await _beside_the_loop(_import_sdk)
            jobs = Jobs(inner_app(self._service), self._service.names[0], self._service.drain)
            sdk.set_log_level(self._service.settings.log_level)
            if self._test_listener is None:
                await sdk.QueueWorker(jobs, self._service, self._stopped).run()
            else:
                await self._serve_test_api(sdk.test_app(jobs), self._test_listener)
        except PilotlightError:
            raise
        except Exception as error:
            log.exception("the queue worker failed")
            raise PilotlightError(f"RunPod's SDK failed ({error}); the log has its traceback") from error

    async def _serve_test_api(self, app: Any, listener: socket.socket) -> None:
        web = WebServer(app, access_log=False)
        serving = asyncio.create_task(web.serve(sockets=[listener]))
        log.info("RunPod's test API at %s", address_of(listener))
        try:
            await self._stopped.wait()
        finally:
            web.should_exit = True
            await serving


def _import_sdk() -> ModuleType:
    """`worker`, and with it the SDK. Raises UnavailableError."""
    # The SDK asks py-cpuinfo for the processor's name, for its debugger: a second of spinning on a forked process.
    placeholder = ModuleType("cpuinfo")
    placeholder.get_cpu_info = dict  # type: ignore[attr-defined]  # it copes with a name that is not known
    sys.modules["cpuinfo"] = placeholder
    web_log = logging.getLogger("uvicorn")
    level = web_log.level
    try:
        from . import worker
    except ImportError as error:
        raise UnavailableError(f"{NEEDS_EXTRA} ({error})") from None
    finally:
        del sys.modules["cpuinfo"]
        web_log.setLevel(level)  # the SDK sets its own
    return worker


async def _beside_the_loop(work: Callable[[], ModuleType]) -> ModuleType:
    """In a thread that a stop does not wait for, as it would for a pool's."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[ModuleType] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            setter(value)

    def run() -> None:
        try:
            settled: tuple[Callable[[Any], None], Any] = done.set_result, work()
        except Exception as error:
            settled = done.set_exception, error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, *settled)

    threading.Thread(target=run, name="runpod import", daemon=True).start()
    return await done
