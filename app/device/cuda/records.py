"""What each running sequence asks of sampling, kept under its number: packed when it joins, gathered at every step.

Apart from the step's metadata because this is the host's alone, and the one part of it that outlives a step. Between
joining and leaving nothing of a record changes but the position, and where in the step its mask and changes are.
"""

import numpy as np
from numpy.typing import NDArray

from ...messages import MAX_EOS_TOKENS, MAX_LOGIT_BIAS_TOKENS, MAX_STOP_TOKENS
from ..base import Batch, SampleRow
from . import sample
from .sample import Rows

MOST_CHANGES = MAX_LOGIT_BIAS_TOKENS + MAX_STOP_TOKENS + MAX_EOS_TOKENS  # of a row

Packed = NDArray[np.int64]  # CHANGE, as numpy joins arrays fast

_NO_CHANGES: Packed = np.zeros(0, np.int64)

# What a row, or some row of a step, wants beside a greedy choice among all tokens.
GENERAL = 1  # a draw, or log-probabilities
LOGPROBS = 2
CHANGES = 4  # bias or bans
MASK = 8


class Records:
    """Records by number. A number that is admitted anew is packed anew."""

    def __init__(self, num_seqs: int, vocab: int, num_logprobs: int) -> None:
        """num_logprobs: alternatives to a token, at most."""
        self._vocab = vocab
        self._num_logprobs = num_logprobs
        self._records = np.zeros(num_seqs, sample.ROW)
        self._traits = np.zeros(num_seqs, np.uint8)
        self._changes = [_NO_CHANGES] * num_seqs
        self._admissions = np.full(num_seqs, -1, np.int64)

    def join(self, batch: Batch) -> list[tuple[SampleRow, int]]:
        """Packs the rows that are new; those of them whose tokens have to be counted, with their numbers.

        Raises ValueError for a row that asks for more than there is room for.
        """
        new = self._admissions[batch.numbers] != batch.admissions
        counted: list[tuple[SampleRow, int]] = []
        if not new.any():
            return counted
        for index in np.flatnonzero(new).tolist():
            row, number = batch.rows[index], int(batch.numbers[index])
            if self._admissions[number] == batch.admissions[index]:
                continue  # two rows of one sequence
            has_history = self._pack(row, number)
            self._admissions[number] = batch.admissions[index]
            if has_history:
                counted.append((row, number))
        return counted

    def traits(self, numbers: np.ndarray) -> int:
        """Those of all the rows together."""
        return int(np.bitwise_or.reduce(self._traits[numbers]))

    def write(self, out: Rows, batch: Batch, traits: int, first_change: int) -> Packed | None:
        """The records of the batch's rows, whose `traits` these are, and their changes, the first one's number being
        `first_change`; None: they have none."""
        numbers = batch.numbers
        self._records.take(numbers, out=out, mode="clip")
        out["position"] = batch.sample_positions
        if traits & MASK:
            masked = (self._traits[numbers] & MASK) != 0
            out["mask"] = np.where(masked, np.cumsum(masked) - 1, -1)
        if not traits & CHANGES:
            return None
        is_banned = (out["bans"] > 0) & (out["position"] < out["min_tokens"])
        rows = np.flatnonzero((out["changes"] > 0) | is_banned)
        counts = out["changes"][rows] + out["bans"][rows]
        out["first_change"][rows] = first_change + np.cumsum(counts) - counts
        return np.concatenate([_NO_CHANGES, *(self._changes[number] for number in numbers[rows].tolist())])

    def _pack(self, row: SampleRow, number: int) -> bool:
        """Whether the row's tokens have to be counted."""
        changes = sample.changes(row.sampling, self._vocab)
        if len(changes) > MOST_CHANGES:
            raise ValueError(
                f"{len(changes)} tokens with a bias or a ban in one request: there is room for {MOST_CHANGES}"
            )
        has_history = sample.needs_history(row.sampling)
        record = sample.record(row, self._vocab, history=number if has_history else -1, slot=number)
        if record["logprobs"] > self._num_logprobs:
            raise ValueError(f"{record['logprobs']} alternatives to a token: there is room for {self._num_logprobs}")
        self._records[number], self._changes[number] = record, changes.view(np.int64)
        traits = 0
        if not sample.is_plain(record):
            traits |= GENERAL
        if record["logprobs"] >= 0:
            traits |= LOGPROBS
        if len(changes):
            traits |= CHANGES
        if row.mask is not None:
            traits |= MASK
        self._traits[number] = traits
        return has_history
