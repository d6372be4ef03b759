"""What a step is asked, and the figures that it puts, each of them on the disk at once: what it had found when it
crashed, hung or was interrupted is kept.
"""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Failed(Exception):
    """The step found something wrong; what it put so far is kept."""


class Skipped(Exception):
    """The step cannot be done here, which is nobody's fault."""


@dataclass
class Job:
    """What a step is asked. `soft`: the card is the soft GPU, so everything is as small as it can be."""

    soft: bool
    seconds: float  # until it is stopped
    scratch: str  # a directory that is removed after the check
    model: str | None  # a directory to serve: the one that was asked for, else the demo model's
    model_asked: bool  # by --model
    disk_bytes: int  # that random weights may take in `scratch`
    earlier: dict[str, Any] = field(default_factory=dict)  # step -> figures
    result: str = ""  # file that takes what the step finds
    started: float = field(default_factory=time.monotonic)
    figures: dict[str, Any] = field(default_factory=dict)
    note: str = ""  # to an end that is no failure

    @property
    def gpu_option(self) -> str:
        """Of the tests: `--gpu soft`."""
        return "soft" if self.soft else "real"

    def seconds_left(self) -> float:
        return self.seconds - (time.monotonic() - self.started)

    def put(self, **figures: Any) -> None:
        """Adds figures; a dict is added to the one of its name."""
        for name, value in figures.items():
            if isinstance(value, dict) and isinstance(self.figures.get(name), dict):
                self.figures[name] |= value
            else:
                self.figures[name] = value
        self.write("failed", "it was stopped")

    def write(self, status: str, reason: str) -> None:
        replace(Path(self.result), {"status": status, "reason": reason, "figures": self.figures})


def figure(value: float) -> float:
    """With four digits that mean something, as a measurement has at most."""
    return float(f"{value:.4g}")


def replace(file: Path, document: Any) -> None:
    """Writes JSON so that nobody ever sees a part of it."""
    partial = file.with_name(f"{file.name}.partial-{os.getpid()}")
    partial.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, file)


def save(job: Job, file: Path) -> None:
    named = asdict(job)
    for own in ("started", "figures", "note"):
        del named[own]
    replace(file, named)
