"""Launches of decode attention: kernels/attention_decode.cu.

Kept apart from the kernels' source because a graph needs the grid and the workspace before any length is known: both
follow from the largest length that the graph may see.
"""

import math
from dataclasses import dataclass

from .launch import NULL, SUFFIX, Gpu, Half, Launch, require_aligned

PAGE_TOKENS = 16
UNIT_TOKENS = 256  # a split is whole units
MAX_SPLITS = 64  # of one sequence; longer ones have splits of several units

_WARPS = 4
_THREADS = _WARPS * 32
# (head_dim, query heads of an item) -> blocks an SM that the entries promise, with half-precision and with fp8 pages
_BLOCKS = {
    (64, 8): (4, 4),
    (96, 8): (4, 3),
    (128, 8): (4, 4),
    (256, 8): (2, 2),
    (64, 16): (3, 2),
    (96, 16): (3, 2),
    (128, 16): (2, 2),
}
HEAD_DIMS = tuple(sorted({head_dim for head_dim, _ in _BLOCKS}))


@dataclass(frozen=True, slots=True)
class Shape:
    """One layer's attention. Its pages are [2 (K, V), kv_heads, 16, head_dim], page_stride elements apart."""

    heads: int
    kv_heads: int
    head_dim: int
    half: Half
    page_stride: int
    fp8_pages: bool = False  # e4m3 instead of `half`

    def __post_init__(self) -> None:
        if self.head_dim not in HEAD_DIMS:
            raise ValueError(f"no attention kernel for head_dim {self.head_dim}; there are {HEAD_DIMS}")
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} query heads do not share {self.kv_heads} K/V heads evenly")
        if self.page_stride * (1 if self.fp8_pages else 2) % 16:
            raise ValueError(f"pages {self.page_stride} elements apart are not all 16-byte aligned")

    @property
    def group(self) -> int:
        """Query heads that share a K/V head."""
        return self.heads // self.kv_heads

    @property
    def rows(self) -> int:
        """Query heads of an item, at most. A larger group reads its K and V once for each of its items."""
        return 16 if self.group > 8 and (self.head_dim, 16) in _BLOCKS else 8

    @property
    def suffix(self) -> str:
        """Of the entries for these pages and this type: "_fp8_bf16"."""
        return f"{'_fp8' if self.fp8_pages else ''}_{SUFFIX[self.half]}"

    @property
    def entry(self) -> str:
        return f"attention_decode_d{self.head_dim}_h{self.rows}{self.suffix}"


@dataclass(frozen=True, slots=True)
class Tensors:
    """Device addresses.

    out, q: [sequences, heads, head_dim]; pages: this layer's part of page 0; table: int32 page numbers of all
    sequences, each one's in order of position from table_starts[s] on, table_starts [sequences] int32; lengths:
    [sequences] int32, from 0 to max_length; workspace: of `workspace_bytes`, 256-aligned.
    """

    out: int
    q: int
    pages: int
    table: int
    table_starts: int
    lengths: int
    workspace: int = NULL


def decode(
    gpu: Gpu,
    shape: Shape,
    tensors: Tensors,
    *,
    sequences: int,
    max_length: int,
    scale: float,
    window: int = 0,
    cap: float = 0.0,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> tuple[Launch, ...]:
    """softmax(cap * tanh(scale * q . k / cap)) . v over the last `window` tokens of each sequence, its own included.

    window: 0 for all tokens. cap: 0 for none. key_scale, value_scale: what fp8 elements are multiplied by. Rows of
    length 0 are left as they are, and may start anywhere in the table. No launch depends on the lengths in memory;
    where max_length has but one split there is no second launch. Raises ValueError for what no kernel takes.
    """
    if sequences < 1 or max_length < 1 or window < 0 or cap < 0.0:
        raise ValueError(f"decode of {sequences} sequences up to {max_length}, window {window}, cap {cap}")
    require_aligned(out=tensors.out, q=tensors.q, pages=tensors.pages, workspace=tensors.workspace)
    splits = max_splits(max_length, window)
    partial, stats = _workspace(shape, sequences, splits, tensors.workspace)
    items = sequences * splits * shape.kv_heads * -(-shape.group // shape.rows)
    first = Launch(
        module="attention_decode",
        entry=shape.entry,
        grid=(min(items, gpu.sm_count * blocks_per_sm(shape)), 1, 1),
        block=(_THREADS, 1, 1),
        shared_bytes=_shared_bytes(shape, sequences),
        arguments=(
            *(tensors.out, partial, stats, tensors.q, tensors.pages),
            *(tensors.table, tensors.table_starts, tensors.lengths),
            *(sequences, shape.heads, shape.kv_heads, shape.page_stride, splits, window),
            *score_arguments(scale, cap, key_scale, value_scale),
        ),
    )
    if splits == 1:
        return (first,)
    second = Launch(
        module="attention_decode",
        entry=f"attention_combine_{SUFFIX[shape.half]}",
        grid=(sequences * shape.heads, 1, 1),
        block=(_THREADS, 1, 1),
        shared_bytes=0,
        arguments=(tensors.out, partial, stats, tensors.lengths, shape.heads, shape.head_dim, splits, window),
    )
    return first, second


def score_arguments(scale: float, cap: float, key_scale: float, value_scale: float) -> tuple[float, float, float]:
    """What both attention kernels take of them: the factor that makes q . k an exponent of 2, or with a cap twice its
    share of the cap; the cap as an exponent of 2; value_scale."""
    exponent = scale * key_scale * math.log2(math.e)
    return 2.0 * exponent / cap if cap else exponent, cap * math.log2(math.e), float(value_scale)


def max_splits(max_length: int, window: int = 0) -> int:
    """The most splits that a sequence of up to `max_length` tokens has."""
    units = -(-max_length // UNIT_TOKENS)
    if window:
        units = min(units, (window + UNIT_TOKENS - 2) // UNIT_TOKENS + 1)  # a window may begin inside a unit
    return min(units, MAX_SPLITS)


def workspace_bytes(shape: Shape, sequences: int, max_length: int, window: int = 0) -> int:
    """What `decode` needs; 0 where no sequence has a second split. Layers run one after another may share it."""
    splits = max_splits(max_length, window)
    return sequences * shape.heads * splits * (shape.head_dim + 2) * 4 if splits > 1 else 0


def blocks_per_sm(shape: Shape) -> int:
    """Blocks that an SM holds at once: a fixed grid of them takes the work of any batch."""
    return _BLOCKS[shape.head_dim, shape.rows][shape.fp8_pages]


def _workspace(shape: Shape, sequences: int, splits: int, workspace: int) -> tuple[int, int]:
    """Addresses of [sequences, heads, splits, head_dim] fp32 and of [sequences, heads, splits, 2] fp32 behind it."""
    if splits == 1:
        return NULL, NULL
    return workspace, workspace + sequences * shape.heads * splits * shape.head_dim * 4


def _shared_bytes(shape: Shape, sequences: int) -> int:
    """Where each sequence's splits end in the work list, and one row of sums a warp and head of a pair."""
    row = shape.head_dim + 2
    if shape.fp8_pages and shape.head_dim % 128 == 0:
        row += shape.head_dim // 4  # the kernel's kRowFloats
    heads = min(shape.group, shape.rows)
    return 4 * (sequences + sequences % 2 + _WARPS * (heads + heads % 2) * row)
