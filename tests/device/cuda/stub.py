"""A driver in whose place nothing is computed, and whose clock is the host's own work.

    host     begin 1, launch 1 | begin 2, launch 2 | read 1 ... waits ... send 1 | begin 3, launch 3 | ...
    stream                     | 1 .......................| 2 .......................................

A graph's launch takes STEP_SECONDS of the stream. Time goes on by what the calling thread computes (its CPU time) and
by what it waits for: so what is measured is what a machine does that has nothing else to do.
"""

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pilotlight.device.cuda import driver

STEP_SECONDS = 2e-3
_WARM_UP = 20  # steps, in which caches fill


@dataclass(frozen=True)
class GraphLaunch:
    executable: int
    host: float  # CPU seconds of the thread so far
    is_ahead: bool  # what is in the stream before it has not ended


class StubDriver:
    """One stream, as its clock sees it. `launches`: of graphs."""

    def __init__(self) -> None:
        self.launches: list[GraphLaunch] = []
        self._waited = 0.0
        self._end = 0.0  # of what is in the stream
        self._events: dict[int, float] = {}  # when each one's record is reached
        self._handles = itertools.count(1 << 20, 1 << 20)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Takes the driver's place: every function of it that makes a call."""
        for name, value in vars(driver).items():
            if (
                getattr(value, "__module__", None) == driver.__name__
                and hasattr(value, "__code__")
                and name[0] != "_"
            ):
                monkeypatch.setattr(driver, name, getattr(self, name, self._handle))

    def device_count(self) -> int:
        return 1

    def device_name(self, ordinal: int) -> str:
        return "stub"

    def compute_capability(self, ordinal: int) -> tuple[int, int]:
        return 8, 0

    def multiprocessor_count(self, ordinal: int) -> int:
        return 108

    def shared_bytes(self, ordinal: int) -> int:
        return 163 << 10

    def memory_info(self) -> tuple[int, int]:
        return 64 << 30, 80 << 30

    def launch_graph(self, executable: int, stream: int) -> None:
        now = self._now()
        self.launches.append(GraphLaunch(executable, now - self._waited, self._end > now))
        self._end = max(self._end, now) + STEP_SECONDS

    def record_event(self, event: int, stream: int) -> None:
        self._events[event] = self._end

    def synchronize_event(self, event: int) -> None:
        self._wait(self._events.get(event, 0.0))

    def synchronize_stream(self, stream: int) -> None:
        self._wait(self._end)

    def _now(self) -> float:
        return time.thread_time() + self._waited

    def _wait(self, until: float) -> None:
        self._waited += max(0.0, until - self._now())

    def _handle(self, *_: Any, **__: Any) -> int:
        """What every other call gives: a handle, or an address."""
        return next(self._handles)


@dataclass(frozen=True)
class Figures:
    """Of the steps by the graph that was launched most."""

    host_seconds: list[float]  # of each, from its launch to the next one's
    ahead: float  # the share of them that were launched before the step before had ended


def measure(launches: Sequence[GraphLaunch]) -> Figures:
    ((most, _),) = Counter(launch.executable for launch in launches).most_common(1)
    steps = [launch for launch in launches if launch.executable == most][_WARM_UP:]
    return Figures(
        [after.host - before.host for before, after in itertools.pairwise(steps)],
        sum(step.is_ahead for step in steps) / len(steps),
    )
