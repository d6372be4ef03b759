"""jinja2 as transformers sets it up for chat templates, with bounds on the time and the size of a rendering.

Apart because it imports jinja2, which a server needs at its first chat only. A model's template is trusted as far
as the model is: it runs in jinja2's sandbox, and loops, calls and repetitions, by which a slip of its author could
take the machine down, are bounded.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SECONDS = 5.0
MAX_CHARACTERS = 32 * 1024 * 1024  # of a rendered prompt: a request has 8 MB by default
_MAX_BITS = 4096  # of a number that a template multiplies up

_deadline: ContextVar[float] = ContextVar("deadline")


class Refusal(jinja2.TemplateError):
    """The template's own `raise_exception`."""


class LimitError(jinja2.TemplateError):
    """A bound was reached."""


def compile_template(source: str) -> jinja2.Template:
    """Raises jinja2.TemplateSyntaxError."""
    return _environment.from_string(source)


def render(template: jinja2.Template, variables: Mapping[str, Any], seconds: float = MAX_SECONDS) -> str:
    """Raises whatever the template's code raises: any Exception; Refusal and LimitError are ours."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        parts: list[str] = []
        size = 0
        for part in template.generate(variables):
            _check_time()
            size += len(part)
            if size > MAX_CHARACTERS:
                raise LimitError(f"it writes more than {MAX_CHARACTERS} characters")
            parts.append(part)
        return "".join(parts)
    finally:
        _deadline.reset(token)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Every loop runs over `_watched` of what it names."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_watched", [], [], None, None, lineno=loop.lineno)
        return tree

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        # Macros can call themselves. (Mangled names: a template's keyword may be called `self`.)
        _check_time()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and _product_size(left, right) > MAX_CHARACTERS:
            raise LimitError(f"it repeats something to more than {MAX_CHARACTERS} elements")
        if operator == "**" and not (abs(left) < 2**_MAX_BITS and abs(right) <= 64):
            raise LimitError("it raises a number to too high a power")
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(Extension):
    """`{% generation %} … {% endgeneration %}` marks the assistant's text for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012  # jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _check_time() -> None:
    if time.monotonic() > _deadline.get():
        raise LimitError("it takes too long")


def _watched(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _check_time()
        yield item


def _product_size(left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        too_large = left.bit_length() + right.bit_length() > _MAX_BITS
        return MAX_CHARACTERS + 1 if too_large else 0
    for items, count in ((left, right), (right, left)):
        if isinstance(items, str | list | tuple) and isinstance(count, int):
            return len(items) * count
    return 0


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes HTML and takes no options."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise Refusal(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _make_environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters |= {"tojson": _to_json, "_watched": _watched}
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


_environment = _make_environment()
