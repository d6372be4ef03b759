"""Products with weights in each dtype against numpy in double, over odd shapes; what may not change a bit."""

from pathlib import Path

import numpy as np
import pytest

from pilotlight.device.numpy_device import NumpyDevice

from .conftest import opened
from .ops import Ops, Weight, weight

SHAPES = [(1, 1), (7, 3), (40, 64), (33, 100), (17, 31), (130, 257), (96, 576), (48, 1536)]  # out, in
ROWS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 70]
DTYPES = ["F32", "F16", "BF16", "I8"]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def product(x: np.ndarray, matrix: Weight) -> np.ndarray:
    """In double."""
    return x.astype(np.float64) @ matrix.values.astype(np.float64).T


def slack(ops: Ops, dtype: str, x: np.ndarray, matrix: Weight) -> np.ndarray:
    """How far each sum may be off: by fp32's rounding, and where the CPU multiplies bf16 by that of x to it.

    With int8 x is rounded to 16 bits, the largest of its row being 32767.
    """
    magnitude = np.abs(x.astype(np.float64)) @ np.abs(matrix.values.astype(np.float64)).T
    bound = (2**-8 if (ops.library.level, dtype) == ("avx512_bf16", "BF16") else 4e-7) * magnitude + 1e-6
    if dtype == "I8":
        bound += 2**-16 * np.abs(x).max(axis=1, keepdims=True) * np.abs(matrix.values).sum(axis=1)
    return bound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_linear(ops: Ops, shape: tuple[int, int], dtype: str) -> None:
    matrix, bias = weight(random(*shape), dtype), random(shape[0], seed=1)
    for rows in ROWS:
        x = random(rows, shape[1], seed=2)
        expected, bound = product(x, matrix), slack(ops, dtype, x, matrix)
        for added in (None, bias):
            found = ops.linear(x, matrix, added)
            off = np.abs(found - expected - (0 if added is None else added))
            assert (off <= bound).all(), (rows, (off / bound).max())


def test_no_rows(ops: Ops) -> None:
    assert ops.linear(random(0, 64), weight(random(40, 64), "BF16")).shape == (0, 40)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("shape", [(2, 1), (14, 3), (80, 64), (66, 100), (258, 257)])
def test_gated_linear(ops: Ops, shape: tuple[int, int], activation: str, dtype: str) -> None:
    matrix, bias = weight(random(*shape), dtype), random(shape[0], seed=1)
    for rows in (1, 2, 5, 8, 17, 40):
        x = random(rows, shape[1], seed=2)
        for added in (None, bias):
            gate_up = product(x, matrix) + (0 if added is None else added)
            gate, up = np.split(gate_up.astype(np.float32), 2, axis=1)
            expected = NumpyDevice().gated_linear(
                np.concatenate([gate, up], 1), np.eye(shape[0], dtype=np.float32), activation
            )
            found = ops.gated_linear(x, matrix, activation, added)
            # Either factor may be off as a product is, and no activation is steeper than 1.13.
            gate_slack, up_slack = np.split(1.2 * slack(ops, dtype, x, matrix), 2, axis=1)
            bound = gate_slack * (np.abs(up) + up_slack) + (np.abs(gate) + gate_slack) * up_slack + 2e-6
            assert (np.abs(found - expected) <= bound).all()


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_activations_are_right_far_out(ops: Ops, activation: str) -> None:
    """One column: x itself is the gate, and 1 is up."""
    gate = np.concatenate([np.linspace(-30, 30, 999), [-1e4, 1e4, 0.0, -0.0, 88.7, -88.7, -103.0]]).astype(np.float32)
    x = np.stack([gate, np.ones_like(gate)], axis=1)
    matrix = weight(np.eye(2, dtype=np.float32), "F32")
    found = ops.gated_linear(x, matrix, activation)[:, 0]
    expected = NumpyDevice().gated_linear(x, matrix.values, activation)[:, 0]
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=3e-6)


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("shape", [(130, 257), (96, 576), (7, 3)])
def test_a_row_does_not_depend_on_threads_or_neighbours(
    file: Path, ops: Ops, shape: tuple[int, int], dtype: str
) -> None:
    matrix, bias, x = weight(random(*shape), dtype), random(shape[0], seed=1), random(70, shape[1], seed=2)
    whole = ops.linear(x, matrix, bias)
    gated = ops.gated_linear(x, weight(random(2 * (shape[0] // 2), shape[1]), dtype), "silu")
    for threads in (1, 3, 4):
        other = Ops(opened(threads, ops.library.level))
        for _ in range(3):
            assert (other.linear(x, matrix, bias) == whole).all()
        again = other.gated_linear(x, weight(random(2 * (shape[0] // 2), shape[1]), dtype), "silu")
        assert (again == gated).all()
    for start, count in [(0, 1), (69, 1), (3, 2), (10, 5), (7, 8), (20, 17), (1, 33)]:
        part = slice(start, start + count)
        assert (ops.linear(x[part], matrix, bias) == whole[part]).all(), count


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_A10_what_is_not_finite_spoils_its_own_row_alone(ops: Ops, dtype: str, value: float) -> None:
    matrix, x = weight(random(40, 64), dtype), random(20, 64, seed=2)
    clean = ops.linear(x, matrix)
    x[7, 30] = value
    spoiled = ops.linear(x, matrix)
    assert not np.isfinite(spoiled[7]).any()
    rest = np.arange(20) != 7
    assert (spoiled[rest] == clean[rest]).all()
