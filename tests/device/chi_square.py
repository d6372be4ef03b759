"""The chi-square test, without scipy: how likely counts are under given probabilities."""

import math

import numpy as np


def p_value(observed: np.ndarray, expected: np.ndarray) -> float:
    """Of counts against expected counts of the same total; every expected count must be at least 5."""
    assert expected.min() >= 5
    assert math.isclose(observed.sum(), expected.sum(), rel_tol=1e-9)
    return survival(float(((observed - expected) ** 2 / expected).sum()), observed.size - 1)


def independence(table: np.ndarray) -> float:
    """p-value of the independence of rows and columns of a contingency table."""
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    assert expected.min() >= 5
    statistic = float(((table - expected) ** 2 / expected).sum())
    return survival(statistic, (table.shape[0] - 1) * (table.shape[1] - 1))


def survival(x: float, freedom: int) -> float:
    """P(chi-square > x): one minus the regularised lower incomplete gamma function, by its series (DLMF 8.11.4)."""
    a, half = freedom / 2, x / 2
    if half == 0:
        return 1.0
    term = math.exp(a * math.log(half) - half - math.lgamma(a + 1))
    total, n = 0.0, 0
    while term > total * 1e-17:
        total += term
        n += 1
        term *= half / (a + n)
    return 1 - total
