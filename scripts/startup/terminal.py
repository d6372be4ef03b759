"""What a person sees: the progress of a run, and its end: medians, ratios, and the waterfall of the median start."""

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pilotlight.ledger import waterfall
from pilotlight.messages import Span

from . import ledger
from .compare import ratios
from .sides import OURS

_WIDTH = 110


class Progress:
    """One line on stderr that is written anew for each start; where stderr is no terminal, a line a start."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._begun = total, 0, time.monotonic()

    def __call__(self, what: str, seconds: float) -> None:
        self._done += 1
        left = (time.monotonic() - self._begun) / self._done * (self._total - self._done)
        line = f"{self._done}/{self._total} {what}: {seconds * 1000:.0f} ms; about {left:.0f} s left"[:_WIDTH]
        if sys.stderr.isatty():
            end = "\n" if self._done == self._total else ""
            print(f"\r{line:<{_WIDTH}}", end=end, file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)


def summary(result: Mapping[str, Any]) -> Iterator[str]:
    """Of a comparison: a table for each condition, what we are of each peer, and our median start."""
    for condition, entries in result["conditions"].items():
        yield f"{condition}: medians in ms (the middle half between)"
        against = ratios(entries, OURS)
        for name, found in entries.items():
            cells = [
                f"{mark} {1000 * median:.0f} ({1000 * low:.0f}-{1000 * high:.0f})"
                for mark, median in found["median"].items()
                for low, high in [found["quartiles"][mark]]
            ]
            yield f"  {name}: {', '.join(cells)}"
            if name in against:
                yield f"    {OURS} is {', '.join(f'{ratio:g}x at {mark}' for mark, ratio in against[name].items())}"
        if "ledger" in entries.get(OURS, {}):
            yield from drawn(entries[OURS]["ledger"])


def drawn(document: Mapping[str, Any]) -> Iterator[str]:
    """The waterfall of a /startup, and the path through it that decided."""
    started = ledger.spans(document)
    bars = [Span(span["process"], span["name"], span["start"], span["end"], span["bytes"] or 0) for span in started]
    yield from (f"  {line}" for line in waterfall(bars))
    path = " > ".join(f"{span['process']} {span['name']}" for span in started if span["critical"])
    yield f"  what decided: {path}; {1000 * document['unattributed']:.1f} ms that no span explains"
