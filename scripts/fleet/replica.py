"""One replica: the requests that run on it share it, each phase at the pace that so many at once leave to each.

Two virtual clocks, one a phase, that run at 1/seconds(n): a request's phase ends when its clock has gone as far as
the phase has work, so that no request is touched when another one comes or goes.
"""

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Request:
    """One request's way; times in seconds, nan before they have come."""

    number: int
    arrived: float
    output_tokens: int
    cold: bool = False  # no replica was ready when it came
    dispatched: float = float("nan")
    first_token: float = float("nan")
    done: float = float("nan")


@dataclass(slots=True)
class _Phase:
    """Requests in one phase, by the reading of the clock at which each is through."""

    seconds: Sequence[float]  # for one unit of work, by how many requests run on the replica
    clock: float = 0.0
    _ends: list[tuple[float, int, Request]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)

    def add(self, request: Request, work: float) -> None:
        if not self._ends:
            self.clock = 0.0  # small numbers stay exact
        heapq.heappush(self._ends, (self.clock + work, next(self._order), request))

    def next_end(self, running: int) -> float:
        """Seconds until the first one is through, if nothing else happens."""
        return (self._ends[0][0] - self.clock) * self.seconds[running] if self._ends else float("inf")

    def advance(self, seconds: float, running: int) -> None:
        if self._ends:
            self.clock += seconds / self.seconds[running]

    def pop(self) -> Request:
        self.clock, _, request = heapq.heappop(self._ends)
        return request


class Replica:
    """From the decision to start it until it is stopped."""

    def __init__(self, number: int, started: float, first: Sequence[float], each: Sequence[float]) -> None:
        """`first` and `each`: seconds by how many requests run, from index 1 on."""
        self.number = number
        self.started = started
        self.ready: float | None = None
        self.stopped: float | None = None
        self.running = 0
        self.busy_seconds = 0.0
        self.idle_since = started
        self._prompts, self._tokens = _Phase(first), _Phase(each)
        self._now = started

    def take(self, request: Request, now: float) -> None:
        self._advance(now)
        self.running += 1
        request.dispatched = now
        self._prompts.add(request, 1.0)

    def next_end(self) -> float:
        """When the first phase of a request ends, if nothing else happens; inf with none."""
        left = min(self._prompts.next_end(self.running), self._tokens.next_end(self.running))
        return self._now + max(0.0, left)

    def end_phase(self, now: float) -> Request | None:
        """Ends that phase, `now` being its time; the request if it is done with it."""
        prompt_first = self._prompts.next_end(self.running) <= self._tokens.next_end(self.running)
        self._advance(now)
        if prompt_first:
            request = self._prompts.pop()
            request.first_token = now
            if request.output_tokens > 1:
                self._tokens.add(request, request.output_tokens - 1)
                return None
        else:
            request = self._tokens.pop()
        request.done = now
        self.running -= 1
        self.idle_since = now
        return request

    def _advance(self, now: float) -> None:
        elapsed = now - self._now
        if self.running:
            self.busy_seconds += elapsed
            for phase in (self._prompts, self._tokens):
                phase.advance(elapsed, self.running)
        self._now = now
