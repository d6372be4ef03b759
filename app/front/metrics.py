"""What the server counts, and its Prometheus text. Names follow vLLM's, under `pilotlight:`, with its units.

The front measures what a client feels (latencies, sizes, endings); the engine's gauges and counters come from its
last step. Nothing here is called per token.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .startup import Startup
    from .supervisor import Supervisor

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_SECONDS_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 1.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class Histogram:
    """Counts of observations by upper bound, as Prometheus defines them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{_number(bound)}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self._sum!r}"
        yield f"{name}_count{{{labels}}} {total}"


@dataclass(slots=True)
class Metrics:
    """What the front itself observes, once per request or per choice."""

    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    time_per_output_token: Histogram = field(default_factory=lambda: Histogram(_SECONDS_PER_TOKEN))
    request_latency: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    prompt_tokens: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    generation_tokens: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0))
    rejected: int = 0  # requests for which the queue had no room

    def expose(self, model: str, supervisor: "Supervisor", startup: "Startup") -> str:
        """The whole page in Prometheus' text format 0.0.4."""
        labels = f'model_name="{_escape(model)}"'
        stats, ready = supervisor.stats, supervisor.ready
        total_pages = stats.pages_total or (ready.pages if ready else 0)
        lines: list[str] = []

        def put(name: str, kind: str, text: str, *samples: tuple[str, float]) -> None:
            lines.extend((f"# HELP pilotlight:{name} {text}", f"# TYPE pilotlight:{name} {kind}"))
            lines.extend(f"pilotlight:{name}{{{labels}{extra}}} {_number(value)}" for extra, value in samples)

        def gauge(name: str, text: str, value: float) -> None:
            put(name, "gauge", text, ("", value))

        def counter(name: str, text: str, value: float) -> None:
            put(f"{name}_total", "counter", text, ("", value))

        def histogram(name: str, text: str, values: Histogram) -> None:
            put(name, "histogram", text)
            lines.extend(values.lines(f"pilotlight:{name}", labels))

        gauge("engine_up", "1 while an engine is ready.", float(ready is not None))
        counter("engine_restarts", "Engines started after one died.", supervisor.restarts)
        gauge("num_requests_running", "Sequences in the running batch.", stats.running)
        gauge("num_requests_waiting", "Sequences that wait for their turn.", stats.waiting)
        gauge(
            "kv_cache_usage_perc",
            "Share of KV pages held by sequences, 0 to 1.",
            _share(stats.pages_used, total_pages),
        )
        put(
            "kv_cache_pages",
            "gauge",
            "KV pages: held by sequences, free with content that may be reused, and in all.",
            (',state="used"', stats.pages_used),
            (',state="cached"', stats.pages_cached),
            (',state="total"', total_pages),
        )
        counter(
            "num_preemptions",
            "Sequences that lost their pages and were computed again.",
            supervisor.counter("preemptions"),
        )
        counter("prompt_tokens", "Prompt tokens taken in.", supervisor.counter("prompt_tokens"))
        counter("generation_tokens", "Tokens generated.", supervisor.counter("generated_tokens"))
        counter("prefix_cache_queries", "Prompt tokens looked up.", supervisor.counter("prefix_queried_tokens"))
        counter("prefix_cache_hits", "Prompt tokens reused.", supervisor.counter("prefix_hit_tokens"))
        counter("engine_steps", "Steps of the engine.", supervisor.counter("steps"))
        counter("engine_step_seconds", "Time spent inside steps.", supervisor.counter("step_seconds"))
        put(
            "request_success_total",
            "counter",
            "Choices that ended, by reason.",
            *((f',finished_reason="{reason}"', count) for reason, count in self.finished.items()),
        )
        counter("requests_rejected", "Requests turned away because the queue was full.", self.rejected)
        phases, moments = startup.seconds()
        put(
            "startup_phase_seconds",
            "gauge",
            "What the start consisted of, by process and phase; phases overlap.",
            *((f',phase="{phase}"', seconds) for phase, seconds in phases.items()),
        )
        put(
            "startup_seconds",
            "gauge",
            "From the exec of the server until it was ready, and until the first token of an answer was out.",
            *((f',until="{moment}"', seconds) for moment, seconds in moments.items()),
        )
        histogram("time_to_first_token_seconds", "From the request to its first token.", self.time_to_first_token)
        histogram(
            "request_time_per_output_token_seconds",
            "Between tokens of a choice, averaged over it.",
            self.time_per_output_token,
        )
        histogram("e2e_request_latency_seconds", "From the request to the end of its answer.", self.request_latency)
        histogram("request_prompt_tokens", "Prompt tokens of a request.", self.prompt_tokens)
        histogram("request_generation_tokens", "Tokens generated for a choice.", self.generation_tokens)
        return "\n".join(lines) + "\n"


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
