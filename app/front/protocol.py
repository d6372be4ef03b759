"""Requests as the API takes them, parsed once into types that are valid: past here no code asks whether a field is
null, of the right type or in range.

`null` is the same as an absent field. A field that would change the answer and is not supported is refused by name;
one that cannot change it is ignored; one that nobody knows is ignored with a log line, as in vLLM.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from ..params import ParameterError, SamplingParams
from ..text.template import ARGUMENTS
from .errors import ApiError, from_parameter, invalid

log = logging.getLogger(__name__)

# Sampling fields that both endpoints take as they are; SamplingParams checks them.
_SAMPLING = set(SamplingParams.__struct_fields__) - {"max_tokens", "logprobs", "prompt_logprobs"}

# Accepted and without effect: bookkeeping, and hints that change how an answer is made but not what it says.
_HARMLESS = {
    "metadata",
    "parallel_tool_calls",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "spaces_between_special_tokens",
    "store",
    "user",
}

# Would change the answer and cannot be served: refused unless the value is one that asks for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structural_tag": (),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "verbosity": ("medium",),
    "moderation": (),
    "best_of": (1,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "bad_words": ([],),
    "logits_processors": ([],),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "prompt_embeds": (),
    "documents": ([],),
    "chat_template": (),
    "mm_processor_kwargs": ({},),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "cache_salt": (),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
}

# What a template gets from the request itself, and Python's own name for the template.
_RESERVED = ARGUMENTS | {"self"}

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against traffic analysis; harmless to leave out
    continuous_usage_stats: bool | None = None


class _Body(msgspec.Struct, kw_only=True):
    """The fields of both endpoints that are not SamplingParams'."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    max_tokens: int | None = None


class _ChatBody(_Body):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    reasoning_effort: str | None = None


class _CompletionBody(_Body):
    prompt: Any
    logprobs: int | None = None
    echo: bool = False
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class ChatRequest:
    model: str
    stream: bool
    include_usage: bool
    priority: int
    params: SamplingParams
    messages: list[dict[str, Any]]  # roles and tool calls are checked; the parts of a content are the template's
    add_generation_prompt: bool
    continue_final_message: bool
    template_kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    model: str
    stream: bool
    include_usage: bool
    priority: int
    params: SamplingParams
    prompts: list[str | list[int]]
    echo: bool
    add_special_tokens: bool


def decode(body: bytes) -> dict[str, Any]:
    """The request's JSON object without its nulls. Raises ApiError; NaN, Infinity and 1e999 are no JSON numbers."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise invalid(f"the request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise invalid("the request body must be a JSON object")
    return {name: value for name, value in fields.items() if value is not None}


def parse_chat(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> ChatRequest:
    """`fields` as from `decode`; `defaults` are the model's own for SamplingParams. Raises ApiError."""
    body = _convert(fields, _ChatBody)
    include_usage = _check_stream(body)
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    given = _sampling(fields)
    if getattr(body, limit) is not None:
        given["max_tokens"] = getattr(body, limit)
    if body.logprobs:
        given["logprobs"] = body.top_logprobs or 0
    if body.top_logprobs is not None and (body.top_logprobs < 0 or (body.top_logprobs and not body.logprobs)):
        raise invalid("top_logprobs: expected an integer of at least 0, beside logprobs: true", "top_logprobs")
    messages = [_message(index, message) for index, message in enumerate(body.messages)]
    if not messages:
        raise invalid("messages: expected at least one message", "messages")
    if body.continue_final_message:
        if body.add_generation_prompt:
            raise invalid(
                "continue_final_message and add_generation_prompt exclude each other", "continue_final_message"
            )
        if messages[-1]["role"] != "assistant":
            raise invalid(
                "continue_final_message: the last message must be the assistant's", "continue_final_message"
            )
    for name in _RESERVED & body.chat_template_kwargs.keys():
        raise invalid(f"chat_template_kwargs: {name!r} is a name that the server sets", "chat_template_kwargs")
    effort = {} if body.reasoning_effort is None else {"reasoning_effort": body.reasoning_effort}
    return ChatRequest(
        model=body.model,
        stream=body.stream,
        include_usage=include_usage,
        priority=body.priority,
        params=_params({"max_tokens": None, **defaults, **given}, max_tokens=limit, logprobs="top_logprobs"),
        messages=messages,
        add_generation_prompt=not body.continue_final_message and body.add_generation_prompt is not False,
        continue_final_message=body.continue_final_message,
        template_kwargs=body.chat_template_kwargs | effort,
    )


def parse_completion(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> CompletionRequest:
    """`fields` as from `decode`; `defaults` are the model's own for SamplingParams. Raises ApiError."""
    body = _convert(fields, _CompletionBody)
    include_usage = _check_stream(body)
    given = _sampling(fields)
    for name in ("max_tokens", "logprobs"):
        if name in fields:
            given[name] = fields[name]
    if body.echo:
        given["prompt_logprobs"] = body.logprobs
    return CompletionRequest(
        model=body.model,
        stream=body.stream,
        include_usage=include_usage,
        priority=body.priority,
        params=_params({**defaults, **given}, prompt_logprobs="logprobs"),
        prompts=_prompts(body.prompt),
        echo=body.echo,
        add_special_tokens=body.add_special_tokens,
    )


_BodyType = TypeVar("_BodyType", bound=_Body)


def _convert(fields: Mapping[str, Any], kind: type[_BodyType]) -> _BodyType:
    """Checks the types of the endpoint's own fields, and every other field against the policy above."""
    try:
        body = msgspec.convert(dict(fields), kind)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    for name in fields.keys() - set(kind.__struct_fields__) - _SAMPLING - _HARMLESS:
        if name not in _UNSUPPORTED:
            _note_unknown(name)
        elif fields[name] not in _UNSUPPORTED[name] and not (name == "tools" and fields.get("tool_choice") == "none"):
            raise invalid(f"{name}: this server does not support it", name, "unsupported_parameter")
    return body


def _wrong_type(text: str) -> ApiError:
    """msgspec's error ("Expected `bool`, got `str` - at `$.stream`") with the field first."""
    message, _, path = text.replace("`", "").partition(" - at $.")
    missing = "Object missing required field "
    if message.startswith(missing):
        path = message.removeprefix(missing)
        message = "this field is required"
    param = path.partition(".")[0].partition("[")[0]
    return invalid(f"{path}: {message[:1].lower()}{message[1:]}", param or None)


def _check_stream(body: _Body) -> bool:
    """Whether the stream ends with usage."""
    options = body.stream_options
    if options is None:
        return False
    if not body.stream:
        raise invalid("stream_options: only together with stream: true", "stream_options")
    if options.continuous_usage_stats:
        raise invalid(
            "stream_options.continuous_usage_stats: this server does not support it",
            "stream_options",
            "unsupported_parameter",
        )
    return bool(options.include_usage)


def _sampling(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fields[name] for name in _SAMPLING & fields.keys()}


def _params(values: dict[str, Any], **names: str) -> SamplingParams:
    try:
        return SamplingParams(**values)
    except ParameterError as error:
        raise from_parameter(error, **names) from None


def _message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """One message of a chat, its shape checked and its nulls dropped (but the content's)."""

    def wrong(what: str) -> ApiError:
        return invalid(f"messages[{index}]{what}", "messages")

    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if role not in ROLES:
        raise wrong(f".role: expected one of {', '.join(ROLES)}, got {str(role)[:40]!r}")
    if content is None and not (role == "assistant" and calls):
        raise wrong(".content: this field is required")
    if not isinstance(content, str | list | None):
        raise wrong(".content: expected a string or a list of parts")
    if calls is not None and not (isinstance(calls, list) and all(map(_is_tool_call, calls))):
        raise wrong('.tool_calls: expected a list of {"id", "type": "function", "function": {"name", "arguments"}}')
    kept = {key: value for key, value in message.items() if value is not None}
    return {**kept, "content": content}


def _is_tool_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return (
        isinstance(function, dict)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments", ""), str | dict | None)
    )


def _prompts(prompt: Any) -> list[str | list[int]]:
    """A completion's prompt in its one form: a list, each item a text or a list of token ids."""
    match prompt:
        case str():
            return [prompt]
        case [int(), *_] if _all_of(prompt, int):
            return [prompt]
        case [_, *_] if all(
            isinstance(item, str) or (isinstance(item, list) and _all_of(item, int)) for item in prompt
        ):
            return list(prompt)
        case _:
            raise invalid(
                "prompt: expected a text, a list of token ids, or a list of such, none of them empty",
                "prompt",
            )


def _all_of(values: Iterable[Any], kind: type) -> bool:
    """Exactly that type: a bool is no token id."""
    return set(map(type, values)) == {kind}


_noted: set[str] = set()


def _note_unknown(name: str) -> None:
    """Once for each name, for the first hundred: a log that every request lengthens helps nobody."""
    if name not in _noted and len(_noted) < 100:
        _noted.add(name)
        log.warning("a request has the unknown field %r, which is ignored", name[:60])
