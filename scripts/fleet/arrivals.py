"""When requests come, and how many tokens each gets: drawn from a process by seed, or read from a CSV file.

Apart because a trace is made before anything is simulated: the same requests meet every fleet that is compared.
"""

import csv
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pilotlight.errors import UsageError

HOUR = 3600.0
DAY = 24 * HOUR
DEPTH = 0.9  # of the diurnal wave: at night 0.1 of the mean rate, by day 1.9


@dataclass(frozen=True, slots=True)
class Arrival:
    time: float  # seconds from the trace's start
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals in order of time, all before `seconds`."""

    name: str
    seconds: float
    arrivals: tuple[Arrival, ...]


def regular(rate: float, seconds: float, rng: random.Random) -> Iterator[float]:
    """One request every 1/rate seconds, from the middle of the first such interval on."""
    count = int(seconds * rate + 0.5)
    return ((number + 0.5) / rate for number in range(count))


def poisson(rate: float, seconds: float, rng: random.Random) -> Iterator[float]:
    time = rng.expovariate(rate)
    while time < seconds:
        yield time
        time += rng.expovariate(rate)


def diurnal(rate: float, seconds: float, rng: random.Random) -> Iterator[float]:
    """Poisson with a rate that follows the day, from midnight on: thinned from its highest rate."""
    highest = rate * (1 + DEPTH)
    for time in poisson(highest, seconds, rng):
        if rng.random() * highest < rate * (1 - DEPTH * math.cos(2 * math.pi * time / DAY)):
            yield time


def bursty(rate: float, seconds: float, rng: random.Random, *, burst: float, share: float) -> Iterator[float]:
    """A Poisson process that is switched on and off (a Markov-modulated one): on for `burst` seconds on average,
    `share` of the time, and then at rate/share, so that the mean over all of it is `rate`."""
    time = 0.0
    while time < seconds:
        time += rng.expovariate(share / (burst * (1 - share)))
        end = min(time + rng.expovariate(1 / burst), seconds)
        time += rng.expovariate(rate / share)
        while time < end:
            yield time
            time += rng.expovariate(rate / share)
        time = end


PROCESSES: dict[str, Callable[..., Iterator[float]]] = {
    "poisson": poisson,
    "diurnal": diurnal,
    "bursty": bursty,
    "regular": regular,
}


def draw(
    process: str,
    rate: float,
    seconds: float,
    *,
    output_tokens: int,
    seed: int = 0,
    burst: float = 60,
    share: float = 0.1,
) -> Trace:
    """`rate` requests a second on average. `burst` and `share` are the bursty process's own."""
    options = {"burst": burst, "share": share} if process == "bursty" else {}
    times = PROCESSES[process](rate, seconds, random.Random(seed), **options)
    return Trace(process, seconds, tuple(Arrival(time, output_tokens) for time in times))


def read(file: Path, *, output_tokens: int) -> Trace:
    """A CSV of `time` or `time,output_tokens`, with or without a line of titles.

    Times are seconds, or dates as ISO 8601 writes them, in any order; the first is the trace's start, and the last
    its end. Raises UsageError with the line.
    """
    arrivals: list[Arrival] = []
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            rows = csv.reader(lines)
            for row in rows:
                where = f"{file}:{rows.line_num}"
                if not row or (rows.line_num == 1 and not _is_time(row[0])):
                    continue
                arrivals.append(Arrival(_time(row[0], where), _tokens(row[1:], where, output_tokens)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{file}: {getattr(error, 'strerror', None) or error}") from None
    if not arrivals:
        raise UsageError(f"{file}: no line begins with a time, in seconds or as 2026-11-30T12:00:00")
    arrivals.sort(key=lambda arrival: arrival.time)
    start = arrivals[0].time
    moved = tuple(Arrival(arrival.time - start, arrival.output_tokens) for arrival in arrivals)
    return Trace(file.name, moved[-1].time, moved)


def _is_time(text: str) -> bool:
    try:
        _time(text, "")
    except UsageError:
        return False
    return True


def _time(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        try:
            date = datetime.fromisoformat(text.strip())
        except ValueError:
            raise UsageError(f"{where}: time {text!r}: expected seconds, or a date as 2026-11-30T12:00:00") from None
        value = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(value):
        raise UsageError(f"{where}: time {text!r}: expected a finite number of seconds")
    return value


def _tokens(cells: list[str], where: str, default: int) -> int:
    if not cells or not cells[0].strip():
        return default
    if not cells[0].strip().isdecimal() or int(cells[0]) < 1:
        raise UsageError(f"{where}: output_tokens {cells[0]!r}: expected a whole number, 1 or more")
    return int(cells[0])
