"""A model's chat template: a conversation to the text of a prompt.

jinja2 is imported and the template compiled when the first conversation comes, or with `prepare`.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from .conversation import Message, TemplateError, Traits, find_traits, shape

__all__ = ["ChatTemplate", "TemplateError"]

# Variables of a template that are arguments of `render`: they cannot be set as other variables are.
ARGUMENTS = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})
# Stands at the end of a message that is to be continued. The space tells whether the template trims contents.
_CONTINUE_HERE = "zq-continue-here-qz "
_TRIAL_SECONDS = 0.5


class ChatTemplate:
    """One template, or several by name, of which "tool_use" serves requests with tools and "default" the others.

    `special_tokens` are variables of the template ("bos_token" -> "<s>").
    """

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, Any] | None = None) -> None:
        self._templates = {name: _Template(source, special_tokens or {}) for name, source in templates.items()}

    def prepare(self) -> None:
        """Does the first rendering's work in advance. A template that does not compile says so when it renders."""
        for template in self._templates.values():
            _ = template.traits

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt, special tokens spelled out: to be encoded without `add_special_tokens`.

        With `continue_final_message` (and no generation prompt) it ends inside the last message, an assistant's.
        Raises TemplateError.
        """
        if not messages:
            raise TemplateError("messages: expected at least one message")
        template = self._templates.get("tool_use" if tools else "default") or self._templates.get("default")
        if template is None:
            raise TemplateError("the model has several chat templates and none of them is called default")
        shaped = shape(messages, template.traits)
        variables["tools"] = list(tools) if tools else None
        variables["add_generation_prompt"] = add_generation_prompt
        if not continue_final_message:
            return template.render(shaped, variables)
        if add_generation_prompt:
            raise TemplateError("continue_final_message and add_generation_prompt exclude each other")
        continued = _mark_end(shaped)
        return _cut_at_mark(template.render(shaped, variables), continued)


class _Template:
    """One template's text, compiled when needed."""

    def __init__(self, source: str, special_tokens: Mapping[str, Any]) -> None:
        self._source = source
        self._special_tokens = special_tokens

    @cached_property
    def _compiled(self) -> Any:
        from .sandbox import compile_template

        return compile_template(self._source)

    @cached_property
    def traits(self) -> Traits:
        return find_traits(self._try, self._source)

    def render(self, messages: list[Message], variables: Mapping[str, Any]) -> str:
        """Raises TemplateError."""
        import jinja2

        from .sandbox import LimitError, Refusal

        try:
            return self._render(messages, variables)
        except Refusal as error:
            raise TemplateError(f"the model's chat template refuses the conversation: {_one_line(error)}") from None
        except LimitError as error:
            raise TemplateError(f"the model's chat template was stopped: {_one_line(error)}") from None
        except jinja2.TemplateSyntaxError as error:
            message = f"the model's chat template has a mistake in line {error.lineno}: {_one_line(error.message)}"
            raise TemplateError(message) from None
        except Exception as error:  # a template is code: it can raise anything
            name = type(error).__name__
            raise TemplateError(
                f"the model's chat template fails on this conversation: {_one_line(error)} ({name})"
            ) from None

    def _render(self, messages: list[Message], variables: Mapping[str, Any], **limits: float) -> str:
        from .sandbox import render

        return render(
            self._compiled, {"documents": None, **self._special_tokens, **variables, "messages": messages}, **limits
        )

    def _try(self, messages: list[Message], tools: list[Any] | None = None) -> str | None:
        """A trial: None where the template fails."""
        variables = {"tools": tools, "add_generation_prompt": True}
        try:
            return self._render(messages, variables, seconds=_TRIAL_SECONDS)
        except Exception:
            return None


def _mark_end(messages: list[Message]) -> str:
    """Appends the mark to the last message's text, and returns that text."""
    last = messages[-1]
    content = last.get("content")
    if last.get("role") != "assistant" or not content:
        raise TemplateError("continue_final_message: the last message is not an assistant's with some content")
    if isinstance(content, str):
        last["content"] = content + _CONTINUE_HERE
        return content
    text: str = content[-1]["text"]
    content[-1] = {"type": "text", "text": text + _CONTINUE_HERE}
    return text


def _cut_at_mark(rendered: str, continued: str) -> str:
    at = rendered.rfind(_CONTINUE_HERE.rstrip())
    if at < 0 or continued.strip() not in rendered:
        raise TemplateError("continue_final_message: the model's chat template does not write the last message whole")
    before = rendered[:at]
    return before if rendered.startswith(_CONTINUE_HERE, at) else before.rstrip()


def _one_line(message: object) -> str:
    return " ".join(str(message).split())[:500]
