"""The parameters of a step's sampled rows as the CPU library reads them, and its results as the engine reads them.

Rules: sampling.py, which the library repeats. A row that is plain greedy costs next to nothing here.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..messages import TokenLogprob
from . import native_abi as abi
from .base import Batch, Int32, SampleRow
from .sampling import is_plain_greedy

_Array = NDArray[Any]


class Logprobs:
    """Where the library writes the log-probabilities of `rows` tokens, each with up to `most_top` alternatives."""

    def __init__(self, rows: int, most_top: int) -> None:
        self.most_top = most_top
        self.logprobs = np.zeros(rows)
        self.top_tokens = np.zeros((rows, most_top), np.int32)
        self.top_logprobs = np.zeros((rows, most_top))

    def addresses(self, row: int) -> tuple[int, int, int]:
        """Of the three arrays from `row` on."""
        start = self.logprobs.ctypes.data + 8 * row, self.top_tokens.ctypes.data + 4 * row * self.most_top
        return *start, self.top_logprobs.ctypes.data + 8 * row * self.most_top

    def read(self, row: int, token: int, top: int) -> TokenLogprob:
        top = min(top, self.most_top)
        pairs = zip(self.top_tokens[row, :top].tolist(), self.top_logprobs[row, :top].tolist(), strict=True)
        return TokenLogprob(token, float(self.logprobs[row]), tuple(pairs))


class Sampler:
    """Parameters and results of up to `rows` sampled rows, each with up to `most_top` alternatives."""

    def __init__(self, rows: int, vocab: int, most_top: int) -> None:
        self.parameters = (abi.SampleRow * rows)()
        self.address = ctypes.addressof(self.parameters)
        self.tokens = np.zeros(rows, np.int32)
        self.logprobs = Logprobs(rows, min(most_top, vocab))
        self._plain = abi.SampleRow(top_p=1, repetition_penalty=1, logprobs=-1)
        self._is_plain = [False] * rows
        self._kept: list[_Array] = []  # what the parameters point to

    def fill(self, batch: Batch) -> None:
        """Writes the parameters of the batch's rows; their masks are asked for here."""
        self._kept.clear()
        for index, (row, position) in enumerate(zip(batch.rows, batch.sample_positions.tolist(), strict=True)):
            if not is_plain_greedy(row):
                self._is_plain[index] = False  # first, since Ctrl-C may come in between
                self.parameters[index] = self._record(row, position)
            elif not self._is_plain[index]:
                self.parameters[index] = self._plain
                self._is_plain[index] = True

    def read(self, rows: Sequence[SampleRow]) -> tuple[list[int], list[TokenLogprob | None]]:
        tokens: list[int] = self.tokens[: len(rows)].tolist()
        logprobs: list[TokenLogprob | None] = [None] * len(rows)
        for index, row in enumerate(rows):
            top = row.sampling.logprobs
            if top is not None and tokens[index] >= 0:
                logprobs[index] = self.logprobs.read(index, tokens[index], top)
        return tokens, logprobs

    def _record(self, row: SampleRow, position: int) -> abi.SampleRow:
        sampling = row.sampling
        record = abi.SampleRow(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            key=row.key,
            position=position,
            top_k=sampling.top_k,
            logprobs=-1 if sampling.logprobs is None else min(sampling.logprobs, self.logprobs.most_top),
        )
        if sampling.logit_bias:
            biased, bias = zip(*sampling.logit_bias, strict=True)
            record.biased, record.num_biased = self._keep(np.array(biased, np.int32))
            record.bias, _ = self._keep(np.array(bias, np.float32))
        if sampling.repetition_penalty != 1:
            context = np.concatenate([_ids(row.prompt), _ids(row.output)])
            record.context, record.num_context = self._keep(context)
        if sampling.frequency_penalty or sampling.presence_penalty:
            record.output, record.num_output = self._keep(_ids(row.output))
        if len(row.output) < sampling.min_tokens:
            banned = np.array(sampling.eos_token_ids + sampling.stop_token_ids, np.int32)
            record.banned, record.num_banned = self._keep(banned)
        if row.mask is not None:
            record.mask, record.num_mask = self._keep(np.ascontiguousarray(row.mask(), np.uint32))
        return record

    def _keep(self, array: _Array) -> tuple[int, int]:
        """Address and length of what has to stay until the step is done."""
        self._kept.append(array)
        return array.ctypes.data, len(array)


def _ids(tokens: Sequence[int]) -> Int32:
    return np.fromiter(tokens, np.int32, len(tokens))
