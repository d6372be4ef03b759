"""What is read out of a /startup document: the spans of the start proper, and how long the weights were moved."""

from collections.abc import Mapping
from typing import Any

Span = Mapping[str, Any]


def spans(document: Mapping[str, Any]) -> list[Span]:
    """In order of time: those that have ended and began before the first token; later ones are not the start's."""
    until = document["seconds"]["first_token"] or float("inf")
    done = [span for span in document["spans"] if span["end"] is not None and span["start"] < until]
    return sorted(done, key=lambda span: (span["start"], span["end"]))


def load_seconds(document: Mapping[str, Any], nbytes: int) -> float:
    """How long spans move more than half of the weights' bytes, those that overlap counted once."""
    seconds, until = 0.0, 0.0
    moving = [span for span in spans(document) if (span["bytes"] or 0) > nbytes / 2]
    if not moving:
        raise SystemExit("no span of /startup has the weights' bytes")
    for span in moving:
        seconds += max(0.0, span["end"] - max(span["start"], until))
        until = max(until, span["end"])
    return seconds
