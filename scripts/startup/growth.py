"""How a start grows with the weights: snapshots from a quarter to four gigabytes, random weights, one at a time.

What moves the weights has to grow as a straight line, at the rate at which this machine itself reads a file into
memory; that is measured in turn with the starts, on the same file: alone, and beside two busy processes, since the
read-ahead of a start has two beside it that import. On the CPU nothing is moved of pages that are in
the page cache: there the first token grows, by passes over the weights at the rate of the machine's memory.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.gpu import weights
from scripts.gpu.shapes import SHAPES

from . import ledger, pages
from .compare import Report
from .figures import line, summary
from .sides import ours
from .start import measure as start

_IMPORTING = 2  # processes of a start, while the weights are read
GIGABYTES = (0.25, 0.5, 1.0, 2.0, 4.0)
PROMPT = [32]  # one token, so that a pass over the weights is bound by memory; an id, as text is not what grows
# Layers of Llama 3.2 1B's shape behind a vocabulary of Llama 2's size, so that the smallest snapshot has one layer.
SHAPE = {
    **SHAPES["Llama-3.1-8B"],
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}


def measure(
    sizes: Sequence[float], states: Sequence[str], flags: Sequence[str], count: int, scratch: Path, report: Report
) -> dict[str, Any]:
    """states: of the pages before each start. Sizes are in GB; what is written is the next number of layers."""
    points: dict[str, list[dict[str, Any]]] = {state: [] for state in states}
    for size in sizes:
        directory = scratch / "snapshot"
        try:
            weights.write(directory, config_of(size), snapshot=True)
            for state, point in _point(directory, states, flags, count, scratch, report).items():
                points[state].append(point)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    return {"pages": {state: {"points": found, "lines": lines(found)} for state, found in points.items()}}


def config_of(gigabytes: float) -> dict[str, Any]:
    """Of a model whose weights come closest to so many GB."""
    one = weights.size_of(SHAPE | {"num_hidden_layers": 1})
    layer = weights.size_of(SHAPE | {"num_hidden_layers": 2}) - one
    return SHAPE | {"num_hidden_layers": max(1, 1 + round((gigabytes * 1e9 - one) / layer))}


def _point(
    directory: Path, states: Sequence[str], flags: Sequence[str], count: int, scratch: Path, report: Report
) -> dict[str, dict[str, Any]]:
    """State of the pages -> the figures of one size. In each round the machine's own read comes before the start."""
    side, file = ours(str(directory), flags, prompt=PROMPT), weights.weights_file(directory)
    nbytes = file.stat().st_size
    found: dict[str, list[dict[str, float]]] = {state: [] for state in states}
    for turn in range(count + 1):
        for state in states:
            pages.prepare([file], state)
            own = {"machine": pages.read(file), "touch": pages.touch(file)}
            pages.prepare([file], state)
            with pages.busy(_IMPORTING):
                own["machine_busy"] = pages.read(file)
            pages.prepare([file], state)
            begun = start(side, "queued", scratch / "server.log")
            report(f"{nbytes / 1e9:.2f} GB, {state}", begun.marks["first_token"])
            if turn:
                assert begun.ledger is not None
                load = ledger.load_seconds(begun.ledger, nbytes)
                taken = {"load": load, "first_token": begun.marks["first_token"]}
                found[state].append(taken | own)
    return {state: {"bytes": nbytes, **summary(entries)} for state, entries in found.items()}


def lines(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What -> the straight line through the medians: seconds a GB, seconds at no bytes, r2.

    load_over_machine, load_over_busy: the load's slope over the machine's, alone and beside two busy processes.
    passes: the first token's slope in passes over memory, beyond the load's.
    """
    gigabytes = [point["bytes"] / 1e9 for point in points]
    found = {}
    for what in points[0]["median"]:
        fit = line(gigabytes, [point["median"][what] for point in points])
        found[what] = {"s_per_gb": round(fit.slope, 5), "s_at_0": round(fit.offset, 4), "r2": round(fit.r2, 4)}
    slopes = {what: fit["s_per_gb"] for what, fit in found.items()}
    return found | {
        "load_over_machine": round(slopes["load"] / slopes["machine"], 3),
        "load_over_busy": round(slopes["load"] / slopes["machine_busy"], 3),
        "passes": round((slopes["first_token"] - slopes["load"]) / slopes["touch"], 2),
    }
