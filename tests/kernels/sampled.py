"""Rows that a card samples, and the reference sampler on the same logits."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilotlight.device import sampling
from pilotlight.device.base import SampleRow
from pilotlight.device.cuda import sample
from pilotlight.device.cuda.launch import Launch
from pilotlight.device.random import stream_key
from pilotlight.messages import Sampling, TokenLogprob

from .harness import Buffer, Card

Array = NDArray[Any]
Result = tuple[list[int], list[TokenLogprob | None]]

WIDTH = 1 + 20  # of the log-probabilities
# fp32 holds a log-probability to 2^-24 of itself; the sum behind it is right to 2^-22.
RELATIVE, ABSOLUTE = 2.0**-23, 2.0**-21


def row(
    changes: dict[str, Any] | None = None, *, seed: int = 0, prompt: Sequence[int] = (), output: Sequence[int] = ()
) -> SampleRow:
    parameters = Sampling(**({"max_tokens": 100} | (changes or {})))
    return SampleRow(parameters, stream_key(seed, 0, 0), prompt, output)


class Batch:
    """Rows as an engine keeps them on a card, for as many steps as wanted."""

    def __init__(
        self,
        card: Card,
        rows: Sequence[SampleRow],
        vocab: int,
        *,
        masks: Array | None = None,
        idle: Sequence[int] = (),
    ) -> None:
        """masks: bool [rows, vocab], what a grammar allows. idle: rows that only fill the grid."""
        self.card, self.rows, self.vocab, self.masks = card, list(rows), vocab, masks
        changes: list[Array] = []
        first = 0
        self.records = np.zeros(len(rows), sample.ROW)
        penalized = [index for index, each in enumerate(rows) if sample.needs_history(each.sampling)]
        for index, each in enumerate(rows):
            changes.append(sample.changes(each.sampling, vocab))
            self.records[index] = sample.record(
                each, vocab, first_change=first, slot=len(rows) - 1 - index, mask=-1 if masks is None else index,
                history=penalized.index(index) if index in penalized else -1,
            )  # fmt: skip
            first += len(changes[-1])
        self.records["kind"][list(idle)] = sample.IDLE
        self.changes = card.upload(np.concatenate([*changes, np.zeros(1, sample.CHANGE)]))
        self.counts = card.output((max(len(penalized), 1), sample.count_stride(vocab)), np.uint16)
        self.workspace = card.upload(np.zeros(sample.workspace_bytes(len(rows), vocab), np.uint8))
        self.workspace_rows = len(rows)
        self.tokens = card.output((len(rows),), np.int32)
        self.ids = card.output((len(rows),), np.int32)
        self.values = card.output((len(rows), WIDTH), np.float32)
        self.others = card.output((len(rows), WIDTH), np.int32)
        self._joined = [(rows[index], number) for number, index in enumerate(penalized)]

    def join(self) -> None:
        """Writes the counts of all rows from their tokens so far."""
        if self._joined:
            histories, tokens = (self.card.upload(part) for part in sample.pack_histories(self._joined))
            self.card.run(
                sample.history(
                    self.counts.address, histories.address, tokens.address,
                    sequences=len(self._joined), vocab=self.vocab,
                )
            )  # fmt: skip

    def launches(self, logits: Array, *, greedy: bool = False) -> tuple[Launch, ...]:
        """Rows lie one odd element further apart than they are long, with NaN between."""
        stride = self.vocab + 1
        spaced = np.full(len(self.rows) * stride - 1, np.nan, np.float32)
        for index, values in enumerate(logits):
            spaced[index * stride : index * stride + self.vocab] = values
        return self.plan(self.card.upload(spaced).address, stride, greedy)

    def plan(self, logits: int, stride: int, greedy: bool = False) -> tuple[Launch, ...]:
        self.logits, self.stride = logits, stride
        return sample.plan(
            self.tensors(logits), rows=len(self.rows), vocab=self.vocab, stride=stride,
            most_logprobs=WIDTH - 1, greedy=greedy,
        )  # fmt: skip

    def tensors(self, logits: int) -> sample.Tensors:
        return sample.Tensors(
            logits=logits, rows=self.card.upload(self.records).address, tokens=self.tokens.address,
            workspace=self.workspace.address, workspace_rows=self.workspace_rows, ids=self.ids.address,
            values=self.values.address, others=self.others.address, changes=self.changes.address,
            masks=self._mask_words().address,
            counts=self.counts.address,
        )  # fmt: skip

    def step(self, logits: Array, *, greedy: bool = False) -> Result:
        self.card.run(*self.launches(logits, greedy=greedy))
        return self.result()

    def result(self) -> Result:
        tokens = self.card.read(self.tokens)
        assert (self.card.read(self.ids)[::-1] == tokens).all()
        read = sample.read_logprobs(self.records, tokens, self.card.read(self.values), self.card.read(self.others))
        return tokens.tolist(), read

    def _mask_words(self) -> Buffer:
        masks = np.ones((1, 1), bool) if self.masks is None else self.masks
        padded = np.zeros((len(masks), -(-masks.shape[1] // 32) * 32), np.uint8)
        padded[:, : masks.shape[1]] = masks
        return self.card.upload(np.packbits(padded, axis=1, bitorder="little").view(np.uint32))


def expected(logits: Array, rows: Sequence[SampleRow], masks: Array | None = None) -> Result:
    """The reference's; a mask is a bias of -infinity there."""
    if masks is not None:
        rows = [
            SampleRow(with_bias(each.sampling, np.flatnonzero(~mask)), each.key, each.prompt, each.output)
            for each, mask in zip(rows, masks, strict=True)
        ]
    with np.errstate(invalid="ignore", over="ignore"):
        return sampling.sample(logits.copy(), rows)


def with_bias(parameters: Sampling, forbidden: Array) -> Sampling:
    fields = {field: getattr(parameters, field) for field in parameters.__struct_fields__}
    fields["logit_bias"] += tuple((int(token), -math.inf) for token in forbidden)
    return Sampling(**fields)


def check(
    card: Card, logits: Array, rows: Sequence[SampleRow], *, masks: Array | None = None, greedy: bool = False
) -> None:
    """One step on the card gives the reference's tokens and log-probabilities."""
    batch = Batch(card, rows, logits.shape[1], masks=masks)
    batch.join()
    same(batch.step(logits, greedy=greedy), expected(logits, rows, masks), rows)


def same(ours: Result, theirs: Result, rows: Sequence[SampleRow]) -> None:
    for index, each in enumerate(rows):
        assert ours[0][index] == theirs[0][index], f"row {index} of {each}"
        close(ours[1][index], theirs[1][index])


def close(ours: TokenLogprob | None, theirs: TokenLogprob | None) -> None:
    if ours is None or theirs is None:
        assert ours is theirs is None
        return
    assert ours.token == theirs.token
    assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
    pairs = [(ours.logprob, theirs.logprob), *((a[1], b[1]) for a, b in zip(ours.top, theirs.top, strict=True))]
    for mine, other in pairs:
        assert mine == other or abs(mine - other) <= ABSOLUTE + RELATIVE * abs(other)
