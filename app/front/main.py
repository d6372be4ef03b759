"""`pilotlight serve`: process 1. The order of the first milliseconds is the point of this file.

Port bound, signals handled and the engine started come before anything heavy is imported: while the engine starts,
this process imports its own stack, and whoever connects meanwhile waits in the socket's queue.
"""

import logging
import os
import signal
import sys
import time
from types import FrameType

import msgspec

from ..settings import from_args
from ..source import resolve_model
from ..timeline import Timeline, process_start
from .process import engine_command, listen, open_standard_streams, raise_file_limit, start_engine


def serve(argv: list[str]) -> int:
    """Serves a model until a signal stops it; the exit code. Raises PilotlightError."""
    open_standard_streams()
    timeline = Timeline("front")
    timeline.add("python", process_start(), time.monotonic())
    with timeline.span("start engine"):
        test_api = None
        if any(argument.startswith("--rp_") for argument in argv):
            from .runpod.launch import split_flags

            argv, test_api = split_flags(argv)
        settings = from_args(argv)
        names = settings.served_model_name or (settings.model,)
        settings = msgspec.structs.replace(settings, model=str(resolve_model(settings.model)))
        job_listener = None
        if settings.runpod_queue or test_api is not None:
            from .runpod.launch import prepare

            job_listener = prepare(settings, os.environ, test_api)
        listener = listen(settings.host, settings.port)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _leave)  # the kernel gives process 1 no default handlers
        raise_file_limit()
        command = engine_command()
        process = start_engine(command, settings)
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S"
    )
    if settings.log_level != "debug":
        logging.getLogger("asyncio").setLevel(logging.WARNING)
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # its warnings are about what clients send
    with timeline.span("imports"):
        import asyncio

        from .server import Server

    async def run() -> int:
        return await Server(settings, names, command, process, listener, timeline, job_listener).run()

    return asyncio.run(run())


def _leave(number: int, frame: FrameType | None) -> None:
    """Told to stop before there is an event loop: nothing runs yet, and the engine follows its closed line."""
    sys.exit(0)
