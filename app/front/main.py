"""`pilotlight serve`: process 1. The order of the first milliseconds is the point of this file.

The port is bound and the engine started before anything else is imported, not even what parses the settings: while
the engine comes up this process imports its own stack, and whoever connects meanwhile waits in the socket's queue.
Garbage is not looked for until that is done: what is imported stays.
"""

import gc
import os
import signal
from contextlib import suppress
from time import monotonic

from .. import peek
from ..errors import UnavailableError, UsageError
from .process import engine_command, listen, open_standard_streams, raise_file_limit, spawn_engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from types import FrameType

    from ..settings import Settings
    from ..timeline import Exec, Timeline
    from .process import EngineProcess


def serve(argv: "list[str]") -> int:
    """Serves a model until a signal stops it; the exit code. Raises PilotlightError."""
    _leave_when_told()
    if peek.asks_for_help(argv):
        from ..settings import from_args

        from_args(argv)
    gc.disable()
    open_standard_streams()
    begun = monotonic()
    address = peek.address(argv, os.environ)
    listener = None
    if address is not None:
        with suppress(UnavailableError):  # told below, if the settings are right
            listener = listen(*address)
    bound = monotonic()
    raise_file_limit()
    command = engine_command()
    process = spawn_engine(command, peek.device(argv, os.environ), peek.weights(argv, os.environ))
    spawned = monotonic()
    try:
        from ..timeline import Timeline, exec_time

        exec = exec_time(os.environ)
        timeline = Timeline("front")
        timeline.add_interpreter(exec.time, begun)
        timeline.add("listen", begun, bound)
        timeline.add("start engine", bound, spawned)
        settings_span = timeline.add("settings", spawned, None)
        settings, names, job_listener = _settings(argv)
        if listener is not None and address != (settings.host, settings.port):
            listener.close()
            listener = None
        listener = listener or listen(settings.host, settings.port)
        listeners = [listener, *_health_listener(settings)]
    except BaseException:
        process.abandon()
        raise
    process.tell(settings)
    settings_span.end = monotonic()
    return _run(settings, names, command, process, listeners, timeline, exec, job_listener)


def _settings(argv: "list[str]") -> "tuple[Settings, Sequence[str], socket.socket | None]":
    """The settings with the model's directory, the API's names for it, and where RunPod's test API takes jobs."""
    import msgspec

    from ..settings import from_args
    from ..source import resolve_model

    test_api = None
    if any(argument.startswith("--rp_") for argument in argv):
        from .runpod.launch import split_flags

        argv, test_api = split_flags(argv)
    settings = from_args(argv)
    names = settings.served_model_name or (settings.model,)
    settings = msgspec.structs.replace(settings, model=str(resolve_model(settings.model)))
    if settings.startup_trace is not None:
        _check_trace(settings.startup_trace)
    job_listener = None
    if settings.runpod_queue or test_api is not None:
        from .runpod.launch import prepare

        job_listener = prepare(settings, os.environ, test_api)
    return settings, names, job_listener


def _check_trace(file: str) -> None:
    """Raises UsageError where a trace could not be written, or would take the place of a device or a pipe."""
    target = os.path.realpath(file)
    folder = os.path.dirname(target)
    if not file or (os.path.exists(target) and not os.path.isfile(target)):
        problem = "is not a file"
    elif not os.path.isdir(folder):
        problem = f"there is no directory {folder}"
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = f"no file can be made in {folder}"
    else:
        return
    raise UsageError(
        f"--startup-trace (or {peek.env_name('startup_trace')}) {file!r}: {problem}; "
        "expected the name of a file in a directory that can be written"
    )


def _health_listener(settings: "Settings") -> "list[socket.socket]":
    """Where a platform asks for health, if that is not where it sends requests."""
    if settings.health_port in (None, settings.port):
        return []
    try:
        return [listen(settings.host, settings.health_port)]
    except UnavailableError as error:
        raise UnavailableError(str(error).replace("--port (0 picks a free one)", "--health-port")) from None


def _run(
    settings: "Settings",
    names: "Sequence[str]",
    command: "Sequence[str]",
    process: "EngineProcess",
    listeners: "Sequence[socket.socket]",
    timeline: "Timeline",
    exec: "Exec",
    job_listener: "socket.socket | None",
) -> int:
    imports = timeline.begin("imports")
    import logging

    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S"
    )
    from ..settings import unknown_variables

    for complaint in (exec.complaint, unknown_variables(os.environ)):
        if complaint:
            logging.getLogger(__name__).warning("%s", complaint)
    if peek.on_runpod(os.environ):
        from ..runpod_env import without_effect

        if said := without_effect(os.environ):
            logging.getLogger(__name__).warning("%s", said)
    if settings.log_level != "debug":
        logging.getLogger("asyncio").setLevel(logging.WARNING)
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # its warnings are about what clients send
    import asyncio

    from .server import Server

    imports.end = monotonic()
    gc.freeze()
    gc.enable()

    async def run() -> int:
        return await Server(settings, names, command, process, listeners, timeline, exec, job_listener).run()

    try:
        return asyncio.run(run())
    finally:
        _leave_when_told()  # the loop gave the signals back: a second one ends what Python does on its way out


def _leave_when_told() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)  # the kernel gives process 1 no default handlers


def _leave(number: int, frame: "FrameType | None") -> None:
    """Told to stop where there is no event loop: nothing runs yet, or any more; the engine follows its closed line.

    No exception: one that is raised in a destructor or in a callback of an import is reported there, and lost.
    """
    os._exit(0)
