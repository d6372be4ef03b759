"""The server that scripts/bench_serving and scripts/measure_startup measure: started in processes of its own, asked
over HTTP, its memory read."""

import asyncio
import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil

# Work-arounds for old BLAS libraries that some machines set; they slow numpy's down. Removed for both sides.
REMOVED_ENVIRONMENT = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in REMOVED_ENVIRONMENT}
START_TIMEOUT = 300.0  # s, for a server to accept connections


def environment(exec_time: float) -> dict[str, str]:
    """For a process that is about to be started: it tells our server when its start began."""
    return ENVIRONMENT | {"PILOTLIGHT_EXEC_TIME": repr(exec_time)}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def our_command(model: str, flags: list[str]) -> list[str]:
    return [sys.executable, "-m", "pilotlight", "serve", model, "--port", "{port}", *flags]


class Server:
    """A server in processes of its own, until `stop`. In its command, {port} is the port that it is given.

    url: where it listens, for one that does not take a port. timeout: seconds that it has to start.
    """

    def __init__(self, command: list[str], log: Path, url: str = "", timeout: float = START_TIMEOUT) -> None:
        self.url = url or f"http://127.0.0.1:{free_port()}"
        parts = urllib.parse.urlsplit(self.url)
        self.address = (parts.hostname or "", parts.port or 80)
        self.log = log
        self.timeout = timeout
        self.command = [word.replace("{port}", str(self.address[1])) for word in command]
        with log.open("wb") as output:
            self.started = time.monotonic()
            self.process = subprocess.Popen(self.command, env=environment(self.started), stdout=output, stderr=output)

    def connect(self, health: str = "") -> None:
        """Returns as soon as the port accepts; that is before our engine is ready, and requests are held until then.

        health: a path that has to answer 200 as well, for servers that refuse requests while they load.
        """
        while True:
            with contextlib.suppress(OSError), socket.create_connection(self.address, timeout=10) as connection:
                if not health:
                    return
                connection.sendall(f"GET {health} HTTP/1.0\r\n\r\n".encode())
                if b" 200 " in connection.makefile("rb").readline():
                    return
            self.check()
            time.sleep(0.001)

    def check(self) -> None:
        """Raises SystemExit, with the end of its log, if it has ended or has had its time to start."""
        code = self.process.poll()
        if code is None and time.monotonic() - self.started <= self.timeout:
            return
        self.stop()
        why = f"within {self.timeout:g} s" if code is None else f"and left with code {code}"
        said = self.log.read_text(encoding="utf-8", errors="replace")[-4000:]
        raise SystemExit(f"the server did not start {why}: {shlex.join(self.command)}\n{said}")

    def processes(self) -> "dict[str, psutil.Process]":
        import psutil  # an extra for the tests; who measures only starts does without it

        front = psutil.Process(self.process.pid)
        (engine,) = (child for child in front.children() if any("engine" in word for word in child.cmdline()))
        return {"front": front, "engine": engine}

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def first_line(command: list[str]) -> float:
    """Seconds from the start of a process to the first line that it prints."""
    start = time.monotonic()
    with subprocess.Popen(
        command, env=environment(start), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.monotonic() - start
    if not line:
        raise SystemExit(f"{shlex.join(command)} printed nothing")
    return seconds


class Refused(SystemExit):
    """An answer with another status than 200."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(f"the server answered {status}: {why}")
        self.status = status


@dataclass
class Stream:
    first: float  # time of the first text
    last: float  # of the last, or of the reason for the end
    tokens: int


async def complete(url: str, body: dict[str, Any]) -> Stream:
    """One streamed completion. Times are CLOCK_MONOTONIC seconds. Raises Refused, and OSError where it is cut off."""
    parts = urllib.parse.urlsplit(url)
    payload = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**22)
    try:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + payload)
        status = (await reader.readline()).split()
        if not status:
            raise ConnectionResetError(f"{url} closed the connection without an answer")
        while (await reader.readline()).strip():
            pass
        if status[1] != b"200":
            raise Refused(int(status[1]), (await reader.read()).decode(errors="replace"))
        first, last, tokens = 0.0, 0.0, 0
        buffer = b""
        while size := int(await reader.readline(), 16):
            buffer += (await reader.readexactly(size + 2))[:-2]
            *events, buffer = buffer.split(b"\n\n")
            for event in events:
                data = event.removeprefix(b"data: ")
                if event.startswith(b":") or data == b"[DONE]":  # a comment keeps a slow connection alive
                    continue
                chunk = json.loads(data)
                if "error" in chunk:
                    raise SystemExit(f"the server answered {chunk['error']}")
                if chunk.get("usage"):
                    tokens = chunk["usage"]["completion_tokens"]
                if chunk["choices"]:
                    last = time.monotonic()
                    first = first or last
        return Stream(first, last, tokens)
    finally:
        writer.close()


async def load(url: str, model: str, prompts: list[list[int]], tokens: int) -> tuple[float, list[Stream]]:
    """All prompts at once; the start and each one's times."""
    common = {"model": model, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    start = time.monotonic()
    streams = await asyncio.gather(*(complete(url, common | {"prompt": prompt}) for prompt in prompts))
    for stream in streams:
        if stream.tokens != tokens:
            raise SystemExit(f"a stream had {stream.tokens} tokens of {tokens}")
    return start, streams


async def served_model(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"GET /v1/models HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
    body = (await reader.read()).partition(b"\r\n\r\n")[2]
    writer.close()
    return str(json.loads(body)["data"][0]["id"])


def memory(pid: int) -> dict[str, float]:
    """Of one process, in MB: the peak of its resident set, and what is resident and proportional now."""
    fields: dict[str, float] = {}
    for source, names in (("status", ("VmHWM", "RssAnon")), ("smaps_rollup", ("Rss", "Pss", "Pss_Anon"))):
        for line in Path(f"/proc/{pid}/{source}").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name in names:
                fields[name] = round(int(value.split()[0]) / 1000, 1)
    return {
        "peak_rss_mb": fields["VmHWM"],
        "rss_mb": fields["Rss"],
        "pss_mb": fields["Pss"],
        "anonymous_mb": fields["RssAnon"],
    }


async def peak_memory(server: Server, prompts: list[list[int]], tokens: int) -> dict[str, dict[str, float]]:
    """The largest of each figure while the streams run, looked at ten times a second: outside the timed rounds."""
    peaks: dict[str, dict[str, float]] = {}
    running = asyncio.ensure_future(load(server.url, await served_model(server.url), prompts, tokens))
    while not running.done():
        for name, process in server.processes().items():
            now = memory(process.pid)
            peaks[name] = {key: max(value, peaks.get(name, now)[key]) for key, value in now.items()}
        await asyncio.wait([running], timeout=0.1)
    await running
    return peaks
