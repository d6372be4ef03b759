"""Turns the chunks of one step into the flat arrays that a device reads.

Apart from the scheduler because it runs in every step and has to be quick: a handful of numpy calls, whatever the
batch.
"""

from array import array
from collections.abc import Sequence as Items

import numpy as np
from numpy.typing import NDArray

from ..device.base import Batch
from ..settings import PAGE_SIZE
from .scheduler import Chunk

Int32 = NDArray[np.int32]


def build_batch(chunks: Items[Chunk], tables: Int32) -> Batch:
    """One step as `Batch` describes it. `tables` [max_num_seqs, pages]: each running sequence's, by its number."""
    rows = [
        (chunk.sequence.number, chunk.start, chunk.size, chunk.samples, chunk.sequence.prompt_length)
        for chunk in chunks
    ]
    numbers, first, sizes, samples, prompts = np.array(rows, np.int32).T
    starts = _offsets(sizes)
    lengths = first + sizes
    positions = _ranges(first, sizes, starts)
    token_pages = tables[np.repeat(numbers, sizes), positions // PAGE_SIZE]
    counts = -(-lengths // PAGE_SIZE)
    page_starts = _offsets(counts)
    pages = tables.reshape(-1)[_ranges(numbers * tables.shape[1], counts, page_starts)]
    sampled = np.flatnonzero(samples)
    score_rows, score_targets, score_top = _scores(chunks, starts)
    return Batch(
        tokens=_tokens(chunks),
        positions=positions,
        slots=token_pages * PAGE_SIZE + positions % PAGE_SIZE,
        starts=starts,
        lengths=lengths,
        pages=pages,
        page_starts=page_starts,
        sample_rows=starts[1:][sampled] - 1,
        rows=[chunk.sequence.row for chunk in chunks if chunk.samples],
        numbers=numbers[sampled],
        admissions=np.array([chunk.admission for chunk in chunks if chunk.samples], np.int64),
        sample_positions=(lengths - prompts)[sampled],
        score_rows=score_rows,
        score_targets=score_targets,
        score_top=score_top,
    )


def _tokens(chunks: Items[Chunk]) -> Int32:
    """The chunks' tokens. ~number stands for one that the step under way is still choosing."""
    tokens = array("i")
    for sequence, start, size, *_ in chunks:
        if start < len(sequence.tokens):
            tokens += sequence.tokens[start : start + size]
        else:
            tokens.append(~sequence.number)
    return _int32(tokens)


def _scores(chunks: Items[Chunk], starts: Int32) -> tuple[Int32, Int32, int]:
    """Rows, targets, and the most alternatives that any of them asks for."""
    rows, targets = array("i"), array("i")
    top = 0
    for start, chunk in zip(starts.tolist(), chunks, strict=False):
        if chunk.scores:
            after = chunk.start + 1
            rows.extend(range(start, start + chunk.scores))
            targets += chunk.sequence.tokens[after : after + chunk.scores]
            top = max(top, chunk.sequence.row.sampling.prompt_logprobs or 0)
    return _int32(rows), _int32(targets), top


def _offsets(sizes: Int32) -> Int32:
    """0, and the sums of the first 1, 2, ... of `sizes`."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _ranges(first: Int32, sizes: Int32, offsets: Int32) -> Int32:
    """first[i], first[i] + 1, ... as many as sizes[i], for each i; `offsets` are those of `sizes`."""
    ranges = np.repeat(first - offsets[:-1], sizes)
    ranges += np.arange(offsets[-1], dtype=np.int32)
    return ranges


def _int32(values: "array[int]") -> Int32:
    return np.frombuffer(values, np.int32) if values else np.zeros(0, np.int32)
