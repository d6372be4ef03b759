"""Starts of several sides in turn, as often as asked: every round starts each side once under each condition.

The order is rotated from round to round, so that what a side leaves behind (caches, a warm disk, a hot CPU) meets
each of the others alike; a round before the first is not counted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import pages
from .figures import DIGITS, median_index, summary
from .start import Side, Start, measure

PAGES = ("hot", "dropped")
LAST_MARKS = ("first_token", "first_200", "exit")  # the first of these that a side has is what it is measured to
Report = Callable[[str, float], None]  # what was started, and its seconds


@dataclass(frozen=True, slots=True)
class Condition:
    pages: str  # of the weights, before each start: "hot" or "dropped"
    request: str  # the first one: "queued" or "late"

    @property
    def name(self) -> str:
        return f"{self.pages}, {self.request}"


def conditions(page_states: Sequence[str], requests: Sequence[str]) -> list[Condition]:
    return [Condition(state, request) for state in page_states for request in requests]


def rounds(
    sides: Sequence[Side], under: Sequence[Condition], count: int, log: Path, report: Report
) -> dict[Condition, dict[str, list[Start]]]:
    """Condition -> side -> its starts. Without weights and requests, a side starts under the first condition only."""
    starts: dict[Condition, dict[str, list[Start]]] = {each: {} for each in under}
    for turn in range(count + 1):
        for number, condition in enumerate(under):
            taking = [side for side in sides if number == 0 or side.weights or side.until == "token"]
            cut = turn % len(taking)
            for side in (*taking[cut:], *taking[:cut]):
                pages.prepare(side.weights, condition.pages)
                start = measure(side, condition.request, log)
                report(side.name, start.marks[last_mark(start.marks)])
                if turn:
                    starts[condition].setdefault(side.name, []).append(start)
    return starts


def last_mark(marks: Mapping[str, float]) -> str:
    return next(mark for mark in LAST_MARKS if mark in marks)


def result(sides: Sequence[Side], starts: Mapping[Condition, Mapping[str, Sequence[Start]]]) -> dict[str, Any]:
    """As it is recorded: per condition and side every mark of every start, and the ledger of the median one."""
    return {
        "commands": {side.name: side.shown for side in sides},
        "conditions": {
            condition.name: {side.name: entry(by_side[side.name]) for side in sides if side.name in by_side}
            for condition, by_side in starts.items()
        },
    }


def entry(starts: Sequence[Start]) -> dict[str, Any]:
    """Of one side under one condition."""
    found = summary([start.marks for start in starts])
    if ledgers := [start.ledger for start in starts if start.ledger]:
        index = median_index(found["starts"][last_mark(found["median"])])
        found["unattributed"] = [round(ledger["unattributed"], DIGITS) for ledger in ledgers]
        found["ledger"] = {"start": index, **_rounded(ledgers[index])}
    return found


def ratios(entries: Mapping[str, Mapping[str, Any]], ours: str) -> dict[str, dict[str, float]]:
    """Other side -> mark -> our median over its own. The interpreter's end is compared with our open port."""
    found: dict[str, dict[str, float]] = {}
    for name, other in entries.items():
        if name == ours or ours not in entries:
            continue
        mine, theirs = entries[ours]["median"], other["median"]
        found[name] = {
            mark: round(mine[mark] / theirs[mark], 3) for mark in theirs if mark in mine and mark != "request"
        }
        if "exit" in theirs:
            found[name]["port_open over exit"] = round(mine["port_open"] / theirs["exit"], 3)
    return found


def _rounded(value: Any) -> Any:
    """A ledger with times to a tenth of a millisecond."""
    match value:
        case dict():
            return {name: _rounded(each) for name, each in value.items()}
        case list():
            return [_rounded(each) for each in value]
        case float():
            return round(value, DIGITS)
        case _:
            return value
