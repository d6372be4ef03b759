"""The budget of a start on an H100-class card, line by line, and what scripts/gpu_check measured of each line.

A budget is arithmetic: bytes over rates, and times that are assumed and say so. Nothing here was measured.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pilotlight.model.families import describe
from scripts.bench_table import row
from scripts.gpu import weights
from scripts.gpu.cards import CARDS
from scripts.gpu.paper import PaperDevice, prefill_step, step_works
from scripts.gpu.shapes import SHAPES

CARD = CARDS["H100"]
TOTALS = {"Qwen2.5-0.5B": 0.7, "Qwen2.5-1.5B": 0.8, "Llama-3.1-8B": 1.2}  # s
PROMPT_TOKENS = 32

# What is assumed, in seconds and bytes a second.
FRONT = 0.060  # interpreter, settings, port, spawn
ENGINE = 0.035  # interpreter, up to the first call of the driver
CONTEXT = 0.250  # cuInit and the primary context: others report 0.2 to 0.35
MEMORY = 0.020  # cuMemAlloc of weights, pages and activations; page-locked buffers
KERNELS = 0.060  # every compiled kernel, beside the weights
READ_RATE = 30e9  # page cache to page-locked memory by 16 threads; the bus takes more: PCIe 5 x16 has 64
LAUNCH = 10e-6  # of a kernel that is launched eagerly
ANSWER = 0.005  # the token through the engine's line, detokenizer and socket


@dataclass(frozen=True, slots=True)
class Line:
    """A piece of the critical path. spans: process and name of those in the ledger that are it."""

    what: str
    seconds: float
    spans: tuple[tuple[str, str], ...]


def lines(model: str) -> list[Line]:
    """In the order of the critical path."""
    nbytes = weights.size_of(SHAPES[model])
    copying = nbytes / READ_RATE
    first_pass, launches = _pass(model)
    return [
        Line(
            "front: interpreter, port, spawn",
            FRONT,
            tuple(("front", name) for name in ("python", "first imports", "listen", "start engine")),
        ),
        Line("engine: interpreter to the driver's first call", ENGINE, (("engine", "python"),)),
        Line("context, beside it numpy and config", CONTEXT, (("engine", "context"),)),
        Line("memory", MEMORY, (("engine", "memory"),)),
        Line(f"weights, {nbytes / 1e9:.2f} GB at {READ_RATE / 1e9:.0f} GB/s", copying, (("engine", "weights"),)),
        Line("compiled kernels, what outlasts the weights", max(0.0, KERNELS - copying), (("engine", "kernels"),)),
        Line(
            f"first pass twice: bytes at {CARD.memory_gb_s:.0f} GB/s, {launches} launches of {LAUNCH * 1e6:.0f} us",
            2 * first_pass,
            (("engine", "first forward"), ("engine", "prefill")),
        ),
        Line("token to the socket", ANSWER, (("front", "write"),)),
    ]


def table(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """For each model its lines, and a column for each gpu_check that has started it. reports: name -> JSON."""
    columns = {name: models for name, report in reports.items() if (models := _models(report))}
    for model, total in TOTALS.items():
        yield row([f"{model} on an H100-class card, hot", "budget", *(f"measured: {name}" for name in columns)])
        yield row("---" for _ in range(2 + len(columns)))
        planned = lines(model)
        for line in planned:
            measured = [_measured(models.get(model, {}), line) for models in columns.values()]
            yield row([line.what, _ms(line.seconds), *measured])
        yield row(["in reserve", _ms(total - sum(line.seconds for line in planned)), *("" for _ in columns)])
        ends = [models.get(model, {}).get("first_token_s") for models in columns.values()]
        yield row(["**exec to first token**", f"**{_ms(total)}**", *(_ms(end) if end else "" for end in ends)])
        yield ""
    if not columns:
        yield "No card has measured this yet: `scripts/gpu_check` adds a column beside the budget."


def _pass(model: str) -> tuple[float, int]:
    """Seconds of an eager prefill of a short prompt at the data sheet's rates, and its launches."""
    description = describe(SHAPES[model])
    device = PaperDevice(CARD.gpu, description.spec, "bfloat16", fp8_pages=False, max_length=8192, greedy=True)
    works = step_works(description, device, prefill_step(PROMPT_TOKENS))
    launches = sum(len(work.launches) for work in works)
    return sum(CARD.microseconds(work.nbytes, work.operations) for work in works) / 1e6 + launches * LAUNCH, launches


def _models(report: Mapping[str, Any]) -> dict[str, Any]:
    """Model -> its start, of those that were started."""
    steps = {step["name"]: step["figures"] for step in report["steps"]}
    models = steps.get("starts", {}).get("models", {})
    return {name: found for name, found in models.items() if name in TOTALS and "spans" in found}


def _measured(start: Mapping[str, Any], line: Line) -> str:
    spans = [
        span["end"] - span["start"]
        for span in start.get("spans", [])
        if (span["process"], span["name"]) in line.spans and span["end"] is not None
    ]
    return _ms(sum(spans)) if spans else ""


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"
