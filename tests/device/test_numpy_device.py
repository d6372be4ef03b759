"""The numpy device's ops against plain loops and independent formulas, in every memory order a tensor may have."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from pilotlight.device.base import AttentionShape, StepShape
from pilotlight.device.numpy_device import NumpyDevice

DEVICE = NumpyDevice()
RANDOM = np.random.default_rng(0)


def random(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def orders(x):
    """The same tensor, row by row and column by column."""
    return [np.ascontiguousarray(x), np.asfortranarray(x)]


@pytest.mark.parametrize("tokens", [1, 2, 8, 47, 48, 100])
@pytest.mark.parametrize("biased", [False, True])
def test_linear(tokens, biased):
    x, weight, bias = random(tokens, 24), random(40, 24), random(40) if biased else None
    products = [[math.fsum(a * b for a, b in zip(row, column, strict=True)) for column in weight] for row in x]
    expected = np.array(products) + (bias if biased else 0)
    for each in orders(x):
        found = DEVICE.linear(each, weight, bias)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_logits_lie_row_by_row():
    x, weight = random(5, 24), random(40, 24)
    found = DEVICE.logits(np.asfortranarray(x), weight)
    assert found.flags.c_contiguous
    np.testing.assert_allclose(found, np.einsum("rh,vh->rv", x.astype(np.float64), weight), rtol=1e-4, atol=1e-5)


def test_embed_and_the_rows_that_are_wanted():
    table = random(10, 4)
    batch = SimpleNamespace(
        tokens=np.array([3, 9, 3], np.int32), sample_rows=np.array([2]), score_rows=np.array([0, 1])
    )
    step = SimpleNamespace(batch=batch)
    np.testing.assert_array_equal(DEVICE.embed(step, table), table[[3, 9, 3]])
    np.testing.assert_array_equal(DEVICE.wanted(step, table), table[[2, 0, 1]])
    np.testing.assert_array_equal(DEVICE.part(table, 7, 2), table[7:9])
    assert DEVICE.part(table, 10, 0).shape == (0, 4)


@pytest.mark.parametrize("eps", [1e-5, 1e-2])
@pytest.mark.parametrize("with_residual", [False, True])
def test_norm(eps, with_residual):
    x, residual, weight = random(3, 8), random(3, 8), random(8)
    total = (x + residual if with_residual else x).astype(np.float64)
    root = [math.sqrt(sum(value * value for value in row) / 8 + eps) for row in total]
    expected = [[value / root[t] * weight[h] for h, value in enumerate(row)] for t, row in enumerate(total)]
    for each in orders(x):
        normed, total_found = DEVICE.norm(each.copy("K"), weight, eps, residual.copy() if with_residual else None)
        np.testing.assert_allclose(normed, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(total_found, total, rtol=1e-6)


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("silu", lambda x: x / (1 + math.exp(-x))),
        ("gelu", lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
        ("gelu_tanh", lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    ],
)
def test_gated_linear(activation, formula):
    gate = np.concatenate([random(100) * 3, np.linspace(-12, 12, 97), [0.0, -0.0, 87.0]]).astype(np.float32)
    up = random(200)
    expected = [formula(float(g)) * float(u) for g, u in zip(gate, up, strict=True)]
    gate_up = np.concatenate([gate.reshape(2, 100), up.reshape(2, 100)], axis=1)
    for each in orders(gate_up):  # times one, so that the product is exact
        found = DEVICE.gated_linear(each, np.eye(200, dtype=np.float32), activation)
        np.testing.assert_allclose(found.ravel(), expected, rtol=2e-6, atol=2e-6)


def test_gated_linear_far_out():
    """Where exp overflows the limits are right, and nothing warns."""
    far = np.array([[-1e4, 1e4, -200.0, 200.0, 1.0, 1.0, 1.0, 1.0]], np.float32)
    for activation in ("silu", "gelu", "gelu_tanh"):
        np.testing.assert_allclose(
            DEVICE.gated_linear(far, np.eye(8, dtype=np.float32), activation), [[0, 1e4, 0, 200]], atol=1e-30
        )


def test_activations_grow_with_the_step():
    shape = AttentionShape(2, 4, 2, 16, 16, 16)

    def nbytes(tokens, seqs):
        return DEVICE.activation_bytes(shape, StepShape(64, 128, 320, tokens, seqs, 64, 20, 256))

    assert nbytes(512, 1) > 20 * nbytes(16, 1)
    assert nbytes(16, 100) - nbytes(16, 1) == 4 * 3 * 99 * 320
