"""Launches of kernels/gate.cu: the gated activation of an MLP, where its linear has not applied it."""

from ..base import Activation
from .launch import SUFFIX, Half, Launch, require_aligned

_THREADS = 256
_BLOCK_PIECES = 2 * _THREADS  # of 8 elements


def plan(
    out: int, gate_up: int, tokens: int, n: int, *, dtype: Half, activation: Activation, splits: int = 0
) -> Launch:
    """out = activation(gate) * up: [tokens, n].

    gate_up: [tokens, 2n], a token's gate and then its up, or with splits > 0 fp32 [splits, tokens, 2n], which are
    summed from the first on. Raises ValueError for what no kernel takes.
    """
    if tokens < 1 or n < 8 or n % 8 != 0 or splits < 0:
        raise ValueError(f"gate of {tokens} tokens by {n}, {splits} splits: rows are multiples of 8")
    require_aligned(out=out, gate_up=gate_up)
    return Launch(
        module="gate",
        entry=f"gate_{activation}_{SUFFIX[dtype]}",
        grid=(-(-tokens * n // 8 // _BLOCK_PIECES), 1, 1),
        block=(_THREADS, 1, 1),
        shared_bytes=0,
        arguments=(out, gate_up, tokens, n, splits),
    )
