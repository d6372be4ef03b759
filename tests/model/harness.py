"""Drives a `Model` without an engine: pages handed out by hand, one step at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from pilotlight.device.base import Batch, SampleRow
from pilotlight.messages import Sampling
from pilotlight.model.model import Model, load_model
from pilotlight.settings import PAGE_SIZE, from_kwargs
from pilotlight.timeline import Timeline

GREEDY = Sampling(max_tokens=1, temperature=0)
_NONE = np.zeros(0, np.int32)


def load(directory: Path, **settings: Any) -> Model:
    return load_model(directory, from_kwargs(model=str(directory), **settings), Timeline("engine"))


@dataclass
class Context:
    """What a sequence has in the pages so far."""

    pages: list[int]
    length: int = 0


class Runner:
    """Gives each sequence pages in an order that no address arithmetic could guess."""

    def __init__(self, model: Model, seed: int = 0) -> None:
        self.model = model
        self._steps = count(1)
        self._free = np.random.default_rng(seed).permutation(np.arange(1, model.num_pages)).tolist()

    def sequence(self) -> Context:
        return Context([])

    def logits(self, steps: Sequence[tuple[Context, Sequence[int]]]) -> np.ndarray:
        """Runs one step of several sequences, each with its new tokens; the last logits of each: [S, vocabulary]."""
        model = self.model
        step = model.device.begin(self.batch(steps))
        hidden = model.device.run(step, "forward", lambda: model.forward(step))
        return np.array(model.logits(hidden))

    def batch(self, steps: Sequence[tuple[Context, Sequence[int]]]) -> Batch:
        """The step's batch; the sequences count its tokens as theirs from here on."""
        positions, slots, starts = [], [], [0]
        for sequence, tokens in steps:
            while len(sequence.pages) * PAGE_SIZE < sequence.length + len(tokens):
                sequence.pages.append(self._free.pop())
            new = range(sequence.length, sequence.length + len(tokens))
            positions += new
            slots += [sequence.pages[at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE for at in new]
            starts.append(starts[-1] + len(tokens))
            sequence.length += len(tokens)
        held = [sequence.pages[: -(-sequence.length // PAGE_SIZE)] for sequence, _ in steps]
        numbers = np.arange(len(steps), dtype=np.int32)
        return Batch(
            tokens=np.array([token for _, tokens in steps for token in tokens], np.int32),
            positions=np.array(positions, np.int32),
            slots=np.array(slots, np.int32),
            starts=np.array(starts, np.int32),
            lengths=np.array([sequence.length for sequence, _ in steps], np.int32),
            pages=np.array(list(chain.from_iterable(held)), np.int32),
            page_starts=np.cumsum([0, *map(len, held)], dtype=np.int32),
            sample_rows=np.array(starts[1:], np.int32) - 1,
            rows=[SampleRow(GREEDY, 0, (), ()) for _ in steps],
            numbers=numbers,
            admissions=numbers + len(numbers) * next(self._steps),  # each step's rows are their own
            sample_positions=np.zeros(len(steps), np.int32),
            score_rows=_NONE,
            score_targets=_NONE,
        )


def sample_at(batch: Batch, rows: Sequence[int]) -> Batch:
    """Has the batch of one sequence sampled at these of its tokens instead of the last one."""
    count = len(rows)
    batch.sample_rows = np.array(rows, np.int32)
    batch.rows = batch.rows[:1] * count
    batch.numbers, batch.admissions = batch.numbers[:1].repeat(count), batch.admissions[:1].repeat(count)
    batch.sample_positions = np.zeros(count, np.int32)
    return batch
