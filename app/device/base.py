"""What every device offers: the ops of a forward pass over paged K/V, and sampling.

`Batch` is one engine step as flat arrays; a device turns it into whatever form it computes on, once per step.
Tensors are opaque to the decoder: only the device that made one looks inside. The numpy device is the reference
for every other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..messages import Sampling, TokenLogprob
from .layout import Layout

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
Tensor = Any  # a device's own
Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the K/V pages and the rotary op are sized by."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int  # of head_dim, the part that is rotated
    page_size: int


@dataclass(frozen=True, slots=True)
class StepShape:
    """The largest step: what activations and metadata are sized by."""

    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_tokens: int  # new ones, and so hidden states, of a step
    num_seqs: int  # in a step
    num_logits: int  # rows that are sampled or scored at once
    max_length: int  # of a sequence


@dataclass(slots=True)
class SampleRow:
    """What sampling one sequence needs beside its logits."""

    sampling: Sampling
    key: int  # 64 bits from (seed, prompt index, choice index): see device/random.py
    prompt: Sequence[int]
    output: Sequence[int]  # generated so far; its length is the position in the random stream


@dataclass(slots=True)
class Batch:
    """One step: S sequences, T new tokens in all. A decode step has T == S.

    tokens, positions, slots: [T] the new tokens, their positions, and where their K/V goes
        (page * page_size + offset; -1 writes nowhere).
    starts: [S + 1] sequence s owns the new tokens starts[s] to starts[s + 1].
    lengths: [S] context length of each sequence after this step, its new tokens included.
    pages: [S, P] page numbers of each sequence, in order of position; entries past its length are 0.
    sample_rows: [R] which of the T tokens' logits are sampled, aligned with `rows`.
    score_rows, score_targets: [Q] tokens of a prompt whose successor's log-probability is asked for (echo with
        logprobs); `score_top` alternatives each.
    """

    tokens: Int32
    positions: Int32
    slots: Int32
    starts: Int32
    lengths: Int32
    pages: Int32
    sample_rows: Int32
    rows: list[SampleRow]
    score_rows: Int32
    score_targets: Int32
    score_top: int = 0

    @property
    def is_decode(self) -> bool:
        return len(self.tokens) == len(self.lengths)


@dataclass(slots=True)
class Sampled:
    """tokens: [R], -1 where the row's logits held a NaN. logprobs: [R], None where not asked for."""

    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    scores: list[TokenLogprob]  # [Q]


class Device(Protocol):
    """A place to compute. `load` and `allocate` come first, in that order, once."""

    name: str
    dtype: str  # of computation and of the K/V, once the weights are loaded
    default_kv_bytes: int | None  # most that K/V take unless the user says more; None: what the memory has
    gathers_pages: bool  # attention copies one layer's share of the pages in use while it runs

    def available_bytes(self) -> int:
        """Memory that weights, K/V and activations may use now, before the utilization share is taken."""

    def load(self, layout: Layout) -> dict[str, Tensor]:
        """Weights by their TensorSpec name. Raises ModelDataError for a file that ends early."""

    def weight_bytes(self, layout: Layout) -> int:
        """Memory that the weights take once loaded."""

    def page_bytes(self, shape: AttentionShape) -> int:
        """Bytes of one KV page over all layers."""

    def activation_bytes(self, shape: AttentionShape, step: StepShape) -> int:
        """Memory that a step takes beside weights and pages. Raises UnavailableError for a shape that no op takes."""

    def allocate(self, shape: AttentionShape, step: StepShape, num_pages: int, cos: Float32, sin: Float32) -> None:
        """K/V pages, activations, and the rotary table cos, sin: [step.max_length, rotary_dim / 2]."""

    def begin(self, batch: Batch) -> Tensor:
        """The step's metadata in the device's form, passed to the ops below as `step`."""

    def embed(self, step: Tensor, table: Tensor) -> Tensor:
        """[T, hidden] rows of `table` for the step's tokens."""

    def norm(self, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """RMSNorm of s = x + residual, in fp32; returns (norm(s) * weight, s): [T, hidden] each.

        `s` may take the place of `residual`, or of `x` where there is none.
        """

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [T, in] times weight [out, in] transposed, plus bias [out]: [T, out]."""

    def rope_and_cache(self, step: Tensor, qkv: Tensor, layer: int) -> Tensor:
        """Rotates q and k of qkv [T, (heads + 2 kv_heads) * head_dim], writes k, v to the layer's pages; gives q."""

    def attention(self, step: Tensor, q: Tensor, layer: int, scale: float, window: int | None) -> Tensor:
        """Causal attention of q over the pages of its sequence: [T, heads * head_dim]."""

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """activation(gate) * up of gate_up [T, 2 * intermediate]: [T, intermediate]."""

    def rows(self, x: Tensor, rows: Int32) -> Tensor:
        """The named rows of x: [R, hidden]. Neighbours, or the batch's sample_rows and then its score_rows."""

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [R, hidden] times weight [vocab, hidden] transposed, in fp32: [R, vocab]."""

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> tuple[list[int], list[TokenLogprob | None]]:
        """One token a row of logits [R, vocab]: a pure function of logits, sampling, key and position."""

    def score(self, logits: Tensor, targets: Int32, top: int) -> list[TokenLogprob]:
        """Log-probability of targets[q] under logits[q], with `top` alternatives."""
