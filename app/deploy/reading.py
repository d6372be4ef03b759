"""A file becomes a `Deployment`, or an error that names the line: past here every value is there and in range.

`description` checks each field alone. Here are the checks of fields together, and of what the server itself would
refuse: its variables are checked by the server's own settings.
"""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from ..errors import UsageError
from ..settings import VARIABLES, Settings, env_name, from_args, in_words, nearest, no_variable
from .description import Description
from .yaml_file import Path_, YamlFile, read

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD)$")
# Variables that come from other fields, or that the platforms set themselves.
_ELSEWHERE = {
    "PORT": "port",
    "PORT_HEALTH": "port",
    "HEALTH_CHECK_PATH": "runpod.health",
    "DEPLOY_FORM": "modal.form",
    env_name("port"): "port",
    env_name("startup_timeout"): "timeouts.startup",
    env_name("shutdown_timeout"): "timeouts.shutdown",
}


@dataclass(frozen=True, slots=True)
class Deployment:
    """A checked description, its file, and the server's settings as its environment makes them."""

    file: YamlFile
    description: Description
    settings: Settings

    def error(self, path: Path_, message: str) -> UsageError:
        return self.file.error(path, message)


def read_deployment(path: Path) -> Deployment:
    """Raises UsageError with the file, the line, the field and what was expected."""
    file = read(path, frozenset({"environment", "secrets"}))
    if isinstance(file.value, dict):  # a section of which only comments are left is none
        file.value = {name: value for name, value in file.value.items() if value is not None}
    try:
        description = msgspec.convert(file.value, Description)
    except msgspec.ValidationError as error:
        raise _refused(file, str(error)) from None
    settings = _settings(file, description)
    _check(file, description, settings)
    return Deployment(file, description, settings)


def _check(file: YamlFile, description: Description, settings: Settings) -> None:
    gpu, scaling = description.gpu, description.scaling
    if (gpu.memory is None) == (gpu.holds is None):
        raise file.error(("gpu",), "expected one of memory and holds")
    if not gpu.generations:
        raise file.error(("gpu", "generations"), "is empty; leave it out for every generation")
    if scaling.min > scaling.max:
        raise file.error(("scaling", "min"), f"{scaling.min} is more than scaling.max, {scaling.max}")
    if scaling.concurrency > settings.max_num_seqs:
        variable, path = env_name("max_num_seqs"), ("scaling", "concurrency")
        raise file.error(
            path if path in file.lines else ("environment", variable),
            f"{settings.max_num_seqs} sequences run at once at a replica ({variable}), and scaling.concurrency "
            f"is {scaling.concurrency}; it must not be more",
        )
    try:
        ipaddress.ip_address(description.compose.address.strip("[]"))
    except ValueError:
        raise file.error(
            ("compose", "address"),
            f"{description.compose.address!r} is no address; expected one as 127.0.0.1 or [::1]",
        ) from None
    for name in description.secrets:
        _check_variable(file, ("secrets", name), name)
        if name in description.environment:
            raise file.error(("secrets", name), "stands under environment too")


def _settings(file: YamlFile, description: Description) -> Settings:
    """What the server makes of the environment. A variable that it would not know or take is an error here."""
    for name, value in description.environment.items():
        path: Path_ = ("environment", name)
        _check_variable(file, path, name)
        if _SECRET.search(name.upper()):
            raise file.error(path, "looks like a secret; name the platform's secret that holds it under secrets")
        if name in VARIABLES:
            try:
                _from_environment({name: value})
            except UsageError as error:
                raise file.error(path, str(error)) from None
    return _from_environment(description.environment)


def _from_environment(environment: dict[str, str]) -> Settings:
    return from_args([], {env_name("model"): "/model"} | environment)


def _check_variable(file: YamlFile, path: Path_, name: str) -> None:
    if not _VARIABLE.fullmatch(name):
        raise file.error(path, "is no name of a variable; expected letters, digits and _")
    if name in _ELSEWHERE:
        raise file.error(path, f"is set from {_ELSEWHERE[name]}; leave it out here")
    if name.startswith(env_name("")) and name not in VARIABLES:
        raise file.error(path, f"{no_variable(name).removeprefix(name).strip()} (docs/flags.md has them all)")


def _refused(file: YamlFile, text: str) -> UsageError:
    """msgspec's "Expected `int` >= 1 - at `$.scaling.max`", with the line, what was found and what is meant."""
    message, at, where = text.rpartition(" - at `$")
    if not at:
        message, where = text, ""
    path: Path_ = tuple(int(part) if part.isdecimal() else part for part in re.findall(r"[^.\[\]`]+|\.\.\.", where))
    if unknown := re.search(r"unknown field `(.*)`", message):
        known = set(get_type_hints(_struct(_hint(path))))
        return file.error((*path, unknown[1]), f"is no field here{nearest(unknown[1], known)}")
    if missing := re.search(r"missing required field `(.*)`", message):
        path = (*path, missing[1])
        return file.error(path, f"is missing; {_meaning(path)}")
    if path and path[-1] == "...":
        path = (*path[:-1], _culprit(file, path[:-1]))
    return file.error(path, f"{_expected(message, path)}, found {_found(_at(file, path))}; {_meaning(path)}")


def _culprit(file: YamlFile, path: Path_) -> str:
    """The key of the mapping at `path` that msgspec refuses: it does not say which."""
    for key, value in _at(file, path).items():
        try:
            msgspec.convert({key: value}, _hint(path))
        except msgspec.ValidationError:
            return str(key)
    raise AssertionError(path)


def _expected(message: str, path: Path_) -> str:
    if values := _values(_hint(path)):
        return "expected one of " + ", ".join(values)
    return in_words(message)


def _found(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, bool):
        return str(value).lower()
    return "nothing" if value is None else repr(value)


def _at(file: YamlFile, path: Path_) -> Any:
    value = file.value
    for part in path:
        value = value[part]
    return value


def _hint(path: Path_) -> Any:
    """The type of what stands at `path`, as far as fields go: an item has its list's."""
    hint: Any = Description
    for part in path:
        struct = _struct(hint)
        if not isinstance(part, str) or struct is None:
            break
        hint = get_type_hints(struct, include_extras=True)[part]
    return hint


def _struct(hint: Any) -> Any:
    """The section that a hint names; None where it names none."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    return next((found for part in get_args(hint) if (found := _struct(part))), None)


def _values(hint: Any) -> tuple[str, ...]:
    """The words of the Literal in a hint."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return next((found for part in get_args(hint) if (found := _values(part))), ())


def _meaning(path: Path_) -> str:
    hint = _hint(path)
    return str(hint.__metadata__[-1].description) if get_origin(hint) is Annotated else "see docs/deploy.md"
