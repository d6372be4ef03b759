"""Chat templates and conversations that tests render, and the goldens that transformers made of them.

The templates are written for these tests, in the forms of the families that their first lines name.
`scripts/make_goldens chat_templates` makes the goldens again.
"""

from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GOLDENS = HERE.parent / "golden" / "chat_templates.json"

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
DATE = "26 Jul 2024"


def template(name: str) -> str:
    return (HERE / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def names() -> list[str]:
    return sorted(file.stem for file in (HERE / "templates").glob("*.jinja"))


WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Wetter an einem Ort: <heute> & "später"',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def call(arguments: Any, name: str = "weather", id: str = "call00001") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _turn(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


_TALK = [_turn("user", "Hi"), _turn("assistant", "Hello, “you” 😀 "), _turn("user", "  Wie geht's?\n")]
_TOOLS = [
    _turn("user", "Weather in Paris and Rome?"),
    {"role": "assistant", "tool_calls": [call({"city": "Paris é", "days": 2})]},
    {"role": "tool", "tool_call_id": "call00001", "name": "weather", "content": '{"sky": "blue"}'},
    {
        "role": "assistant",
        "content": "And now Rome.",
        "tool_calls": [call({"city": "Rome"}, id="call00002")],
    },
    {"role": "tool", "tool_call_id": "call00002", "name": "weather", "content": "grey"},
    _turn("user", "Thanks"),
]

# name -> (messages in the form that transformers takes, render's arguments)
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "one question": ([_turn("user", "Hi")], {}),
    "a talk": (_TALK, {}),
    "a talk with a system message": ([_turn("system", "Be short."), *_TALK], {}),
    "a system message alone in the middle": ([*_TALK[:2], _turn("system", "Be long."), _TALK[2]], {}),
    "no generation prompt": (_TALK, {"add_generation_prompt": False}),
    "continued": (
        [_TALK[0], _turn("assistant", "Well, as I")],
        {"add_generation_prompt": False, "continue_final_message": True},
    ),
    "continued after a space": (
        [_TALK[0], _turn("assistant", "Well, as I ")],
        {"add_generation_prompt": False, "continue_final_message": True},
    ),
    "two of one role": ([_TALK[0], _TALK[0]], {}),
    "tools offered": ([_turn("system", "Be short."), _turn("user", "Hi")], {"tools": [WEATHER_TOOL]}),
    "tools used": (_TOOLS, {"tools": [WEATHER_TOOL]}),
    "calls side by side": (
        [
            _TOOLS[0],
            {"role": "assistant", "tool_calls": [call({"city": "Paris"}), call({}, id="call00002")]},
            _TOOLS[2],
            _TOOLS[4],
        ],
        {"tools": [WEATHER_TOOL]},
    ),
}


def in_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with every content as a list of one part."""
    return [
        message | {"content": [{"type": "text", "text": message["content"]}]} if message.get("content") else message
        for message in messages
    ]


def render_with_transformers() -> dict[str, dict[str, str | None]]:
    """What apply_chat_template makes of each conversation by each template; None where it raises."""
    import jinja2
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    goldens: dict[str, dict[str, str | None]] = {}
    for name in names():
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL_TOKENS)
        tokenizer.chat_template = template(name)
        goldens[name] = {}
        for title, (messages, arguments) in CONVERSATIONS.items():
            given = in_parts(messages) if name == "parts" else messages
            options = {"add_generation_prompt": True, "date": DATE, **arguments}
            try:
                goldens[name][title] = tokenizer.apply_chat_template(given, tokenize=False, **options)
            except (jinja2.TemplateError, TypeError, ValueError):
                goldens[name][title] = None
    return goldens
