"""podman as the checks use it: one command's output; a strict container that serves, its requests and streams.

Apart so that every check runs its container alike: read-only but for /tmp, without capabilities, not root.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.bench_server import free_port

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "image"
IMAGE = "localhost/pilotlight:test"
MODEL = "smollm2-135m-instruct"  # the Dockerfile's default
PODMAN = ["podman", "--log-level", "fatal", "--cgroup-manager", "cgroupfs", "--runtime", "runc"]
STRICT = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "all", "--security-opt", "no-new-privileges"]
LIMITS = ["--ulimit", "nofile=1024:4096", "--ulimit", "nproc=4096:8192"]
READY_SECONDS = 120
EXIT_SECONDS = 120


def run(command: Sequence[str], *, show: bool = False, quiet: bool = False) -> str:
    """A command's output; its failure ends the script."""
    if not quiet:
        print("+", " ".join(command), flush=True)
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=None if show else subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"test_image: {' '.join(command)} left with {done.returncode}\n{done.stdout or ''}")
    return done.stdout or ""


def say(line: str) -> None:
    print(f"== {line}", flush=True)


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - start:.1f} s")


def inspect(image: str = IMAGE) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run([*PODMAN, "image", "inspect", image], quiet=True))[0]
    return found


def attempt(*arguments: str, options: Sequence[str] = (), image: str = IMAGE) -> "subprocess.CompletedProcess[str]":
    """A container of its own, as a platform that starts a command would run it; standard error joins the output."""
    flags = ["--rm", "--network", "none", "--no-healthcheck", *STRICT, *LIMITS, *options]
    return subprocess.run(
        [*PODMAN, "run", *flags, image, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=READY_SECONDS,
    )


def inside(*command: str) -> str:
    """What a command prints in a container of its own; its failure ends the script."""
    done = attempt(*command)
    if done.returncode:
        sys.exit(f"test_image: in the image, {command} left with {done.returncode}\n{done.stdout}")
    return done.stdout.strip()


class Server:
    """A container that serves, removed at the end of the block. Its log is shown, and kept in `log`."""

    def __init__(self, name: str, *arguments: str, options: Sequence[str] = (), image: str = IMAGE) -> None:
        self.name = f"pilotlight-test-{name}"
        self.port = free_port()
        self._pid_file, self._log_file = CACHE / f"{name}.pid", CACHE / f"{name}.log"
        self._pid_file.unlink(missing_ok=True)
        self._remove()
        flags = ["--name", self.name, "--network", "host", "--no-healthcheck", "--pidfile", str(self._pid_file)]
        flags += ["--env", f"PORT={self.port}", "--env", "PILOTLIGHT_SHUTDOWN_TIMEOUT=100"]
        self.started = time.monotonic()
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [*PODMAN, "run", *flags, *STRICT, *LIMITS, *options, image, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()
        self._process.wait()
        print(self.log, end="", flush=True)

    @property
    def log(self) -> str:
        return self._log_file.read_text(encoding="utf-8")

    def wait_for_port(self) -> None:
        """Until a connection is taken. Whoever connects earliest waits longest for its answer, so none is asked."""
        while True:
            self._require_running()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.002)

    def wait_until_ready(self) -> float:
        """Seconds since `podman run`."""
        while True:
            self._require_running()
            with contextlib.suppress(OSError):
                if self.request("GET", "/health")[0] == 200:
                    return time.monotonic() - self.started
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> float:
        """Sends it to process 1, at once and without podman between; when that was."""
        os.kill(int(self._pid_file.read_text(encoding="utf-8")), number)
        return time.monotonic()

    def exit_code(self) -> int:
        return self._process.wait(EXIT_SECONDS)

    def execute(self, script: str) -> str:
        return run([*PODMAN, "exec", self.name, "sh", "-c", script], quiet=True).strip()

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a streamed completion; an end without [DONE] is an error."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        for line in response:
            if line.strip() == b"data: [DONE]":
                connection.close()
                return
            if line.startswith(b"data: "):
                yield json.loads(line[len(b"data: ") :])
        raise AssertionError("the stream ended without [DONE]")

    def expect_in_log(self, pattern: str) -> None:
        assert re.search(pattern, self.log), f"{self.name}: no {pattern!r} in its log"

    def _require_running(self) -> None:
        if self._process.poll() is not None or time.monotonic() - self.started > READY_SECONDS:
            sys.exit(f"test_image: {self.name} did not become ready")

    def _remove(self) -> None:
        run([*PODMAN, "rm", "--force", "--time", "0", "--ignore", self.name], quiet=True)
