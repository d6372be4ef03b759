"""POST /v1/chat/completions: messages through the model's template, and answers in chat's shape."""

import time
import uuid
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from ..text.template import TemplateError
from .body import read_json
from .errors import invalid
from .generation import Generation, Update
from .logprobs import chat_entries, chat_logprobs, joined
from .protocol import ChatRequest, parse_chat
from .service import Service, context_of, encode
from .streaming import Events, EventStream, collect, one_line

if TYPE_CHECKING:
    from ..text.assets import Text
    from ..text.tokenizer import Tokenizer


async def chat_completions(request: Request) -> Response:
    service: Service = request.app.state.service
    arrived = service.startup.arrive()
    fields = await read_json(request, service.settings.max_request_bytes)
    text = await service.text_ready()
    chat = parse_chat(fields, service.defaults)
    service.check_model(chat.model)
    ready = await service.ready(chat.params.n, request.receive)
    prompt = await service.in_pool(partial(make_prompt, text, chat, context_of(ready)))
    generation = service.start(
        text,
        [prompt],
        chat.params,
        ready=ready,
        priority=chat.priority,
        arrived=arrived,
        field_names={"prompt": "messages", "logprobs": "top_logprobs"},
    )
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": "", "created": int(time.time()), "model": chat.model}
    if chat.stream:
        head["object"] = "chat.completion.chunk"
        return EventStream(generation, ChatEvents(generation, head, chat.include_usage), service.startup)
    head["object"] = "chat.completion"
    collected = await collect(request, generation, partial(write, text.tokenizer))
    return Response(orjson.dumps(head | reply(generation, collected)), media_type="application/json")


def make_prompt(text: "Text", chat: ChatRequest, limit: int) -> list[int]:
    """Token ids of the rendered conversation. Raises ApiError; slow, so to be run beside the event loop."""
    if text.template is None:
        raise invalid(
            "messages: this model has no chat template; use /v1/completions", "messages", "no_chat_template"
        )
    try:
        rendered = text.template.render(
            chat.messages,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            **chat.template_kwargs,
        )
    except TemplateError as error:
        raise invalid(str(error), "messages") from None
    return encode(text.tokenizer, rendered, limit, add_special_tokens=False, field="messages")


def write(tokenizer: "Tokenizer", update: Update) -> tuple[str, bytes]:
    """What an update adds to an answer that is not streamed: text, and a JSON array of log-probabilities."""
    return update.text, orjson.dumps(chat_entries(tokenizer, update.logprobs or ()))


def reply(generation: Generation, collected: list[list[tuple[str, bytes]]]) -> dict[str, Any]:
    """The choices and the usage of an answer that is not streamed."""
    choices = []
    for choice, written in zip(generation.choices, collected, strict=True):
        content = "".join([text for text, _ in written])
        entries = joined([entries for _, entries in written])
        choices.append(
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": content, "refusal": None},
                "logprobs": chat_logprobs(entries) if generation.wants_logprobs else None,
                "finish_reason": choice.finish,
                "stop_reason": choice.stop_reason,
            }
        )
    return {"choices": choices, "usage": generation.usage()}


class ChatEvents(Events):
    """chat.completion.chunk events."""

    def __init__(self, generation: Generation, head: dict[str, Any], include_usage: bool) -> None:
        super().__init__(generation, head, include_usage)
        self._begun: set[int] = set()

    def of(self, update: Update) -> Iterator[bytes]:
        choice = update.choice
        prefix = b'%b%d,"delta":' % (self._prefix, choice.index)
        if choice.index not in self._begun:
            self._begun.add(choice.index)
            yield b'%b{"role":"assistant","content":""},"logprobs":null,"finish_reason":null%b' % (
                prefix,
                self._suffix,
            )
        if update.text or update.logprobs:
            logprobs = b"null"
            if update.logprobs:
                logprobs = one_line(chat_logprobs(chat_entries(self._generation.text.tokenizer, update.logprobs)))
            yield b'%b{"content":%b},"logprobs":%b,"finish_reason":null%b' % (
                prefix,
                one_line(update.text),
                logprobs,
                self._suffix,
            )
        if update.is_last:
            yield b'%b{},"logprobs":null,%b%b' % (prefix, self._reason(choice), self._suffix)
