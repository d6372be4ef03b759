"""Launches of kernels/norm.cu: RMS norm and layer norm, with the residual add or a split linear's sum fused in."""

from typing import Literal

from .launch import NULL, SUFFIX, Half, Launch, require_aligned

_WARP_ROWS = 4  # a block's, where a warp takes a row
_HELD = 32  # elements of a row that a thread can hold


def plan(
    y: int,
    x: int,
    weight: int,
    tokens: int,
    hidden: int,
    *,
    dtype: Half,
    eps: float,
    kind: Literal["rms", "layer"] = "rms",
    bias: int = NULL,
    residual: int = NULL,
    sum_out: int = NULL,
    splits: int = 0,
    weight_offset: float = 0.0,
) -> Launch:
    """y = norm(s) * (weight_offset + weight) + bias, with s = x + residual rounded to `dtype`.

    y, residual, sum_out: [tokens, hidden]; sum_out takes s and may be the residual, or x. weight, bias: [hidden].
    x: [tokens, hidden], or with splits > 0 fp32 [splits, tokens, hidden], which are summed from the first on.
    weight_offset is 1 for Gemma, whose weights are kept less one. Raises ValueError for what no kernel takes.
    """
    if tokens < 1 or hidden < 1 or splits < 0:
        raise ValueError(f"norm of {tokens} tokens by {hidden}, {splits} splits")
    if kind == "rms" and bias != NULL:
        raise ValueError("RMS norm has no bias")
    form, threads, rows = _form(hidden)
    require_aligned(y=y, x=x, weight=weight, bias=bias, residual=residual, sum_out=sum_out)
    return Launch(
        module="norm",
        entry=f"norm_{kind}_{form}_{SUFFIX[dtype]}",
        grid=(-(-tokens // rows), 1, 1),
        block=(threads, 1, 1),
        shared_bytes=0,
        arguments=(y, sum_out, x, residual, weight, bias, tokens, hidden, splits, float(eps), float(weight_offset)),
    )


def _form(hidden: int) -> tuple[str, int, int]:
    """The kernel for rows of this length, its threads a block and rows a block."""
    if hidden % 8 != 0:
        if hidden > 256 * _HELD:
            raise ValueError(f"norm over {hidden}: a row that is no multiple of 8 has at most {256 * _HELD}")
        return "odd", 256, 1
    if hidden <= 32 * _HELD:
        return "warp", 32 * _WARP_ROWS, _WARP_ROWS
    if hidden <= 256 * _HELD:
        return "block", 256, 1
    if hidden <= 1024 * _HELD:
        return "wide", 1024, 1
    raise ValueError(f"norm over {hidden}: at most {1024 * _HELD}")
