"""One request while it runs: its sequences in the engine, their text as it comes, and its usage.

Chat and completions, streaming and not, all read the same updates from here, so that an answer does not depend on
how it was asked for.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..messages import FinishReason, Sampling, Submit, TokenLogprob
from ..params import SamplingParams
from ..text.stream import TextStream
from .engine_client import Channel
from .errors import ApiError
from .metrics import Metrics
from .supervisor import Supervisor

if TYPE_CHECKING:
    from ..text.assets import Text


@dataclass(slots=True)
class Choice:
    """One of the answers: `index` is the API's, over all prompts of the request."""

    index: int
    prompt_index: int
    id: int  # the engine's
    text: TextStream
    tokens: int = 0
    finish: FinishReason | None = None
    stop_reason: str | int | None = None
    first_at: float = 0.0  # when its first token came


class Update(NamedTuple):
    """What one engine step adds to a choice."""

    choice: Choice
    text: str
    tokens: Sequence[int]  # those that count
    offsets: Sequence[int]  # where each token's text begins in the answer, in characters
    logprobs: Sequence[TokenLogprob] | None
    prompt_logprobs: Sequence[TokenLogprob | None] | None  # with the first token
    is_last: bool  # the choice's `finish` says why


class Generation:
    """Everything has been checked when it is made; `start` gives it to the engine, `close` ends it in any state."""

    def __init__(
        self,
        supervisor: Supervisor,
        metrics: Metrics,
        text: "Text",
        prompts: Sequence[list[int]],
        samplings: Sequence[Sampling],
        params: SamplingParams,
        *,
        priority: int,
        first_id: int,
        arrived: float,
    ) -> None:
        """`samplings` has one for each prompt; `first_id` and the ids after it are this request's alone.

        `arrived` is time.monotonic() when the request did.
        """
        self.text = text
        self.prompts = prompts
        self.channel = Channel()
        self._supervisor = supervisor
        self._metrics = metrics
        self._params = params
        self._arrived = arrived
        self._answered = False  # a token has come
        self._cached_tokens = 0
        self._submits: list[Submit] = []
        self.choices: list[Choice] = []
        for prompt_index, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
            for choice_index in range(params.n):
                index = len(self.choices)
                stream = TextStream(
                    text.tokenizer,
                    prompt,
                    stop=params.stop_strings,
                    include_stop=params.include_stop_str_in_output,
                    skip_special_tokens=params.skip_special_tokens,
                    min_tokens=params.min_tokens,
                    eos_token_ids=sampling.eos_token_ids,
                )
                self.choices.append(Choice(index, prompt_index, first_id + index, stream))
                self._submits.append(Submit(first_id + index, prompt, sampling, prompt_index, choice_index, priority))
        self._running = {choice.id: choice for choice in self.choices}

    @property
    def wants_logprobs(self) -> bool:
        return self._params.logprobs is not None

    @property
    def done(self) -> bool:
        return not self._running

    def start(self) -> None:
        """Raises ApiError (503) if the engine is gone."""
        self._supervisor.submit(self._submits, self.channel)

    async def updates(self) -> list[Update]:
        """What has come since the last call, waiting for something; empty after a wake without news.

        Raises what the channel was failed with, and ApiError (500) for a choice that the engine gave up.
        """
        updates = []
        for output in await self.channel.take():
            choice = self._running.get(output.id)
            if choice is None:  # behind its stop string
                continue
            if output.finish == "error" or output.finish == "abort":
                error = ApiError(500, output.error or "the engine gave this request up", code="generation_failed")
                self.channel.fail(error)
                raise error
            now = time.monotonic()
            if not choice.tokens:
                choice.first_at = now
                self._note_first(choice, output.cached_tokens, now)
            piece = choice.text.push(output.tokens, output.finish, output.stop_token)
            choice.tokens += piece.consumed
            if piece.finish is not None:
                self._finish(choice, piece.finish, piece.stop_reason, now)
                if output.finish is None:
                    self._supervisor.abort([choice.id])
            updates.append(
                Update(
                    choice,
                    piece.text,
                    output.tokens[: piece.consumed],
                    piece.offsets,
                    output.logprobs and output.logprobs[: piece.consumed],
                    output.prompt_logprobs,
                    piece.finish is not None,
                )
            )
        return updates

    def close(self) -> None:
        """Ends what still runs. To be called once, at the end or at whatever came before it."""
        if self._running:
            self._supervisor.abort(self._running)
            reason = "error" if isinstance(self.channel.failure, ApiError) else "abort"
            self._metrics.finished[reason] += len(self._running)
        self._metrics.request_latency.observe(time.monotonic() - self._arrived)

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object: each prompt counts once, the tokens of all choices add up."""
        prompt_tokens = sum(map(len, self.prompts))
        completion_tokens = sum(choice.tokens for choice in self.choices)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }

    def _note_first(self, choice: Choice, cached_tokens: int, now: float) -> None:
        if not self._answered:
            self._answered = True
            self._metrics.time_to_first_token.observe(now - self._arrived)
        if choice.index % self._params.n == 0:  # the first choice stands for its prompt
            self._cached_tokens += cached_tokens
            self._metrics.prompt_tokens.observe(len(self.prompts[choice.prompt_index]))

    def _finish(self, choice: Choice, reason: FinishReason, stop_reason: str | int | None, now: float) -> None:
        del self._running[choice.id]
        choice.finish, choice.stop_reason = reason, stop_reason
        metrics = self._metrics
        metrics.finished[reason] += 1
        metrics.generation_tokens.observe(choice.tokens)
        if choice.tokens > 1:
            metrics.time_per_output_token.observe((now - choice.first_at) / (choice.tokens - 1))
