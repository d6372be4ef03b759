"""Which sequences run in the next step, and the pages that each may write.

Apart from the engine's loop because every policy is here: the order of service, chunked prefill, prefix reuse,
preemption. A step is a prefill chunk or a decode batch; where both are due they alternate, so a long prompt holds
up running streams for one chunk at a time. What is scheduled counts as computed at once, since a device works in the
order of the steps and a later one may rely on it; `advance` books what is known only when the step is done.

    waiting --admit--> running: prefill, then decode --> removed
       ^                              |
       +----------- preempt ----------+   out of pages: the last in order starts again, its tokens kept
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import merge
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..settings import PAGE_SIZE
from .pages import ROOT, PagePool, require
from .sequence import Sequence

# Of all schedulers together: a device outlives an engine, and what it keeps is known by number and admission.
_admissions = count(1)


class Chunk(NamedTuple):
    """`size` tokens of a sequence from `start` on, computed in one step."""

    sequence: Sequence
    start: int
    size: int
    samples: bool  # the next token is sampled from the logits of its last one
    scores: int  # how many of its first tokens have the log-probability of the token behind them asked for
    admission: int  # the sequence's when it was scheduled; another one now means that it was stopped since

    @property
    def is_stale(self) -> bool:
        """Whether the sequence ended, was aborted or preempted after the chunk was scheduled."""
        return self.admission != self.sequence.admission


class Scheduler:
    """Owns the queues and the page pool.

    Both queues are in order of (priority, arrival). A prompt gets all its pages when it is admitted, an answer one
    at a time. A sequence that can run alone can always be scheduled: `max_len` must fit into the pool.
    """

    def __init__(
        self,
        num_pages: int,
        max_len: int,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        enable_prefix_caching: bool = True,
    ) -> None:
        self.pool = PagePool(num_pages)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        # The pages of each running sequence, by its number; zero past its last page.
        self.tables: NDArray[np.int32] = np.zeros((max_num_seqs, _pages_for(max_len)), np.int32)
        self.preemptions = 0
        self.prefix_queried_tokens = 0
        self.prefix_hit_tokens = 0
        self._free_numbers = list(range(max_num_seqs))[::-1]
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._caching = enable_prefix_caching
        self._prefill_is_next = True

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Ends a sequence wherever it is; its pages are free at once."""
        if sequence.number < 0:
            self._leave_queue(sequence)
        else:
            self._stop(sequence)

    def schedule(self) -> list[Chunk]:
        """The next step. Empty only when there are no sequences, or the step under way brings their last tokens."""
        turns = (self._prefill, self._decode) if self._prefill_is_next else (self._decode, self._prefill)
        for turn in turns:
            chunks = turn()
            if chunks:
                self._prefill_is_next = turn == self._decode
                return chunks
        return []

    def advance(self, chunk: Chunk) -> None:
        """Books a chunk that is done and not stale; pages that are full now can be found by others."""
        sequence = chunk.sequence
        if not self._caching:
            return
        for index in range(sequence.published, (chunk.start + chunk.size) // PAGE_SIZE):
            parent = self.pool.content_number(sequence.pages[index - 1]) if index else ROOT
            page = self.pool.publish(sequence.pages[index], parent, sequence.block(index))
            sequence.pages[index] = page
            self.tables[sequence.number, index] = page
            sequence.published = index + 1

    def _prefill(self) -> list[Chunk]:
        """Prompts in order, running and waiting ones, packed up to the chunk's size."""
        chunks: list[Chunk] = []
        budget = self._max_num_batched_tokens
        admitting = True  # until one finds no room: those behind it must not overtake it
        prefilling = [sequence for sequence in self.running if sequence.uncomputed > 1]
        for sequence in merge(prefilling, self.waiting[: self._max_num_seqs], key=_order):
            if sequence.number < 0:
                if not admitting or self._waits_for_twin(sequence):
                    continue
                admitting = self._admit(sequence)
                if sequence.number < 0:
                    continue
            chunks.append(_chunk(sequence, min(sequence.uncomputed, budget)))
            budget -= chunks[-1].size
            if not budget:
                break
        return chunks

    def _decode(self) -> list[Chunk]:
        """One token for each sequence that is past its prompt. Who is first in order keeps its pages."""
        return [
            _chunk(sequence, 1)
            for sequence in self.running.copy()
            if sequence.uncomputed == 1
            and sequence.number >= 0
            and not sequence.is_complete
            and self._make_room(sequence)
        ]

    def _admit(self, sequence: Sequence) -> bool:
        """Starts a waiting sequence behind the longest known prefix. False: there is no room for it yet.

        One page for each running sequence must be left over, or the newcomer would soon be preempted for them.
        """
        if not self._free_numbers:
            return False
        found = self._find(sequence)
        lacking = _pages_for(len(sequence.tokens)) - len(found)
        if lacking + self.pool.idle(found) + len(self.running) > self.pool.available:
            return False
        self._leave_queue(sequence)
        insort(self.running, sequence, key=_order)
        sequence.number = self._free_numbers.pop()
        sequence.admission = next(_admissions)
        sequence.twin = None
        self.pool.hold(found)
        self._append_pages(sequence, found + self.pool.take(lacking))
        sequence.published = len(found)
        sequence.computed = len(found) * PAGE_SIZE
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            self.prefix_queried_tokens += sequence.prompt_length
            self.prefix_hit_tokens += sequence.computed
        return True

    def _find(self, sequence: Sequence) -> list[int]:
        """Pages with the longest known prefix of the sequence, short of its last token: that gives the logits.

        Prompt log-probabilities need the logits of every position, so nothing is reused for them.
        """
        if not self._caching or sequence.scores is not None:
            return []
        return self.pool.find(sequence.block(index) for index in range((len(sequence.tokens) - 1) // PAGE_SIZE))

    def _waits_for_twin(self, sequence: Sequence) -> bool:
        """Whether a running sequence before this one is just computing pages that this one could reuse."""
        if sequence.twin:
            twin, tokens = sequence.twin
            if twin.number >= 0 and twin.published * PAGE_SIZE < tokens:
                return True
            sequence.twin = None
        if not self._caching or sequence.scores is not None:
            return False
        for other in self.running:
            if other.order > sequence.order:
                break
            if other.uncomputed == 1 and other.published == other.computed // PAGE_SIZE:
                continue
            common = _common_pages(sequence, other)
            if other.published < common:
                sequence.twin = other, common * PAGE_SIZE
                return True
        return False

    def _make_room(self, sequence: Sequence) -> bool:
        """Gets a page for the sequence's next token. False: it has to wait for one, or was itself preempted."""
        if sequence.computed < len(sequence.pages) * PAGE_SIZE:
            return True
        if not self.pool.available and any(other.is_complete for other in self.running):
            return False  # the step under way ends that one: its pages are free before the next
        while not self.pool.available:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        self._append_pages(sequence, self.pool.take(1))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue, to be computed again from its tokens (or from what is still known of them)."""
        self._stop(sequence)
        sequence.computed = sequence.published = sequence.coming = 0
        if sequence.scores is not None:
            sequence.scores = [None]
        self.preemptions += 1
        self.add(sequence)

    def _leave_queue(self, sequence: Sequence) -> None:
        del self.waiting[bisect_left(self.waiting, sequence.order, key=_order)]

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.pages)
        self.tables[sequence.number, : len(sequence.pages)] = 0
        self._free_numbers.append(sequence.number)
        sequence.number, sequence.admission = -1, 0
        sequence.pages = []

    def _append_pages(self, sequence: Sequence, pages: list[int]) -> None:
        held = len(sequence.pages)
        sequence.pages += pages
        self.tables[sequence.number, held : held + len(pages)] = pages

    def check_integrity(self, under_way: Iterable[Chunk] = ()) -> None:
        """Compares every book with every other, and with the step under way. Raises IntegrityError."""
        started = {id(chunk.sequence): chunk for chunk in under_way if not chunk.is_stale}
        self.pool.check_integrity(sequence.pages for sequence in self.running)
        for queue in (self.waiting, self.running):
            require(queue == sorted(queue, key=_order), "a queue is out of order")
        for sequence in self.waiting:
            has = (sequence.number + 1, sequence.admission, sequence.computed, sequence.published, sequence.coming)
            require(not any(has) and not sequence.pages, f"sequence {sequence.id} waits and holds something")
        numbers = [sequence.number for sequence in self.running]
        require(
            sorted(numbers + self._free_numbers) == list(range(len(self.tables))), "a number is lost or used twice"
        )
        expected = np.zeros_like(self.tables)
        for sequence in self.running:
            expected[sequence.number, : len(sequence.pages)] = sequence.pages
            held = len(sequence.pages) * PAGE_SIZE
            total = len(sequence.tokens) + sequence.coming
            require(sequence.computed < total <= held + 1, f"sequence {sequence.id} has too few pages")
            chunk = started.get(id(sequence))
            require(sequence.coming == bool(chunk and chunk.samples), f"sequence {sequence.id} waits for a token")
            done = chunk.start if chunk else sequence.computed
            full = done // PAGE_SIZE if self._caching else 0
            require(sequence.published == full, f"sequence {sequence.id} has unpublished pages, or too many")
            blocks = (sequence.block(index) for index in range(full))
            require(self.pool.find(blocks) == sequence.pages[:full], f"sequence {sequence.id} is not what is known")
        require(bool((expected == self.tables).all()), "the page tables are not the sequences' pages")


def _chunk(sequence: Sequence, size: int) -> Chunk:
    """The sequence's next `size` tokens, which count as computed from here on."""
    start = sequence.computed
    samples = size == sequence.uncomputed
    scores = 0 if sequence.scores is None else max(0, min(size, sequence.prompt_length - 1 - start))
    sequence.computed += size
    sequence.coming += samples
    return Chunk(sequence, start, size, samples, scores, sequence.admission)


def _common_pages(sequence: Sequence, other: Sequence) -> int:
    """Full pages at the start of both, short of the first one's last token."""
    shorter = min(len(sequence.tokens) - 1, len(other.tokens))
    for index in range(shorter // PAGE_SIZE):
        if sequence.block(index) != other.block(index):
            return index
    return shorter // PAGE_SIZE


def _pages_for(tokens: int) -> int:
    return -(-tokens // PAGE_SIZE)


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order
