"""Real server processes for tests, with the real engine or with the scripted one, on a free port of the loopback."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parents[2]
FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")

# The whole command, but for the program that it starts as its engine.
_WITH_FAKE_ENGINE = """
import sys
from pilotlight import cli
from pilotlight.front import main
{patch}
main.engine_command = lambda: [sys.executable, {engine!r}, {behaviour!r}]
cli.main(["serve", *sys.argv[1:]])
"""


def fake_command(**behaviour: Any) -> list[str]:
    """The scripted engine's command, without the descriptor; see fake_engine.DEFAULTS."""
    return [sys.executable, str(FAKE_ENGINE), json.dumps(behaviour)]


class ServerProcess:
    """`pilotlight serve MODEL`, as a context. `fake` is the scripted engine's behaviour; None runs the real one.

    The model is served under `names`; None leaves that to the server.
    `patch` is code that runs before, beside the scripted engine only: to shorten the server's own waits.
    `command` takes the place of `pilotlight serve`.
    """

    def __init__(
        self,
        model: Path,
        *flags: str,
        names: str | None = "m",
        fake: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        patch: str = "",
        command: list[str] | None = None,
    ) -> None:
        if command is not None:
            pass
        elif fake is None:
            command = [sys.executable, "-m", "pilotlight", "serve"]
        else:
            script = _WITH_FAKE_ENGINE.format(engine=str(FAKE_ENGINE), behaviour=json.dumps(fake), patch=patch)
            command = [sys.executable, "-c", script]
        self.process = subprocess.Popen(
            [*command, str(model), "--port", "0", *(["--served-model-name", names] if names else []), *flags],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | (env or {}),
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr
        self.process.stderr.close()
        if kind is not None:
            print("".join(self.lines))

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, pattern: str, seconds: float = 30) -> re.Match[str]:
        """The first log line that `pattern` is found in."""
        deadline = time.monotonic() + seconds
        seen = 0
        while True:
            with self._news:
                while seen == len(self.lines):
                    ended = not self._reader.is_alive()
                    if ended or not self._news.wait(deadline - time.monotonic()):
                        raise AssertionError(f"no line has {pattern!r} in:\n{self.log}")
                line = self.lines[seen]
            seen += 1
            if found := re.search(pattern, line):
                return found

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def listening(self) -> str:
        """The address, as soon as it is bound."""
        return self.wait_for(r"listening at (http://\S+?),")[1]

    def ready(self) -> str:
        """The address, once requests are served."""
        return self.wait_for(r"serving .* at (http://\S+)")[1]

    def client(self) -> httpx.Client:
        """A client of the server once it serves."""
        return httpx.Client(base_url=self.ready(), timeout=20)

    def engine_pid(self) -> int:
        """The only child process."""
        (child,) = psutil.Process(self.process.pid).children()
        return child.pid

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self, seconds: float = 20) -> int:
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code


def sse(response: httpx.Response) -> Iterator[Any]:
    """The events of a stream as they come, parsed; "[DONE]" as it stands. Comments are left out."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


def stream(client: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """All events of a streamed request."""
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return list(sse(response))


def metric(client: httpx.Client, name: str, labels: str = "") -> float:
    """A sample of /metrics; `labels` as they stand after the model's name."""
    text = client.get("/metrics").text
    found = re.search(rf'^pilotlight:{name}{{model_name="[^"]*"{re.escape(labels)}}} (\S+)$', text, re.MULTILINE)
    assert found, f"{name}{labels} is not in\n{text}"
    return float(found[1])


def eventually(condition: Any, seconds: float = 10) -> None:
    """Polls until the condition holds. For what no event announces."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


class Streams:
    """Streamed completions that are read in threads of their own, each up to its end."""

    def __init__(self, address: str, count: int, body: dict[str, Any]) -> None:
        self._address = address
        self._body = body
        self.begun = [threading.Event() for _ in range(count)]
        self.events: list[list[Any]] = [[] for _ in range(count)]
        self.ended_at = [0.0] * count
        self._threads = [threading.Thread(target=self._read, args=(index,)) for index in range(count)]
        for thread in self._threads:
            thread.start()

    def _read(self, index: int) -> None:
        with httpx.stream("POST", f"{self._address}/v1/completions", json=self._body, timeout=30) as response:
            assert response.status_code == 200
            for event in sse(response):
                self.events[index].append(event)
                self.begun[index].set()
        self.ended_at[index] = time.monotonic()

    def wait_begun(self) -> None:
        for begun in self.begun:
            assert begun.wait(20)

    def wait_ended(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
