"""Where the tensors of a step lie in the slab of activations: a place for each op's result, the same at every step.

Apart from the device because the sizes are asked for before anything is allocated. An op never reads its own place,
but for norm's residual, so that no op has to know what others do:

    embed -> residual          norm -> normed        linear -> linear       rope_and_cache -> q
    attention -> attended      gate -> gated         rows -> rows, residual_rows      logits -> logits

Fixed addresses are also what lets a step be captured as a graph.
"""

from dataclasses import dataclass

from ..base import AttentionShape, StepShape
from . import attention, linear
from .launch import Gpu
from .memory import Cuts
from .step import metadata_words

_HALF, _FLOAT, _INT = 2, 4, 4  # bytes


@dataclass(frozen=True, slots=True)
class Activations:
    """Byte offsets in the slab; `nbytes` of all of it."""

    residual: int  # [T, hidden] half, as are the next ones unless they say else
    normed: int  # [T, hidden]
    linear: int  # [T, out] half, or fp32 [splits, T, out]
    q: int  # [T, heads * head_dim]
    attended: int  # [T, heads * head_dim]
    gated: int  # [T, intermediate]
    rows: int  # [R, hidden] half, or fp32 [splits, R, hidden]
    residual_rows: int  # [R, hidden]
    logits: int  # [step.num_logits, vocab] fp32
    workspace: int  # of decode attention
    metadata: int  # int32, see step.py
    cos: int  # [max_length, rotary_dim / 2] fp32
    sin: int
    nbytes: int


def place(gpu: Gpu, shape: AttentionShape, step: StepShape) -> Activations:
    """Offsets for the largest step that `step` allows."""
    tokens, hidden = step.num_tokens, step.hidden_size
    q_size = shape.num_heads * shape.head_dim
    qkv_size = q_size + 2 * shape.num_kv_heads * shape.head_dim
    few = min(tokens, linear.FEW_TOKENS)
    products = [(qkv_size, hidden), (hidden, q_size), (2 * step.intermediate_size, hidden)]
    products.append((hidden, step.intermediate_size))

    def split_bytes(n: int, k: int) -> int:
        """What a linear of few tokens leaves."""
        splits = linear.split_count(gpu, few, n, k)
        return linear.partial_bytes(few, n, splits) if splits > 1 else 0

    cuts = Cuts()
    return Activations(
        residual=cuts.take(tokens * hidden * _HALF),
        normed=cuts.take(tokens * hidden * _HALF),
        linear=cuts.take(max(max(tokens * n * _HALF, split_bytes(n, k)) for n, k in products)),
        q=cuts.take(tokens * q_size * _HALF),
        attended=cuts.take(tokens * q_size * _HALF),
        gated=cuts.take(tokens * step.intermediate_size * _HALF),
        rows=cuts.take(max(tokens * hidden * _HALF, *(split_bytes(n, k) for n, k in products if n == hidden))),
        residual_rows=cuts.take(tokens * hidden * _HALF),
        logits=cuts.take(step.num_logits * step.vocab_size * _FLOAT),
        workspace=cuts.take(_workspace_bytes(shape, step)),
        metadata=cuts.take(metadata_words(shape, step) * _INT),
        cos=cuts.take(step.max_length * (shape.rotary_dim // 2) * _FLOAT),
        sin=cuts.take(step.max_length * (shape.rotary_dim // 2) * _FLOAT),
        nbytes=cuts.nbytes,
    )


def _workspace_bytes(shape: AttentionShape, step: StepShape) -> int:
    """Whatever the window: one only makes it less."""
    heads = attention.Shape(shape.num_heads, shape.num_kv_heads, shape.head_dim, "bfloat16", page_stride=0)
    return attention.workspace_bytes(heads, step.num_seqs, step.max_length)
