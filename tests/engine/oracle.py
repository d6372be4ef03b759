"""A model for the engine's tests whose every token depends on everything that the engine must get right.

Its K/V cache stores each token and position where `slots` says and reads the history back through `pages` and
`lengths`; the next token is a hash of that history, of the sampling row and of its key. A wrong slot, page,
position, length, prompt, output or key gives another token, or fails at once. With lookahead it also keeps what it
chose last for each number, and shows nothing before it is asked. It refuses work that nobody can want: a token that
was chosen before, or that comes after an end that the engine could know.
"""

import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from pilotlight.device.base import Batch, Sampled, SampleRow
from pilotlight.device.random import stream_key
from pilotlight.engine.engine import Engine
from pilotlight.messages import Output, Sampling, Submit, TokenLogprob
from pilotlight.settings import PAGE_SIZE

VOCAB = 50


class Oracle:
    """`nan` names prompts (as tuples) whose logits hold a NaN."""

    def __init__(
        self,
        num_pages: int = 16,
        max_model_len: int = 200,
        nan: Collection[tuple[int, ...]] = (),
        *,
        lookahead: bool = False,
    ) -> None:
        self.num_pages = num_pages
        self.max_model_len = max_model_len
        self.nan = nan
        self.lookahead = lookahead
        self.batches: list[Batch] = []
        self._tokens = np.full(num_pages * PAGE_SIZE, -1)
        self._positions = np.full(num_pages * PAGE_SIZE, -1)
        self._chosen: dict[int, tuple[int, int]] = {}  # by number: the admission, and the token
        self.under_way: list[Running] = []
        self._started: set[tuple[int, int]] = set()  # admission and position of each token
        self._wasted: dict[int, int] = {}  # by admission: tokens begun behind its end

    @property
    def computed(self) -> int:
        """Tokens that went through the model so far."""
        return sum(len(batch.tokens) for batch in self.batches)

    def start(self, batch: Batch) -> "Running":
        """Computed at once, since what is scheduled later may overwrite it; shown later."""
        self.batches.append(batch)
        running = Running(self.under_way, self._run(batch))
        self.under_way.append(running)
        assert len(self.under_way) <= 1 + self.lookahead
        return running

    def prepare(self) -> bool:
        return False

    def _run(self, batch: Batch) -> Sampled:
        self._check_shapes(batch)
        self._tokens[batch.slots] = self._known(batch)
        self._positions[batch.slots] = batch.positions
        histories = [self._history(batch, index) for index in range(len(batch.lengths))]
        owner = np.repeat(np.arange(len(batch.lengths)), np.diff(batch.starts))
        tokens: list[int] = []
        logprobs: list[TokenLogprob | None] = []
        sampled = (batch.sample_rows, batch.rows, batch.numbers, batch.admissions, batch.sample_positions)
        for token_row, row, number, admission, position in zip(*sampled, strict=True):
            history = histories[owner[token_row]]
            assert batch.positions[token_row] == len(history) - 1
            output = history[len(row.prompt) :]
            assert position == len(output)
            assert history == [*row.prompt, *row.output] or (
                self.lookahead and history[:-1] == [*row.prompt, *row.output]
            )
            token = next_token(row.prompt, output, row.key)
            tokens.append(-1 if tuple(row.prompt) in self.nan else token)
            self._chosen[int(number)] = int(admission), tokens[-1]
            self._check_use(int(admission), int(position), tokens[-1], row)
            top = row.sampling.logprobs
            logprobs.append(None if top is None else logprob_of(history, token, top))
        scores = []
        for token_row, target in zip(batch.score_rows, batch.score_targets, strict=True):
            history = histories[owner[token_row]][: batch.positions[token_row] + 1]
            scores.append(logprob_of(history, int(target), batch.score_top))
        return Sampled(tokens, logprobs, scores)

    def _known(self, batch: Batch) -> np.ndarray:
        """The step's tokens, with what was chosen in place of the numbers that stand for it."""
        tokens = batch.tokens.copy()
        owners = np.repeat(np.arange(len(batch.lengths)), np.diff(batch.starts))
        sampled = dict(zip(batch.sample_rows.tolist(), batch.admissions.tolist(), strict=True))
        for index in np.flatnonzero(tokens < 0):
            assert self.lookahead
            admission, tokens[index] = self._chosen[~int(tokens[index])]
            assert batch.starts[owners[index]] + 1 == batch.starts[owners[index] + 1], "more than the last is unknown"
            assert sampled[int(index)] == admission, "another sequence's token"
        return tokens

    def _check_use(self, admission: int, position: int, token: int, row: SampleRow) -> None:
        """That the token is one that may be sent, as far as the engine could know."""
        sampling = row.sampling
        assert (admission, position) not in self._started, "begun twice"
        self._started.add((admission, position))
        max_len = min(self.max_model_len, self.num_pages * PAGE_SIZE)
        assert position < min(sampling.max_tokens, max_len - len(row.prompt)), "begun behind the limit"
        if admission in self._wasted:
            self._wasted[admission] += 1
            assert self._wasted[admission] <= self.lookahead, "begun behind an end that was known"
        elif token < 0 or token in stops_of(sampling):
            self._wasted[admission] = 0

    def _check_shapes(self, batch: Batch) -> None:
        arrays = (batch.tokens, batch.positions, batch.slots, batch.starts, batch.lengths, batch.pages)
        arrays += (batch.sample_rows, batch.score_rows, batch.score_targets)
        arrays += (batch.page_starts, batch.numbers, batch.sample_positions)
        assert {array.dtype for array in arrays} == {np.dtype(np.int32)}
        assert len(set(batch.numbers.tolist())) == len(batch.numbers) == len(batch.sample_rows)
        assert batch.tokens.shape == batch.positions.shape == batch.slots.shape == (batch.starts[-1],)
        assert len(set(batch.slots.tolist())) == len(batch.slots), "two tokens were written to one place"
        assert (np.diff(batch.page_starts) == -(-batch.lengths // PAGE_SIZE)).all()
        assert batch.page_starts[0] == 0
        assert batch.page_starts[-1] == len(batch.pages)

    def _history(self, batch: Batch, index: int) -> list[int]:
        positions = np.arange(batch.lengths[index])
        slots = batch.pages[batch.page_starts[index] + positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
        assert (self._positions[slots] == positions).all()
        new = slice(batch.starts[index], batch.starts[index + 1])
        assert (batch.positions[new] == positions[len(positions) - len(batch.positions[new]) :]).all()
        return [int(token) for token in self._tokens[slots]]


MakeOracle = Callable[..., Oracle]


class Running:
    """A step whose result is there, and not shown before the ones before it."""

    def __init__(self, under_way: "list[Running]", sampled: Sampled) -> None:
        self._under_way = under_way
        self._sampled = sampled
        self._is_complete = False

    def complete(self) -> None:
        assert self._under_way[0] is self, "the last step's tokens are not known yet"
        assert not self._is_complete
        self._is_complete = True

    def result(self) -> Sampled:
        assert self._is_complete
        assert self._under_way.pop(0) is self
        return self._sampled


def next_token(prompt: Sequence[int], output: Sequence[int], key: int) -> int:
    return zlib.crc32(repr((list(prompt), list(output), key)).encode()) % VOCAB


def stops_of(sampling: Sampling) -> set[int]:
    return {*sampling.stop_token_ids, *(() if sampling.ignore_eos else sampling.eos_token_ids)}


def logprob_of(history: Sequence[int], token: int, top: int) -> TokenLogprob:
    value = -(zlib.crc32(repr((list(history), token)).encode()) % 1000) / 100
    return TokenLogprob(token, value, tuple((other, value - other) for other in range(top)))


def expected(submit: Submit, max_len: int) -> dict[str, Any]:
    """What a sequence must get, whatever runs beside it: computed from the definition, without an engine."""
    sampling = submit.sampling
    key = stream_key(sampling.seed, submit.prompt_index, submit.choice_index)
    stops = stops_of(sampling)
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []
    finish = None
    while finish is None:
        token = next_token(submit.prompt, tokens, key)
        if sampling.logprobs is not None:
            logprobs.append(logprob_of([*submit.prompt, *tokens], token, sampling.logprobs))
        tokens.append(token)
        if token in stops:
            finish = "stop"
        elif len(tokens) == sampling.max_tokens or len(submit.prompt) + len(tokens) == max_len:
            finish = "length"
    prompt_logprobs = None
    if (top := sampling.prompt_logprobs) is not None:
        prompt = submit.prompt
        scores = [logprob_of(prompt[:end], prompt[end], top) for end in range(1, len(prompt))]
        prompt_logprobs = [None, *scores]
    return {
        "tokens": tokens,
        "finish": finish,
        "stop_token": tokens[-1] if finish == "stop" else None,
        "logprobs": logprobs or None,
        "prompt_logprobs": prompt_logprobs,
    }


def submit(id_: int, prompt: Sequence[int], *, priority: int = 0, choice: int = 0, **sampling: Any) -> Submit:
    sampling.setdefault("max_tokens", 8)
    return Submit(id_, list(prompt), Sampling(**sampling), choice_index=choice, priority=priority)


class Collector:
    """Joins the outputs of each sequence, as a client does."""

    def __init__(self) -> None:
        self.outputs: dict[int, list[Output]] = {}

    def add(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            parts = self.outputs.setdefault(output.id, [])
            assert not parts or parts[-1].finish is None, "an output came after the last one"
            parts.append(output)

    def result(self, id_: int) -> dict[str, Any]:
        parts = self.outputs[id_]
        logprobs = [logprob for part in parts for logprob in part.logprobs or ()]
        assert all(part.prompt_logprobs is None for part in parts[1:])
        return {
            "tokens": self.tokens(id_),
            "finish": parts[-1].finish,
            "stop_token": parts[-1].stop_token,
            "logprobs": logprobs or None,
            "prompt_logprobs": parts[0].prompt_logprobs,
        }

    def tokens(self, id_: int) -> list[int]:
        return [token for part in self.outputs.get(id_, ()) for token in part.tokens]

    def cached(self, id_: int) -> int:
        return self.outputs[id_][0].cached_tokens


def engine_of(model: Any, *, seqs: int = 4, batched: int = 64, caching: bool = True) -> Engine:
    return Engine(model, max_num_seqs=seqs, max_num_batched_tokens=batched, enable_prefix_caching=caching)


def drain(engine: Engine, collector: Collector | None = None, limit: int = 5000) -> Collector:
    """Steps until nothing is left, checking the books after each step. Nothing is left under way."""
    collector = collector or Collector()
    for _ in range(limit):
        if not engine.has_work:
            break
        collector.add(engine.step())
        engine.check_integrity()
    assert not engine.has_work
    assert engine.scheduler.pool.used == 0
    assert not getattr(engine.model, "under_way", ())
    return collector


def run_all(engine: Engine, submits: Sequence[Submit]) -> Collector:
    for item in submits:
        engine.submit(item)
    return drain(engine)
