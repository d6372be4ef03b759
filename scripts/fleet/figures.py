"""What a run cost and how long its requests waited, in the figures that a person compares fleets by."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .fleet import Run

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a replica's hour: for one that comes and goes, and for one of the `min` that are always there."""

    on_demand: float
    always_on: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds, but for `cost` and `cost_per_million` (output tokens), which are in the prices' currency."""

    requests: int
    span_seconds: float  # from the trace's start until all was answered
    cold_share: float  # of the requests: no replica was ready when they came
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float  # a request's mean for each token after the first; nan where all have one token
    starts: int
    most_replicas: int
    starting_seconds: float
    busy_seconds: float
    idle_seconds: float
    cost: float
    cost_per_million: float  # nan without a request

    @property
    def replica_seconds(self) -> float:
        return self.starting_seconds + self.busy_seconds + self.idle_seconds


def figures(run: Run, prices: Prices, min_replicas: int) -> Figures:
    starting = busy = total = 0.0
    for replica in run.replicas:
        stopped = run.seconds if replica.stopped is None else replica.stopped
        ready = stopped if replica.ready is None else min(replica.ready, stopped)
        starting += ready - replica.started
        busy += replica.busy_seconds
        total += stopped - replica.started
    kept = min_replicas * run.seconds
    cost = (kept * prices.always_on + (total - kept) * prices.on_demand) / HOUR
    waits = sorted(request.first_token - request.arrived for request in run.requests)
    paces = sorted(
        (request.done - request.first_token) / (request.output_tokens - 1)
        for request in run.requests
        if request.output_tokens > 1
    )
    tokens = sum(request.output_tokens for request in run.requests)
    return Figures(
        requests=len(run.requests),
        span_seconds=run.seconds,
        cold_share=sum(request.cold for request in run.requests) / max(1, len(run.requests)),
        ttft_p50=percentile(waits, 50),
        ttft_p99=percentile(waits, 99),
        tpot_p50=percentile(paces, 50),
        starts=len(run.replicas) - min_replicas,
        most_replicas=most_at_once([(replica.started, replica.stopped) for replica in run.replicas]),
        starting_seconds=starting,
        busy_seconds=busy,
        idle_seconds=total - starting - busy,
        cost=cost,
        cost_per_million=cost / tokens * 1e6 if tokens else math.nan,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Of sorted values, the smallest that `percent` of them do not exceed; nan of none."""
    return values[max(0, math.ceil(len(values) * percent / 100) - 1)] if values else math.nan


def most_at_once(spans: Sequence[tuple[float, float | None]]) -> int:
    """The most half-open spans that overlap at any time. None: a span that has not ended."""
    changes = [(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans if end is not None]
    most = current = 0
    for _, change in sorted(changes):
        current += change
        most = max(most, current)
    return most
