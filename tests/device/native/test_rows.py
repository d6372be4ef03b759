"""The ops that work row by row (embedding, norm, gathering) against numpy."""

from pathlib import Path

import numpy as np
import pytest

from pilotlight.device.numpy_device import NumpyDevice

from .conftest import opened
from .ops import Ops, weight
from .test_linear import random


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "I8"])
@pytest.mark.parametrize("width", [1, 7, 64, 577])
def test_embed_widens_exactly(ops: Ops, width: int, dtype: str) -> None:
    table = weight(random(50, width), dtype)
    tokens = [3, 0, 49, 3, 17]
    assert (ops.embed(tokens, table) == table.values[tokens]).all()


def test_a_token_past_the_table_is_its_last(ops: Ops) -> None:
    table = weight(random(50, 7), "BF16")
    assert (ops.embed([50, -1, 1 << 30], table) == table.values[[49, 0, 49]]).all()


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 7), (5, 64), (33, 577), (8, 2049), (0, 64)])
def test_norm(ops: Ops, rows: int, width: int, with_residual: bool) -> None:
    x, factors = random(rows, width), random(width, seed=1)
    residual = random(rows, width, seed=2) if with_residual else None
    total = x.astype(np.float64) + (0 if residual is None else residual)
    expected = total / np.sqrt((total**2).mean(axis=1, keepdims=True) + 1e-5) * factors
    found, left = ops.norm(x, factors, 1e-5, residual)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)
    assert (left == (x if residual is None else x + residual)).all()


def test_norm_of_small_and_large_rows(ops: Ops) -> None:
    """eps decides where there is next to nothing; squares of large numbers still fit."""
    x = np.stack([np.full(64, 1e-12), np.zeros(64), np.full(64, 1e15)]).astype(np.float32)
    expected, _ = NumpyDevice().norm(x, np.ones(64, np.float32), 1e-5)
    np.testing.assert_allclose(ops.norm(x, np.ones(64, np.float32), 1e-5)[0], expected, rtol=1e-5)


def test_A10_a_nan_spoils_its_own_row_alone(ops: Ops) -> None:
    x, factors = random(20, 577), random(577, seed=1)
    clean, _ = ops.norm(x, factors, 1e-5)
    x[7, 500] = np.nan
    found, _ = ops.norm(x, factors, 1e-5)
    assert np.isnan(found[7]).all()
    rest = np.arange(20) != 7
    assert (found[rest] == clean[rest]).all()


def test_norm_does_not_depend_on_threads_or_neighbours(file: Path, ops: Ops) -> None:
    x, residual, factors = random(40, 577), random(40, 577, seed=1), random(577, seed=2)
    whole, total = ops.norm(x, factors, 1e-5, residual)
    for threads in (1, 3, 4):
        again, left = Ops(opened(threads, ops.library.level)).norm(x, factors, 1e-5, residual)
        assert (again == whole).all()
        assert (left == total).all()
    for row in (0, 13, 39):
        alone, _ = ops.norm(x[row : row + 1], factors, 1e-5, residual[row : row + 1])
        assert (alone[0] == whole[row]).all()


@pytest.mark.parametrize("width", [1, 7, 577])
def test_gather(ops: Ops, width: int) -> None:
    x = random(30, width)
    for indices in ([], [29], [5, 0, 5, 28]):
        assert (ops.gather(x, indices) == x[indices]).all()
