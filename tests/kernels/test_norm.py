"""kernels/norm.cu against the numpy device in fp32 on the same rounded inputs.

Tolerance: y is rounded once, half a unit in the last place of its type: 2^-8 of |y| in bf16, 2^-11 in fp16, plus half
the spacing of fp16's subnormals. What fp32 adds before that is bounded by 2^-16 of the largest term of y, with room:
sums of at most 8,192 squares by tree are right to 2^-20 of themselves, and a layer norm's y is a difference.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pilotlight.build import kernel_ptx
from pilotlight.device.cuda import norm
from pilotlight.device.cuda.launch import NULL, Half, Launch
from pilotlight.device.numpy_device import NumpyDevice

from .hardships import every_hardship
from .harness import Buffer, Card, from_half, to_half

EPS = 1e-5
HALVES: tuple[Half, ...] = ("bfloat16", "float16")
HIDDEN = [576, 896, 1536, 3584, 4096, 640, 1152, 2560, 3840, 5376]  # SmolLM2, Qwen2.5, Llama-3.1, Gemma 3
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
FP32 = 2.0**-16

Array = NDArray[Any]


class Rows:
    """Random inputs of a norm on the card, and what must come of them."""

    def __init__(self, card: Card, dtype: Half, tokens: int, hidden: int, *, seed: int = 0) -> None:
        random = np.random.default_rng([seed, tokens, hidden])
        # A mean far from zero shows a variance taken as a difference of squares; scales differ by row.
        scale = 2.0 ** random.integers(-3, 4, (tokens, 1))
        draw: Callable[..., Array] = lambda *shape: random.standard_normal(shape, np.float32)  # noqa: E731
        self.card, self.dtype, self.shape = card, dtype, (tokens, hidden)
        self.x = to_half(scale * (draw(tokens, hidden) + 3), dtype)
        self.residual = to_half(draw(tokens, hidden) * 2, dtype)
        self.weight = to_half(1 + draw(hidden) / 2, dtype)
        self.bias = to_half(draw(hidden), dtype)
        self.parts = draw(5, tokens, hidden)
        self.y = card.output(self.shape, self.x.dtype)
        self.sum = card.output(self.shape, self.x.dtype)

    def plan(self, x: Buffer, **options: Any) -> Launch:
        weight = self.card.upload(self.weight).address
        return norm.plan(self.y.address, x.address, weight, *self.shape, dtype=self.dtype, eps=EPS, **options)

    def run(self, x: Array, **options: Any) -> Array:
        """y of a launch on x."""
        self.card.run(self.plan(self.card.upload(x), **options))
        return from_half(self.card.read(self.y))

    def rounded_sum(self, *terms: Array) -> Array:
        """As the kernel leaves it: in fp32 from left to right, then rounded."""
        total = np.zeros(self.shape, np.float32)
        for term in terms:
            total += from_half(term) if term.dtype != np.float32 else term
        return to_half(total, self.dtype)

    def check_rms(self, y: Array, s: Array, offset: float = 0.0) -> None:
        want, _ = NumpyDevice().norm(from_half(s), from_half(self.weight) + np.float32(offset), EPS)
        self._check(y, want, np.abs(want))

    def check_layer(self, y: Array, s: Array, bias: bool) -> None:
        wide = from_half(s).astype(np.float64)
        centred = wide - wide.mean(1, keepdims=True)
        scale = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + EPS)
        weight = from_half(self.weight)
        shift = from_half(self.bias) if bias else np.zeros(self.shape[1], np.float32)
        terms = np.abs(wide * scale * weight) + np.abs(wide.mean(1, keepdims=True) * scale * weight) + np.abs(shift)
        self._check(y, centred * scale * weight + shift, terms)

    def _check(self, y: Array, want: Array, terms: Array) -> None:
        tiny = 2.0**-25 if self.dtype == "float16" else 2.0**-126
        bound = ROUNDING[self.dtype] * np.abs(want) + FP32 * terms + tiny
        worst = np.max(np.abs(y - want) / bound)
        assert worst <= 1, f"{worst} of what rounding allows"


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_rms_norm_of_every_model(gpu: Card, hidden: int, dtype: Half) -> None:
    rows = Rows(gpu, dtype, 3, hidden)
    rows.check_rms(rows.run(rows.x), rows.x)


@pytest.mark.smallest
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("hidden", [8, 576, 1024, 1032, 8192, 8200, 1, 7, 577, 2049, 8191])
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_every_form_with_the_residual_added(gpu: Card, kind: str, hidden: int, dtype: Half) -> None:
    rows = Rows(gpu, dtype, 5, hidden)
    residual = gpu.upload(rows.residual).address
    bias = gpu.upload(rows.bias).address if kind == "layer" else NULL
    y = rows.run(rows.x, kind=kind, residual=residual, sum_out=rows.sum.address, bias=bias)
    s = rows.rounded_sum(rows.x, rows.residual)
    np.testing.assert_array_equal(gpu.read(rows.sum), s)
    if kind == "rms":
        rows.check_rms(y, s)
    else:
        rows.check_layer(y, s, bias=True)


@pytest.mark.smallest
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 33])
@pytest.mark.parametrize("hidden", [256, 2048, 129])
def test_every_row_is_its_own(gpu: Card, hidden: int, tokens: int) -> None:
    rows = Rows(gpu, "bfloat16", tokens, hidden)
    y = rows.run(rows.x)
    rows.check_rms(y, rows.x)
    alone = Rows(gpu, "bfloat16", 1, hidden)
    alone.weight = rows.weight
    np.testing.assert_array_equal(alone.run(rows.x[-1:])[0], y[-1])


@pytest.mark.smallest
@pytest.mark.parametrize("hidden", [896, 1536, 100])
@pytest.mark.parametrize("splits", [1, 2, 5])
@pytest.mark.parametrize("with_residual", [False, True])
def test_the_sum_of_a_split_linear_is_taken_in_order(
    gpu: Card, hidden: int, splits: int, with_residual: bool
) -> None:
    rows = Rows(gpu, "float16", 3, hidden)
    parts = rows.parts[:splits]
    residual = gpu.upload(rows.residual).address if with_residual else NULL
    y = rows.run(parts, splits=splits, residual=residual, sum_out=rows.sum.address)
    s = rows.rounded_sum(*parts, *([rows.residual] if with_residual else []))
    np.testing.assert_array_equal(gpu.read(rows.sum), s)
    rows.check_rms(y, s)


@pytest.mark.smallest
@pytest.mark.parametrize("hidden", [1024, 4096])
def test_parts_beyond_two_to_the_31_elements(gpu: Card, hidden: int) -> None:
    """The first block reads the second part, 8.6 GB in."""
    rows = Rows(gpu, "bfloat16", 4, hidden)
    tokens = 2**31 // hidden
    part = 4 * tokens * hidden
    pool, y = gpu.pool(2 * part), gpu.pool(2 * tokens * hidden)
    for index in range(2):
        gpu.write(pool.address + index * part, rows.parts[index])
    weight = gpu.upload(rows.weight).address
    launch = norm.plan(y.address, pool.address, weight, tokens, hidden, dtype="bfloat16", eps=EPS, splits=2)
    gpu.run(replace(launch, grid=(1, 1, 1)))
    done = 4 if hidden == 1024 else 1  # rows of a block
    got = gpu.read_bytes(y.address, 2 * done * hidden).view(np.uint16).reshape(done, hidden)
    want = rows.rounded_sum(rows.parts[0], rows.parts[1])
    rows.shape = got.shape
    rows.check_rms(from_half(got), want[:done])


@pytest.mark.smallest
@pytest.mark.parametrize("dtype", HALVES)
def test_gemma_adds_one_to_its_weights(gpu: Card, dtype: Half) -> None:
    rows = Rows(gpu, dtype, 2, 640)
    rows.check_rms(rows.run(rows.x, weight_offset=1.0), rows.x, offset=1.0)


@pytest.mark.smallest
def test_layer_norm_without_bias(gpu: Card) -> None:
    rows = Rows(gpu, "bfloat16", 2, 1536)
    rows.check_layer(rows.run(rows.x, kind="layer"), rows.x, bias=False)


@pytest.mark.smallest
def test_layer_norm_of_rows_far_from_zero(gpu: Card) -> None:
    """Mean 1,000 and deviation 1: the mean of squares less the square of the mean would have no right digit."""
    rows = Rows(gpu, "float16", 2, 2048)
    rows.x = to_half(1000 + np.random.default_rng(7).standard_normal(rows.shape), "float16")
    rows.check_layer(rows.run(rows.x, kind="layer"), rows.x, bias=False)


@pytest.mark.smallest
@pytest.mark.parametrize("hidden", [576, 4096, 99])
@pytest.mark.parametrize("over", ["residual", "x"])
def test_the_sum_takes_the_place_of_a_term(gpu: Card, hidden: int, over: str) -> None:
    rows = Rows(gpu, "bfloat16", 3, hidden)
    x, residual = gpu.upload(rows.x), gpu.upload(rows.residual)
    target = residual if over == "residual" else x
    gpu.run(rows.plan(x, residual=residual.address, sum_out=target.address))
    s = rows.rounded_sum(rows.x, rows.residual)
    np.testing.assert_array_equal(gpu.read(target), s)
    rows.check_rms(from_half(gpu.read(rows.y)), s)


@pytest.mark.smallest
def test_y_takes_the_place_of_x(gpu: Card) -> None:
    rows = Rows(gpu, "bfloat16", 3, 1536)
    rows.y = gpu.upload(rows.x)
    gpu.run(rows.plan(rows.y))
    rows.check_rms(from_half(gpu.read(rows.y)), rows.x)


@pytest.mark.smallest
def test_a_nan_stays_in_its_row(gpu: Card) -> None:
    rows = Rows(gpu, "bfloat16", 5, 576)
    rows.x[2, 575] = 0x7FC0
    y = rows.run(rows.x)
    assert np.isnan(y[2]).all()
    assert not np.isnan(np.delete(y, 2, axis=0)).any()


def test_a_row_of_zeros(gpu: Card) -> None:
    rows = Rows(gpu, "float16", 2, 640)
    rows.x[:] = 0
    assert (rows.run(rows.x) == 0).all()


@pytest.mark.smallest
@every_hardship
@pytest.mark.parametrize("hidden", [576, 1536, 577])
def test_under_every_order_and_rounding(gpu: Card, hidden: int) -> None:
    rows = Rows(gpu, "bfloat16", 6, hidden)
    residual = gpu.upload(rows.residual)
    gpu.run(rows.plan(gpu.upload(rows.x), residual=residual.address, sum_out=residual.address))
    s = rows.rounded_sum(rows.x, rows.residual)
    np.testing.assert_array_equal(gpu.read(residual), s)
    rows.check_rms(from_half(gpu.read(rows.y)), s)


@pytest.mark.smallest
@pytest.mark.parametrize(("hidden", "form"), [(896, "warp"), (4096, "block"), (16384, "wide")])
def test_every_byte_is_moved_once_in_whole_sectors(gpu: Card, hidden: int, form: str) -> None:
    if not gpu.soft:
        pytest.skip("only the soft GPU counts")
    rows = Rows(gpu, "bfloat16", 8, hidden)
    residual = gpu.upload(rows.residual)
    launch = rows.plan(gpu.upload(rows.x), residual=residual.address, sum_out=residual.address)
    entry = f"norm_rms_{form}_bf16"
    counted = gpu.counted(launch)[entry]
    row = 2 * hidden
    assert counted["global_load"]["bytes"] == 8 * 3 * row  # x, residual and weight
    assert counted["global_store"]["bytes"] == 8 * 2 * row  # s and y
    for access in ("global_load", "global_store", "shared_load", "shared_store"):
        assert counted[access]["sectors"] == counted[access]["ideal"], access
    assert counted["local"]["requests"] == 0


@pytest.mark.smallest
@pytest.mark.parametrize("hidden", [896, 4096, 100])
@pytest.mark.parametrize("splits", [3, 5])
def test_parts_are_read_once(gpu: Card, hidden: int, splits: int) -> None:
    """And nothing beyond the last. A lane's eight fp32 numbers are two loads, which share their sectors."""
    if not gpu.soft:
        pytest.skip("only the soft GPU counts")
    rows = Rows(gpu, "bfloat16", 8, hidden)
    launch = rows.plan(gpu.upload(np.stack(rows.parts[:splits])), splits=splits)
    loads = gpu.counted(launch)[launch.entry]["global_load"]
    parts, weight = 8 * splits * hidden * 4, 8 * hidden * 2
    assert loads["bytes"] == parts + weight
    if hidden % 8 == 0:
        assert loads["sectors"] * 32 == 2 * parts + weight


def test_parts_are_on_their_way_together(request: pytest.FixtureRequest) -> None:
    """Four of them, as kernels/README.md states: no addition stands between their loads, of two halves each."""
    text = (request.config.getoption("ptx") / "norm.ptx").read_text()
    for entry in kernel_ptx.entries(text):
        if entry.name.split("_")[2] not in ("warp", "block"):
            continue
        between = re.split(r"\n\tadd\.f32", entry.body)
        loads = {stretch.count("ld.global.nc.v4.u32") for stretch in between}
        assert loads == {0, 2 * 4}, entry.name


def test_stated_forms(request: pytest.FixtureRequest) -> None:
    """The table of kernels/README.md: threads, blocks an SM and registers, and what is in flight."""
    entries = json.loads((request.config.getoption("ptx") / "manifest.json").read_text())["modules"]["norm"][
        "entries"
    ]
    text = (Path(__file__).parents[2] / "kernels" / "README.md").read_text()
    row = r"^\| (\w+) \| .*? \| ([\d,]+) \| (\d+) × ([\d,]+) \| (\d+) \| (\d+) KB at ([\d,]+) \|$"
    stated = re.findall(row, text.partition("## norm")[2].partition("\n## ")[0], re.MULTILINE)
    assert {form for form, *_ in stated} == {name.split("_")[2] for name in entries}
    for form, *figures in stated:
        group, blocks, threads, registers, in_flight, hidden = (int(figure.replace(",", "")) for figure in figures)
        own = [entry for name, entry in entries.items() if name.split("_")[2] == form]
        assert {entry["max_threads"] for entry in own} == {threads}
        assert {entry["min_blocks"] for entry in own} == {blocks}
        assert max(usage["registers"] for entry in own for usage in entry["architectures"].values()) == registers
        launch = norm.plan(256, 512, 768, 1000, hidden, dtype="bfloat16", eps=EPS)
        assert launch.entry == f"norm_rms_{form}_bf16"
        assert launch.block[0] == threads
        assert blocks * threads // group * hidden * 2 * 2 // 1024 == in_flight


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden": 32776}, "at most 32768"),
        ({"hidden": 8193}, "multiple of 8"),
        ({"tokens": 0}, "0 tokens"),
        ({"bias": 256}, "has no bias"),
        ({"y": 8}, "y at 0x8 is not 16-byte aligned"),
    ],
)
def test_what_no_kernel_takes_is_refused(options: dict[str, int], words: str) -> None:
    arguments = {"y": 256, "x": 512, "weight": 768, "tokens": 1, "hidden": 64} | options
    with pytest.raises(ValueError, match=words):
        norm.plan(**arguments, dtype="bfloat16", eps=EPS)
