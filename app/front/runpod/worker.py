"""The SDK on the front's event loop: takes jobs while an engine serves, stops when told, sends its heartbeat.

Importing this module imports the SDK. Its `start` wants the main thread, the signals and the loop, which are the
front's; so this does the same with its parts: the JobScaler's loops, the ping, or the test API. Where it differs:

  - jobs are taken only while an engine is ready, for one that is being restarted would empty the queue into errors;
  - a stop cancels the long poll (up to 90 s), and the jobs taken before it are answered within the drain;
  - the ping is a thread: the SDK's process would be a fork of the front, with the engine's line and the signals;
  - the SDK's fitness checks are left out: an engine that is ready has used the device and its memory.
"""

import asyncio
import logging
import os
import threading
from contextlib import ExitStack, suppress
from typing import Any

from runpod.http_client import AsyncClientSession
from runpod.serverless.modules.rp_job import get_job, handle_job
from runpod.serverless.modules.rp_logger import RunPodLogger
from runpod.serverless.modules.rp_ping import Heartbeat
from runpod.serverless.modules.rp_scale import JobScaler
from runpod.serverless.modules.worker_state import JobsProgress
from starlette.types import ASGIApp

from ..errors import ApiError
from ..service import Service
from .jobs import Jobs

RESTART_INTERVAL = 0.1  # between two looks at an engine that is being restarted
_LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}

log = logging.getLogger(__name__)


class QueueWorker:
    """RunPod's queue, from the first poll to the last answer."""

    def __init__(self, jobs: Jobs, service: Service, stop: asyncio.Event) -> None:
        """Made on the running loop."""
        concurrency = service.settings.max_num_seqs
        self._service = service
        self._taken: dict[int, ExitStack] = {}  # id() of a job that waits in the SDK: what the drain counts it by
        self._stop = stop
        self._scaler = JobScaler(
            {
                "handler": jobs.handle,
                "concurrency_modifier": lambda current: concurrency,
                "return_aggregate_stream": True,
            }
        )
        self._scaler.jobs_fetcher = self._take
        self._scaler.jobs_handler = self._answer

    async def run(self) -> None:
        """Works until `stop` is set, and then until what was taken is answered. A set `stop` ends the poll."""
        await self._until_served()
        if self._stop.is_set():
            return
        start_ping()
        log.info("taking jobs from RunPod's queue, %d at once", self._service.settings.max_num_seqs)
        async with AsyncClientSession() as session:
            scaler = self._scaler
            taking = asyncio.create_task(scaler.get_jobs(session))
            answering = asyncio.create_task(scaler.run_jobs(session))
            hearing = asyncio.create_task(scaler.monitor_stop_signals(session))
            stopping = asyncio.create_task(self._stop.wait())
            tasks = {taking, answering, hearing, stopping}
            try:
                await asyncio.wait({taking, answering, stopping}, return_when=asyncio.FIRST_COMPLETED)
                scaler.kill_worker()
                taking.cancel()
                await answering
                with suppress(asyncio.CancelledError):
                    await taking  # raises what ended it, if that was no stop
            finally:
                for task in (*tasks, *scaler.jobs_tasks.values()):
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, session: Any, count: int) -> list[dict[str, Any]]:
        """The SDK's fetcher: at most `count` jobs, without those that would end the SDK's loops."""
        await self._until_served()
        jobs = await get_job(session, count) or []
        good = [job for job in jobs if isinstance(job, dict) and isinstance(job.get("id"), str)]
        if len(good) < len(jobs):
            log.error("RunPod sent %d jobs without an id, which cannot be answered", len(jobs) - len(good))
        for job in good:
            self._taken[id(job)] = counted = ExitStack()
            counted.enter_context(self._service.drain.request())
        return good

    async def _answer(self, session: Any, config: dict[str, Any], job: dict[str, Any]) -> None:
        """The SDK's way to answer a job, counted by the drain until the answer is posted."""
        with self._taken.pop(id(job)):
            await self._until_served()
            await handle_job(session, config, job)

    async def _until_served(self) -> None:
        """Returns once requests are served, or never will be again."""
        supervisor = self._service.supervisor
        while supervisor.ready is None and supervisor.state != "stopped":
            if supervisor.state == "starting":
                with suppress(ApiError):
                    await supervisor.wait_ready()
            else:
                await asyncio.sleep(RESTART_INTERVAL)


class _JobIds:
    """The running jobs' ids, from the SDK's list of them to its ping."""

    def __init__(self) -> None:
        self._ids: str | None = None

    def set(self, ids: str | None) -> None:
        self._ids = ids

    def get(self) -> str | None:
        return self._ids


def start_ping() -> None:
    """Tells RunPod every few seconds that this worker lives, and what it works on."""
    if all(os.environ.get(name) for name in ("RUNPOD_WEBHOOK_PING", "RUNPOD_POD_ID", "RUNPOD_AI_API_KEY")):
        ids = _JobIds()
        JobsProgress().set_mirror(ids)
        threading.Thread(target=Heartbeat.process_loop, args=(ids,), name="runpod ping", daemon=True).start()


def set_log_level(level: str) -> None:
    """The SDK's own default is to print every part of every answer."""
    if not (os.environ.get("RUNPOD_LOG_LEVEL") or os.environ.get("RUNPOD_DEBUG_LEVEL")):
        RunPodLogger.level = _LEVELS[level]


def test_app(jobs: Jobs) -> ASGIApp:
    """The SDK's test API (`--rp_serve_api`): the same handler behind RunPod's /run, /runsync, /stream and /status."""
    from runpod.serverless.modules import rp_fastapi  # and with it FastAPI

    rp_fastapi.heartbeat.start_ping = lambda mirror: None
    app: ASGIApp = rp_fastapi.WorkerAPI({"handler": jobs.handle}).rp_app
    return app
