"""LLM: the engine in process, for scripts and notebooks, as in vLLM's quick start. No sockets and no threads.

It does what the front does for HTTP, text to ids and ids to text, around the same engine; every prompt of a call
is in the engine's queue at once.
"""

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from .engine.engine import Engine
from .errors import UsageError
from .messages import FinishReason, Output, Sampling, Submit, TokenLogprob
from .model.model import load_model
from .params import ParameterError, SamplingParams, check_prompt, generation_defaults, to_sampling
from .settings import from_kwargs
from .source import resolve_model
from .text.assets import load_text
from .text.stream import TextStream
from .text.template import ARGUMENTS
from .text.tokenizer import Tokenizer
from .timeline import Timeline

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput", "SamplingParams"]

Prompt = str | Mapping[str, Any]  # a text, {"prompt": text} or {"prompt_token_ids": ids}
Message = Mapping[str, Any]  # {"role": ..., "content": ...}


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token at one position, under the model's raw logits."""

    logprob: float
    rank: int | None  # 1 is the likeliest; None: beyond the alternatives asked for
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One of the n answers to a prompt."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None  # this and `logprobs`: where they were asked for
    logprobs: list[dict[int, Logprob]] | None = None  # for each token: itself and the alternatives, by token id
    finish_reason: FinishReason | None = None  # "error": stop_reason says what went wrong
    stop_reason: str | int | None = None  # the stop string or the stop token that ended it; None for EOS


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its answers."""

    prompt: str | None  # None where ids were given
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None  # None at the first position
    num_cached_tokens: int = 0  # of the prompt, whose K/V was reused


class LLM:
    """A loaded model. Calls from several threads take turns; the prompts of one call are computed together.

    `settings` are the server's, as far as they concern the model (`max_model_len`, `gpu_memory_utilization`,
    `max_num_seqs`, `seed`, ...). Raises UsageError for an unknown setting, ModelNotFoundError, ModelDataError, and
    UnavailableError where there is no such device or the model does not fit into its memory.
    """

    def __init__(self, model: str, **settings: Any) -> None:
        self.settings = from_kwargs(model=model, **settings)
        directory: Path = resolve_model(self.settings.model)
        self._text = load_text(directory, self.settings.chat_template)
        self._defaults = generation_defaults(self._text.generation)
        self._model = load_model(directory, self.settings, Timeline("engine"))
        self._engine = Engine.of(self._model, self.settings)
        self._next_id = 0
        self._turn = threading.Lock()  # held by the call that drives the engine

    def get_tokenizer(self) -> Tokenizer:
        return self._text.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Used where a call passes none: the model's generation_config.json over our defaults."""
        return SamplingParams(**self._defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answers each prompt, in order.

        `sampling_params` is one for all or one for each. `use_tqdm` shows a bar where stderr is a terminal.
        Raises ParameterError (a ValueError) before anything runs.
        """
        if isinstance(prompts, str | Mapping):
            prompts = [prompts]
        requests = [self._parse(index, prompt) for index, prompt in enumerate(prompts)]
        return self._run(requests, sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers a conversation, or each of a list of them, through the model's chat template.

        Raises TemplateError for a conversation that the template refuses, and what `generate` raises.
        """
        template = self._text.template
        if template is None:
            raise UsageError("this model has no chat template: give LLM(chat_template=FILE), or use generate()")
        if not isinstance(messages, list | tuple):
            raise ParameterError(
                "messages", 'expected a list of {"role": ..., "content": ...}, or a list of such lists'
            )
        for name in ARGUMENTS & (chat_template_kwargs or {}).keys():
            raise ParameterError("chat_template_kwargs", f"{name!r} is not a variable but an argument of chat()")
        is_one = not messages or isinstance(messages[0], Mapping)
        conversations = cast(Sequence[Sequence[Message]], [messages] if is_one else messages)
        requests = []
        for conversation in conversations:
            rendered = template.render(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **(chat_template_kwargs or {}),
            )
            ids = self._text.tokenizer.encode(rendered, add_special_tokens=False)
            requests.append(RequestOutput(rendered, ids, []))
        return self._run(requests, sampling_params, use_tqdm)

    def _parse(self, index: int, prompt: Prompt) -> RequestOutput:
        match prompt:
            case {"prompt": str(text), "prompt_token_ids": list() | tuple() as ids}:
                return RequestOutput(text, list(ids), [])
            case {"prompt_token_ids": list() | tuple() as ids}:
                return RequestOutput(None, list(ids), [])
            case str(text) | {"prompt": str(text)}:
                return RequestOutput(text, self._text.tokenizer.encode(text), [])
        raise ParameterError(
            f"prompts[{index}]", 'expected a string, {"prompt": text} or {"prompt_token_ids": [id, ...]}'
        )

    def _run(
        self,
        requests: list[RequestOutput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        show_bar: bool,
    ) -> list[RequestOutput]:
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        if isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params] * len(requests)
        if not isinstance(sampling_params, Sequence) or not all(
            isinstance(params, SamplingParams) for params in sampling_params
        ):
            raise ParameterError("sampling_params", "expected a SamplingParams, or a list of one for each prompt")
        if len(sampling_params) != len(requests):
            raise ParameterError("sampling_params", f"{len(sampling_params)} of them for {len(requests)} prompts")
        with self._turn:
            submits: list[Submit] = []
            answers: dict[int, _Answer] = {}
            for index, (request, params) in enumerate(zip(requests, sampling_params, strict=True)):
                sampling = self._check(index, request, params)
                for choice in range(params.n):
                    if choice == 1:  # the first one brings them for all, and the others can reuse its K/V
                        sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
                    id_ = self._next_id + len(submits)
                    answers[id_] = _Answer(request, choice, params, sampling, self._text.tokenizer)
                    submits.append(Submit(id_, request.prompt_token_ids, sampling, index, choice))
            self._next_id += len(submits)
            self._drive(submits, answers, _Bar(len(submits), show_bar and sys.stderr.isatty()))
        for request in requests:
            request.finished = True
        return requests

    def _check(self, index: int, request: RequestOutput, params: SamplingParams) -> Sampling:
        vocab_size = self._model.spec.vocab_size
        try:
            ids = request.prompt_token_ids
            return to_sampling(
                params,
                room=check_prompt(ids, vocab_size=vocab_size, max_model_len=self._engine.max_len),
                vocab_size=vocab_size,
                max_logprobs=self.settings.max_logprobs,
                eos_token_ids=self._text.eos_token_ids,
                default_seed=self.settings.seed,
            )
        except ParameterError as error:
            name = f"prompts[{index}]" if error.field == "prompt" else f"{error.field} for prompts[{index}]"
            raise ParameterError(name, error.reason) from None

    def _drive(self, submits: list[Submit], answers: "dict[int, _Answer]", bar: "_Bar") -> None:
        """Runs the engine until no answer and no step is under way. Whatever interrupts it leaves an empty engine."""
        try:
            for submit in submits:
                self._engine.submit(submit)
            while self._engine.has_work:
                outputs = self._engine.step()
                for output in outputs:
                    if output.id in answers and answers[output.id].add(output):
                        del answers[output.id]
                        if output.finish is None:  # ended by a stop string, of which the engine knows nothing
                            self._engine.abort([output.id])
                bar.update(len(submits) - len(answers), sum(len(output.tokens) for output in outputs))
        except BaseException:
            # Ctrl-C comes between any two bytecodes: the engine's books may be half written. Weights and pages stay.
            self._engine = Engine.of(self._model, self.settings)
            raise
        finally:
            bar.close()


class _Answer:
    """A choice of a prompt while it grows."""

    def __init__(
        self, request: RequestOutput, index: int, params: SamplingParams, sampling: Sampling, tokenizer: Tokenizer
    ) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._stream = TextStream(
            tokenizer,
            request.prompt_token_ids,
            stop=params.stop_strings,
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            min_tokens=params.min_tokens,
            eos_token_ids=sampling.eos_token_ids,
        )
        self._output = CompletionOutput(index)
        if params.logprobs is not None:
            self._output.cumulative_logprob, self._output.logprobs = 0.0, []
        request.outputs.append(self._output)

    def add(self, output: Output) -> bool:
        """What a step brought; True when the answer is whole."""
        answer = self._output
        if output.finish == "error":
            answer.finish_reason, answer.stop_reason = "error", output.error
            return True
        if answer.index == 0 and not answer.token_ids:
            self._request.num_cached_tokens = output.cached_tokens
            if output.prompt_logprobs is not None:
                self._request.prompt_logprobs = [
                    None if entry is None else self._by_token(entry) for entry in output.prompt_logprobs
                ]
        piece = self._stream.push(output.tokens, output.finish, output.stop_token)
        answer.text += piece.text
        answer.token_ids += output.tokens[: piece.consumed]
        for entry in (output.logprobs or [])[: piece.consumed]:
            if answer.logprobs is not None and answer.cumulative_logprob is not None:
                answer.logprobs.append(self._by_token(entry))
                answer.cumulative_logprob += entry.logprob
        answer.finish_reason, answer.stop_reason = piece.finish, piece.stop_reason
        return piece.finish is not None

    def _by_token(self, entry: TokenLogprob) -> dict[int, Logprob]:
        ranked: list[tuple[int, float, int | None]]
        ranked = [(token, logprob, rank) for rank, (token, logprob) in enumerate(entry.top, 1)]
        if all(token != entry.token for token, _ in entry.top):
            ranked.insert(0, (entry.token, entry.logprob, None))
        return {token: Logprob(logprob, rank, self._tokenizer.token_text(token)) for token, logprob, rank in ranked}


class _Bar:
    """One line on stderr that is written over as answers finish."""

    WIDTH, INTERVAL = 30, 0.1  # characters; seconds between two drawings

    def __init__(self, total: int, shown: bool) -> None:
        self._total = total
        self._shown = shown and total > 0
        self._done = 0
        self._tokens = 0
        self._began = time.monotonic()
        self._drawn = 0.0

    def update(self, done: int, new_tokens: int) -> None:
        self._done = done
        self._tokens += new_tokens
        if self._shown and time.monotonic() - self._drawn > self.INTERVAL:
            self._draw()

    def close(self) -> None:
        if self._shown:
            self._draw()
            sys.stderr.write("\n")

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        filled = "\u2588" * (self.WIDTH * self._done // self._total)
        speed = self._tokens / max(self._drawn - self._began, 1e-9)
        sys.stderr.write(f"\r{self._done}/{self._total} answers |{filled:<{self.WIDTH}}| {speed:,.1f} tokens/s ")
        sys.stderr.flush()
