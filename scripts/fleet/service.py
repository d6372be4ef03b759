"""How long a replica takes over a request while so many run on it: from a committed benchmark, or from assumptions.

A request has two phases, its prompt and then its tokens after the first. With n of them on a replica, a prompt takes
the time to first token that was measured at n streams, and a token the time per token at n streams; between measured
counts both are interpolated, and past the largest nothing is known. The measured prompts all came at once, so that
the time to first token of requests that come one by one is a little better than this.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotlight.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Point:
    """Seconds to the first token and for each after it, with `streams` requests on a replica."""

    streams: int
    first: float
    each: float


@dataclass(frozen=True, slots=True)
class Service:
    """`points` by rising streams, the first at 1. `source`: a file, or "assumed"."""

    points: tuple[Point, ...]
    source: str
    prompt_tokens: int | None  # that the first token's time was measured with
    output_tokens: int

    @property
    def most_streams(self) -> int:
        return self.points[-1].streams

    def at(self, streams: int) -> Point:
        """Raises UsageError past what was measured."""
        for low, high in zip(self.points, self.points[1:], strict=False):
            if low.streams <= streams <= high.streams:
                share = (streams - low.streams) / (high.streams - low.streams)
                return Point(
                    streams, low.first + share * (high.first - low.first), low.each + share * (high.each - low.each)
                )
        if streams == self.points[0].streams:
            return self.points[0]
        raise UsageError(
            f"{streams} requests on one replica: {self.source} goes up to {self.most_streams}; "
            "lower --concurrency or --limit"
        )

    def scaled(self, prompt_tokens: int) -> "Service":
        """For prompts of another length, its first token in proportion. Raises UsageError for assumed times."""
        if self.prompt_tokens is None:
            raise UsageError("--prompt-tokens: an assumed service says itself what a first token takes")
        factor = prompt_tokens / self.prompt_tokens
        points = tuple(Point(point.streams, point.first * factor, point.each) for point in self.points)
        return Service(points, self.source, prompt_tokens, self.output_tokens)


@dataclass(frozen=True, slots=True)
class Start:
    """From the decision to start a replica until it takes requests. `source`: a file, or "assumed"."""

    seconds: float
    source: str


def read_benchmark(file: Path) -> Service:
    """Of our own server, as scripts/bench_serving has written it. Raises UsageError."""
    try:
        result = _read(file)
        points = _points(result["streams"]["pilotlight"])
        return Service(points, name_of(file), int(result["prompt_tokens"]), int(result["output_tokens"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file}: no result of scripts/bench_serving ({error!r})") from None


def read_start(file: Path) -> Start:
    """From the server's exec to its first token, of our own server: scripts/measure_startup's slowest condition in
    which the request was there from the start, or scripts/bench_serving's. Raises UsageError."""
    try:
        result = _read(file)
        if "conditions" in result:
            seconds = max(
                sides["pilotlight"]["median"]["first_token"]
                for condition, sides in result["conditions"].items()
                if condition.endswith("queued")
            )
        else:
            seconds = result["start_to_first_token"]["pilotlight"]["seconds"]
        return Start(float(seconds), name_of(file))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file}: no result of scripts/measure_startup or bench_serving ({error!r})") from None


def name_of(file: Path) -> str:
    """How a file is named as a source: by its path in the repository, if it is there."""
    file = file.resolve()
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else str(file)


def _read(file: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    return result


def _points(columns: Mapping[str, Any]) -> tuple[Point, ...]:
    measured = {int(streams): entry for streams, entry in columns.items() if streams.isdecimal()}
    return _checked(
        [Point(streams, entry["ttft_ms"] / 1e3, entry["tpot_ms"] / 1e3) for streams, entry in measured.items()]
    )


def assume(texts: list[str], output_tokens: int) -> Service:
    """From "STREAMS:FIRST:EACH", in seconds. Raises UsageError."""
    points = []
    for text in texts:
        try:
            streams, first, each = text.split(":")
            points.append(Point(int(streams), float(first), float(each)))
        except ValueError:
            raise UsageError(
                f"--assume-service {text!r}: expected STREAMS:FIRST:EACH, such as 8:0.2:0.011 for 200 ms to the "
                "first token and 11 ms for each after it with 8 requests on a replica"
            ) from None
    try:
        return Service(_checked(points), "assumed", None, output_tokens)
    except ValueError as error:
        raise UsageError(f"--assume-service: {error}") from None


def _checked(points: list[Point]) -> tuple[Point, ...]:
    points.sort(key=lambda point: point.streams)
    counts = [point.streams for point in points]
    if counts[:1] != [1] or len(set(counts)) < len(counts):
        raise ValueError("expected one point for each count of streams, and one for 1")
    if not all(0 < point.first < float("inf") and 0 < point.each < float("inf") for point in points):
        raise ValueError("expected times above 0")
    return tuple(points)
