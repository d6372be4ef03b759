"""The JSON of a gpu_check, whole on the disk after every step, and its summary for a person."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .job import replace

SOFT = "soft GPU"  # whose figures say nothing


@dataclass
class StepResult:
    step: int
    name: str
    status: str  # "ok", "failed" or "skipped"
    reason: str  # why it failed or was skipped; or a remark
    seconds: float
    figures: dict[str, Any]


@dataclass
class Report:
    """card: the GPU's name, or "soft GPU"."""

    card: str
    command: str
    date: str
    versions: dict[str, str]
    steps: list[StepResult] = field(default_factory=list)
    output: Path | None = None  # where it was asked for; else benchmarks/ and the card's name

    @property
    def file(self) -> Path:
        if self.output:
            return self.output
        return Path("benchmarks") / f"gpu-{slug(self.card)}.json"

    def add(self, result: StepResult) -> None:
        self.steps.append(result)
        self.write()

    def write(self) -> None:
        document = {"card": self.card, "command": self.command, "date": self.date, "versions": self.versions}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        replace(self.file, document | {"steps": [asdict(step) for step in self.steps]})

    def figures(self) -> dict[str, Any]:
        return {step.name: step.figures for step in self.steps}

    def failed(self) -> bool:
        return any(step.status == "failed" for step in self.steps)


def slug(card: str) -> str:
    """ "NVIDIA H200 NVL" -> "h200-nvl", as a file is named."""
    words = re.findall(r"[a-z0-9]+", card.lower())
    return "-".join(word for word in words if word not in ("nvidia", "geforce", "tesla")) or "unknown"


def summary(report: Report) -> Iterator[str]:
    """A line a step, and the figures that most people look for. A soft GPU has none that say anything."""
    for step in report.steps:
        reason = f"  {' '.join(step.reason.split())[:200]}" if step.reason else ""
        yield f"{step.step:>2} {step.name:<13} {step.status:<8} {step.seconds:6.1f} s{reason}"
    if report.card != SOFT:
        yield from headline(report.figures())


def headline(figures: dict[str, Any]) -> Iterator[str]:
    roofs = figures.get("roofs", {})
    wanted = (
        ("read_gb_s", "GB/s read"), ("copy_gb_s", "GB/s copied"), ("mma_bf16_tflops", "TFLOPS of mma.sync"),
        ("pinned_to_device_gb_s", "GB/s from pinned memory"), ("graph_node_us", "us a graph node"),
    )  # fmt: skip
    found = [f"{roofs[name]:g} {what}" for name, what in wanted if name in roofs]
    if found:
        yield "measured: " + ", ".join(found)
    for model, start in figures.get("starts", {}).get("models", {}).items():
        if "first_token_s" in start:
            yield f"start of {model} to its first token: {start['first_token_s']:.2f} s"
    for streams, entry in figures.get("throughput", {}).get("pilotlight", {}).items():
        yield f"{streams} streams: {entry['tokens_per_s']:.0f} tokens/s"


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_bytes()))
