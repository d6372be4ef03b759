"""What sampling left, brought to the host: a copy behind each step, and an event that tells when it is made.

Page-locked memory for UNDER_WAY steps: one step's is read while the next one's copy waits for the GPU.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from ...messages import TokenLogprob
from ..base import Float32, Int32, Sampled, StepShape
from . import driver
from .memory import Cuts, HostBuffer, create_events
from .records import LOGPROBS
from .sample import read_logprobs, score_records
from .step import UNDER_WAY, Step

_WORD = 4  # bytes


@dataclass(frozen=True, slots=True)
class ResultPlaces:
    """Byte offsets, on the device and in each of the host's buffers."""

    tokens: int  # int32 [logits]
    values: int  # fp32 [logits, 1 + num_logprobs], of the rows that are sampled
    others: int  # int32, as values: the tokens they belong to
    score_values: int  # fp32 [tokens, 1 + num_logprobs], of those that are scored
    score_others: int  # int32, as score_values
    nbytes: int

    @classmethod
    def of(cls, step: StepShape) -> "ResultPlaces":
        cuts = Cuts()
        row = (1 + step.num_logprobs) * _WORD
        return cls(
            tokens=cuts.take(step.num_logits * _WORD),
            values=cuts.take(step.num_logits * row),
            others=cuts.take(step.num_logits * row),
            score_values=cuts.take(step.num_tokens * row),
            score_others=cuts.take(step.num_tokens * row),
            nbytes=cuts.nbytes,
        )


class Results:
    """At `address` on the device."""

    def __init__(self, step: StepShape, address: int, owned: ExitStack) -> None:
        self.places = places = ResultPlaces.of(step)
        self.width = 1 + step.num_logprobs
        self._address = address
        self._vocab = step.vocab_size
        self._buffer = HostBuffer(UNDER_WAY * places.nbytes)
        owned.callback(self._buffer.close)
        self._copied = create_events(UNDER_WAY, owned)
        self._held = [0] * UNDER_WAY  # the step whose results a buffer has

    def fetch(self, step: Step, stream: driver.Stream) -> None:
        """Enqueues the copies of what the step found."""
        turn, places, batch = step.number % UNDER_WAY, self.places, step.batch
        rows, scores, row = len(batch.rows), len(batch.score_rows), self.width * _WORD
        pieces = [(places.tokens, rows * _WORD)]
        if step.traits & LOGPROBS:
            pieces += [(places.values, rows * row), (places.others, rows * row)]
        if scores:
            pieces += [(places.score_values, scores * row), (places.score_others, scores * row)]
        host = self._buffer.address + turn * places.nbytes
        for place, nbytes in pieces:
            if nbytes:
                driver.copy_to_host(host + place, self._address + place, nbytes, stream)
        driver.record_event(self._copied[turn], stream)
        self._held[turn] = step.number

    def read(self, step: Step) -> Sampled:
        """Waits for the step."""
        turn, places, batch = step.number % UNDER_WAY, self.places, step.batch
        if self._held[turn] != step.number:
            raise ValueError(f"step {step.number} has no results: at most {UNDER_WAY} steps are under way")
        driver.synchronize_event(self._copied[turn])
        tokens = self._ints(turn, places.tokens, len(batch.rows))
        logprobs: list[TokenLogprob | None] = [None] * len(tokens)
        if step.records is not None:
            values, others = self._table(turn, places.values, places.others, len(tokens))
            logprobs = read_logprobs(step.records, tokens, values, others)
        scores: list[TokenLogprob] = []
        if len(batch.score_rows):
            records = score_records(batch.score_targets, batch.score_top, self._vocab)
            values, others = self._table(turn, places.score_values, places.score_others, len(records))
            scores = [score for score in read_logprobs(records, batch.score_targets, values, others) if score]
        return Sampled(tokens.tolist(), logprobs, scores)

    def _ints(self, turn: int, place: int, count: int) -> Int32:
        return np.frombuffer(self._buffer.view, np.int32, count, turn * self.places.nbytes + place)

    def _table(self, turn: int, values: int, others: int, rows: int) -> tuple[Float32, Int32]:
        """Log-probabilities and their tokens: [rows, width] each."""
        shape = (rows, self.width)
        first, second = (self._ints(turn, place, rows * self.width).reshape(shape) for place in (values, others))
        return first.view(np.float32), second
