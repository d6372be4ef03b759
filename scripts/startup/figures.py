"""Figures of repeated starts: medians, quartiles, the start that stands for all, and the line through sizes."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DIGITS = 4  # of seconds: a tenth of a millisecond


@dataclass(frozen=True, slots=True)
class Line:
    """The straight line of least squares. r2: the share of the variance that it explains."""

    slope: float
    offset: float
    r2: float


def summary(starts: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Of each mark: the median, the quartiles between which the middle half lies, and every start's value."""
    marks = list(dict.fromkeys(mark for start in starts for mark in start))
    values = {mark: [round(start[mark], DIGITS) for start in starts if mark in start] for mark in marks}
    return {
        "median": {mark: round(statistics.median(each), DIGITS) for mark, each in values.items()},
        "quartiles": {mark: quartiles(each) for mark, each in values.items()},
        "starts": values,
    }


def quartiles(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return [*values, *values]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return [round(low, DIGITS), round(high, DIGITS)]


def median_index(values: Sequence[float]) -> int:
    """The index of the start that is the median one, of an even number the faster of the two."""
    return sorted(range(len(values)), key=lambda index: values[index])[(len(values) - 1) // 2]


def line(x: Sequence[float], y: Sequence[float]) -> Line:
    slope, offset = statistics.linear_regression(x, y)
    return Line(slope, offset, statistics.correlation(x, y) ** 2)
