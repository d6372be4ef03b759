"""kernels/linear.cu against the numpy device in fp32 on the same rounded inputs.

Tolerance: Y is rounded once: half a unit in the last place of its type. Before that each of the k products enters an
fp32 sum, in tensor cores by sums of 16 that may truncate, and the sums of warps and splits are added: at most 2^-23
of the sum of magnitudes for every 8 products, and as much again for the reference. Through an activation (its slope
is at most 1.13) and a gate that error is carried along; an activation's own is at most 2^-20.
"""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pilotlight.build.kernel_compilers import assemble
from pilotlight.build.sass import EntryReport, read_cubin
from pilotlight.device.base import Activation
from pilotlight.device.cuda import linear, norm
from pilotlight.device.cuda.launch import NULL, Gpu, Half, Launch
from pilotlight.device.numpy_device import NumpyDevice

from .activations import activated
from .hardships import every_hardship
from .harness import Buffer, Card, from_half, to_half

HALVES: tuple[Half, ...] = ("bfloat16", "float16")
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}

Array = NDArray[Any]


@dataclass(frozen=True)
class Model:
    """The linears of a layer, by what they read and write."""

    name: str
    hidden: int
    qkv: int
    attention: int  # heads * head_dim
    inner: int
    vocabulary: int
    activation: Activation = "silu"
    bias: bool = False  # of qkv


MODELS = [
    Model("SmolLM2-135M", 576, 960, 576, 1536, 49152),
    Model("Qwen2.5-0.5B", 896, 1152, 896, 4864, 151936, bias=True),
    Model("Qwen2.5-1.5B", 1536, 2048, 1536, 8960, 151936, bias=True),
    Model("Qwen2.5-7B", 3584, 4608, 3584, 18944, 152064, bias=True),
    Model("Llama-3.1-8B", 4096, 6144, 4096, 14336, 128256),
    Model("Gemma-3-1B", 1152, 1536, 1024, 6912, 262144, "gelu_tanh"),
    Model("Gemma-3-4B", 2560, 4096, 2048, 10240, 262144, "gelu_tanh"),
    Model("Gemma-3-12B", 3840, 8192, 4096, 15360, 262144, "gelu_tanh"),
    Model("Gemma-3-27B", 5376, 8192, 4096, 21504, 262144, "gelu_tanh"),
]
BY_NAME = {model.name: model for model in MODELS}


class Problem:
    """Random inputs of a linear on the card, and what must come of them."""

    def __init__(
        self,
        card: Card,
        dtype: Half,
        tokens: int,
        n: int,
        k: int,
        *,
        gated: bool = False,
        bias: bool = False,
        residual: bool = False,
        activation: Activation | None = None,
        wide: bool = False,
        splits: int = 1,
        seed: int = 0,
    ) -> None:
        random = np.random.default_rng([seed, tokens, n, k])
        rows = 2 * n if gated else n
        self.card, self.dtype, self.gated, self.activation = card, dtype, gated, activation
        self.tokens, self.n, self.k, self.wide, self.splits = tokens, n, k, wide, splits
        self.x = to_half(random.standard_normal((tokens, k), np.float32), dtype)
        self.weight = to_half(random.standard_normal((rows, k), np.float32) / np.float32(k**0.5), dtype)
        self.bias = to_half(random.standard_normal(rows, np.float32), dtype) if bias else None
        self.residual = to_half(random.standard_normal((tokens, n), np.float32), dtype) if residual else None
        shape = (splits, tokens, n) if splits > 1 else (tokens, n)
        self.y = card.output(shape, np.float32 if wide else self.x.dtype)

    def launch(self) -> Launch:
        return linear.plan(
            self.card.gpu,
            self.y.address,
            self._upload(self.x),
            self._upload(self.weight),
            self.tokens,
            self.n,
            self.k,
            dtype=self.dtype,
            bias=self._upload(self.bias),
            activation=self.activation,
            gated=self.gated,
            residual=self._upload(self.residual),
            wide=self.wide,
            splits=self.splits,
        )

    def run(self) -> Array:
        """Y in fp32: [tokens, n], or of a split linear [splits, tokens, n]."""
        self.card.run(self.launch())
        return self.read()

    def read(self) -> Array:
        y = self.card.read(self.y)
        return y if self.wide else from_half(y)

    def check(self, y: Array) -> None:
        device = NumpyDevice()
        x, weight = from_half(self.x), from_half(self.weight)
        bias = None if self.bias is None else from_half(self.bias)
        sums = device.linear(x, weight, bias)
        magnitude = np.abs(x) @ np.abs(weight).T + (0 if bias is None else np.abs(bias))
        error = magnitude * np.float32(2 * (self.k / 8 + 16) * 2.0**-23)
        if self.gated:
            up, up_error = sums[:, self.n :], error[:, self.n :]
            gate, error = sums[:, : self.n], error[:, : self.n] * 1.13
            acted = gate.copy() if self.activation is None else self._activate(gate)
            error = error * np.abs(up) + (np.abs(acted) + error) * up_error + np.abs(acted * up) * 2.0**-20
            want = acted * up
        elif self.activation is not None:
            want = self._activate(sums)
            error = 1.13 * error + np.abs(want) * 2.0**-20
        else:
            want = sums
        if self.residual is not None:
            want = want + from_half(self.residual)
        tiny = 2.0**-25 if self.dtype == "float16" else 2.0**-40
        bound = error * 1.01 + np.abs(want) * (2.0**-23 if self.wide else ROUNDING[self.dtype]) + tiny
        assert y.shape == want.shape
        worst = np.max(np.abs(y - want) / bound)
        assert worst <= 1, f"{worst} of what rounding allows at {np.argwhere(~(np.abs(y - want) <= bound))[:4]}"

    def _activate(self, gate: Array) -> Array:
        assert self.activation is not None
        return activated(gate, self.activation)

    def _upload(self, array: Array | None) -> int:
        return NULL if array is None else self.card.upload(array).address


def layer(model: Model) -> dict[str, dict[str, Any]]:
    """Each linear of the model: k, and what goes with it."""
    return {
        "qkv": {"k": model.hidden, "bias": model.bias},
        "output": {"k": model.attention, "residual": True},
        "gate_up": {"k": model.hidden, "gated": True, "activation": model.activation},
        "down": {"k": model.inner, "residual": True},
        "head": {"k": model.hidden, "wide": True},
    }


LINEARS = [(model.name, name) for model in MODELS for name in layer(model)]


# --- the shapes of real models ------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "name"), LINEARS)
def test_few_tokens_of_every_model(gpu: Card, model: str, name: str) -> None:
    options = layer(BY_NAME[model])[name]
    problem = Problem(gpu, "bfloat16", 3, 40, **options)
    problem.check(problem.run())


@pytest.mark.parametrize(("model", "name"), [pair for pair in LINEARS if pair[0] in ("SmolLM2-135M", "Gemma-3-1B")])
def test_many_tokens_of_small_models(gpu: Card, model: str, name: str) -> None:
    problem = Problem(gpu, "bfloat16", 66, 72, **layer(BY_NAME[model])[name])
    problem.check(problem.run())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("tokens", [1, 8, 32, 64, 200])
@pytest.mark.parametrize(("model", "name"), LINEARS)
def test_every_model(gpu: Card, model: str, name: str, tokens: int, dtype: Half) -> None:
    problem = Problem(gpu, dtype, tokens, 136, **layer(BY_NAME[model])[name])
    problem.check(problem.run())


# --- sizes that fit no tile -----------------------------------------------------------------------------------


@pytest.mark.smallest
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 127, 128, 129, 200])
def test_every_number_of_tokens(gpu: Card, tokens: int, dtype: Half) -> None:
    problem = Problem(gpu, dtype, tokens, 72, 200, bias=True, residual=True)
    problem.check(problem.run())


@pytest.mark.smallest
@pytest.mark.parametrize("tokens", [3, 20, 70])
@pytest.mark.parametrize("k", [8, 24, 32, 40, 56, 64, 72, 120, 136, 512, 520, 1096])
def test_every_tail_of_k(gpu: Card, k: int, tokens: int) -> None:
    problem = Problem(gpu, "bfloat16", tokens, 20, k)
    problem.check(problem.run())


@pytest.mark.smallest
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tokens", [1, 17, 65])
@pytest.mark.parametrize("n", [1, 2, 4, 7, 8, 15, 17, 33, 36, 63, 65, 93, 130])
def test_every_tail_of_n(gpu: Card, n: int, tokens: int, gated: bool) -> None:
    problem = Problem(gpu, "float16", tokens, n, 72, bias=True, residual=True, gated=gated, activation="silu")
    problem.check(problem.run())


@pytest.mark.smallest
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("stages", [3, 4, 5])
@pytest.mark.parametrize("dtype", HALVES)
def test_large_tiles(gpu: Card, dtype: Half, stages: int, gated: bool) -> None:
    """More than one in each direction, none of them full; k has more, and fewer, tiles than there are stages."""
    for k in (40, 232):
        problem = Problem(gpu, dtype, 200, 150, k, bias=True, residual=True, gated=gated)
        problem.check(_run_on(problem, _large(stages)))


@pytest.mark.smallest
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("sms", [8, 100])
@pytest.mark.parametrize("dtype", HALVES)
def test_small_tiles(gpu: Card, dtype: Half, sms: int, gated: bool) -> None:
    """With 4 stages and with 8: fewer than k has tiles, and more."""
    for k in (40, 360):
        problem = Problem(gpu, dtype, 200, 150, k, bias=True, residual=True, gated=gated)
        launch = _on(problem, _card((8, 6), sms))
        assert "tile64_4" in launch.entry if sms == 8 else "tile64_8" in launch.entry
        gpu.run(launch)
        problem.check(problem.read())


# --- what happens to a sum --------------------------------------------------------------------------------------


@pytest.mark.smallest
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("tokens", [5, 12, 70])
@pytest.mark.parametrize("activation", [None, "silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("gated", [False, True])
def test_activations(gpu: Card, gated: bool, activation: Activation | None, tokens: int, dtype: Half) -> None:
    problem = Problem(gpu, dtype, tokens, 24, 64, gated=gated, activation=activation)
    problem.weight = to_half(from_half(problem.weight) * 4, dtype)  # into the tails
    problem.check(problem.run())


@pytest.mark.smallest
@pytest.mark.parametrize("tokens", [1, 65])
def test_activations_far_out(gpu: Card, tokens: int) -> None:
    for activation in ("silu", "gelu", "gelu_tanh"):
        problem = Problem(gpu, "bfloat16", tokens, 16, 8, activation=activation, wide=True)
        problem.x[:] = to_half(np.ones((1, 8)), "bfloat16")
        columns = np.array([-3e4, -1000, -100, -89, -88, -30, -10, -1, 0, 1, 10, 30, 88, 100, 1000, 3e4])
        problem.weight = to_half(np.repeat(columns[:, None] / 8, 8, axis=1), "bfloat16")
        y = problem.run()
        np.testing.assert_array_equal(y, np.broadcast_to(y[0], y.shape))
        np.testing.assert_array_equal(y[0, :3], 0)
        np.testing.assert_allclose(y[0, 13:], from_half(problem.weight)[13:].sum(1), rtol=2.0**-22)
        problem.check(y)


@pytest.mark.smallest
@pytest.mark.parametrize("tokens", [2, 33, 65])
@pytest.mark.parametrize("n", [64, 61])
def test_logits_are_fp32(gpu: Card, n: int, tokens: int) -> None:
    problem = Problem(gpu, "bfloat16", tokens, n, 576, wide=True)
    problem.check(problem.run())


@pytest.mark.smallest
@pytest.mark.parametrize("tokens", [4, 65])
@pytest.mark.parametrize("n", [48, 21])
def test_the_residual_may_be_the_output(gpu: Card, n: int, tokens: int) -> None:
    problem = Problem(gpu, "bfloat16", tokens, n, 128, residual=True)
    assert problem.residual is not None
    launch = problem.launch()
    arguments = list(launch.arguments)
    arguments[0] = arguments[4]
    problem.y = Buffer(int(arguments[0]), problem.residual.shape, problem.residual.dtype, int(arguments[0]), 0)
    gpu.run(replace(launch, arguments=tuple(arguments)))
    problem.check(problem.read())


@pytest.mark.smallest
@pytest.mark.parametrize("tokens", [9, 65])
def test_a_nan_stays_in_its_row(gpu: Card, tokens: int) -> None:
    problem = Problem(gpu, "bfloat16", tokens, 40, 136)
    problem.x[6, 135] = 0x7FC0
    y = problem.run()
    assert np.isnan(y[6]).all()
    assert not np.isnan(np.delete(y, 6, axis=0)).any()


# --- the same token in another batch ------------------------------------------------------------------------------


@pytest.mark.smallest
def test_few_tokens_give_the_same_bits_in_every_batch(gpu: Card) -> None:
    whole = Problem(gpu, "bfloat16", 64, 56, 1160, gated=True, activation="silu", bias=True)
    y = whole.run()
    for tokens in (1, 8, 16, 32, 33):
        part = Problem(gpu, "bfloat16", tokens, 56, 1160, gated=True, activation="silu", bias=True)
        part.x, part.weight, part.bias = whole.x[64 - tokens :], whole.weight, whole.bias
        np.testing.assert_array_equal(part.run(), y[64 - tokens :])


@pytest.mark.smallest
def test_many_tokens_give_the_same_bits_in_every_batch(gpu: Card) -> None:
    whole = Problem(gpu, "bfloat16", 200, 136, 296, residual=True)
    y = _run_on(whole, _large(3))
    np.testing.assert_array_equal(_run_on(whole, _large(5)), y)
    part = Problem(gpu, "bfloat16", 65, 136, 296, residual=True)
    assert whole.residual is not None
    part.x, part.weight, part.residual = whole.x[-65:], whole.weight, whole.residual[-65:]
    assert "tile64" in part.launch().entry
    np.testing.assert_array_equal(part.run(), y[-65:])


# --- split k ------------------------------------------------------------------------------------------------------


@pytest.mark.smallest
@pytest.mark.parametrize("splits", [2, 3, 8])
@pytest.mark.parametrize("tokens", [1, 12, 40])
def test_each_split_leaves_its_part(gpu: Card, tokens: int, splits: int) -> None:
    problem = Problem(gpu, "bfloat16", tokens, 37, 1544, bias=True, wide=True, splits=splits)
    parts = problem.run()
    problem.check(parts.sum(0))
    units = -(-problem.k // 64)
    for split in range(splits):  # the products of its units only
        one = Problem(gpu, "bfloat16", tokens, 37, 1544, wide=True)
        inside = slice(units * split // splits * 64, units * (split + 1) // splits * 64)
        one.x, one.weight = problem.x.copy(), problem.weight
        one.x[:, : inside.start] = 0
        one.x[:, inside.stop :] = 0
        one.bias = problem.bias if split == 0 else None
        one.check(parts[split])


def test_a_split_linear_into_a_norm(gpu: Card) -> None:
    """down, then the next norm with its residual: what a decoder does at a batch of one."""
    k, n = 1536, 576
    splits = 3
    problem = Problem(gpu, "bfloat16", 2, n, k, wide=True, splits=splits)
    assert problem.y.nbytes == linear.partial_bytes(2, n, splits)
    random = np.random.default_rng(3)
    weight = to_half(1 + random.standard_normal(n) / 4, "bfloat16")
    residual = to_half(random.standard_normal((2, n)), "bfloat16")
    y, total = gpu.output((2, n), np.uint16), gpu.output((2, n), np.uint16)
    then = norm.plan(
        y.address, problem.y.address, gpu.upload(weight).address, 2, n, dtype="bfloat16", eps=1e-5,
        residual=gpu.upload(residual).address, sum_out=total.address, splits=splits,
    )  # fmt: skip
    gpu.run(problem.launch(), then)
    parts = problem.read()
    s = to_half((parts[0] + parts[1] + parts[2]) + from_half(residual), "bfloat16")
    np.testing.assert_array_equal(gpu.read(total), s)
    want, _ = NumpyDevice().norm(from_half(s), from_half(weight), 1e-5)
    np.testing.assert_allclose(from_half(gpu.read(y)), want, rtol=2.0**-7)


def test_splits_depend_on_the_weight_and_the_card_alone() -> None:
    card = _card((8, 0), 108)
    assert linear.split_count(card, 1, 1536, 8960) == 3  # 96 tiles of rows on 108 SMs
    assert linear.split_count(card, 1, 4096, 14336) == 1  # 256 tiles fill it twice
    assert linear.split_count(card, 1, 576, 576) == 1  # k is too short
    h200 = _card((9, 0), 132)
    assert linear.split_count(h200, 1, 4096, 14336) == 1  # two would be 512 blocks, of which 396 run at once
    assert linear.split_count(h200, 1, 1536, 8960) == 4
    for model in MODELS:
        for n, k in ((model.qkv, model.hidden), (model.hidden, model.inner), (model.hidden, model.attention)):
            assert len({linear.split_count(card, tokens, n, k) for tokens in range(1, 65)}) == 1
            assert linear.split_count(card, 65, n, k) == 1


# --- addresses ----------------------------------------------------------------------------------------------------


@pytest.mark.smallest
@pytest.mark.parametrize(("tokens", "columns"), [(2, 8), (128, 64)])
def test_weights_beyond_two_to_the_31_elements(gpu: Card, tokens: int, columns: int) -> None:
    """The first block of a gated linear reads rows from n on: 2.15e9 elements, 4.3 GB in."""
    n, k = 400_000, 5376
    problem = Problem(gpu, "bfloat16", tokens, columns, k, gated=True, activation="silu")
    launch = _on(problem, _large(3))
    pool = gpu.pool(2 * n * k * 2)
    gpu.write(pool.address, problem.weight[:columns])
    gpu.write(pool.address + n * k * 2, problem.weight[columns:])
    y = gpu.pool(tokens * n * 2)
    arguments = list(launch.arguments)
    arguments[0], arguments[2], arguments[6] = y.address, pool.address, n
    gpu.run(replace(launch, grid=(1, 1, 1), arguments=tuple(arguments)))
    rows = [gpu.read_bytes(y.address + token * n * 2, columns * 2).view(np.uint16) for token in range(tokens)]
    problem.check(from_half(np.stack(rows)))


@pytest.mark.smallest
@pytest.mark.parametrize("tokens", [64, 128])
def test_logits_beyond_two_to_the_31_elements(gpu: Card, tokens: int) -> None:
    """The first block of each group of tokens stores the last one's first logits up to 1.7e10 elements in."""
    n, k, count = 2**27, 8, 16
    problem = Problem(gpu, "float16", tokens, 128, k, wide=True)
    launch = _on(problem, _large(3))
    y = gpu.pool(tokens * n * 4)
    arguments = list(launch.arguments)
    arguments[0], arguments[6] = y.address, n
    gpu.run(replace(launch, grid=(2 if tokens == 64 else 1, 1, 1), arguments=tuple(arguments)))
    rows = [gpu.read_bytes(y.address + token * n * 4, count * 4).view(np.float32) for token in range(tokens)]
    problem.weight, problem.n = problem.weight[:count], count
    problem.check(np.stack(rows))


# --- under every order and rounding -------------------------------------------------------------------------------


@pytest.mark.smallest
@every_hardship
@pytest.mark.parametrize("tokens", [3, 20, 66])
def test_under_every_order_and_rounding(gpu: Card, tokens: int) -> None:
    for gated in (False, True):
        problem = Problem(gpu, "bfloat16", tokens, 27, 328, gated=gated, activation="silu", residual=True)
        problem.check(problem.run())


# --- what it costs ------------------------------------------------------------------------------------------------


@pytest.mark.smallest
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tokens", [1, 8, 16, 32, 64])
def test_weights_are_streamed_once_in_whole_sectors(gpu: Card, tokens: int, gated: bool) -> None:
    if not gpu.soft:
        pytest.skip("only the soft GPU counts")
    n, k = 64, 1024
    problem = Problem(gpu, "bfloat16", tokens, n, k, gated=gated)
    launch = problem.launch()
    counted = gpu.counted(launch)[launch.entry]
    weights = _sites(counted, "L1::no_allocate")
    groups = -(-tokens // 32)
    assert weights["bytes"] == groups * problem.weight.nbytes
    assert weights["sectors"] * 32 == weights["bytes"]
    assert weights["bytes"] == 512 * weights["requests"]
    row_blocks = n // (32 if tokens > 16 else 16) * (2 if gated else 1)
    assert counted["global_load"]["bytes"] - weights["bytes"] == row_blocks * problem.x.nbytes
    assert counted["global_store"]["bytes"] == tokens * n * 2
    # Of each token a row tile stores 32 bytes, gated 16.
    assert counted["global_store"]["sectors"] * 32 == tokens * n * 2 * (2 if gated else 1)
    for access in ("shared_load", "shared_store"):
        assert counted[access]["sectors"] == counted[access]["ideal"], access
    assert counted["local"]["requests"] == 0
    assert counted["instructions"]["mma.sync"] == k // 16 * (problem.weight.shape[0] // 16) * max(1, -(-tokens // 8))


@pytest.mark.smallest
@pytest.mark.parametrize("gated", [False, True])
def test_tiles_meet_no_bank_twice_and_store_whole_lines(gpu: Card, gated: bool) -> None:
    if not gpu.soft:
        pytest.skip("only the soft GPU counts")
    tokens, n, k = 256, 256, 96
    problem = Problem(gpu, "bfloat16", tokens, n, k, gated=gated)
    launch = _on(problem, _large(4))
    counted = gpu.counted(launch)[launch.entry]
    across = 2 * n // 128 if gated else n // 128
    copied = counted["async_copy"]
    assert copied["bytes"] == 2 * (across * tokens * k + tokens // 128 * problem.weight.shape[0] * k)
    assert copied["sectors"] * 32 == copied["bytes"]
    assert counted["global_store"]["bytes"] == counted["global_store"]["sectors"] * 32 == tokens * n * 2
    for access in ("shared_load", "shared_store"):
        assert counted[access]["sectors"] == counted[access]["ideal"], access
    assert counted["local"]["requests"] == 0


@pytest.fixture(scope="module")
def machine_code(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[EntryReport]:
    """What every entry is on the oldest and the newest architecture."""
    text = (request.config.getoption("ptx") / "linear.ptx").read_text()
    found: list[EntryReport] = []
    for architecture in ("sm_80", "sm_120"):
        file = tmp_path_factory.mktemp(architecture) / "linear.cubin"
        file.write_bytes(assemble(architecture, "linear", text).image)
        found += read_cubin("linear", architecture, file)
    return found


def test_inner_loops_feed_the_tensor_cores(machine_code: list[EntryReport]) -> None:
    """An mma occupies its tensor core for 8 issue slots on sm_80 and 16 on sm_86, 89 and 120; for 4 at the full rate
    of sm_90: so from a quarter of the slots on it is not issue that bounds a tile."""
    for entry in machine_code:
        if "tile128" in entry.entry:
            assert entry.tensor_share >= 0.44, entry.entry
        elif "tile64" in entry.entry:
            assert entry.tensor_share >= 0.2, entry.entry


def test_inner_loops_load_16_bytes_a_lane(machine_code: list[EntryReport]) -> None:
    for entry in machine_code:
        assert entry.stack_bytes == entry.mix.local_loads == entry.mix.local_stores == 0, entry.entry
        (loop,) = (loop.mix for loop in entry.inner_loops if loop.mix.tensor)
        assert set(loop.global_loads) | set(loop.async_copies) == {16}, entry.entry
        if "skinny" in entry.entry:  # eight of W in flight at least
            assert loop.global_loads[16] >= 8 + 4, entry.entry
            assert loop.instructions <= 16 * loop.tensor, entry.entry
        else:
            assert loop.async_copies[16] * 16 * 128 == (16384 if "tile128" in entry.entry else 8192), entry.entry


def test_stated_forms(request: pytest.FixtureRequest) -> None:
    """The table of kernels/README.md: threads, blocks an SM, registers and shared memory, and what is in flight."""
    entries = json.loads((request.config.getoption("ptx") / "manifest.json").read_text())["modules"]["linear"][
        "entries"
    ]
    text = (Path(__file__).parents[2] / "kernels" / "README.md").read_text()
    row = (
        r"^\| (\w+) \| [^|]+ \| (\d+)(?: rows)? × (\d+)(?: tokens)? "  # form, tokens, a block
        r"\| (\d+) × (\d+) \| (\d+) \| (\d+) KB \| (\d+) KB(?: of W)? \|$"
    )
    stated = re.findall(row, text.partition("## linear")[2].partition("\n## ")[0], re.MULTILINE)
    forms = {re.sub(r"linear_(\w+?)(_gated)?_(bf16|f16)", r"\1", name) for name in entries}
    assert {form for form, *_ in stated} == forms
    for form, *figures in stated:
        rows, tokens, blocks, threads, registers, shared, in_flight = map(int, figures)
        own = [entry for name, entry in entries.items() if re.fullmatch(rf"linear_{form}(_gated)?_(bf16|f16)", name)]
        assert {entry["max_threads"] for entry in own} == {threads}
        assert {entry["min_blocks"] for entry in own} == {blocks}
        usages = [usage for entry in own for usage in entry["architectures"].values()]
        assert max(usage["registers"] for usage in usages) == registers
        if form.startswith("skinny"):
            assert {usage["static_shared_bytes"] for usage in usages} == {shared * 1024}
            ahead = {"skinny8": 4, "skinny16": 4, "skinny32": 2}[form]  # steps of 32 k
            assert blocks * 8 * ahead * rows * 32 * 2 == in_flight * 1024
        else:
            stages = int(form.split("_")[1])
            stage = (rows + tokens) * 64
            assert stages * stage == shared * 1024
            assert blocks * (stages - 1) * stage == in_flight * 1024


# --- plans ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("card", [((8, 0), 108), ((8, 6), 84), ((8, 9), 58), ((9, 0), 132), ((10, 0), 148)])
@pytest.mark.parametrize("tokens", [1, 64, 65, 512, 8192])
def test_every_real_shape_has_a_launch(card: tuple[tuple[int, int], int], tokens: int) -> None:
    gpu = _card(*card)
    for model in MODELS:
        for n, k, gated in (
            (model.qkv, model.hidden, False),
            (model.hidden, model.attention, False),
            (model.inner, model.hidden, True),
            (model.hidden, model.inner, False),
            (model.vocabulary, model.hidden, False),
        ):
            launch = linear.plan(gpu, 256, 512, 768, tokens, n, k, dtype="float16", gated=gated)
            assert launch.shared_bytes <= gpu.shared_bytes
            assert launch.grid[0] < 2**31
            assert max(launch.grid[1:]) <= 65535
            columns = n * (2 if gated else 1)
            if tokens <= 64:
                rows = 32 if tokens > 16 else 16
                assert launch.grid == (-(-tokens // 32), -(-columns // rows), 1)
            else:
                size = 128 if "tile128" in launch.entry else 64
                assert launch.grid == (-(-tokens // size) * -(-columns // size), 1, 1)


@pytest.mark.parametrize("sms", [58, 108, 132, 148])
def test_splits_run_all_at_once(sms: int) -> None:
    """And are enough to fill more than half of the card, where k is long enough for it."""
    card = _card((9, 0), sms)
    for model in MODELS:
        for n, k in ((model.qkv, model.hidden), (model.hidden, model.inner), (model.hidden, model.attention)):
            splits = linear.split_count(card, 1, n, k)
            blocks = splits * -(-n // 16)
            assert splits == 1 or blocks <= 3 * sms
            assert splits == min(8, k // 1024) or k < 1024 or 2 * blocks > 3 * sms
            launch = linear.plan(card, 256, 512, 768, 1, n, k, dtype="float16", wide=True, splits=splits)
            assert launch.grid == (1, -(-n // 16), splits)


def test_few_small_tiles_have_more_stages() -> None:
    """As much in flight as a full card has: 100 tokens through the down projection of Qwen2.5-1.5B are 48 tiles."""

    def launch(card: Gpu, tokens: int) -> Launch:
        return linear.plan(card, 256, 512, 768, tokens, 1536, 8960, dtype="float16")

    for card in (_card((8, 0), 108), _card((8, 9), 58), _card((9, 0), 132)):
        few = launch(card, 100)
        assert few.entry == "linear_tile64_8_f16"
        assert few.shared_bytes == 64 * 1024
    assert launch(_card((8, 9), 132), 384).entry == "linear_tile64_4_f16"  # 144 tiles, of which an SM holds one
    assert launch(_card((9, 0), 132), 384).entry == "linear_tile64_8_f16"  # or three


def test_stages_follow_the_card() -> None:
    entries = {
        capability: linear.plan(_card(capability, 100), 256, 512, 768, 8192, 4096, 4096, dtype="float16").entry
        for capability in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
    }
    stages = {capability: int(entry.split("_")[2]) for capability, entry in entries.items()}
    assert stages == {(8, 0): 4, (8, 6): 3, (8, 9): 3, (9, 0): 5, (10, 0): 5, (12, 0): 3}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 60}, "multiple of 8"),
        ({"tokens": 0}, "0 tokens"),
        ({"n": 2_000_000}, "too many rows"),
        ({"splits": 2}, "split linear is wide"),
        ({"splits": 2, "wide": True, "residual": 256}, "split linear is wide"),
        ({"splits": 2, "wide": True, "tokens": 65}, "split linear is wide"),
        ({"weight": 24}, "weight at 0x18 is not 16-byte aligned"),
    ],
)
def test_what_no_kernel_takes_is_refused(options: dict[str, Any], words: str) -> None:
    arguments = {"y": 256, "x": 512, "weight": 768, "tokens": 1, "n": 64, "k": 64} | options
    with pytest.raises(ValueError, match=words):
        linear.plan(_card((8, 0), 108), **arguments, dtype="bfloat16")


def _card(capability: tuple[int, int], sm_count: int) -> Gpu:
    shared = {(8, 0): 163, (9, 0): 227, (10, 0): 227}.get(capability, 99)
    return Gpu(capability, sm_count, shared * 1024)


def _large(stages: int) -> Gpu:
    """A card that takes the large tile, with so many stages, for any shape."""
    return _card({3: (8, 6), 4: (8, 0), 5: (9, 0)}[stages], 1)


def _on(problem: Problem, gpu: Gpu) -> Launch:
    """The launch that another card would have."""
    card = problem.card
    own, card.gpu = card.gpu, gpu
    try:
        return problem.launch()
    finally:
        card.gpu = own


def _run_on(problem: Problem, gpu: Gpu) -> Array:
    launch = _on(problem, gpu)
    if launch.shared_bytes > problem.card.gpu.shared_bytes:
        pytest.skip("more shared memory than this card has")
    problem.card.run(launch)
    return problem.read()


def _sites(counted: dict[str, Any], text: str) -> dict[str, int]:
    """The sum over access sites whose instruction holds `text`."""
    chosen = [site for site in counted["sites"].values() if text in site["text"]]
    assert chosen, text
    return {key: sum(site[key] for site in chosen) for key in ("requests", "bytes", "sectors", "ideal")}
