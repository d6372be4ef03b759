"""The start's ledger: spans of both processes, the path through them that decided how long the start took, the gaps.

Made of spans alone (timeline.py records them); drawn for a person, put on one log line, written for Perfetto.
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
    """What decided that the start took until `end`, in order of time.

    Found by walking back from the span that ended last. A span could begin once the one before it in its thread was
    done; and it could not end before the one that it names as `after`, whose end it awaited. The one of the two that
    ended last is where the path came from: where it ended within the span, the span counts only from there on. What
    lies between two segments no span explains.
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
    """One line a span that has ended, in order of start: process, name, a bar on the common clock, ms, rate."""
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
    for span in sorted(spans, key=lambda span: span.start):
        pid, key = processes[span.process], (span.process, span.thread)
        if key not in threads:
            threads[key] = len(threads) + 1
            events.append(
                {"ph": "M", "name": "thread_name", "pid": pid, "tid": threads[key], "args": {"name": span.thread}}
            )
        end = now if span.end is None else span.end
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
                "ts": round((span.start - begin) * 1e6, 1),
                "dur": round(max(0.0, end - span.start) * 1e6, 1),
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
