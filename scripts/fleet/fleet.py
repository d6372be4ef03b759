"""The fleet: a gateway's queue, replicas that start when requests in flight exceed the target and stop when idle.

What platforms do, simplified:

  - Wanted are ceil(in flight / concurrency) replicas, between min and max, looked at when a request comes (RunPod's
    REQUEST_COUNT, Knative's and Cloud Run's concurrency target). Platforms look every few seconds and at an average;
    that delay is part of what a start takes.
  - A request goes to the fullest ready replica that runs fewer than `concurrency`, so that others may fall idle; else
    to the emptiest that runs fewer than `limit`; else it waits at the gateway, first come first served. Nothing is
    turned away.
  - A replica that has run nothing for `idle` seconds is stopped, unless fewer than `min` would be ready.
  - A replica is paid for from the decision to start it until it is stopped.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass
from enum import IntEnum

from .arrivals import Trace
from .replica import Replica, Request
from .service import Service


@dataclass(frozen=True, slots=True)
class Policy:
    """Seconds and counts. `limit`: requests that a replica runs at most; `concurrency`: at which it is full."""

    start: float
    idle: float
    concurrency: int
    limit: int
    max_replicas: int
    min_replicas: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """A whole simulation. `seconds`: until the trace is over and everything answered."""

    seconds: float
    requests: list[Request]
    replicas: list[Replica]  # that ever were; those that still are have been stopped at the end


class _Kind(IntEnum):
    """At the same time in this order."""

    PHASE_END = 0
    READY = 1
    ARRIVAL = 2
    IDLE_END = 3


def simulate(trace: Trace, service: Service, policy: Policy) -> Run:
    """Deterministic. Raises UsageError where `policy.limit` is more than `service` knows."""
    return _Fleet(trace, service, policy).run()


class _Fleet:
    def __init__(self, trace: Trace, service: Service, policy: Policy) -> None:
        self._policy = policy
        points = [service.at(max(1, streams)) for streams in range(policy.limit + 1)]
        self._first, self._each = [point.first for point in points], [point.each for point in points]
        self._trace = trace
        self._requests = [Request(i, each.time, each.output_tokens) for i, each in enumerate(trace.arrivals)]
        self._events: list[tuple[float, _Kind, int]] = [
            (request.arrived, _Kind.ARRIVAL, request.number) for request in self._requests
        ]
        heapq.heapify(self._events)
        self._queue: deque[Request] = deque()
        self._all: list[Replica] = []
        self._alive: list[Replica] = []
        self._in_flight = 0

    def run(self) -> Run:
        for _ in range(self._policy.min_replicas):
            self._start(0.0, ready=True)
        last = 0.0
        while self._events:
            now, kind, number = heapq.heappop(self._events)
            if kind is _Kind.ARRIVAL:
                last = now
                self._arrive(self._requests[number], now)
            elif kind is _Kind.READY:
                self._become_ready(self._all[number], now)
            elif kind is _Kind.IDLE_END:
                self._end_idle(self._all[number], now)
            elif self._all[number].running and self._all[number].next_end() <= now:  # else it has moved since
                last = now
                self._end_phase(self._all[number], now)
        end = max(self._trace.seconds, last)
        for replica in self._all:
            replica.stopped = end if replica.stopped is None else min(replica.stopped, end)
        return Run(end, self._requests, self._all)

    def _arrive(self, request: Request, now: float) -> None:
        self._in_flight += 1
        request.cold = all(replica.ready is None for replica in self._alive)
        self._queue.append(request)
        self._dispatch(now)
        wanted = math.ceil(self._in_flight / self._policy.concurrency)
        for _ in range(min(wanted, self._policy.max_replicas) - len(self._alive)):
            self._start(now, ready=False)

    def _start(self, now: float, *, ready: bool) -> None:
        replica = Replica(len(self._all), now, self._first, self._each)
        self._all.append(replica)
        self._alive.append(replica)
        self._push(now if ready else now + self._policy.start, _Kind.READY, replica)

    def _become_ready(self, replica: Replica, now: float) -> None:
        replica.ready = now
        self._fall_idle(replica, now)
        self._dispatch(now)
        for other in self._alive:  # one that was kept although its time was over, for `min`
            if not other.running and now > other.idle_since + self._policy.idle:
                self._push(now, _Kind.IDLE_END, other)

    def _end_phase(self, replica: Replica, now: float) -> None:
        if replica.end_phase(now) is None:
            self._push(replica.next_end(), _Kind.PHASE_END, replica)
            return
        self._in_flight -= 1
        self._dispatch(now)
        if replica.running:
            self._push(replica.next_end(), _Kind.PHASE_END, replica)
        else:
            self._fall_idle(replica, now)

    def _fall_idle(self, replica: Replica, now: float) -> None:
        replica.idle_since = now
        if self._policy.idle < float("inf"):
            self._push(now + self._policy.idle, _Kind.IDLE_END, replica)

    def _end_idle(self, replica: Replica, now: float) -> None:
        is_idle = replica.ready is not None and replica.stopped is None and not replica.running
        is_due = is_idle and now >= replica.idle_since + self._policy.idle
        ready = sum(other.ready is not None for other in self._alive)
        if is_due and ready > self._policy.min_replicas:
            replica.stopped = now
            self._alive.remove(replica)

    def _dispatch(self, now: float) -> None:
        while self._queue and (replica := self._choose()) is not None:
            replica.take(self._queue.popleft(), now)
            self._push(replica.next_end(), _Kind.PHASE_END, replica)

    def _choose(self) -> Replica | None:
        ready = [replica for replica in self._alive if replica.ready is not None]
        if under := [replica for replica in ready if replica.running < self._policy.concurrency]:
            return max(under, key=lambda replica: (replica.running, -replica.number))
        free = [replica for replica in ready if replica.running < self._policy.limit]
        return min(free, key=lambda replica: (replica.running, replica.number), default=None)

    def _push(self, time: float, kind: _Kind, replica: Replica) -> None:
        heapq.heappush(self._events, (time, kind, replica.number))
