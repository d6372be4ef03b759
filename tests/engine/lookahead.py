"""A model as an engine sees one behind a device that looks ahead, computed by one that does not.

It replaces what stands for unknown tokens by what it chose, as such a device does, and shows no token before it is
asked: so the tests of the real models hold for both ways of stepping.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pilotlight.device.base import Batch, Sampled, SampleRow


class LookaheadModel:
    """`model`, which has no lookahead, in whatever else it has."""

    lookahead = True

    def __init__(self, model: Any) -> None:
        self._model = model
        self._chosen: dict[int, tuple[int, int]] = {}  # by number: the admission, and the token
        self.started = 0  # steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def start(self, batch: Batch) -> "Running":
        tokens = [token if token >= 0 else max(self._chosen[~token][1], 0) for token in batch.tokens.tolist()]
        sampled = zip(batch.rows, batch.numbers.tolist(), batch.admissions.tolist(), strict=True)
        positions = batch.sample_positions.tolist()
        rows = [self._row(*row, position) for row, position in zip(sampled, positions, strict=True)]
        self.started += 1
        return Running(self, self._model.start(replace(batch, tokens=np.array(tokens, np.int32), rows=rows)), batch)

    def _row(self, row: SampleRow, number: int, admission: int, position: int) -> SampleRow:
        """The row with its whole output, of which the engine may not know the last token."""
        if position == len(row.output):
            return replace(row, output=list(row.output))
        kept_for, token = self._chosen[number]
        assert kept_for == admission, "another sequence's token"
        assert position == len(row.output) + 1
        return replace(row, output=[*row.output, token])

    def chose(self, batch: Batch, tokens: Sequence[int]) -> None:
        kept = zip(batch.admissions.tolist(), tokens, strict=True)
        self._chosen.update(zip(batch.numbers.tolist(), kept, strict=True))


class Running:
    """A step under way. Nobody need ask for its tokens, but whoever does may not begin two steps before."""

    def __init__(self, model: LookaheadModel, running: Any, batch: Batch) -> None:
        self._model = model
        self._running = running
        self._batch = batch
        self._number = model.started
        self._sampled: Sampled | None = None

    def complete(self) -> None:
        assert self._sampled is None
        self._running.complete()
        self._sampled = self._running.result()
        self._model.chose(self._batch, self._sampled.tokens)

    def result(self) -> Sampled:
        assert self._sampled is not None
        assert self._model.started - self._number <= 1
        return self._sampled
