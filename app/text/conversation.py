"""A conversation as clients send it, put into the form that a model's template can read.

Templates differ in what they take: content as a string or as parts, tool arguments as a mapping or as text, a
missing content as absent, null or blank. What a template takes is found by rendering a few short trials, however it
is written.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import PilotlightError

Message = dict[str, Any]

PART_SEPARATOR = "\n"  # between text parts that are joined, as in vLLM
_SYSTEM_SEPARATOR = "\n\n"  # between system messages that become one
_INSTRUCTING = ("system", "developer")


class TemplateError(PilotlightError):
    """A conversation cannot be made a prompt. One line, fit for the client that sent it."""


@dataclass(frozen=True)
class Traits:
    """What a template takes. The defaults are what most do."""

    parts: bool = False  # content as a list of text parts
    strings: bool = True  # content as a string
    no_content: Literal["absent", "null", "blank"] = "absent"  # an assistant's message that is tool calls only
    arguments: Literal["mapping", "text"] = "mapping"
    developer: bool = False  # knows the role
    later_system: bool = True  # a system message in the middle is written too


def find_traits(render: Callable[..., str | None], source: str) -> Traits:
    """Found by trials; `render(messages, tools=…)` returns None where the template fails."""
    as_string = _written(render([{"role": "user", "content": "zqtext"}]), "zqtext")
    as_parts = _written(render([{"role": "user", "content": [{"type": "text", "text": "zqtext"}]}]), "zqtext")
    # A template that prints a list as Python does writes the text too, but not the same prompt.
    takes_parts = as_parts is not None and as_string in (None, as_parts)
    no_content, arguments = _find_tool_traits(render)
    later = [("user", "zqone"), ("assistant", "zqtwo"), ("system", "zqtext"), ("user", "zqthree")]
    later_system = render([{"role": role, "content": content} for role, content in later])
    return Traits(
        parts=takes_parts,
        strings=as_string is not None or not takes_parts,
        no_content=no_content,
        arguments=arguments,
        developer="developer" in source,
        later_system=_written(later_system, "zqtext") is not None,
    )


def shape(messages: Sequence[Mapping[str, Any]], traits: Traits) -> list[Message]:
    """The conversation for a template of such traits; new dicts, the given ones stay as they are.

    As in transformers, keys with null are left out. Raises TemplateError for a message without a role and for a part
    that is not text.
    """
    shaped = [_shape_message(index, message, traits) for index, message in enumerate(messages)]
    if not traits.developer and any(message["role"] == "developer" for message in shaped):
        shaped = _without_developer(shaped, traits)
    for message in shaped:
        content = message.get("content")
        if isinstance(content, str) and not traits.strings:
            message["content"] = [{"type": "text", "text": content}]
        elif isinstance(content, list) and not traits.parts:
            message["content"] = _joined(content)
    return shaped


def _shape_message(index: int, message: Mapping[str, Any], traits: Traits) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TemplateError(f'messages[{index}]: expected {{"role": …, "content": …}}')
    shaped = {key: value for key, value in message.items() if value is not None}
    content = shaped.get("content")
    if isinstance(content, list):
        shaped["content"] = [_text_part(f"messages[{index}].content[{at}]", part) for at, part in enumerate(content)]
    if shaped.get("tool_calls"):
        shaped["tool_calls"] = [_shape_call(call, traits.arguments) for call in shaped["tool_calls"]]
        if content is None and traits.no_content != "absent":
            shaped["content"] = None if traits.no_content == "null" else ""
    return shaped


def _text_part(where: str, part: object) -> dict[str, str]:
    match part:
        case str():
            return {"type": "text", "text": part}
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return {"type": "text", "text": text}
        case {"type": str(kind)} if kind != "text":
            raise TemplateError(f"{where}: this model takes text only, not {kind[:40]!r}")
    raise TemplateError(f'{where}: expected {{"type": "text", "text": …}}')


def _shape_call(call: Any, form: Literal["mapping", "text"]) -> Any:
    """A tool call with its arguments in the form given; arguments that are not a JSON object stay as they are."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    arguments = call["function"].get("arguments")
    if form == "text":
        if isinstance(arguments, Mapping):
            arguments = json.dumps(arguments, ensure_ascii=False)
    elif arguments is None or arguments == "":
        arguments = {}
    elif isinstance(arguments, str):
        try:
            decoded = json.loads(arguments)
        except (ValueError, RecursionError):
            decoded = None
        if isinstance(decoded, dict):
            arguments = decoded
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _without_developer(messages: list[Message], traits: Traits) -> list[Message]:
    """Developer messages as system messages: those at the start become one, a later one stays or joins it."""
    start = next((at for at, message in enumerate(messages) if message["role"] not in _INSTRUCTING), len(messages))
    leading, rest = messages[:start], messages[start:]
    if not traits.later_system:
        leading = leading + [message for message in rest if message["role"] == "developer"]
        rest = [message for message in rest if message["role"] != "developer"]
    rest = [message | {"role": "system"} if message["role"] == "developer" else message for message in rest]
    if not leading:
        return rest
    texts = [_joined(message.get("content", "")) for message in leading]
    return [leading[0] | {"role": "system", "content": _SYSTEM_SEPARATOR.join(texts)}, *rest]


def _joined(content: Any) -> str:
    return PART_SEPARATOR.join(part["text"] for part in content) if isinstance(content, list) else str(content)


def _find_tool_traits(
    render: Callable[..., str | None],
) -> tuple[Literal["absent", "null", "blank"], Literal["mapping", "text"]]:
    function = {"name": "zqname", "description": "zq", "parameters": {"type": "object", "properties": {}}}
    contents: dict[Literal["absent", "null", "blank"], Message] = {
        "absent": {},
        "null": {"content": None},
        "blank": {"content": ""},
    }
    forms: dict[Literal["mapping", "text"], Any] = {"mapping": {"zqkey": "zqvalue"}, "text": '{"zqkey": "zqvalue"}'}
    for no_content, content in contents.items():
        for form, arguments in forms.items():
            call = {"id": "zqcall000", "type": "function", "function": {"name": "zqname", "arguments": arguments}}
            history = [
                {"role": "user", "content": "zqtext"},
                {"role": "assistant", **content, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "zqcall000", "name": "zqname", "content": "zqresult"},
            ]
            written = render(history, tools=[{"type": "function", "function": function}])
            # Single quotes: the template printed a mapping as Python does.
            if written and "zqname" in written and "zqvalue" in written and "'zqkey'" not in written:
                return no_content, form
    return "absent", "mapping"


def _written(rendered: str | None, text: str) -> str | None:
    return rendered if rendered is not None and text in rendered else None
