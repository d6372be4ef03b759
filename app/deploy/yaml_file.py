"""YAML in and out: values together with the line that each stands on, and text that every YAML reader takes alike.

Reads YAML 1.2's scalars, so that OFF is a word and no switch. Alone in importing PyYAML, of the `deploy` extra.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UnavailableError, UsageError

try:
    import yaml
except ImportError:
    raise UnavailableError("`pilotlight deploy` needs the deploy extra: pip install 'pilotlight[deploy]'") from None

# A key is a word, an index a number: ("gpu", "generations", 0).
Path_ = tuple[str | int, ...]

_LARGEST_FILE = 1 << 20
# A word that no reader takes for anything else.
_PLAIN = re.compile(r"(?!(true|false|null|yes|off)$)[A-Za-z/][A-Za-z0-9./_-]{2,}", re.IGNORECASE)


class _Scalars(yaml.SafeLoader):
    """YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own form


for _tag, _pattern in {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?",
}.items():
    _Scalars.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), None)


@dataclass(slots=True)
class YamlFile:
    name: str
    value: Any
    lines: dict[Path_, int] = field(default_factory=dict)  # of keys and of items, from 1

    def error(self, path: Path_, message: str) -> UsageError:
        """The error of what stands at `path`, or where it is missing, with its line and its name."""
        known = path
        while known not in self.lines:
            known = known[:-1]
        where = dotted(path)
        return UsageError(f"{self.name}:{self.lines[known]}: {where + ': ' if where else ''}{message}")


def dotted(path: Path_) -> str:
    """gpu.generations[0]"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def read(file: Path, texts: frozenset[str]) -> YamlFile:
    """The file's values. The scalars in the sections `texts` are text as it stands there, whatever they look like.

    Raises UsageError for what is not YAML or more than plain values.
    """
    try:
        with open(file, "rb") as stream:
            content = stream.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
    if len(content) > _LARGEST_FILE:
        raise UsageError(f"{file}: is larger than 1 MB; expected the description of a deployment")
    found = YamlFile(str(file), None, {(): 1})
    try:
        node = yaml.compose(content, Loader=_Scalars)
        if node is None:
            raise found.error((), "is empty; expected name, image and gpu")
        found.value = _value(found, node, (), texts, set())
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{file}:{line}: is not YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{file}: is not YAML: {str(error).splitlines()[0]}") from None
    return found


def _value(found: YamlFile, node: Any, path: Path_, texts: frozenset[str], seen: set[int]) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return _scalar(found, node, path, path[0] in texts if path else False)
    if id(node) in seen:
        raise found.error(path, "is an alias; write the value out")
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            found.lines[*path, index] = item.start_mark.line + 1
        return [_value(found, item, (*path, index), texts, seen) for index, item in enumerate(node.value)]
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        is_word = isinstance(key_node, yaml.ScalarNode) and key_node.value.isprintable()
        if not is_word or "`" in key_node.value:  # msgspec's messages have it around names
            raise UsageError(f"{found.name}:{line}: a key is no word")
        key = key_node.value
        if key in values:
            first = found.lines[*path, key]
            raise UsageError(
                f"{found.name}:{line}: {dotted((*path, key))} stands a second time; first in line {first}"
            )
        found.lines[*path, key] = line
        values[key] = _value(found, value_node, (*path, key), texts, seen)
    return values


def _scalar(found: YamlFile, node: Any, path: Path_, as_text: bool) -> Any:
    kind = node.tag.rpartition(":")[2]
    if kind not in ("null", "bool", "int", "float", "str"):
        raise found.error(path, f"has the tag {node.tag}; expected a plain value")
    if kind == "null":
        if as_text:
            raise found.error(path, 'has no value; expected text, "" for none')
        return None
    if kind == "str" or as_text:
        if not node.value.isprintable():
            raise found.error(path, "has a line break or another character that does not print")
        return node.value
    if kind == "bool":
        return node.value.lower() == "true"
    try:
        return int(node.value) if kind == "int" else float(node.value)
    except ValueError:
        raise found.error(path, f"{node.value[:40]!r} is no {kind}") from None


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)  # lists are indented below their key


def _text(dumper: Any, text: str) -> Any:
    """In quotes unless it is a plain word: what one reader takes for text, another takes for a number."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if _PLAIN.fullmatch(text) else '"')


_Dumper.add_representer(str, _text)


def write(values: Mapping[str, Any], target: str) -> str:
    """YAML in the order of the mapping, under a line that says where it comes from."""
    text: str = yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return f"# Made by `pilotlight deploy render --target {target}`: change the description and render again.\n{text}"
