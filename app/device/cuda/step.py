"""A step's metadata on the GPU: arrays side by side, written in page-locked memory and brought by one copy.

    tokens | positions | slots | rows | lengths | table starts | records | scores | blocks || pages | changes

A step that graphs replay has the places of the largest of its kind, so that a captured launch finds everything where
it was; those of another follow from its own sizes. What is behind the bars is as long as it is, and what is not there
is not copied.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from ..base import AttentionShape, Batch, Int32, StepShape
from . import attention_prefill, driver
from .attention_prefill import Blocks
from .memory import ALIGNMENT, HostBuffer, create_events
from .records import GENERAL, LOGPROBS, MOST_CHANGES, Records
from .sample import CHANGE, IDLE, ROW, Rows, score_records

UNDER_WAY = 2  # steps, at most: one that runs, and one that is begun behind it

_WORD = 4  # bytes
_ALIGNMENT = 4  # words, of each array: kernels read blocks and records 16 bytes at a time
_ROW_WORDS, _CHANGE_WORDS = ROW.itemsize // _WORD, CHANGE.itemsize // _WORD
_NONE = np.zeros(0, np.int32)
_NO_BATCH = Batch(
    tokens=_NONE,
    positions=_NONE,
    slots=_NONE,
    starts=np.zeros(1, np.int32),
    lengths=_NONE,
    pages=_NONE,
    page_starts=np.zeros(1, np.int32),
    sample_rows=_NONE,
    rows=[],
    numbers=_NONE,
    admissions=np.zeros(0, np.int64),
    sample_positions=_NONE,
    score_rows=_NONE,
    score_targets=_NONE,
)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the arrays lie on the device: int32 unless they say else."""

    tokens: int  # [tokens]
    positions: int  # [tokens]
    slots: int  # [tokens]
    rows: int  # [samples + scores], the tokens whose hidden states are wanted
    lengths: int  # [sequences]
    table_starts: int  # [sequences], where in `tail` each one's page numbers begin
    records: int  # ROW [samples]
    scores: int  # ROW [scores]
    blocks: int  # [blocks, 4], of prefill attention
    tail: int  # page numbers; then CHANGE, which records count from here on

    @classmethod
    def of(
        cls, address: int, tokens: int, sequences: int, samples: int, scores: int = 0, blocks: int = 0
    ) -> "Places":
        def take(words: int) -> int:
            nonlocal address
            start, address = address, address + (words + -words % _ALIGNMENT) * _WORD
            return start

        return cls(
            tokens=take(tokens),
            positions=take(tokens),
            slots=take(tokens),
            rows=take(samples + scores),
            lengths=take(sequences),
            table_starts=take(sequences),
            records=take(samples * _ROW_WORDS),
            scores=take(scores * _ROW_WORDS),
            blocks=take(4 * blocks),
            tail=address,
        )


@dataclass(slots=True)
class Step:
    """One step, as the ops see it."""

    batch: Batch
    number: int  # steps are counted
    count: int  # tokens, which are as many as sequences where there are no blocks; idle ones of a bucket included
    samples: int  # rows that are sampled, idle ones included
    bucket: int | None  # graphs of that many sequences replay it; None: none does
    places: Places
    blocks: Blocks | None  # None: every sequence has one new token
    traits: int  # of the rows together, see records.py
    records: Rows | None = None  # the rows', where some have log-probabilities

    @property
    def is_plain(self) -> bool:
        """Whether no row is drawn or has log-probabilities: sampling takes one launch less."""
        return not self.traits & GENERAL


class Metadata:
    """The arrays of every step in turn: at `address` on the device, and page-locked on the host.

    There the last step's copy waits for the GPU while the next one is written, so there are UNDER_WAY of them.
    """

    def __init__(self, shape: AttentionShape, step: StepShape, address: int, owned: ExitStack) -> None:
        self._address = address
        self._vocab, self._num_logprobs = step.vocab_size, step.num_logprobs
        self._nbytes = nbytes = metadata_bytes(shape, step)
        self._decode = Places.of(address, step.num_seqs, step.num_seqs, step.num_seqs)
        self._buffer = HostBuffer(UNDER_WAY * nbytes)
        owned.callback(self._buffer.close)
        views = [self._buffer.view[turn * nbytes : (turn + 1) * nbytes] for turn in range(UNDER_WAY)]
        self._words = [np.frombuffer(view, np.int32) for view in views]
        self._copied = create_events(UNDER_WAY, owned)
        self.count = 0

    def upload(
        self, batch: Batch, kept: Records, blocks: Blocks | None, bucket: int | None, stream: driver.Stream
    ) -> Step:
        """Enqueues the copy of what a step needs to know; waits where the copy before the last is still to be made.

        kept: the records of the batch's rows. bucket: how many sequences the step is filled up to, for a graph.
        """
        self.count += 1
        turn = self.count % UNDER_WAY
        words, base = self._words[turn], self._address
        driver.synchronize_event(self._copied[turn])

        def put(place: int, values: Int32, idle: int = 0) -> None:
            start = (place - base) // _WORD
            end = start + len(values)
            words[start:end] = values
            if bucket is not None and len(values) < bucket:
                words[end : start + bucket] = idle

        def rows_at(place: int, count: int) -> Rows:
            start = (place - base) // _WORD
            return words[start : start + count * _ROW_WORDS].view(ROW)

        count, samples, scores = len(batch.tokens), len(batch.rows), len(batch.score_rows)
        places = self._decode
        if bucket is None:
            table = len(blocks.table) if blocks else 0
            places = Places.of(base, count, len(batch.lengths), samples, scores, table)
        tail = (places.tail - base) // _WORD
        changes = len(batch.pages) + len(batch.pages) % _CHANGE_WORDS  # from the tail on
        end = tail + changes
        self._require(end, batch)
        if batch.score_top > self._num_logprobs:
            raise ValueError(f"{batch.score_top} alternatives to a token: there is room for {self._num_logprobs}")
        put(places.tokens, batch.tokens)
        put(places.positions, batch.positions)
        put(places.slots, batch.slots, idle=-1)
        put(places.lengths, batch.lengths)
        put(places.table_starts, batch.page_starts[:-1])
        words[tail : tail + len(batch.pages)] = batch.pages
        records = rows_at(places.records, samples)
        traits = kept.traits(batch.numbers)
        listed = kept.write(records, batch, traits, changes // _CHANGE_WORDS)
        if listed is not None:
            start, end = end, end + _CHANGE_WORDS * len(listed)
            self._require(end, batch)
            words[start:end] = listed.view(np.int32)
        if bucket is None:
            wanted = (places.rows - base) // _WORD
            words[wanted : wanted + samples] = batch.sample_rows
            words[wanted + samples : wanted + samples + scores] = batch.score_rows
            if scores:
                rows_at(places.scores, scores)[:] = score_records(batch.score_targets, batch.score_top, self._vocab)
            if blocks:
                put(places.blocks, blocks.table.reshape(-1))
        elif samples < bucket:
            rows_at(places.records, bucket)["kind"][samples:] = IDLE
        driver.copy_to_device(base, self._buffer.address + turn * self._nbytes, end * _WORD, stream)
        driver.record_event(self._copied[turn], stream)
        return Step(
            batch=batch,
            number=self.count,
            count=bucket or count,
            samples=bucket or samples,
            bucket=bucket,
            places=places,
            blocks=blocks,
            traits=traits,
            records=records.copy() if traits & LOGPROBS else None,
        )

    def _require(self, words: int, batch: Batch) -> None:
        if words * _WORD > self._nbytes:
            raise ValueError(
                f"no room for a step of {len(batch.tokens)} tokens, {len(batch.rows)} of them sampled and "
                f"{len(batch.score_rows)} scored, over {len(batch.pages)} pages"
            )

    def idle(self, bucket: int, traits: int) -> Step:
        """A step of idle sequences alone, for its launches to be captured."""
        return Step(
            batch=_NO_BATCH,
            number=self.count,
            count=bucket,
            samples=bucket,
            bucket=bucket,
            places=self._decode,
            blocks=None,
            traits=traits,
        )


def metadata_bytes(shape: AttentionShape, step: StepShape) -> int:
    """What the largest step's metadata takes: every new token is sampled or scored, and every row has its changes."""
    group = shape.num_heads // shape.num_kv_heads
    blocks = attention_prefill.most_blocks(group, step.num_tokens, step.num_seqs)
    places = Places.of(0, step.num_tokens, step.num_seqs, step.num_tokens, scores=1, blocks=blocks)
    pages = step.num_seqs * -(-step.max_length // shape.page_size)
    nbytes = places.tail + (pages + 1) * _WORD + step.num_seqs * MOST_CHANGES * CHANGE.itemsize
    return nbytes + -nbytes % ALIGNMENT
