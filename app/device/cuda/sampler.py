"""Sampling on the GPU: its launches, and what it keeps there from step to step.

A sequence's record comes with each step's metadata. What follows from its tokens is made on the GPU, so that a step
can be begun before they are known: counts, for penalties, start from an upload when the sequence joins and are
carried on by the kernels; the chosen token itself goes to `ids`, where the next step's embedding finds it. Masks take
known tokens, and come from the host between a step's forward pass and its sampling.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from ..base import Batch, SampleRow, StepShape
from . import driver, sample
from .launch import Launch
from .memory import Cuts, HostBuffer, create_events
from .records import MASK, Records
from .results import ResultPlaces, Results
from .sample import HISTORY, ROW
from .step import Step

_WORD = 4  # bytes
_COUNT_BYTES = 2

_Counted = tuple[SampleRow, int]  # a sequence with penalties, and its number


@dataclass(frozen=True, slots=True)
class SamplerPlaces:
    """Byte offsets on the device."""

    workspace: int
    workspace_bytes: int
    ids: int  # int32 [num_seqs], the token that each number's sequence was given last
    counts: int  # uint16 [num_seqs, count_stride]
    masks: int  # uint32 [num_seqs, words of the vocabulary]
    histories: int  # HISTORY, and tokens of the longest sequence
    histories_bytes: int
    results: int
    nbytes: int

    @classmethod
    def of(cls, step: StepShape) -> "SamplerPlaces":
        cuts = Cuts()
        workspace = sample.workspace_bytes(step.num_logits, step.vocab_size)
        histories = step.num_seqs * HISTORY.itemsize + step.max_length * _WORD
        return cls(
            workspace=cuts.take(workspace),
            workspace_bytes=workspace,
            ids=cuts.take(step.num_seqs * _WORD),
            counts=cuts.take(step.num_seqs * sample.count_stride(step.vocab_size) * _COUNT_BYTES),
            masks=cuts.take(step.num_seqs * mask_words(step.vocab_size) * _WORD),
            histories=cuts.take(histories),
            histories_bytes=histories,
            results=cuts.take(ResultPlaces.of(step).nbytes),
            nbytes=cuts.nbytes,
        )


class Sampler:
    """At `address` on the device. `launch` enqueues a kernel on `stream`."""

    def __init__(
        self,
        step: StepShape,
        address: int,
        launch: Callable[[Launch], None],
        stream: driver.Stream,
        owned: ExitStack,
    ) -> None:
        self.records = Records(step.num_seqs, step.vocab_size, step.num_logprobs)
        self._places = places = SamplerPlaces.of(step)
        self._address = address
        self._step = step
        self._launch = launch
        self._stream = stream
        self.ids = address + places.ids
        self.clear()
        self.results = Results(step, address + places.results, owned)
        self._histories = HostBuffer(places.histories_bytes)
        owned.callback(self._histories.close)
        self._masks: HostBuffer | None = None  # until the first row that has one
        self._histories_copied, self._masks_copied = create_events(2, owned)
        self._owned = owned

    def clear(self) -> None:
        """Zeroes what the kernels find zero and leave zero, once they all have run."""
        places = self._places
        driver.clear(self._address + places.workspace, places.workspace_bytes, self._stream)

    def join(self, batch: Batch) -> None:
        """Packs the records of rows that are new, and has their tokens counted where they have penalties."""
        for group in self._groups(self.records.join(batch)):
            packed, tokens = sample.pack_histories(group)
            data = np.concatenate([packed.view(np.int32), tokens])
            driver.synchronize_event(self._histories_copied)
            np.frombuffer(self._histories.view, np.int32, len(data))[:] = data
            histories = self._address + self._places.histories
            driver.copy_to_device(histories, self._histories.address, data.nbytes, self._stream)
            driver.record_event(self._histories_copied, self._stream)
            self._launch(
                sample.history(
                    *(self._address + self._places.counts, histories, histories + packed.nbytes),
                    sequences=len(group),
                    vocab=self._step.vocab_size,
                )
            )

    def upload_masks(self, step: Step) -> None:
        """Asks the step's rows for their masks, and enqueues the copy."""
        if not step.traits & MASK:
            return
        width = mask_words(self._step.vocab_size)
        if self._masks is None:
            self._masks = HostBuffer(self._step.num_seqs * width * _WORD)
            self._owned.callback(self._masks.close)
        driver.synchronize_event(self._masks_copied)
        table = np.frombuffer(self._masks.view, np.uint32).reshape(-1, width)
        masks = [mask for row in step.batch.rows if (mask := row.mask)]
        for out, mask in zip(table, masks, strict=False):
            words = mask()[:width]
            out[: len(words)] = words
            out[len(words) :] = 0
        nbytes = len(masks) * width * _WORD
        driver.copy_to_device(self._address + self._places.masks, self._masks.address, nbytes, self._stream)
        driver.record_event(self._masks_copied, self._stream)

    def choose(self, step: Step, logits: int) -> None:
        """Launches the choice of a token for each row, given their logits [step.samples, vocab]."""
        results = self.results.places
        tensors = self._tensors(step, logits, step.places.records, results.values, results.others)
        self._run(tensors, step.samples, greedy=step.is_plain)

    def score(self, step: Step, logits: int, first: int, count: int) -> None:
        """Launches the log-probabilities of `count` targets from `first` on."""
        results, row = self.results.places, self.results.width * _WORD
        values, others = results.score_values + first * row, results.score_others + first * row
        records = step.places.scores + first * ROW.itemsize
        self._run(self._tensors(step, logits, records, values, others), count)

    def _tensors(self, step: Step, logits: int, records: int, values: int, others: int) -> sample.Tensors:
        places, results = self._places, self._address + self._places.results
        return sample.Tensors(
            logits=logits,
            rows=records,
            tokens=results + self.results.places.tokens,
            workspace=self._address + places.workspace,
            workspace_rows=self._step.num_logits,
            ids=self.ids,
            values=results + values,
            others=results + others,
            changes=step.places.tail,
            masks=self._address + places.masks,
            counts=self._address + places.counts,
        )

    def _run(self, tensors: sample.Tensors, rows: int, greedy: bool = False) -> None:
        vocab = self._step.vocab_size
        most = self._step.num_logprobs
        for launch in sample.plan(tensors, rows=rows, vocab=vocab, stride=vocab, most_logprobs=most, greedy=greedy):
            self._launch(launch)

    def _groups(self, counted: Sequence[_Counted]) -> Iterator[Sequence[_Counted]]:
        """Sequences whose tokens are uploaded at once: as many as there is room for."""
        first = tokens = 0
        for index, (row, _) in enumerate(counted):
            count = len(row.prompt) + len(row.output)
            if index > first and tokens + count > self._step.max_length:
                yield counted[first:index]
                first, tokens = index, 0
            tokens += count
        if counted:
            yield counted[first:]


def mask_words(vocab: int) -> int:
    """uint32 numbers of one mask."""
    return -(-vocab // 32)
