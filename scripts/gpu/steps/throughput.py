"""Step 11: tokens a second over HTTP, of 1 to 256 streams, and transformers with the same weights beside them.

The model that was asked for, or random weights of a 1.5B model: a checkpoint, so that transformers reads it too.
"""

import asyncio
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench_server import Server, load, our_command
from scripts.startup.start import get

from .. import weights
from ..job import ROOT, Failed, Job, figure
from ..shapes import SHAPES, TINY
from .starts import server_flags

_STREAMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PEER_STREAMS = (1, 8, 32)
_PROMPT, _ANSWER = 128, 128  # tokens of a stream
_SOFT = ((1, 2), 8, 4)
_PEER_SECONDS = 45.0  # that have to be left for it


def run(job: Job) -> None:
    directory, vocab = _model(job)
    streams, prompt, answer = _SOFT if job.soft else (_STREAMS, _PROMPT, _ANSWER)
    job.put(model=directory.name, prompt_tokens=prompt, output_tokens=answer)
    random = np.random.default_rng(0)

    def prompts(count: int) -> list[list[int]]:
        """New ones each time, so that no cache of prefixes helps."""
        drawn: list[list[int]] = random.integers(32, min(vocab, 20_000), (count, prompt)).tolist()
        return drawn

    log = Path(job.scratch) / "server.log"
    flags = server_flags(job) if job.soft else [*server_flags(job), "--max-num-seqs", str(max(streams))]
    server = Server(our_command(str(directory), ["--device", "cuda", *flags]), log)
    try:
        server.connect()
        asyncio.run(load(server.url, str(directory), prompts(1), answer))
        job.put(prepare_s=_until_prepared(server, job.seconds_left() / 4))
        for count in streams:
            job.put(pilotlight={str(count): _measure(server, directory, prompts(count), answer)})
    except SystemExit as error:
        raise Failed(f"{error}; {log.read_text(encoding='utf-8', errors='replace')[-1500:]}") from None
    finally:
        server.stop()
    job.put(transformers=_transformers(job, directory, prompts, answer))


def _until_prepared(server: Server, seconds: float) -> float | None:
    """Waits until the graphs are made, as a server does when it is idle: a stream that meets a missing one makes it
    within its time. How long it took; None: longer than `seconds`."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        spans = json.loads(asyncio.run(get(f"{server.url}/startup")))["spans"]
        if any(span["name"] == "prepare" and span["end"] is not None for span in spans):
            return figure(time.monotonic() - start)
        time.sleep(0.05)
    return None


def _measure(server: Server, directory: Path, prompts: list[list[int]], answer: int) -> dict[str, float]:
    start, streams = asyncio.run(load(server.url, str(directory), prompts, answer))
    seconds = max(stream.last for stream in streams) - start
    return {
        "tokens_per_s": figure(len(prompts) * answer / seconds),
        "ttft_ms": figure(statistics.median(stream.first - start for stream in streams) * 1e3),
        "tpot_ms": figure(statistics.median((s.last - s.first) / (answer - 1) for s in streams) * 1e3),
    }


def _model(job: Job) -> tuple[Path, int]:
    """A directory, and how many tokens it knows."""
    config = TINY if job.soft else SHAPES["Qwen2.5-1.5B"]
    room = min(job.disk_bytes, shutil.disk_usage(job.scratch).free - (1 << 30))
    if job.model and (job.model_asked or weights.size_of(config) > room) and not job.soft:
        directory = Path(job.model)
        return directory, int(json.loads((directory / "config.json").read_bytes())["vocab_size"])
    return weights.write(Path(job.scratch) / "random", config, snapshot=False), int(config["vocab_size"])


def _transformers(job: Job, directory: Path, prompts: Any, answer: int) -> Any:
    """Its `generate` in bfloat16 on the same card, where torch is there and finds it; else why not."""
    if job.soft:
        return "not on the soft GPU"
    if not (importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")):
        return "torch or transformers is not installed"
    if (directory / "manifest.json").exists():
        return "it reads no snapshot"
    if job.seconds_left() < _PEER_SECONDS:
        return "no time was left"
    command = [sys.executable, str(ROOT / "scripts" / "bench_peer"), "serve", str(directory), "bfloat16", "cuda"]
    peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert peer.stdin is not None
    assert peer.stdout is not None
    figures: dict[str, Any] = {}
    alarm = threading.Timer(job.seconds_left() - 3, peer.kill)
    alarm.start()
    try:
        for count in (0, 1, *_PEER_STREAMS):  # its versions come unasked; the first answer warms it up
            if count:
                peer.stdin.write(json.dumps({"prompts": prompts(count), "tokens": answer}) + "\n")
                peer.stdin.flush()
            line = peer.stdout.readline()
            if not line:
                return figures or "it ended without a figure: does this torch find the card?"
            taken = json.loads(line)
            if count:
                tokens_per_s = count * answer / taken["seconds"]
                figures[str(count)] = {"tokens_per_s": figure(tokens_per_s), "ttft_ms": figure(taken["first"] * 1e3)}
            if job.seconds_left() < _PEER_SECONDS / 3:
                break
    finally:
        alarm.cancel()
        peer.kill()
        peer.wait()
    return figures
