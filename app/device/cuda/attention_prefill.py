"""Launches of prefill attention, kernels/attention_prefill.cu, and the list of blocks that goes with a batch.

The list is made here and not on the card because the host knows the lengths: a step's grid is then exact, and its
longest blocks start first. All layers of a step share it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..base import Int32
from .attention import Shape, score_arguments
from .launch import Gpu, Launch, require_aligned


@dataclass(frozen=True, slots=True)
class _Form:
    """How a block of the kernel is built. `blocks`: an SM's, that its registers are promised to allow."""

    rows: int  # query rows of a block: new tokens times the heads that share a K/V head
    warps: int
    keys: int  # tokens of a tile of K and V
    blocks: int

    def shared_bytes(self, head_dim: int) -> int:
        """Q, and two tiles of K and V; with fp8 pages one tile decoded and two as they are."""
        return (self.rows + 4 * self.keys) * head_dim * 2

    def resident_warps(self, gpu: Gpu, head_dim: int) -> int:
        """Of one SM, whose shared memory is what one block may have and the 1 KB that a block costs besides."""
        fit = (gpu.shared_bytes + 1024) // (self.shared_bytes(head_dim) + 1024)
        return self.warps * min(self.blocks, fit)


# By head_dim: for few rows and for many.
_FORMS = {
    64: (_Form(64, 4, 32, 4), _Form(128, 4, 32, 3)),
    96: (_Form(64, 4, 32, 3), _Form(128, 4, 32, 2)),
    128: (_Form(64, 4, 32, 3), _Form(128, 4, 32, 2)),
    256: (_Form(64, 4, 16, 2), _Form(128, 8, 16, 1)),
}
_LEAST_WARPS = 8  # an SM's, for one warp's softmax to go on beside another's products


@dataclass(frozen=True, slots=True)
class Blocks:
    """A batch's work: `table` [count, 4] int32 is uploaded for the kernel, `rows` says which form takes it."""

    rows: int
    table: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tensors:
    """Device addresses.

    out, q: [tokens, heads, head_dim]; pages: this layer's part of page 0; table, table_starts: page numbers, as for
    decode; blocks: the uploaded `Blocks.table`.
    """

    out: int
    q: int
    pages: int
    table: int
    table_starts: int
    blocks: int


def split_rows(gpu: Gpu, shape: Shape, starts: Int32, lengths: Int32) -> Blocks:
    """The blocks of a batch, those that see most first.

    starts: [sequences + 1], sequence s has the new tokens starts[s] to starts[s + 1]. lengths: [sequences] of the
    contexts, new tokens included. A row's result is bitwise the same in both forms, so the choice is one of speed.
    """
    few, many = _FORMS[shape.head_dim]
    table = _table(many.rows, shape.group, starts, lengths)
    warps = many.resident_warps(gpu, shape.head_dim)
    if warps >= _LEAST_WARPS and len(table) * shape.kv_heads * many.warps >= gpu.sm_count * warps:
        return Blocks(many.rows, table)
    return Blocks(few.rows, _table(few.rows, shape.group, starts, lengths))


def most_blocks(group: int, tokens: int, sequences: int) -> int:
    """How many blocks `split_rows` makes of a batch at most."""
    least_rows = min(form.rows for forms in _FORMS.values() for form in forms)
    return -(-tokens * group // least_rows) + sequences


def _table(rows: int, group: int, starts: Int32, lengths: Int32) -> NDArray[np.int32]:
    """[count, 4]: sequence, first row, end of the sequence's rows, and position less number of its tokens.

    Rows are numbered over the batch, token by token, `group` a token.
    """
    counts = -(-np.diff(starts) * group // rows)
    sequence = np.repeat(np.arange(len(lengths)), counts)
    nth = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = starts[sequence] * group + nth * rows
    end = starts[sequence + 1] * group
    shift = lengths[sequence] - starts[sequence + 1]
    seen = (np.minimum(first + rows, end) - 1) // group + shift
    return np.stack([sequence, first, end, shift], axis=1)[np.argsort(-seen, kind="stable")].astype(np.int32)


def plan(
    shape: Shape,
    tensors: Tensors,
    blocks: Blocks,
    *,
    scale: float,
    window: int = 0,
    cap: float = 0.0,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> Launch:
    """softmax(cap * tanh(scale * q . k / cap)) . v for every new token, over itself and what is before it.

    window: how many tokens one sees, itself included; 0 for all. cap: 0 for none. key_scale, value_scale: what fp8
    elements are multiplied by. The new tokens' K and V are in the pages already. Tokens that no block has are left as
    they are. Raises ValueError for what no kernel takes.
    """
    if not len(blocks.table) or scale <= 0.0 or window < 0 or cap < 0.0:
        raise ValueError(f"prefill of {len(blocks.table)} blocks, scale {scale}, window {window}, cap {cap}")
    require_aligned(out=tensors.out, q=tensors.q, pages=tensors.pages, blocks=tensors.blocks)
    (form,) = (form for form in _FORMS[shape.head_dim] if form.rows == blocks.rows)
    return Launch(
        module="attention_prefill",
        entry=f"attention_prefill_d{shape.head_dim}_r{form.rows}{shape.suffix}",
        grid=(len(blocks.table), shape.kv_heads, 1),
        block=(form.warps * 32, 1, 1),
        shared_bytes=form.shared_bytes(shape.head_dim),
        arguments=(
            *(tensors.out, tensors.q, tensors.pages, tensors.table, tensors.table_starts, tensors.blocks),
            *(shape.heads, shape.kv_heads, shape.page_stride, window),
            *score_arguments(scale, cap, key_scale, value_scale),
        ),
    )
