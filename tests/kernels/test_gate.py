"""kernels/gate.cu against the formulas in float64 on the same rounded inputs.

Tolerance: the result is rounded once, half a unit in the last place of its type, and half the spacing of fp16's
subnormals. Before that fp32 adds 2^-19 of the activation, and both gelus 2^-21 in all, times up: erf is right to
1.5e-7 of 1, and far below 0 the tanh form is an exp of so large a number that its rounding shows.
"""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pilotlight.device.base import Activation
from pilotlight.device.cuda import gate
from pilotlight.device.cuda.launch import Half, Launch

from .activations import activated
from .hardships import every_hardship
from .harness import Card, from_half, to_half

HALVES: tuple[Half, ...] = ("bfloat16", "float16")
ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh")
INNER = [1536, 4864, 8960, 18944, 14336, 6912, 10240, 15360, 21504]  # SmolLM2, Qwen2.5, Llama-3.1, Gemma 3
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}

Array = NDArray[Any]


class Gate:
    """Random gates and ups on the card, or parts that add up to them, and what must come of them."""

    def __init__(self, card: Card, dtype: Half, tokens: int, n: int, activation: Activation, splits: int = 0) -> None:
        random = np.random.default_rng([tokens, n, splits])
        self.card, self.dtype, self.n, self.activation, self.splits = card, dtype, n, activation, splits
        if splits:
            self.gate_up = random.standard_normal((splits, tokens, 2 * n), np.float32) * 2
        else:
            self.gate_up = to_half(random.standard_normal((tokens, 2 * n), np.float32) * 3, dtype)
        self.out = card.output((tokens, n), to_half(np.zeros(1), dtype).dtype)

    def plan(self) -> Launch:
        return gate.plan(
            self.out.address, self.card.upload(self.gate_up).address, self.out.shape[0], self.n,
            dtype=self.dtype, activation=self.activation, splits=self.splits,
        )  # fmt: skip

    def result(self) -> Array:
        self.card.run(self.plan())
        return self.card.read(self.out)

    def check(self) -> None:
        if self.splits:
            wide = np.zeros(self.gate_up.shape[1:], np.float32)
            for part in self.gate_up:  # from the first on
                wide += part
        else:
            wide = from_half(self.gate_up)
        want = activated(wide[:, : self.n], self.activation) * wide[:, self.n :]
        up = np.abs(wide[:, self.n :])
        tiny = 2.0**-25 if self.dtype == "float16" else 2.0**-126
        bound = ROUNDING[self.dtype] * np.abs(want) + 2.0**-19 * np.abs(want) + tiny
        if self.activation != "silu":
            bound += 2.0**-21 * up
        error = np.abs(from_half(self.result()) - want)
        assert (error <= bound).all(), f"{np.max(error / bound)} of what rounding allows"


@pytest.mark.parametrize("n", INNER)
def test_every_model(gpu: Card, n: int) -> None:
    Gate(gpu, "bfloat16", 2, n, "gelu_tanh" if n in INNER[5:] else "silu").check()


@pytest.mark.smallest
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("splits", [0, 1, 5])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_more_than_a_block(gpu: Card, activation: Activation, splits: int, dtype: Half) -> None:
    """5 rows of 129 pieces of 8 elements: a block takes 512 of them."""
    Gate(gpu, dtype, 5, 1032, activation, splits).check()


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65])
def test_any_number_of_tokens(gpu: Card, tokens: int) -> None:
    Gate(gpu, "float16", tokens, 64, "silu").check()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_bfloat16_as_a_gate(gpu: Card, activation: Activation) -> None:
    """All finite values up to 2^7 in magnitude, against the formula in float64; up is 1."""
    problem = Gate(gpu, "bfloat16", 1, 2 * 0x4300, activation)
    codes = np.concatenate([np.arange(0x4300), 0x8000 + np.arange(0x4300)]).astype(np.uint16)
    problem.gate_up = np.concatenate([codes, np.full(len(codes), 0x3F80, np.uint16)])[None]
    x = from_half(codes).astype(np.float64)
    if activation == "silu":
        want = x / (1 + np.exp(-x))
    elif activation == "gelu":
        want = np.array([value * 0.5 * math.erfc(-value / math.sqrt(2)) for value in x])
    else:
        want = x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    bound = (2.0**-8 + 2.0**-19) * np.abs(want) + 2.0**-21 + 2.0**-126
    error = np.abs(from_half(problem.result()[0]) - want)
    assert (error <= bound).all(), f"{np.max(error / bound)} of what is allowed, at {x[np.argmax(error / bound)]}"


def test_what_is_not_finite(gpu: Card) -> None:
    problem = Gate(gpu, "bfloat16", 3, 8, "silu")
    problem.gate_up[:] = 0x4000  # 2
    problem.gate_up[0, 3] = 0x7FC0  # a gate that is NaN
    problem.gate_up[1, 8 + 5] = 0x7F80  # an up that is infinite
    problem.gate_up[2, 1] = 0xC2C8  # -100, and exp(100) is infinite
    result = from_half(problem.result())
    assert np.isnan(result[0, 3])
    assert np.isinf(result[1, 5])
    assert result[2, 1] == 0
    assert np.isfinite(result).sum() == result.size - 2


@every_hardship
@pytest.mark.parametrize("splits", [0, 3])
def test_under_every_order_and_rounding(gpu: Card, splits: int) -> None:
    Gate(gpu, "bfloat16", 5, 1032, "gelu", splits).check()


@pytest.mark.smallest
@pytest.mark.parametrize("splits", [0, 3])
def test_every_byte_is_moved_once_in_whole_sectors(gpu: Card, splits: int) -> None:
    if not gpu.soft:
        pytest.skip("only the soft GPU counts")
    problem = Gate(gpu, "bfloat16", 4, 4864, "silu", splits)
    launch = problem.plan()
    counted = gpu.counted(launch)[launch.entry]
    assert counted["global_load"]["bytes"] == problem.gate_up.nbytes
    assert counted["global_store"]["bytes"] == 4 * 4864 * 2
    # A thread's 8 fp32 are two loads of 16 bytes, side by side: each takes half of a sector, the second from L1.
    assert counted["global_load"]["sectors"] == counted["global_load"]["ideal"] * (2 if splits else 1)
    assert counted["global_store"]["sectors"] == counted["global_store"]["ideal"]
    assert counted["local"]["requests"] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokens": 0}, "0 tokens"),
        ({"n": 100}, "multiples of 8"),
        ({"splits": -1}, "-1 splits"),
        ({"gate_up": 8}, "gate_up at 0x8 is not 16-byte aligned"),
    ],
)
def test_what_no_kernel_takes_is_refused(options: dict[str, int], words: str) -> None:
    arguments = {"out": 256, "gate_up": 512, "tokens": 1, "n": 64} | options
    with pytest.raises(ValueError, match=words):
        gate.plan(**arguments, dtype="bfloat16", activation="silu")
