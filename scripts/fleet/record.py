"""The sweeps behind docs/scale.md: one call makes benchmarks/fleet.json, scripts/plot_benchmarks draws it.

Apart because they are fixed: measured service times of the CPU, a price of 1 for a replica's hour, and starts that
are the measured one or the lengths compared with.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from pilotlight import __version__

from . import theory
from .arrivals import DAY, HOUR, Trace, draw
from .figures import Prices, figures
from .fleet import Policy, simulate
from .service import Service, Start

STARTS = (10.0, 60.0, 120.0)  # seconds, beside the measured one
PRICES = Prices(on_demand=1.0, always_on=1.0)
RATES = tuple(round(10 ** (power / 4), 3) for power in range(-4, 15))  # requests an hour
IDLE = (0.0, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)  # seconds
CONCURRENCY = (1, 2, 4, 8, 16, 32)
MAX_REPLICAS = (1, 2, 3, 4, 6, 8)


def record(service: Service, start: Start, command: str) -> dict[str, Any]:
    """Some 70 s of work."""
    starts = (start.seconds, *STARTS)
    sweeps = (_by_rate, _by_idle, _by_concurrency, _by_max_replicas)
    return {
        "versions": {"pilotlight": __version__},
        "command": command,
        "service": asdict(service),
        "start": asdict(start),
        "prices": asdict(PRICES),
        "fleet": {sweep.__name__.removeprefix("_by_"): sweep(service, starts) for sweep in sweeps},
    }


def _by_rate(service: Service, starts: Sequence[float]) -> dict[str, Any]:
    """One replica under ever more Poisson arrivals, kept idle as long as it takes to start."""
    most = service.most_streams
    policy = Policy(start=0, idle=0, concurrency=most, limit=most, max_replicas=1)
    alone = service.at(1)
    seconds = alone.first + (service.output_tokens - 1) * alone.each

    def point(start: float, rate: float) -> dict[str, Any]:
        trace = draw("poisson", rate / HOUR, 10_000 / rate * HOUR, output_tokens=service.output_tokens)
        closed = 1 - theory.off_share(rate / HOUR, start, start, seconds)
        run = _run(trace, service, replace(policy, start=start, idle=start))
        return {"rate": rate} | run | {"closed_form": _short(closed)}

    curves = {f"{start:g}": [point(start, rate) for rate in RATES] for start in starts}
    return {"process": "poisson", "requests": 10_000, "policy": asdict(policy), "curves": curves}


def _by_idle(service: Service, starts: Sequence[float]) -> dict[str, Any]:
    """Bursts of minutes with gaps of hours."""
    options = {"rate": 60.0, "days": 10.0, "burst": 300.0, "share": 0.05}
    policy = Policy(start=0, idle=0, concurrency=8, limit=8, max_replicas=4)
    return _sweep(service, starts, "bursty", options, service.output_tokens, policy, "idle", IDLE)


def _by_concurrency(service: Service, starts: Sequence[float]) -> dict[str, Any]:
    """A steady stream of long answers, more than one replica's work."""
    options = {"rate": 7200.0, "days": 1 / 6}
    policy = Policy(start=0, idle=60, concurrency=1, limit=service.most_streams, max_replicas=32)
    return _sweep(service, starts, "poisson", options, 512, policy, "concurrency", CONCURRENCY)


def _by_max_replicas(service: Service, starts: Sequence[float]) -> dict[str, Any]:
    """Bursts of a minute, each the work of four replicas."""
    options = {"rate": 3600.0, "days": 1 / 3, "burst": 60.0, "share": 0.05}
    policy = Policy(start=0, idle=60, concurrency=8, limit=8, max_replicas=1)
    return _sweep(service, starts, "bursty", options, service.output_tokens, policy, "max_replicas", MAX_REPLICAS)


def _sweep(
    service: Service,
    starts: Sequence[float],
    process: str,
    options: dict[str, float],
    output_tokens: int,
    policy: Policy,
    field: str,
    values: Sequence[float],
) -> dict[str, Any]:
    """One field of the policy over `values`, for each start, on one trace. `options`: rate an hour, days, bursts."""
    burst = {name: options[name] for name in ("burst", "share") if name in options}
    seconds = options["days"] * DAY
    trace = draw(process, options["rate"] / HOUR, seconds, output_tokens=output_tokens, seed=1, **burst)
    curves = {
        f"{start:g}": [
            {field: value} | _run(trace, service, replace(policy, start=start, **{field: value}))  # type: ignore[arg-type]
            for value in values
        ]
        for start in starts
    }
    return {"process": process, **options, "output_tokens": output_tokens, "policy": asdict(policy), "curves": curves}


def _run(trace: Trace, service: Service, policy: Policy) -> dict[str, Any]:
    result = figures(simulate(trace, service, policy), PRICES, policy.min_replicas)
    mean = result.replica_seconds / result.span_seconds  # paid for at once, on average
    return {name: _short(value) for name, value in (asdict(result) | {"mean_replicas": mean}).items()}


def _short(value: float) -> float | None:
    """Four digits are more than a simulation with one seed is worth."""
    return None if math.isnan(value) else float(f"{value:.4g}")
