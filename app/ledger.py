"""The start's ledger: the critical path through the spans of both processes, and the time that no span explains.

It is made of spans alone (timeline.py records them), and becomes a log line, a waterfall for a person, or a trace for
Perfetto.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from .messages import Span


class Segment(NamedTuple):
    """A piece of the critical path: the span that the start waited for from `start` to `end`."""

    span: Span
    start: float
    end: float


def critical_path(spans: Sequence[Span], end: float) -> list[Segment]:
    """The chain of spans that decided how long the start took up to `end`, in order of time.

    It is walked backwards from the span that ended last. A span could not begin before the previous one of its thread
    ended, nor end before the one that it names as `after` did. Whichever of these two ended later is the next step
    back; if it ended within the span, only the rest of the span is on the path. Time between two segments is not
    explained by any span.
    """
    done = [span for span in spans if span.end is not None and span.end <= end]
    segments: list[Segment] = []
    span = max(done, key=_end, default=None)
    while span is not None:
        done = [other for other in done if other is not span]
        before = max((other for other in done if _precedes(other, span)), key=_end, default=None)
        start = span.start if before is None else max(span.start, _end(before))
        segments.append(Segment(span, start, _end(span)))
        span = before
    return segments[::-1]


def _precedes(other: Span, span: Span) -> bool:
    """Whether `span` had to wait for the end of `other`."""
    if other.name == span.after:
        return _end(other) <= _end(span)
    return (other.process, other.thread) == (span.process, span.thread) and _end(other) <= span.start


def unattributed(path: Sequence[Segment], begin: float, end: float) -> float:
    """Seconds from `begin` to `end` that lie between the path's segments."""
    return max(0.0, end - begin - sum(segment.end - segment.start for segment in path))


def summary(spans: Sequence[Span], begin: float, end: float) -> str:
    """ "ready in 312 ms: front imports 88, engine weights 61 @ 8.9 GB/s": the path's longest spans first."""
    longest = sorted(critical_path(spans, end), key=lambda segment: segment.start - segment.end)[:6]
    parts = [
        f"{span.process} {span.name} {_ms(until - since)}{_rate(span)}"
        for span, since, until in longest
        if _ms(until - since) != "0"
    ]
    return f"ready in {_ms(end - begin)} ms: {', '.join(parts)}"


def waterfall(spans: Sequence[Span], width: int = 48) -> list[str]:
    """A line for each span that has ended, in order of start: process, name, a bar on the common clock, ms, rate."""
    done = [span for span in spans if span.end is not None]
    begin, end = min(span.start for span in done), max(map(_end, done))
    scale = width / max(end - begin, 1e-9)
    lines = []
    for span in sorted(done, key=lambda span: (span.start, _end(span))):
        left = min(int((span.start - begin) * scale), width - 1)
        right = max(left + 1, min(width, round((_end(span) - begin) * scale)))
        bar = (" " * left + "\u2588" * (right - left)).ljust(width)
        duration = f"{_ms(_end(span) - span.start):>6} ms"
        lines.append(f"{span.process:<6} {span.name:<18} |{bar}| {duration}{_rate(span)}")
    return lines


def chrome_trace(spans: Sequence[Span], path: Sequence[Segment], begin: float, now: float) -> dict[str, Any]:
    """Chrome's trace format (complete events, microseconds from `begin`), which Perfetto and chrome://tracing open.

    Spans that run are drawn up to `now`; those on the critical path say so in their arguments.
    """
    critical = {id(segment.span) for segment in path}
    processes, threads = {"front": 1, "engine": 2}, dict[tuple[str, str], int]()
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for name, pid in processes.items()
    ]

    def micros(time: float) -> int:
        return round((time - begin) * 1e6)

    # Ends are rounded, not durations, and what encloses comes first: of spans in a row that overlap, be it by a
    # rounding, Perfetto drops one.
    timed = [(micros(span.start), micros(now if span.end is None else span.end), span) for span in spans]
    for start, end, span in sorted(timed, key=lambda each: (each[0], -each[1])):
        pid, key = processes[span.process], (span.process, span.thread)
        if key not in threads:
            threads[key] = len(threads) + 1
            events.append(
                {"ph": "M", "name": "thread_name", "pid": pid, "tid": threads[key], "args": {"name": span.thread}}
            )
        arguments: dict[str, Any] = {"critical": id(span) in critical}
        if span.bytes:
            arguments["bytes"] = span.bytes
        events.append(
            {
                "ph": "X",
                "name": span.name,
                "cat": "startup",
                "pid": pid,
                "tid": threads[key],
                "ts": start,
                "dur": max(0, end - start),
                "args": arguments,
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _end(span: Span) -> float:
    assert span.end is not None
    return span.end


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f}"


def _rate(span: Span) -> str:
    seconds = _end(span) - span.start
    return f" @ {span.bytes / seconds / 1e9:.1f} GB/s" if span.bytes and seconds > 0 else ""
