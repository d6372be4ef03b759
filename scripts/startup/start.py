"""One start of one side, from exec to the mark that it is measured to: port open, first 200, first streamed token.

All times are seconds since exec, by one clock: CLOCK_MONOTONIC of this process, read right before exec.
"""

import asyncio
import contextlib
import json
import shlex
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from scripts.bench_server import START_TIMEOUT, Refused, Server, complete, environment, first_line

from . import pages

TOKENS = 8  # asked for: more than one, so that the first is streamed
REQUESTS = ("queued", "late")  # sent as soon as the port opens, or when the server says that it is ready
_ROOT = f"{Path(__file__).resolve().parents[2]}/"
_RETRY_SECONDS = 0.002  # after a refusal
_NOT_FOUND, _UNAVAILABLE = 404, 503

Answer = TypeVar("Answer")
Until = Literal["exit", "line", "live", "token"]
Prompt = str | list[int]


class Failed(Exception):
    """A start that does not come to its mark. SystemExit would end an event loop without its other tasks."""


@dataclass(frozen=True)
class Side:
    """Who is started. `until` is the last mark: the process's exit, its first line, the first 200, the first token.

    live, ready: paths that answer 200 as soon as there is an HTTP server, and as soon as it takes requests.
    model_name: in requests; "" for a server that needs none. startup: where it says what it did.
    """

    name: str
    command: tuple[str, ...]
    until: Until = "token"
    url: str = ""
    live: str = "/health"
    ready: str = "/health"
    startup: str = ""
    model_name: str = ""
    prompt: Prompt = ""
    timeout: float = START_TIMEOUT
    weights: tuple[Path, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", tuple(pages.files_of(self.command)))

    @property
    def shown(self) -> str:
        """Its command as it is recorded, wherever the interpreter and this project lie."""
        return shlex.join("python" if word == sys.executable else word.removeprefix(_ROOT) for word in self.command)


@dataclass(frozen=True)
class Start:
    """marks: name -> seconds since exec, in their order. ledger: what the server itself says of it, if it does.

    code, said: of a process that was waited for, its exit code and its last line on stderr.
    """

    marks: dict[str, float]
    ledger: dict[str, Any] | None = None
    code: int | None = None
    said: str = ""


def measure(side: Side, request: str, log: Path) -> Start:
    """Raises SystemExit, with the side's name, for one that does not come to its mark."""
    try:
        match side.until:
            case "exit":
                return _until_exit(side)
            case "line":
                return Start({"first_token": first_line(list(side.command))})
            case _:
                return _serve(side, request, log)
    except (SystemExit, Failed) as failure:
        raise SystemExit(f"{side.name}: {failure}") from None


def _until_exit(side: Side) -> Start:
    started = time.monotonic()
    process = subprocess.Popen(
        side.command, env=environment(started), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        _, errors = process.communicate(timeout=side.timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise SystemExit(f"it did not end within {side.timeout:g} s") from None
    seconds = time.monotonic() - started
    lines = errors.decode(errors="replace").strip().splitlines()
    return Start({"exit": seconds}, code=process.returncode, said=lines[-1] if lines else "")


def _serve(side: Side, request: str, log: Path) -> Start:
    server = Server(list(side.command), log, side.url, side.timeout)
    try:
        server.connect()
        marks = {"port_open": time.monotonic() - server.started}
        asyncio.run(_watch(side, server, request, marks))
        ledger = asyncio.run(_ledger(server.url + side.startup)) if side.startup else None
    finally:
        server.stop()
    return Start(dict(sorted(marks.items(), key=lambda mark: mark[1])), ledger)


async def _watch(side: Side, server: Server, request: str, marks: dict[str, float]) -> None:
    """Adds the marks behind the open port."""

    def mark(name: str, at: float | None = None) -> None:
        marks[name] = (time.monotonic() if at is None else at) - server.started

    async def first_200() -> None:
        await accepted(server, lambda: get(server.url + side.live))
        mark("first_200")

    async def first_token() -> None:
        if request == "late":
            await accepted(server, lambda: get(server.url + side.ready))
            mark("ready")
        body = {"prompt": side.prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        if side.model_name:
            body["model"] = side.model_name
        mark("request")
        stream = await accepted(server, lambda: complete(server.url, body))
        mark("first_token", stream.first)

    await asyncio.gather(first_200(), *([first_token()] if side.until == "token" else []))


async def _ledger(url: str) -> dict[str, Any] | None:
    """What the server says of its start; None where it is of a version that says nothing."""
    try:
        return dict(json.loads(await get(url)))
    except Refused as refusal:
        if refusal.status != _NOT_FOUND:
            raise
        return None


async def accepted(server: Server, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
    """What `ask` gives once the server neither refuses as one that loads (503) nor cuts it off."""
    while True:
        try:
            async with asyncio.timeout(server.started + server.timeout - time.monotonic()):
                return await ask()
        except Refused as refusal:
            if refusal.status != _UNAVAILABLE:
                raise Failed(refusal) from None
        except (OSError, EOFError, ValueError):  # TimeoutError is an OSError: `check` says what it means
            pass
        try:
            server.check()
        except SystemExit as why:
            raise Failed(why) from None
        await asyncio.sleep(_RETRY_SECONDS)


async def get(url: str) -> bytes:
    """The body of a GET. Raises Refused for another status than 200, OSError where the answer is cut off."""
    parts = urllib.parse.urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        with contextlib.suppress(OSError):
            writer.close()
    if not head:
        raise ConnectionResetError(f"{url} closed the connection without an answer")
    status = int(head.split()[1])
    if status != 200:
        raise Refused(status, body.decode(errors="replace"))
    return body
