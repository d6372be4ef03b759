"""The tables of docs/cold-start.md, made from what was recorded in benchmarks/. scripts/make_docs puts them in place.

A table stands between two comments that carry its name. One that nothing was recorded for says so in a line.
"""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.bench_table import between, row

from . import budget
from .compare import last_mark
from .figures import quartiles
from .sides import OURS

_MARKS = ("port_open", "first_200", "ready", "first_token")
_TITLES = {"port_open": "port open", "first_200": "first 200", "ready": "ready", "first_token": "first token"}


def insert(page: str, benchmarks: Path) -> str:
    """`page` with every table that it has a place for."""
    for name, table in TABLES.items():
        page = between(page, name, "".join(f"{line}\n" for line in table(benchmarks)))
    return page


def starts(result: Mapping[str, Any]) -> Iterator[str]:
    """A row for each side under each condition: medians, quartiles of the last mark, and ours over theirs."""
    entries = [
        (condition, name, found) for condition, sides in result["conditions"].items() for name, found in sides.items()
    ]
    marks = [mark for mark in _MARKS if any(mark in found["median"] for _, _, found in entries)]
    yield row(["weights' pages, first request", "", *(_TITLES[mark] for mark in marks), "middle half", "ours is"])
    yield _rule(len(marks) + 4)
    for condition, name, found in entries:
        last = last_mark(found["median"])
        cells = [_ms(found["median"][mark]) if mark in found["median"] else "" for mark in marks]
        if last == "exit":
            cells = [f"exit after {_ms(found['median']['exit'])}", *cells[1:]]
        ratio = result["against"][condition].get(name, {})
        against = ratio.get("port_open over exit" if last == "exit" else last)
        spread = "-".join(_ms(value, unit=False) for value in found["quartiles"][last])
        yield row([condition, name, *cells, f"{spread} ms", f"{against:.2f}x" if against else ""])
    yield from _source(result, f"{result['model']} in {result['dtype']}")


def short(result: Mapping[str, Any]) -> Iterator[str]:
    """For the README: the first token alone, of those that give one, and the picture."""
    conditions = result["conditions"]
    yield row(["exec to first token", *(_in_words(condition) for condition in conditions)])
    yield _rule(1 + len(conditions))
    for name, found in next(iter(conditions.values())).items():
        if "first_token" in found["median"]:
            yield row([name, *(_ms(sides[name]["median"]["first_token"]) for sides in conditions.values())])
    yield from _source(result, f"{result['model']} in {result['dtype']}")
    yield ""
    yield "![a start's waterfall, and the others' times](docs/benchmark-startup.svg)"


def _in_words(condition: str) -> str:
    pages, _, request = condition.partition(", ")
    state = {"hot": "weights in the page cache", "dropped": "weights dropped from it"}[pages]
    return state if request == "queued" else f"{state}, {request} request"


def ways(result: Mapping[str, Any]) -> Iterator[str]:
    """A row for each other way to start the same server: its marks, and how much longer its first token takes."""
    conditions = result["conditions"]
    first = next(iter(conditions))
    early = ("port_open", "first_200")
    titles = [f"{first}: {_TITLES[mark]}" for mark in early]
    yield row(["way", *titles, *(cell for name in conditions for cell in (f"{name}: first token", "longer by"))])
    yield _rule(1 + len(early) + 2 * len(conditions))
    for name, found in conditions[first].items():
        cells = [_ms(found["median"][mark]) for mark in early]
        for sides in conditions.values():
            cells += [_ms(sides[name]["median"]["first_token"]), _longer(sides[name], sides[OURS])]
        yield row([name, *cells])
    yield from _source(result, f"{result['model']} in {result['dtype']}")


def _longer(other: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """By how much, compared within each round: the median, and the middle half."""
    if other is ours:
        return ""
    pairs = zip(other["starts"]["first_token"], ours["starts"]["first_token"], strict=True)
    more = [theirs - own for theirs, own in pairs]
    low, high = quartiles(more)
    return f"{_ms(statistics.median(more))} ({_ms(low, unit=False)} to {_ms(high, unit=False)})"


def text(result: Mapping[str, Any]) -> Iterator[str]:
    (entries,) = result["conditions"].values()
    yield row(["vocabulary", "first token, from text", "from token ids", "later"])
    yield _rule(4)
    for name, later in result["later"].items():
        taken = [entries[f"{name} {kind}"]["median"]["first_token"] for kind in ("text", "ids")]
        yield row([name, *map(_ms, taken), f"{1000 * later:.1f} ms"])
    yield from _source(result, "Small models of random weights")


def growth(result: Mapping[str, Any]) -> Iterator[str]:
    what = ("load", "machine", "machine_busy", "touch", "first_token")
    yield row(
        [
            *("weights", "pages", "load", "the machine's own read", "beside two busy processes"),
            *("one pass over memory", "first token"),
        ]
    )
    yield _rule(2 + len(what))
    for state, found in result["pages"].items():
        for point in found["points"]:
            yield row([f"{point['bytes'] / 1e9:.2f} GB", state, *(_ms(point["median"][each]) for each in what)])
    yield ""
    for state, found in result["pages"].items():
        lines = found["lines"]
        grows = {name: f"{1000 * lines[name]['s_per_gb']:.1f} (R² {lines[name]['r2']:.3f})" for name in what}
        yield (
            f"- {state}, ms a GB: load {grows['load']}; the machine's own read {grows['machine']}, of which load is "
            f"{lines['load_over_machine']:.2f}; beside two busy processes {grows['machine_busy']}, of which it is "
            f"{lines['load_over_busy']:.2f}; first token {grows['first_token']}, beyond the load "
            f"{lines['passes']:.1f} passes over memory of {grows['touch']} each."
        )
    yield from _source(result, "Random weights")


def failures(result: Mapping[str, Any]) -> Iterator[str]:
    yield row(["failure", "exec to exit", "middle half", "code"])
    yield _rule(4)
    for name, found in result["failures"].items():
        spread = "-".join(_ms(value, unit=False) for value in found["quartiles"])
        yield row([name, _ms(found["exit"]), f"{spread} ms", ", ".join(map(str, found["codes"]))])
    yield from _source(result, "A small model")


def on_a_card(benchmarks: Path) -> Iterator[str]:
    """The budget, and beside it what a gpu_check measured, of the fastest start that is in the page cache."""
    yield from budget.table(
        {file.stem: json.loads(file.read_bytes()) for file in sorted(benchmarks.glob("gpu-*.json"))}
    )


Table = Callable[[Path], Iterator[str]]


def recorded(name: str, rows: Callable[[Mapping[str, Any]], Iterator[str]]) -> Table:
    """Of one file of benchmarks/."""

    def table(benchmarks: Path) -> Iterator[str]:
        file = benchmarks / name
        if file.exists():
            yield from rows(json.loads(file.read_bytes()) | {"file": name})
        else:
            yield f"Nothing is recorded in benchmarks/{name} yet."

    return table


TABLES: Mapping[str, Table] = {
    "startup": recorded("startup.json", starts),
    "startup-short": recorded("startup.json", short),
    "startup-ways": recorded("startup-ways.json", ways),
    "startup-text": recorded("startup-text.json", text),
    "startup-growth": recorded("startup-growth.json", growth),
    "startup-failures": recorded("startup-failures.json", failures),
    "startup-budget": on_a_card,
}


def _source(result: Mapping[str, Any], what: str) -> Iterator[str]:
    machine = result["machine"]
    features = f"{machine['cpu']}, {', '.join(machine['features'])}"
    yield ""
    yield (
        f"{what}, medians of {result['count']} starts in turn, {machine['cores']} cores ({features}), "
        f"{result['date']}. Every start, and the command: `benchmarks/{result['file']}`."
    )


def _ms(seconds: float, *, unit: bool = True) -> str:
    return f"{1000 * seconds:.0f}{' ms' if unit else ''}"


def _rule(columns: int) -> str:
    return row("---" for _ in range(columns))
