"""The engine: sequences go in, one step after another, tokens come out. It knows ids and numbers, no text.

Single-threaded and without I/O: the worker (process 2) and `LLM` (in process) both drive it.
"""

import time
from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from ..device.base import Batch, Sampled
from ..messages import Output, Stats, Submit
from ..settings import PAGE_SIZE, Settings
from .batch import build_batch
from .pages import IntegrityError
from .scheduler import Chunk, Scheduler
from .sequence import Sequence


class Running(Protocol):
    """A step under way."""

    def complete(self) -> None:
        """Starts what needs the tokens of the step before. To be called once, when they are known."""

    def result(self) -> Sampled:
        """Waits for the next token of each row that is sampled."""


class Runner(Protocol):
    """What the engine needs of a model."""

    max_model_len: int
    num_pages: int
    lookahead: bool  # a step may be started before the last one's tokens are known

    def start(self, batch: Batch) -> Running:
        """Begins a forward pass."""

    def prepare(self) -> bool:
        """Does a little of what later steps would have to wait for. Returns whether there may be more."""


class Engine:
    """Owns every sequence from `submit` to its last Output, or to `abort`.

    With a model that looks ahead, a step is started before the one before it is done, so that the device never waits
    for the engine: tokens come out one step late, and a sequence that has ended meanwhile was computed for nothing.
    """

    def __init__(
        self, model: Runner, *, max_num_seqs: int, max_num_batched_tokens: int, enable_prefix_caching: bool = True
    ) -> None:
        self.model = model
        self.max_len = context_limit(model)
        self.scheduler = Scheduler(
            model.num_pages,
            self.max_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            enable_prefix_caching=enable_prefix_caching,
        )
        self._sequences: dict[int, Sequence] = {}
        self._refused: list[Output] = []  # reported by the next step
        self._under_way: tuple[list[Chunk], Running] | None = None
        self._arrivals = 0
        self._steps = 0
        self._step_seconds = 0.0
        self._prompt_tokens = 0
        self._generated_tokens = 0

    @classmethod
    def of(cls, model: Runner, settings: Settings) -> "Engine":
        """The engine that the settings ask for."""
        return cls(
            model,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            enable_prefix_caching=settings.enable_prefix_caching,
        )

    @property
    def has_work(self) -> bool:
        return bool(self._sequences or self._refused or self._under_way)

    @property
    def stats(self) -> Stats:
        scheduler = self.scheduler
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            pages_total=scheduler.pool.num_pages,
            pages_used=scheduler.pool.used,
            pages_cached=scheduler.pool.cached,
            preemptions=scheduler.preemptions,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            prefix_queried_tokens=scheduler.prefix_queried_tokens,
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
            steps=self._steps,
            step_seconds=self._step_seconds,
        )

    def submit(self, submit: Submit) -> None:
        """Queues a sequence. One that can never run is answered with an error by the next step."""
        if len(submit.prompt) >= self.max_len:
            message = (
                f"the prompt has {len(submit.prompt)} tokens, which leaves no room for an answer: the context "
                f"is {self.max_len} tokens, prompt and answer together"
            )
            self._refused.append(Output(submit.id, finish="error", error=message))
            return
        sequence = Sequence(submit, self._arrivals, self.max_len)
        self._arrivals += 1
        self._sequences[sequence.id] = sequence
        self.scheduler.add(sequence)

    def abort(self, ids: Iterable[int]) -> None:
        """Drops sequences at once; nothing more is reported of them. Unknown ids are no error."""
        for id_ in ids:
            sequence = self._sequences.pop(id_, None)
            if sequence is not None:
                self.scheduler.remove(sequence)
            self._refused = [output for output in self._refused if output.id != id_]

    def step(self) -> list[Output]:
        """Starts the next decode batch or prefill chunk, and returns what became known meanwhile.

        With lookahead that is the outcome of the step before, else of this one.
        """
        outputs, self._refused = self._refused, []
        if not self.has_work:
            return outputs
        began = time.monotonic()
        before, self._under_way = self._under_way, None
        chunks = self.scheduler.schedule() if self._sequences else []
        if not chunks and not before:
            raise IntegrityError("there are sequences, and none can run")
        running = self.model.start(build_batch(chunks, self.scheduler.tables)) if chunks else None
        if before:
            outputs += self._commit(*before)
        if running:
            running.complete()
            self._steps += 1
            if self.model.lookahead:
                self._under_way = chunks, running
            else:
                outputs += self._commit(chunks, running)
        self._step_seconds += time.monotonic() - began
        return outputs

    def prepare(self) -> bool:
        """Work for idle moments: see `Runner.prepare`."""
        return self.model.prepare()

    def _commit(self, chunks: list[Chunk], running: Running) -> list[Output]:
        """Books a finished step and returns its outputs. The results of stale chunks are dropped."""
        sampled = running.result()
        outputs = []
        scores = iter(sampled.scores)
        samples = zip(sampled.tokens, sampled.logprobs, strict=True)
        for chunk in chunks:
            sequence = chunk.sequence
            scored = list(islice(scores, chunk.scores)) if chunk.scores else None
            sample = next(samples) if chunk.samples else None
            if chunk.is_stale:
                continue
            if scored:
                sequence.add_scores(scored)
            self.scheduler.advance(chunk)
            if sample is None:
                continue
            output = sequence.accept(*sample)
            outputs.append(output)
            if output.tokens:
                self._generated_tokens += 1
                self._prompt_tokens += sequence.prompt_length if len(sequence.output) == 1 else 0
            if output.finish:
                self.scheduler.remove(sequence)
                del self._sequences[sequence.id]
            if output.finish == "error":
                self.scheduler.pool.forget()  # the sequence's K/V may hold NaN too
        return outputs

    def check_integrity(self) -> None:
        """Compares the engine's books with each other. Raises IntegrityError. For tests and idle moments."""
        self.scheduler.check_integrity(self._under_way[0] if self._under_way else ())
        known = {id(sequence) for sequence in self._sequences.values()}
        queued = {id(sequence) for sequence in self.scheduler.waiting + self.scheduler.running}
        if known != queued:
            raise IntegrityError("a sequence is known to the engine and not to the scheduler, or the reverse")
        if not known and self.scheduler.pool.used:
            raise IntegrityError(f"{self.scheduler.pool.used} pages are held while there are no sequences")


def context_limit(model: Runner) -> int:
    """Tokens of prompt and answer together: the model's limit, or what the pool holds if that is less."""
    return min(model.max_model_len, model.num_pages * PAGE_SIZE)
