"""The start's ledger: what each process did from exec to ready, on one clock.

Both processes record spans against CLOCK_MONOTONIC, which Linux shares between them; the engine's travel to the
front in `Ready`. `waterfall` draws them for a person, `summary` puts them on one log line.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from .messages import Span


class Timeline:
    """Spans of one process. Not thread-safe beyond what list.append is, which is enough."""

    def __init__(self, process: Literal["front", "engine"]) -> None:
        self.process: Literal["front", "engine"] = process
        self.spans: list[Span] = []

    @contextmanager
    def span(self, name: str, nbytes: int = 0) -> Iterator[None]:
        """Records the block under `name`; `nbytes` where bytes move, for the rate."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(name, start, time.monotonic(), nbytes)

    def add(self, name: str, start: float, end: float, nbytes: int = 0) -> None:
        self.spans.append(Span(self.process, name, start, end, nbytes))


def process_start() -> float:
    """When this process was made, in CLOCK_MONOTONIC seconds, to a clock tick (10 ms on most kernels).

    Source: field 22 of /proc/self/stat, which proc(5) gives in ticks since boot.
    """
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    boot_to_monotonic = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return since_boot - boot_to_monotonic


def summary(spans: Sequence[Span]) -> str:
    """ "ready in 312 ms: front imports 88, engine weights 61 @ 8.9 GB/s" - the longest spans first."""
    begin, end = _bounds(spans)
    longest = sorted(spans, key=lambda span: span.start - span.end)[:6]
    parts = [f"{span.process} {span.name} {_ms(span.end - span.start)}{_rate(span)}" for span in longest]
    return f"ready in {_ms(end - begin)} ms: {', '.join(parts)}"


def waterfall(spans: Sequence[Span], width: int = 48) -> list[str]:
    """One line a span in order of start: process, name, a bar on the common clock, milliseconds, rate."""
    begin, end = _bounds(spans)
    scale = width / max(end - begin, 1e-9)
    lines = []
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        left = min(int((span.start - begin) * scale), width - 1)
        right = max(left + 1, min(width, round((span.end - begin) * scale)))
        bar = (" " * left + "\u2588" * (right - left)).ljust(width)
        duration = f"{_ms(span.end - span.start):>6} ms"
        lines.append(f"{span.process:<6} {span.name:<18} |{bar}| {duration}{_rate(span)}")
    return lines


def _bounds(spans: Sequence[Span]) -> tuple[float, float]:
    return min(span.start for span in spans), max(span.end for span in spans)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f}"


def _rate(span: Span) -> str:
    seconds = span.end - span.start
    return f" @ {span.bytes / seconds / 1e9:.1f} GB/s" if span.bytes and seconds > 0 else ""
