"""Who scripts/bench_serving compares: our server, other servers, and transformers in a process of its own.

Each side is asked in the same way: `generate` gives the times of a batch of prompts, all sent at once.
"""

import argparse
import asyncio
import contextlib
import json
import shlex
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench_server import ENVIRONMENT, Server, load, memory, served_model

PEER = Path(__file__).with_name("bench_peer")
PEER_DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True)
class Times:
    """Seconds from the start of a batch: to its last token, to a stream's first token, and from token to token."""

    total: float
    first: float
    each: float


class Side(Protocol):
    name: str

    def takes(self, streams: int) -> bool:
        """Whether this side is measured with so many streams: several servers of one name may share them out."""

    def generate(self, prompts: list[list[int]], tokens: int) -> Times:
        """One answer of `tokens` tokens a prompt."""

    def memory(self) -> dict[str, float]:
        """What its processes have taken so far, in MB."""

    def stop(self) -> None: ...


class Http:
    """A server that is asked over HTTP; `streams` are the numbers of streams it is asked for, none for all."""

    def __init__(
        self, name: str, url: str, server: Server | None = None, streams: frozenset[int] = frozenset()
    ) -> None:
        self.name = name
        self.url = url
        self.server = server
        self._streams = streams
        self._model = ""

    def takes(self, streams: int) -> bool:
        return not self._streams or streams in self._streams

    def generate(self, prompts: list[list[int]], tokens: int) -> Times:
        self._model = self._model or asyncio.run(served_model(self.url))
        start, streams = asyncio.run(load(self.url, self._model, prompts, tokens))
        return Times(
            max(stream.last for stream in streams) - start,
            statistics.median(stream.first - start for stream in streams),
            statistics.median((stream.last - stream.first) / max(tokens - 1, 1) for stream in streams),
        )

    def memory(self) -> dict[str, float]:
        assert self.server is not None
        return memory(self.server.process.pid)

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()


class Transformers:
    """`generate` of transformers, in one dtype."""

    def __init__(self, directory: str, dtype: str) -> None:
        self.name = f"transformers {dtype}"
        self.process = subprocess.Popen(
            [sys.executable, PEER, "serve", directory, dtype],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.versions = self._answer()

    def takes(self, streams: int) -> bool:
        return True

    def generate(self, prompts: list[list[int]], tokens: int) -> Times:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        total, first = answer["seconds"], answer["first"]
        return Times(total, first, (total - first) / max(tokens - 1, 1))

    def memory(self) -> dict[str, float]:
        return memory(self.process.pid)

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with code {self.process.wait()}")
        return dict(json.loads(line))


@dataclass(frozen=True)
class PeerServer:
    """--peer NAME[@STREAMS]=COMMAND. In COMMAND, {port} is the port that it is to listen on."""

    name: str
    streams: frozenset[int]
    command: list[str]

    @classmethod
    def parse(cls, text: str) -> "PeerServer":
        head, _, command = text.partition("=")
        name, _, streams = head.partition("@")
        with contextlib.suppress(ValueError):  # of streams that are no numbers, of a quote that is not closed
            if name and "{port}" in command:
                counts = frozenset(map(int, streams.split(","))) if streams else frozenset[int]()
                return cls(name, counts, shlex.split(command))
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected NAME=COMMAND or NAME@1,8=COMMAND, with {{port}} in COMMAND"
        )

    def start(self, log: Path) -> Http:
        server = Server(self.command, log)
        server.connect(health="/health")
        return Http(self.name, server.url, server, self.streams)


def transformers_directories(model: str, scratch: Path, dtypes: list[str]) -> dict[str, str]:
    """dtype -> checkpoint. A GGUF file is turned into one checkpoint for each dtype first, so that none is converted
    while the clock runs."""
    if not model.endswith(".gguf"):
        return dict.fromkeys(dtypes, model)
    subprocess.run([sys.executable, PEER, "convert", model, scratch], env=ENVIRONMENT, check=True)
    return {dtype: str(scratch / dtype) for dtype in dtypes}
