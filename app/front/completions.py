"""POST /v1/completions: prompts as texts or token ids, and answers in the older, plain shape."""

import time
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import Response

from ..text.stream import settled_text
from .body import read_json
from .generation import Generation, Update
from .logprobs import CompletionLogprobs, joined
from .protocol import CompletionRequest, parse_completion
from .service import Service, context_of, encode
from .streaming import Events, EventStream, collect, one_line

if TYPE_CHECKING:
    from ..text.assets import Text


class Prompt(NamedTuple):
    ids: list[int]
    echo: str  # what stands before each of its answers; empty without echo
    offsets: Sequence[int]  # with echo: where each token's text begins


async def completions(request: Request) -> Response:
    service: Service = request.app.state.service
    arrived = service.startup.arrive()
    fields = await read_json(request, service.settings.max_request_bytes)
    text = await service.text_ready()
    completion = parse_completion(fields, service.defaults)
    service.check_model(completion.model)
    ready = await service.ready(len(completion.prompts) * completion.params.n, request.receive)
    prompts = await service.in_pool(partial(make_prompts, text, completion, context_of(ready)))
    generation = service.start(
        text,
        [prompt.ids for prompt in prompts],
        completion.params,
        ready=ready,
        priority=completion.priority,
        arrived=arrived,
        field_names={"prompt_logprobs": "logprobs"},
    )
    head = {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": completion.model,
    }
    writer = CompletionWriter(generation, prompts)
    if completion.stream:
        events = CompletionEvents(generation, writer, head, completion.include_usage)
        return EventStream(generation, events, service.startup)
    collected = await collect(request, generation, writer.encode)
    return Response(orjson.dumps(head | reply(generation, collected)), media_type="application/json")


def make_prompts(text: "Text", completion: CompletionRequest, limit: int) -> list[Prompt]:
    """Raises ApiError; slow, so to be run beside the event loop."""
    prompts = []
    for given in completion.prompts:
        if isinstance(given, str):
            ids = encode(
                text.tokenizer,
                given,
                limit,
                add_special_tokens=completion.add_special_tokens,
                field="prompt",
            )
        else:
            ids = given
        echo, offsets = "", list[int]()
        if completion.echo and len(ids) < limit:
            echo, offsets = settled_text(text.tokenizer, ids, completion.params.skip_special_tokens)
            if isinstance(given, str):
                echo = given
        prompts.append(Prompt(ids, echo, offsets))
    return prompts


class CompletionWriter:
    """Updates to text and log-probabilities, each answer behind its prompt where the request asked for echo."""

    def __init__(self, generation: Generation, prompts: Sequence[Prompt]) -> None:
        self._generation = generation
        self._prompts = prompts
        self._begun: set[int] = set()

    def write(self, update: Update) -> tuple[str, CompletionLogprobs | None]:
        """What an update adds to its choice; updates of a choice must come in their order."""
        choice = update.choice
        prompt = self._prompts[choice.prompt_index]
        text = update.text
        logprobs = CompletionLogprobs(self._generation.text.tokenizer) if self._generation.wants_logprobs else None
        if choice.index not in self._begun:
            self._begun.add(choice.index)
            text = prompt.echo + text
            if logprobs and update.prompt_logprobs:
                logprobs.add(prompt.ids, update.prompt_logprobs, prompt.offsets)
        if logprobs and update.logprobs:
            shift = len(prompt.echo)
            logprobs.add(update.tokens, update.logprobs, [shift + offset for offset in update.offsets])
        return text, logprobs

    def encode(self, update: Update) -> tuple[str, dict[str, bytes]]:
        """As `write`, with the JSON of each of the arrays; none where no log-probabilities were asked for."""
        text, logprobs = self.write(update)
        return text, {name: orjson.dumps(array) for name, array in logprobs.as_dict().items()} if logprobs else {}


def reply(generation: Generation, collected: list[list[tuple[str, dict[str, bytes]]]]) -> dict[str, Any]:
    """The choices and the usage of an answer that is not streamed."""
    choices = []
    for choice, written in zip(generation.choices, collected, strict=True):
        names = written[0][1]
        choices.append(
            {
                "index": choice.index,
                "text": "".join([text for text, _ in written]),
                "logprobs": {name: joined([arrays[name] for _, arrays in written]) for name in names} or None,
                "finish_reason": choice.finish,
                "stop_reason": choice.stop_reason,
            }
        )
    return {"choices": choices, "usage": generation.usage()}


class CompletionEvents(Events):
    """text_completion events."""

    def __init__(
        self, generation: Generation, writer: CompletionWriter, head: dict[str, Any], include_usage: bool
    ) -> None:
        super().__init__(generation, head, include_usage)
        self._writer = writer

    def of(self, update: Update) -> Iterator[bytes]:
        choice = update.choice
        text, logprobs = self._writer.write(update)
        if text or (logprobs and logprobs.tokens):
            yield b'%b%d,"text":%b,"logprobs":%b,"finish_reason":null%b' % (
                self._prefix,
                choice.index,
                one_line(text),
                one_line(logprobs.as_dict()) if logprobs else b"null",
                self._suffix,
            )
        if update.is_last:
            yield b'%b%d,"text":"","logprobs":null,%b%b' % (
                self._prefix,
                choice.index,
                self._reason(choice),
                self._suffix,
            )
