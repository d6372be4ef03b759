"""The CPU in fp32 with numpy: the reference that every other device is held to, so it is plain.

A tensor is an ndarray of the shape that base.py gives; its memory order is whatever the op that made it left, since
BLAS and ufuncs take either.
"""

from collections.abc import Callable

import numpy as np

from ..timeline import Timeline
from . import host, sampling
from .base import Activation, AttentionShape, Batch, Float32, R, Sampled, Stage, StepShape
from .layout import Layout
from .mapped import loading
from .numpy_attention import PagedAttention, Step
from .numpy_weights import load_weights, loaded_bytes

# With few rows, weight times x is the faster product: at 4 to 32 rows of SmolLM2-135M OpenBLAS takes 20-32 ms a step
# so, and 33-46 the other way round (Zen 5, two cores; with its Haswell kernels from 30 % faster to 15 % slower). With
# many rows they are equal, and x times weight lies row by row, which what follows prefers.
_FEW_ROWS = 48


class NumpyDevice:
    """Implements `base.Device`. Not thread-safe; one engine drives it."""

    name = "cpu"
    title = "cpu numpy"
    dtype = "float32"
    # Host memory is shared with everything else on the machine, so K/V do not claim all of it by default.
    default_kv_bytes: int | None = 1 << 30
    gathers_pages = True
    lookahead = False

    def __init__(self) -> None:
        self._attention: PagedAttention

    def available_bytes(self) -> int:
        return host.available_bytes()

    def weight_bytes(self, layout: Layout) -> int:
        return loaded_bytes(layout)

    def load(self, layout: Layout, timeline: Timeline) -> dict[str, Float32]:
        with loading(layout, timeline):
            return load_weights(layout)

    def page_bytes(self, shape: AttentionShape) -> int:
        return shape.num_layers * 2 * shape.num_kv_heads * shape.page_size * shape.head_dim * 4

    def activation_bytes(self, shape: AttentionShape, step: StepShape) -> int:
        """The widest moment of a layer, and the logits with their copies.

        Score matrices and gathered K/V are not in it: they are counted as one layer's share of the pages.
        """
        qkv_size = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        layer = 3 * step.hidden_size + 2 * qkv_size + 4 * step.intermediate_size
        return 4 * (step.num_tokens * layer + 3 * step.num_seqs * step.vocab_size)

    def allocate(self, shape: AttentionShape, step: StepShape, num_pages: int, cos: Float32, sin: Float32) -> None:
        self._attention = PagedAttention(shape, num_pages, cos, sin)

    def begin(self, batch: Batch) -> Step:
        return self._attention.begin(batch)

    def run(self, step: Step, stage: Stage, compute: Callable[[], R]) -> R:
        with np.errstate(over="ignore", invalid="ignore"):  # a NaN is found, and told, where a token is sampled
            return compute()

    def finish(self, step: Step) -> Sampled:
        return step.sampled

    def prepare(self, compute: Callable[[Step], object]) -> bool:
        return False

    def embed(self, step: Step, table: Float32) -> Float32:
        return table[step.batch.tokens]

    def norm(
        self, x: Float32, weight: Float32, eps: float, residual: Float32 | None = None
    ) -> tuple[Float32, Float32]:
        s = x if residual is None else np.add(x, residual, out=residual)
        square = np.vecdot(s, s)
        scale = 1 / np.sqrt(square / np.float32(s.shape[1]) + np.float32(eps))
        normed = s * scale[:, None]
        normed *= weight
        return normed, s

    def linear(self, x: Float32, weight: Float32, bias: Float32 | None = None) -> Float32:
        y = (weight @ x.T).T if len(x) < _FEW_ROWS else x @ weight.T
        if bias is not None:
            y += bias
        return y

    def rope_and_cache(self, step: Step, qkv: Float32, layer: int) -> Float32:
        return self._attention.rope_and_cache(step, qkv, layer)

    def attention(self, step: Step, q: Float32, layer: int, scale: float, window: int | None) -> Float32:
        return self._attention.attend(step, q, layer, scale, window)

    def gated_linear(
        self, x: Float32, weight: Float32, activation: Activation, bias: Float32 | None = None
    ) -> Float32:
        gate_up = self.linear(x, weight, bias)
        half = gate_up.shape[1] // 2
        activated: Float32 = _ACTIVATIONS[activation](gate_up[:, :half])
        activated *= gate_up[:, half:]
        return activated

    def wanted(self, step: Step, x: Float32) -> Float32:
        return np.take(x, np.concatenate([step.batch.sample_rows, step.batch.score_rows]), axis=0)

    def part(self, x: Float32, first: int, count: int) -> Float32:
        return x[first : first + count]

    def logits(self, x: Float32, weight: Float32) -> Float32:
        return x @ weight.T

    def sample(self, step: Step, logits: Float32) -> None:
        step.sampled.tokens, step.sampled.logprobs = sampling.sample(logits, step.batch.rows)

    def score(self, step: Step, logits: Float32, first: int) -> None:
        batch = step.batch
        targets = batch.score_targets[first : first + len(logits)]
        step.sampled.scores += sampling.score(logits, targets, batch.score_top)


def _silu(x: Float32) -> Float32:
    """x * sigmoid(x)."""
    y = np.negative(x)
    with np.errstate(over="ignore"):  # exp(-x) is inf for x below -88, and x / inf the right limit
        np.exp(y, out=y)
    y += 1
    return np.divide(x, y, out=y)


def _gelu_tanh(x: Float32) -> Float32:
    """https://arxiv.org/abs/1606.08415, the approximation."""
    y = x * x
    y *= np.float32(0.044715)
    y += 1
    y *= x
    y *= np.float32((2 / np.pi) ** 0.5)
    np.tanh(y, out=y)
    y += 1
    y *= x
    y *= np.float32(0.5)
    return y


def _gelu(x: Float32) -> Float32:
    """x * Phi(x). erf by formula 7.1.26 of Abramowitz and Stegun, right to 1.5e-7 of 1."""
    z = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    tail = np.float32(1.061405429) * t
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail += np.float32(coefficient)
        tail *= t
    tail *= np.exp(-z * z)
    tail *= np.float32(0.5)  # the normal distribution's tail beyond |x|
    return x * np.where(x < 0, tail, 1 - tail)


_ACTIVATIONS = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh}
