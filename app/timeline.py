"""What a process did from its exec on, as spans on the clock that both processes share (CLOCK_MONOTONIC).

Apart from the ledger, which is made of spans (ledger.py), because this is imported in the first milliseconds of both
processes. The engine's spans travel to the front in `Ready` and `Spans`.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple

from . import EXEC_TIME, FIRST_LINE
from .messages import Span

_OLDEST = 3600.0  # seconds: a server that is older than that when its first line runs was not started by this exec


class Timeline:
    """Spans of one process. Threads may add to it: appending to a list is all that is shared."""

    def __init__(self, process: Literal["front", "engine"]) -> None:
        self.process: Literal["front", "engine"] = process
        self.spans: list[Span] = []
        self.on_begin: Callable[[], None] | None = None  # called when the main thread begins a span

    @contextmanager
    def span(self, name: str, nbytes: int = 0, *, thread: str = "main", after: str = "") -> Iterator[Span]:
        """Records the block under `name`, from its begin on; `nbytes` where bytes move, for the rate.

        thread, after: see Span.
        """
        span = self.begin(name, nbytes, thread=thread, after=after)
        try:
            yield span
        finally:
            span.end = time.monotonic()

    def begin(self, name: str, nbytes: int = 0, *, thread: str = "main", after: str = "") -> Span:
        """A span that begins now; whoever ends it sets its `end`."""
        return self.add(name, time.monotonic(), None, nbytes, thread=thread, after=after)

    def add(
        self, name: str, start: float, end: float | None, nbytes: int = 0, *, thread: str = "main", after: str = ""
    ) -> Span:
        span = Span(self.process, name, start, end, nbytes, thread, after)
        self.spans.append(span)
        if self.on_begin is not None and end is None and thread == "main":
            self.on_begin()
        return span

    def add_interpreter(self, exec_time: float, until: float) -> None:
        """The interpreter's own start, and the modules that it imported up to `until`."""
        self.add("python", exec_time, FIRST_LINE, after="listen" if self.process == "engine" else "")
        self.add("first imports", FIRST_LINE, until)


class Exec(NamedTuple):
    """When this process was exec'd, on CLOCK_MONOTONIC, and who says so; `complaint` is a line for the log."""

    time: float
    origin: Literal["environment", "proc"]
    complaint: str = ""


def exec_time(environ: Mapping[str, str]) -> Exec:
    """From the environment, else from /proc. A value there that cannot be right is ignored, with a complaint."""
    text = environ.get(EXEC_TIME, "")
    if not text:
        return Exec(process_start(), "proc")
    try:
        given = float(text)
    except ValueError:
        given = float("nan")
    if 0 <= FIRST_LINE - given <= _OLDEST:
        return Exec(given, "environment")
    return Exec(
        process_start(),
        "proc",
        f"{EXEC_TIME}={text[:40]!r} is passed over: expected CLOCK_MONOTONIC's seconds right before the server's "
        f"exec, and this process's first line ran at {FIRST_LINE:.3f}",
    )


def process_start() -> float:
    """When this process was made, in CLOCK_MONOTONIC seconds, to a clock tick (10 ms on most kernels).

    Source: field 22 of /proc/self/stat, which proc(5) gives in ticks since boot.
    """
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    boot_to_monotonic = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return since_boot - boot_to_monotonic
