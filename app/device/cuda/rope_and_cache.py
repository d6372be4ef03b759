"""Launches of kernels/rope_and_cache.cu: q and k are normed and rotated, K and V go into the pages."""

from dataclasses import dataclass
from typing import Literal

from .attention import Shape
from .launch import NULL, Launch, require_aligned

Order = Literal["neox", "interleaved"]  # pairs are halves apart, or neighbours

_WARPS = 4  # a block's
_EACH = 4  # heads that a lane takes


@dataclass(frozen=True, slots=True)
class Tensors:
    """Device addresses.

    q: [tokens, heads, head_dim] and pages: this layer's part of page 0 are written. qkv: [tokens, heads + 2 kv_heads,
    head_dim]. cos, sin: fp32 [positions, rotary_dim / 2]. positions, slots: [tokens] int32. q_weight, k_weight:
    [head_dim], or none.
    """

    q: int
    pages: int
    qkv: int
    cos: int
    sin: int
    positions: int
    slots: int
    q_weight: int = NULL
    k_weight: int = NULL


def plan(
    shape: Shape,
    tensors: Tensors,
    *,
    tokens: int,
    rotary_dim: int,
    order: Order = "neox",
    splits: int = 0,
    eps: float = 0.0,
    weight_offset: float = 0.0,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> Launch:
    """q, k = rotate(norm(q), norm(k)) by position; K and V to the slots, page * 16 + offset, of which -1 is none.

    rotary_dim: of head_dim, the part that is rotated, 0 for none. splits: qkv is then fp32 [splits, ...], summed from
    the first on. eps, weight_offset: of the norm, which is over each head. key_scale, value_scale: what fp8 elements
    will be multiplied by. Raises ValueError for what no kernel takes.
    """
    if tokens < 1 or splits < 0 or rotary_dim < 0 or rotary_dim % 2 or rotary_dim > shape.head_dim:
        raise ValueError(f"rope of {tokens} tokens, {rotary_dim} of {shape.head_dim} rotated, {splits} splits")
    if (tensors.q_weight == NULL) != (tensors.k_weight == NULL):
        raise ValueError("q and k are normed together")
    if (key_scale, value_scale) != (1.0, 1.0) and not shape.fp8_pages:
        raise ValueError("only fp8 pages have scales")
    require_aligned(
        q=tensors.q, pages=tensors.pages, qkv=tensors.qkv, cos=tensors.cos, sin=tensors.sin,
        q_weight=tensors.q_weight, k_weight=tensors.k_weight,
    )  # fmt: skip
    return Launch(
        module="rope_and_cache",
        entry=f"rope_and_cache_{order}{shape.suffix}",
        grid=(-(-tokens * _token_warps(shape) // _WARPS), 1, 1),
        block=(_WARPS * 32, 1, 1),
        shared_bytes=0,
        arguments=(
            *(tensors.q, tensors.pages, tensors.qkv, tensors.q_weight, tensors.k_weight, tensors.cos, tensors.sin),
            *(tensors.positions, tensors.slots, tokens, shape.heads, shape.kv_heads, shape.head_dim, rotary_dim),
            *(splits, shape.page_stride, float(eps), float(weight_offset)),
            *((1.0 / key_scale, 1.0 / value_scale) if shape.fp8_pages else ()),
        ),
    )


def _token_warps(shape: Shape) -> int:
    lanes = 8 if shape.head_dim <= 64 else 16 if shape.head_dim <= 128 else 32  # of a head
    return -(-(shape.heads + 2 * shape.kv_heads) // (32 // lanes * _EACH))
