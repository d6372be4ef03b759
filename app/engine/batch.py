"""Turns the chunks of one step into the flat arrays that a device reads.

Apart from the scheduler because it runs in every step: it is a handful of numpy calls, whatever the batch.
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
    """`tables` [slots, pages]: the pages of each running sequence, by its slot."""
    sizes = np.array([size for _, size in chunks], np.int32)
    computed = np.array([sequence.computed for sequence, _ in chunks], np.int32)
    slots = np.array([sequence.slot for sequence, _ in chunks], np.int32)
    starts = np.zeros(len(chunks) + 1, np.int32)
    np.cumsum(sizes, out=starts[1:])
    lengths = computed + sizes

    tokens = array("i")
    for sequence, size in chunks:
        tokens += sequence.tokens[sequence.computed : sequence.computed + size]
    positions = np.arange(starts[-1], dtype=np.int32) + np.repeat(computed - starts[:-1], sizes)
    token_pages = tables[np.repeat(slots, sizes), positions // PAGE_SIZE]
    page_counts = -(-lengths // PAGE_SIZE)
    pages = tables[slots, : page_counts.max()]
    pages[np.arange(pages.shape[1]) >= page_counts[:, None]] = 0  # a prompt has its pages before they are reached

    samples = [row for row, (sequence, size) in enumerate(chunks) if size == sequence.uncomputed]
    scored = [(int(start), chunk) for start, chunk in zip(starts, chunks, strict=False) if chunk.sequence.scores]
    score_rows, score_targets = array("i"), array("i")
    for start, (sequence, size) in scored:
        first = sequence.computed + 1
        targets = sequence.tokens[first : min(first + size, sequence.prompt_length)]
        score_rows.extend(range(start, start + len(targets)))
        score_targets += targets
    return Batch(
        tokens=_int32(tokens),
        positions=positions,
        slots=token_pages * PAGE_SIZE + positions % PAGE_SIZE,
        starts=starts,
        lengths=lengths,
        pages=pages,
        sample_rows=starts[1:][samples] - 1,
        rows=[chunks[row].sequence.row for row in samples],
        score_rows=_int32(score_rows),
        score_targets=_int32(score_targets),
        score_top=max((chunk.sequence.row.sampling.prompt_logprobs or 0 for _, chunk in scored), default=0),
    )


def _int32(values: "array[int]") -> Int32:
    return np.frombuffer(values, np.int32) if values else np.zeros(0, np.int32)
