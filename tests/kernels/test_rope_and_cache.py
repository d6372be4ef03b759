"""kernels/rope_and_cache.cu against its formula in float64 on the same rounded inputs, and against the numpy device.

Tolerance: what is stored is rounded once: half a unit in the last place of its type (of e4m3, half the spacing of its
codes there). Before that fp32 adds at most 2^-18 of the terms |x cos| + |other sin|: a norm over 256 elements, an
approximate root, two products and a sum. V of unsplit halves is stored as it is, bit for bit, and in fp8 has but one
right code.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pilotlight.device.base import AttentionShape
from pilotlight.device.cuda import rope_and_cache
from pilotlight.device.cuda.attention import Shape
from pilotlight.device.cuda.launch import NULL, Half, Launch
from pilotlight.device.cuda.rope_and_cache import Order, Tensors
from pilotlight.device.numpy_attention import PagedAttention

from .hardships import every_hardship
from .harness import Card, from_half, to_half
from .paged import E4M3, ROUNDING, batch_of

HALVES: tuple[Half, ...] = ("bfloat16", "float16")
MODELS = {  # heads, K/V heads, head_dim, whether q and k are normed
    "smollm2-135m": (9, 3, 64, False),
    "qwen2.5-0.5b": (14, 2, 64, False),
    "qwen2.5-1.5b": (12, 2, 128, False),
    "qwen2.5-7b": (28, 4, 128, False),
    "llama-3.1-8b": (32, 8, 128, False),
    "gemma-3-1b": (4, 1, 256, True),
    "gemma-3-4b": (8, 4, 256, True),
    "gemma-3-12b": (16, 8, 256, True),
    "gemma-3-27b": (32, 16, 128, True),
}
POSITIONS = 4096
PAGES = 7

Array = NDArray[Any]


@dataclass
class Rope:
    """One launch: random inputs on the card, and what must come of them."""

    card: Card
    heads: int
    kv_heads: int
    head_dim: int
    half: Half = "bfloat16"
    slots: list[int] = field(default_factory=lambda: [37, -1, 96, 0, 15, 16])
    rotary_dim: int = -1  # all
    order: Order = "neox"
    splits: int = 0
    normed: bool = False
    weight_offset: float = 0.0
    fp8: bool = False
    key_scale: float = 1.0
    value_scale: float = 1.0

    def __post_init__(self) -> None:
        random = np.random.default_rng([self.heads, self.head_dim, len(self.slots)])
        draw = lambda *shape: random.standard_normal(shape, np.float32)  # noqa: E731
        tokens, heads = len(self.slots), self.heads + 2 * self.kv_heads
        self.rotary_dim = self.head_dim if self.rotary_dim < 0 else self.rotary_dim
        self.positions = random.integers(0, POSITIONS, tokens).astype(np.int32)
        self.positions[:2] = [POSITIONS - 1, 0][:tokens]
        shape = (tokens, heads, self.head_dim)
        self.qkv = draw(self.splits, *shape) if self.splits else to_half(3 * draw(*shape), self.half)
        self.weights = [to_half(1 - self.weight_offset + draw(self.head_dim) / 4, self.half) for _ in range(2)]
        angles = np.arange(POSITIONS)[:, None] * 1000.0 ** -(np.arange(self.rotary_dim // 2) / 50)
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self.stored = np.dtype(np.uint8) if self.fp8 else to_half(np.zeros(1), self.half).dtype
        self.q = self.card.output((tokens, self.heads, self.head_dim), to_half(np.zeros(1), self.half).dtype)
        # Two layers' pages, of which the second is ours.
        self.pool = self.card.output((PAGES, 2, 2, self.kv_heads, 16, self.head_dim), self.stored)

    def plan(self, pages: int | None = None) -> Launch:
        upload = lambda array: self.card.upload(array).address  # noqa: E731
        stride = 4 * self.kv_heads * 16 * self.head_dim
        shape = Shape(self.heads, self.kv_heads, self.head_dim, self.half, stride, self.fp8)
        tensors = Tensors(
            q=self.q.address, pages=pages or self.pool.address + stride // 2 * self.stored.itemsize,
            qkv=upload(self.qkv), cos=upload(self.cos), sin=upload(self.sin), positions=upload(self.positions),
            slots=upload(np.array(self.slots, np.int32)),
            q_weight=upload(self.weights[0]) if self.normed else NULL,
            k_weight=upload(self.weights[1]) if self.normed else NULL,
        )  # fmt: skip
        return rope_and_cache.plan(
            shape, tensors, tokens=len(self.slots), rotary_dim=self.rotary_dim, order=self.order, splits=self.splits,
            eps=1e-6, weight_offset=self.weight_offset, key_scale=self.key_scale, value_scale=self.value_scale,
        )  # fmt: skip

    def expected(self) -> tuple[Array, Array]:
        """Values and the terms that bound their error, in float64: [tokens, all heads, head_dim]."""
        x = (self.qkv.sum(0, dtype=np.float64) if self.splits else from_half(self.qkv)).astype(np.float64)
        terms = np.abs(self.qkv).sum(0, dtype=np.float64) if self.splits else np.abs(x)
        turned = slice(0, self.heads + self.kv_heads)
        if self.normed:
            scale = 1 / np.sqrt((x[:, turned] ** 2).mean(-1, keepdims=True) + 1e-6)
            weight = np.repeat([from_half(w) for w in self.weights], [self.heads, self.kv_heads], axis=0)
            factor = scale * (self.weight_offset + weight)
            x[:, turned] *= factor
            terms[:, turned] *= np.abs(factor)
        half = self.rotary_dim // 2
        if self.order == "neox":
            first, second = slice(0, half), slice(half, 2 * half)
        else:
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        cos, sin = (table[self.positions][:, None].astype(np.float64) for table in (self.cos, self.sin))
        a, b = x[:, turned, first].copy(), x[:, turned, second].copy()
        x[:, turned, first], x[:, turned, second] = a * cos - b * sin, b * cos + a * sin
        a, b = terms[:, turned, first].copy(), terms[:, turned, second].copy()
        cos, sin = np.abs(cos), np.abs(sin)
        terms[:, turned, first], terms[:, turned, second] = a * cos + b * sin, b * cos + a * sin
        return x, terms

    def check(self) -> Array:
        """Runs it and looks at every element of q and of the pool, which is returned."""
        self.card.run(self.plan())
        want, terms = self.expected()
        u, tiny = ROUNDING[self.half], 2.0**-25 if self.half == "float16" else 2.0**-126
        error = 2.0**-18 * terms
        q = from_half(self.card.read(self.q))
        bound = u * np.abs(want) + error + tiny
        _within(q, want[:, : self.heads], bound[:, : self.heads])
        pool = self.card.read(self.pool)
        untouched = np.ones((*pool.shape[:3], 16), np.bool_)
        for token, slot in enumerate(self.slots):
            if slot < 0:
                continue
            page, offset = divmod(slot, 16)
            untouched[page, 1, :, offset] = False
            for kv, scale in enumerate((self.key_scale, self.value_scale)):
                heads = slice(self.heads + kv * self.kv_heads, self.heads + (kv + 1) * self.kv_heads)
                stored = pool[page, 1, kv, :, offset]
                if self.fp8:
                    y = want[token, heads] / scale
                    step = 2.0 ** np.clip(np.floor(np.log2(np.abs(y) + 1e-9)) - 3, -9, 5)
                    _within(E4M3[stored], np.clip(y, -448, 448), step / 2 + 2 * error[token, heads] / scale)
                else:
                    _within(from_half(stored), want[token, heads], bound[token, heads])
                if kv == 1 and not self.splits:
                    rounded = _e4m3(from_half(self.qkv[token, heads]) / np.float32(scale)) if self.fp8 else None
                    np.testing.assert_array_equal(stored, self.qkv[token, heads] if rounded is None else rounded)
        assert (pool.swapaxes(3, 4)[untouched].view(np.uint8) == 0xFF).all(), "a place without a slot was written"
        return pool


def _within(got: Array, want: Array, bound: Array) -> None:
    error = np.abs(got - want)
    assert (error <= bound).all(), f"{np.nanmax(error / bound)} of what rounding allows, {np.isnan(error).sum()} NaN"


def _e4m3(x: Array) -> NDArray[np.uint8]:
    """The nearest codes, ties to even, from the table of values: beyond 448 the code of 448."""
    values = E4M3[:0x7F].astype(np.float64)
    above = np.clip(np.searchsorted(values, np.minimum(np.abs(x), 448.0)), 1, 0x7E)
    gap = (values[above] - np.abs(x)) - (np.abs(x) - values[above - 1])
    code = np.where((gap > 0) | ((gap == 0) & (above % 2 == 1)), above - 1, above)
    return np.where(np.isnan(x), 0x7F, code | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("model", MODELS)
def test_real_shapes(gpu: Card, model: str, half: Half) -> None:
    *shape, normed = MODELS[model]
    Rope(gpu, *shape, half=half, slots=[5, 111], normed=normed, weight_offset=1.0).check()


@pytest.mark.smallest
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("order", ["neox", "interleaved"])
@pytest.mark.parametrize(
    ("head_dim", "rotary_dim"), [(64, 0), (64, 16), (64, 20), (64, 64), (96, 36), (96, 96), (128, 40), (256, 64)]
)
def test_parts_of_a_head_are_rotated(gpu: Card, head_dim: int, rotary_dim: int, order: Order, half: Half) -> None:
    """Halves that are no multiple of 8, too: a lane's elements then pair with those of two others."""
    Rope(gpu, 6, 2, head_dim, half=half, rotary_dim=rotary_dim, order=order).check()


@pytest.mark.smallest
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("order", ["neox", "interleaved"])
@pytest.mark.parametrize("head_dim", [64, 96, 256])
def test_fp8_pages_with_normed_heads(gpu: Card, head_dim: int, order: Order, half: Half) -> None:
    Rope(gpu, 6, 3, head_dim, half=half, order=order, normed=True, weight_offset=1.0, fp8=True, key_scale=0.125,
         value_scale=2.0).check()  # fmt: skip


@pytest.mark.smallest
@pytest.mark.parametrize("splits", [1, 2, 5])
@pytest.mark.parametrize("normed", [False, True])
def test_sums_of_a_split_linear(gpu: Card, normed: bool, splits: int) -> None:
    Rope(gpu, 10, 2, 64, half="float16", splits=splits, normed=normed).check()


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 33])
def test_any_number_of_tokens(gpu: Card, tokens: int) -> None:
    """A block has four warps, and a token of these heads three of them."""
    Rope(gpu, 18, 2, 128, slots=[3 * token for token in range(tokens)]).check()


def test_fp8_codes_of_every_kind(gpu: Card) -> None:
    """As V, each has one right code: ties, subnormals, both zeros, the largest, and what is beyond it."""
    rope = Rope(gpu, 1, 1, 64, half="float16", slots=[0, 1], fp8=True)
    kinds = [448, 449, 464, 465, 480, 65504, np.inf, 2**-9, 2**-10, 2**-10 * 1.5, 2**-6, 2**-6 * 0.9375,
             2**-7 * 1.875, 1.0625, 1.1875, 1.125, 17, 19, 0.0, 2**-24]  # fmt: skip
    numbers = to_half(np.array(kinds + [-kind for kind in kinds]), "float16")
    rope.qkv[:, 2, : len(numbers)] = numbers
    pool = rope.check()
    assert pool[0, 1, 1, 0, 0, :7].tolist() == [0x7E] * 7  # 448 and above


@pytest.mark.smallest
def test_fp8_keeps_a_nan(gpu: Card) -> None:
    rope = Rope(gpu, 1, 1, 64, slots=[0], fp8=True)
    rope.qkv[0, 2, 3:5] = [0x7FC0, 0xFFC0]
    gpu.run(rope.plan())
    stored = gpu.read(rope.pool)[0, 1, 1, 0, 0]
    assert (np.isnan(E4M3[stored]).nonzero()[0] == [3, 4]).all()


def test_a_nan_stays_in_its_head(gpu: Card) -> None:
    rope = Rope(gpu, 3, 1, 64, slots=[0, 1], normed=True)
    rope.qkv[1, 1, 7] = 0x7FC0
    gpu.run(rope.plan())
    q = from_half(gpu.read(rope.q))
    assert np.isnan(q[1, 1]).all()
    assert np.isnan(q).sum() == 64


def test_padding_rows_write_nothing_but_q(gpu: Card) -> None:
    Rope(gpu, 2, 1, 64, slots=[-1, -1, -1]).check()


@pytest.mark.smallest
@pytest.mark.parametrize("fp8", [False, True], ids=["half", "fp8"])
def test_far_end_of_a_large_pool(gpu: Card, fp8: bool) -> None:
    """Slots that lie beyond 2^32 elements: at the end of a 141 GB card's pool, or of 12 GB on a real card."""
    pool_bytes = (130 if gpu.soft else 12) << 30
    rope = Rope(gpu, 4, 2, 128, slots=[0, 0], fp8=fp8)
    page_bytes = 4 * 2 * 16 * 128 * rope.stored.itemsize
    last = pool_bytes // page_bytes - 1
    rope.slots = [last * 16 + 15, (last // 2) * 16]
    pool = gpu.pool(pool_bytes)
    gpu.run(rope.plan(pages=pool.address))
    for token, slot in enumerate(rope.slots):
        page, offset = divmod(slot, 16)
        read = gpu.read_bytes(pool.address + page * page_bytes, page_bytes // 2).view(rope.stored)
        values = read.reshape(2, 2, 16, 128)[1, :, offset]
        raw = rope.qkv[token, 6:]
        np.testing.assert_array_equal(values, _e4m3(from_half(raw)) if fp8 else raw)


def test_as_the_numpy_device(gpu: Card) -> None:
    """The reference for every device, on the same rounded q, k and v."""
    rope = Rope(gpu, 9, 3, 64, half="float16", rotary_dim=32)
    pool = rope.check()
    device = PagedAttention(AttentionShape(1, 9, 3, 64, 32, 16), PAGES, rope.cos, rope.sin)
    tokens = len(rope.slots)
    own = np.arange(tokens + 1)
    batch = batch_of(rope.positions, rope.slots, own, rope.positions + 1, pages=own[:-1], page_starts=own)
    q = device.rope_and_cache(device.begin(batch), from_half(rope.qkv).reshape(tokens, -1), 0)
    tolerance = 2.0**-11 * np.abs(q) + 2.0**-18 * 12
    _within(from_half(gpu.read(rope.q)), q, tolerance)
    for slot in (slot for slot in rope.slots if slot >= 0):
        page, offset = divmod(slot, 16)
        theirs = device.pages()[page, 0, :, offset].reshape(2, 3, 64)
        _within(from_half(pool[page, 1, :, :, offset]), theirs, 2.0**-11 * np.abs(theirs) + 2.0**-18 * 12)


@every_hardship
@pytest.mark.parametrize("fp8", [False, True], ids=["half", "fp8"])
def test_under_every_order_and_rounding(gpu: Card, fp8: bool) -> None:
    Rope(gpu, 6, 2, 96, half="float16", rotary_dim=36, splits=2, normed=True, fp8=fp8).check()


@pytest.mark.smallest
@pytest.mark.parametrize("fp8", [False, True], ids=["half", "fp8"])
@pytest.mark.parametrize("shape", [(9, 3, 64), (32, 8, 128), (8, 4, 256)], ids=str)
def test_bytes_moved(gpu: Card, shape: tuple[int, int, int], fp8: bool) -> None:
    if not gpu.soft:
        pytest.skip("only the soft GPU counts")
    rope = Rope(gpu, *shape, slots=[0, 20, 33, 50], fp8=fp8)
    launch = rope.plan()
    counted = gpu.counted(launch)[launch.entry]
    heads, kv_heads, head_dim = shape
    streamed = [site for site in counted["sites"].values() if "no_allocate" in site["text"]]
    assert sum(site["bytes"] for site in streamed) == rope.qkv.nbytes
    assert sum(site["sectors"] for site in streamed) == rope.qkv.nbytes // 32
    narrow = [
        site
        for site in counted["sites"].values()
        if site["text"].startswith("ld.global") and ".v4" not in site["text"]
    ]
    assert sum(site["requests"] for site in narrow) <= 2 * counted["warps"]  # a position and a slot
    cache = 4 * 2 * kv_heads * head_dim * rope.stored.itemsize
    assert counted["global_store"]["bytes"] == 4 * heads * head_dim * 2 + cache
    assert counted["global_store"]["sectors"] * 32 == counted["global_store"]["bytes"]
    for access in ("shared_load", "shared_store"):
        assert counted[access]["sectors"] == counted[access]["ideal"], access
    assert counted["local"]["requests"] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokens": 0}, "0 tokens"),
        ({"rotary_dim": 63}, "63 of 64"),
        ({"rotary_dim": 66}, "66 of 64"),
        ({"key_scale": 0.5}, "only fp8"),
    ],
)
def test_what_no_kernel_takes_is_refused(options: dict[str, Any], words: str) -> None:
    tensors = Tensors(*(256 * (1 + i) for i in range(7)))
    with pytest.raises(ValueError, match=words):
        rope_and_cache.plan(
            Shape(3, 1, 64, "bfloat16", 1 << 20), tensors, **({"tokens": 1, "rotary_dim": 64} | options)
        )


def test_q_and_k_are_normed_together() -> None:
    tensors = Tensors(*(256 * (1 + i) for i in range(7)), q_weight=4096)
    with pytest.raises(ValueError, match="normed together"):
        rope_and_cache.plan(Shape(3, 1, 64, "bfloat16", 1 << 20), tensors, tokens=1, rotary_dim=64)
