"""What every device offers: the ops of a forward pass over paged K/V, and sampling.

`Batch` is one engine step as flat arrays; a device turns it into whatever form it computes on, once per step.
Tensors are opaque to the decoder: only the device that made one looks inside. The numpy device is the reference
for every other.

    begin -> run(embed, norm, linear, ..., logits, sample, score) -> finish

A device with `lookahead` does what `run` is given at its own time, in order, and only `finish` waits for it: the next
step may be begun before, its tokens being those that this one will have chosen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..messages import Sampling, TokenLogprob
from ..timeline import Timeline
from .layout import Layout

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
Tensor = Any  # a device's own
# A batch in a device's own form, with `batch`: Batch, and `samples`: int, the rows that are sampled: the batch's, and
# what a device adds to have fewer shapes of steps.
Step = Any
Activation = Literal["silu", "gelu", "gelu_tanh"]
Stage = Literal["step", "forward", "sample"]  # "step" is the other two in one
MaskWords = NDArray[np.uint32]  # bit t % 32 of word t / 32 allows token t; what lies past the last word is forbidden

R = TypeVar("R")


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
    num_logprobs: int  # alternatives to a token, at most
    max_length: int  # of a sequence


@dataclass(slots=True)
class SampleRow:
    """What sampling one sequence needs beside its logits."""

    sampling: Sampling
    key: int  # 64 bits from (seed, prompt index, choice index): see device/random.py
    prompt: Sequence[int]
    output: Sequence[int]  # generated so far, as far as it is known
    mask: Callable[[], MaskWords] | None = None  # tokens that may come next; asked for once `output` is known


@dataclass(slots=True)
class Batch:
    """One step: S sequences, T new tokens in all. A decode step has T == S.

    tokens, positions, slots: [T] the new tokens, their positions, and where their K/V goes
        (page * page_size + offset; -1 writes nowhere). A negative token t, which only a device with lookahead is
        given, is the one that was chosen last for the sequence of number ~t.
    starts: [S + 1] sequence s owns the new tokens starts[s] to starts[s + 1].
    lengths: [S] context length of each sequence after this step, its new tokens included.
    pages: page numbers, those of sequence s in order of position from page_starts[s] to page_starts[s + 1]: as many
        as its length takes. page_starts: [S + 1].
    sample_rows: [R] which of the T tokens' logits are sampled, aligned with `rows` and the next three.
    numbers: [R] below num_seqs: a sequence's own while it runs, and the place of what a device keeps for it.
    admissions: [R] changes whenever a number is given anew: what was kept for it is then another sequence's.
    sample_positions: [R] in the random stream: how many tokens the sequence has generated before, those included
        that are not known yet.
    score_rows, score_targets: [Q] tokens of a prompt whose successor's log-probability is asked for (echo with
        logprobs); `score_top` alternatives each.
    """

    tokens: Int32
    positions: Int32
    slots: Int32
    starts: Int32
    lengths: Int32
    pages: Int32
    page_starts: Int32
    sample_rows: Int32
    rows: list[SampleRow]
    numbers: Int32
    admissions: NDArray[np.int64]
    sample_positions: Int32
    score_rows: Int32
    score_targets: Int32
    score_top: int = 0

    @property
    def is_decode(self) -> bool:
        return len(self.tokens) == len(self.lengths)


@dataclass(slots=True)
class Sampled:
    """tokens: [R], -1 where none could be chosen. logprobs: [R], None where not asked for, and with token -1."""

    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    scores: list[TokenLogprob]  # [Q]


class Device(Protocol):
    """A place to compute. `load` and `allocate` come first, in that order, once."""

    name: str
    title: str  # what it is, for a person: "cpu native avx512_bf16"
    dtype: str  # of computation and of the K/V, once the weights are loaded
    default_kv_bytes: int | None  # most that K/V take unless the user says more; None: what the memory has
    gathers_pages: bool  # attention copies one layer's share of the pages in use while it runs
    lookahead: bool  # a step may be begun before the last one is finished

    def available_bytes(self) -> int:
        """Memory that weights, K/V and activations may use now, before the utilization share is taken."""

    def load(self, layout: Layout, timeline: Timeline) -> dict[str, Tensor]:
        """Weights by their TensorSpec name. Raises ModelDataError for a file that ends early.

        What it does is put on `timeline`: as "weights" what moves their bytes, and how many.
        """

    def weight_bytes(self, layout: Layout) -> int:
        """Memory that the weights take once loaded. Asked before page_bytes: K/V may have the weights' dtype."""

    def page_bytes(self, shape: AttentionShape) -> int:
        """Bytes of one KV page over all layers."""

    def activation_bytes(self, shape: AttentionShape, step: StepShape) -> int:
        """Memory that a step takes beside weights and pages. Raises UnavailableError for a shape that no op takes."""

    def allocate(self, shape: AttentionShape, step: StepShape, num_pages: int, cos: Float32, sin: Float32) -> None:
        """K/V pages, activations, and the rotary table cos, sin: [step.max_length, rotary_dim / 2]."""

    def begin(self, batch: Batch) -> Step:
        """The step's metadata in the device's form, passed to the ops below as `step`."""

    def run(self, step: Step, stage: Stage, compute: Callable[[], R]) -> R:
        """Has the ops done that `compute` calls, and gives what it gives.

        They are the same for all steps of a stage that are alike; so a device need not call it every time.
        """

    def finish(self, step: Step) -> Sampled:
        """What `sample` and `score` found. Waits for it."""

    def prepare(self, compute: Callable[[Step], object]) -> bool:
        """For idle moments: does a little of what later steps would wait for. Returns whether there may be more.

        compute: what `run` is given for the stage "step", of a step that the device makes up.
        """

    def embed(self, step: Step, table: Tensor) -> Tensor:
        """[T, hidden] rows of `table` for the step's tokens."""

    def norm(self, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """RMSNorm of s = x + residual, in fp32; returns (norm(s) * weight, s): [T, hidden] each.

        `s` may take the place of `residual`, or of `x` where there is none.
        """

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [T, in] times weight [out, in] transposed, plus bias [out]: [T, out]."""

    def rope_and_cache(self, step: Step, qkv: Tensor, layer: int) -> Tensor:
        """Rotates q and k of qkv [T, (heads + 2 kv_heads) * head_dim], writes k, v to the layer's pages; gives q."""

    def attention(self, step: Step, q: Tensor, layer: int, scale: float, window: int | None) -> Tensor:
        """Causal attention of q over the pages of its sequence: [T, heads * head_dim]."""

    def gated_linear(self, x: Tensor, weight: Tensor, activation: Activation, bias: Tensor | None = None) -> Tensor:
        """activation(gate) * up: [T, out]. They are the halves of x [T, in] times weight [2 * out, in] transposed,
        plus bias [2 * out]; the gate comes first."""

    def wanted(self, step: Step, x: Tensor) -> Tensor:
        """The rows of x [T, hidden] that the step samples, then those that it scores."""

    def part(self, x: Tensor, first: int, count: int) -> Tensor:
        """`count` rows of x from `first` on."""

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [R, hidden] times weight [vocab, hidden] transposed, in fp32: [R, vocab]."""

    def sample(self, step: Step, logits: Tensor) -> None:
        """Chooses one token for each of the step's sampled rows, given its logits [step.samples, vocab]: a pure
        function of logits, sampling, key and position. A batch's masks are asked for here at the latest."""

    def score(self, step: Step, logits: Tensor, first: int) -> None:
        """Log-probabilities of score_targets from `first` on, under their logits [., vocab], with `score_top`
        alternatives."""
