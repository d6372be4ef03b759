"""Step 10: what a start takes, from the process to the first token over HTTP, and what its time goes into.

Snapshots of random weights in real sizes, as far as disk and time allow. Each starts twice: with its file out of the
page cache, as far as the kernel obeys, and with it inside.
"""

import shutil
import time
from pathlib import Path
from typing import Any

from scripts.startup import pages
from scripts.startup.sides import ours
from scripts.startup.start import measure

from .. import weights
from ..job import Failed, Job, Skipped, figure
from ..shapes import SHAPES, TINY

_MODELS = ("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Llama-3.1-8B")
_WRITE_BYTES_PER_S = 0.5e9  # until a write has been timed
_START_SECONDS = 8.0  # that a start may take besides reading its file once more


def run(job: Job) -> None:
    models = {"tiny": TINY} if job.soft else {name: SHAPES[name] for name in _MODELS}
    rate = _WRITE_BYTES_PER_S
    for name, config in models.items():
        nbytes = weights.size_of(config)
        room = min(job.disk_bytes, shutil.disk_usage(job.scratch).free - (1 << 30))
        if nbytes > room:
            job.put(models={name: {"skipped": f"{nbytes / 1e9:.1f} GB of weights, and room for {room / 1e9:.1f} GB"}})
            continue
        if 3 * nbytes / rate + 2 * _START_SECONDS > job.seconds_left() and not job.soft:
            job.put(models={name: {"skipped": f"no time to write {nbytes / 1e9:.1f} GB at {rate / 1e9:.1f} GB/s"}})
            continue
        directory = Path(job.scratch) / name
        begun = time.perf_counter()
        weights.write(directory, config, snapshot=True)
        pages.let_go(weights.weights_file(directory))
        rate = nbytes / (time.perf_counter() - begun)
        try:
            cold, warm = (start(job, directory) for _ in range(2))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        job.put(models={name: warm | {"weight_bytes": nbytes, "out_of_page_cache": cold}})
    if not any("first_token_s" in entry for entry in job.figures.get("models", {}).values()):
        raise Skipped("neither disk nor time for any model")


def start(job: Job, directory: Path) -> dict[str, Any]:
    """first_token_s: since exec, with the request waiting from when the port opens. spans: of /startup."""
    flags = ["--device", "cuda", "--log-level", "debug", *server_flags(job)]
    log = Path(job.scratch) / "server.log"
    try:
        begun = measure(ours(str(directory), flags, prompt=list(range(32, 64))), "queued", log)
    except SystemExit as error:
        raise Failed(f"{error}") from None
    assert begun.ledger is not None
    ready = begun.ledger["seconds"]["ready"]
    return {
        "first_token_s": figure(begun.marks["first_token"]),
        "ready_ms": round(1000 * ready),
        "unattributed_s": figure(begun.ledger["unattributed"]),
        "spans": begun.ledger["spans"],
    }


def server_flags(job: Job) -> list[str]:
    """On the soft GPU a step of few sequences takes what one of many takes on a card."""
    return ["--max-num-seqs", "4", "--max-model-len", "256"] if job.soft else ["--max-model-len", "8192"]
