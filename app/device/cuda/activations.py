"""Where the tensors of a step lie in the slab of activations: a place for each op's result, the same at every step.

Apart from the device because the sizes are asked for before anything is allocated. An op never reads its own place,
but for norm's residual, so that no op has to know what others do:

    embed -> residual          norm -> normed        linear -> linear       rope_and_cache -> q
    attention -> attended      gated_linear -> gated      wanted -> rows, residual_rows      logits -> logits

Fixed addresses are also what lets a step be captured as a graph.
"""

from dataclasses import dataclass

from ..base import AttentionShape, StepShape
from . import attention, linear, sample
from .launch import Gpu
from .memory import Cuts
from .sampler import SamplerPlaces
from .step import metadata_bytes

_HALF, _FLOAT = 2, 4  # bytes


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
    metadata: int  # see step.py
    sampler: int  # see sampler.py
    cos: int  # [max_length, rotary_dim / 2] fp32
    sin: int
    nbytes: int


def objection(shape: AttentionShape, step: StepShape) -> str | None:
    """Why no kernel takes a model of these shapes; None where all do."""
    if shape.head_dim not in attention.HEAD_DIMS or shape.page_size != attention.PAGE_TOKENS:
        there_are = ", ".join(map(str, attention.HEAD_DIMS))
        return f"no attention kernel for heads of {shape.head_dim} (there are {there_are})"
    for what, size in (("hidden_size", step.hidden_size), ("intermediate_size", step.intermediate_size)):
        if size % 8:
            return f"{what} {size} is no multiple of 8, which the kernels need"
    if step.vocab_size > sample.MOST_VOCAB:
        return f"a vocabulary of {step.vocab_size}, and the kernels sample from {sample.MOST_VOCAB} tokens at most"
    return None


def place(gpu: Gpu, shape: AttentionShape, step: StepShape) -> Activations:
    """Offsets for the largest step that `step` allows."""
    tokens, hidden = step.num_tokens, step.hidden_size
    q_size = shape.num_heads * shape.head_dim
    qkv_size = q_size + 2 * shape.num_kv_heads * shape.head_dim
    few = min(tokens, linear.FEW_TOKENS)

    def split_bytes(n: int, k: int) -> int:
        """What a linear of few tokens leaves."""
        splits = linear.split_count(gpu, few, n, k)
        return linear.partial_bytes(few, n, splits) if splits > 1 else 0

    products = [(qkv_size, hidden), (hidden, q_size), (hidden, step.intermediate_size)]
    gate_up = split_bytes(2 * step.intermediate_size, hidden)  # else the gate is applied where it is computed

    cuts = Cuts()
    return Activations(
        residual=cuts.take(tokens * hidden * _HALF),
        normed=cuts.take(tokens * hidden * _HALF),
        linear=cuts.take(max(gate_up, *(max(tokens * n * _HALF, split_bytes(n, k)) for n, k in products))),
        q=cuts.take(tokens * q_size * _HALF),
        attended=cuts.take(tokens * q_size * _HALF),
        gated=cuts.take(tokens * step.intermediate_size * _HALF),
        rows=cuts.take(max(tokens * hidden * _HALF, *(split_bytes(n, k) for n, k in products if n == hidden))),
        residual_rows=cuts.take(tokens * hidden * _HALF),
        logits=cuts.take(step.num_logits * step.vocab_size * _FLOAT),
        workspace=cuts.take(_workspace_bytes(shape, step)),
        metadata=cuts.take(metadata_bytes(shape, step)),
        sampler=cuts.take(SamplerPlaces.of(step).nbytes),
        cos=cuts.take(step.max_length * (shape.rotary_dim // 2) * _FLOAT),
        sin=cuts.take(step.max_length * (shape.rotary_dim // 2) * _FLOAT),
        nbytes=cuts.nbytes,
    )


def _workspace_bytes(shape: AttentionShape, step: StepShape) -> int:
    """Whatever the window: one only makes it less."""
    heads = attention.Shape(shape.num_heads, shape.num_kv_heads, shape.head_dim, "bfloat16", page_stride=0)
    return attention.workspace_bytes(heads, step.num_seqs, step.max_length)
