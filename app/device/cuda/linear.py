"""Launches of kernels/linear.cu: which form, tile and split a linear of some shape takes on a card."""

from ..base import Activation
from .launch import NULL, SUFFIX, Gpu, Half, Launch, require_aligned

FEW_TOKENS = 64  # up to so many, weights are streamed; beyond, tiles pass through shared memory
MAX_SPLITS = 8

_ACTIVATIONS: dict[Activation | None, int] = {None: 0, "silu": 1, "gelu": 2, "gelu_tanh": 3}
_SPLIT_K = 1024  # of k, a split's least: what a block of the skinny form has in flight at once
_ROWS = 16  # of the weight, an mma's
_MAX_GRID_Y = 65_535
_SKINNY_BLOCKS = 3  # of the skinny form for up to 8 tokens, that an SM holds at once
_STAGE_BYTES = 128  # a stage of shared memory, per row and token of a tile: 32 of k from x and from the weight


def split_count(gpu: Gpu, tokens: int, n: int, k: int) -> int:
    """Over how many blocks k of an ungated linear is best split; the next op has to add what they leave.

    1 for more than FEW_TOKENS; else it depends on the weight and the card alone, so that a token's result does not
    depend on what else is in the batch. As many as the card holds blocks of at once: that makes more than half of
    them, enough to fill memory, and a few blocks more would run after all others, with memory idle.
    """
    if tokens > FEW_TOKENS:
        return 1
    tiles = -(-n // _ROWS)
    return max(1, min(_SKINNY_BLOCKS * gpu.sm_count // tiles, k // _SPLIT_K, MAX_SPLITS))


def partial_bytes(tokens: int, n: int, splits: int) -> int:
    """What y takes of a split linear: fp32 [splits, tokens, n]."""
    return 4 * splits * tokens * n


def plan(
    gpu: Gpu,
    y: int,
    x: int,
    weight: int,
    tokens: int,
    n: int,
    k: int,
    *,
    dtype: Half,
    bias: int = NULL,
    activation: Activation | None = None,
    gated: bool = False,
    residual: int = NULL,
    wide: bool = False,
    splits: int = 1,
) -> Launch:
    """y = activation(x weight^T + bias) + residual, or gated y = activation(gate) * up + residual.

    x: [tokens, k]. weight: [n, k], gated [2n, k]: the gate's rows, then up's. bias: as long as the weight has rows.
    y, residual: [tokens, n]; they may be the same. y is `dtype`, or fp32 if `wide`. With splits > 1 (`split_count`)
    it is wide and [splits, tokens, n], and only the sum over the splits, bias included, is a result.
    Raises ValueError for what no kernel takes: above all a k that is no multiple of 8, since rows are read 16 bytes
    at a time.
    """
    if tokens < 1 or n < 1 or k < 1:
        raise ValueError(f"linear of {tokens} tokens, {n} by {k}")
    if k % 8 != 0:
        raise ValueError(f"linear over {k}: k must be a multiple of 8")
    if splits > 1 and (not wide or gated or activation or residual != NULL or tokens > FEW_TOKENS):
        raise ValueError("a split linear is wide and of few tokens, with neither activation nor residual")
    require_aligned(y=y, x=x, weight=weight, bias=bias, residual=residual)
    form, grid, threads, shared_bytes = (
        _skinny(tokens, n, gated, splits) if tokens <= FEW_TOKENS else _tile(gpu, tokens, n, gated)
    )
    return Launch(
        module="linear",
        entry=f"linear_{form}{'_gated' if gated else ''}_{SUFFIX[dtype]}",
        grid=grid,
        block=(threads, 1, 1),
        shared_bytes=shared_bytes,
        arguments=(y, x, weight, bias, residual, tokens, n, k, _ACTIVATIONS[activation], int(wide)),
    )


_Geometry = tuple[str, tuple[int, int, int], int, int]  # form, grid, threads, dynamic shared memory


def _skinny(tokens: int, n: int, gated: bool, splits: int) -> _Geometry:
    block_tokens, row_tiles = (8, 1) if tokens <= 8 else (16, 1) if tokens <= 16 else (32, 2)
    across = -(-n // (row_tiles * (_ROWS // 2 if gated else _ROWS)))
    if across > _MAX_GRID_Y:
        raise ValueError(f"linear to {n}: too many rows for {tokens} tokens")
    return f"skinny{block_tokens}", (-(-tokens // block_tokens), across, splits), 256, 0


def _tile(gpu: Gpu, tokens: int, n: int, gated: bool) -> _Geometry:
    def tiles(size: int) -> int:
        return -(-tokens // size) * -(-n // (size // 2 if gated else size))

    size = 64 if tiles(128) < gpu.sm_count else 128
    stages = _stages(gpu, size, tiles(size))
    return f"tile{size}_{stages}", (tiles(size), 1, 1), 128, stages * size * _STAGE_BYTES


def _stages(gpu: Gpu, size: int, blocks: int) -> int:
    """Of shared memory: a block has all but one of them in flight.

    Small tiles have 8 where an SM holds all of its blocks with so many, since few blocks have to fetch as much as
    many would; of 4, an SM holds 3 or 4 blocks. Of large tiles an SM holds two, by registers, and shared memory
    has to.
    """
    if size == 64:
        held = gpu.shared_bytes // (8 * size * _STAGE_BYTES + 1024)  # 1 KB of each block is the system's
        return 8 if blocks <= held * gpu.sm_count else 4
    return 3 if gpu.shared_bytes < 163 * 1024 else 4 if gpu.capability < (9, 0) else 5
