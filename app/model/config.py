"""config.json, read once: typed access to its fields, and both spellings of the rotary parameters.

Families read a model through `Config` alone, so that every wrong field is refused in one way: by its name, with
what was found and what was expected.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from ..errors import ModelDataError
from .spec import RopeScaling, RopeSpec

CONFIG_FILE = "config.json"

LARGEST_INTEGER = 2**31 - 1  # token ids, positions and sizes are int32 on the devices
_MOST_LAYERS = 4096

_SPELLINGS = {"su": "longrope"}  # the first name of Phi-3's scaling


def read_config(directory: Path) -> dict[str, Any]:
    """The object in `directory`/config.json. Raises ModelDataError."""
    file = directory / CONFIG_FILE
    if not file.exists():
        raise ModelDataError(f"{file}: is missing; expected the directory of a model")
    return read_json(file)


def read_json(file: Path) -> dict[str, Any]:
    """The object that a file of the model's directory holds. Raises ModelDataError."""
    try:
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise ModelDataError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelDataError(f"{file}: is not JSON ({str(error)[:80]})") from None
    if not isinstance(value, dict):
        raise ModelDataError(f"{file}: is not a JSON object")
    return value


class Config:
    """A config.json's fields by type. An absent field and, where there is a default, a null one are the default.

    Every method raises ModelDataError for a field of another type or out of range.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._values.get(name) is not None

    def is_null(self, name: str) -> bool:
        return name in self._values and self._values[name] is None

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number from 1 to 2^31 - 1."""
        return self._whole(name, default, 1, LARGEST_INTEGER)

    def layers(self) -> int:
        """`num_hidden_layers`. Each has a dozen tensors, so it is bounded before anything is made of it."""
        return self._whole("num_hidden_layers", None, 1, _MOST_LAYERS)

    def count(self, name: str, default: int) -> int:
        """A whole number from 0 to 2^31 - 1."""
        return self._whole(name, default, 0, LARGEST_INTEGER)

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self._get(name, default)
        if not _is_positive(value):
            raise _wrong(name, value, "a number above 0")
        return float(value)

    def switch(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise _wrong(name, value, "a string")
        return value

    def texts(self, name: str) -> list[str] | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise _wrong(name, value, "a list of strings")
        return value

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """`length` numbers above 0."""
        value = self._values.get(name)
        if not isinstance(value, list) or len(value) != length or not all(_is_positive(item) for item in value):
            raise _wrong(name, value, f"a list of {length} numbers above 0")
        return tuple(float(item) for item in value)

    def table(self, name: str) -> Mapping[str, Any]:
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise _wrong(name, value, "an object")
        return value

    def _whole(self, name: str, default: int | None, low: int, high: int) -> int:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _wrong(name, value, f"a whole number from {low} to {high}")
        return value

    def _get(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        if value is None:
            if default is None:
                raise ModelDataError(f"{CONFIG_FILE}: {name} is missing")
            return default
        return value


def read_rope(config: Config, dim: int, max_position: int) -> RopeSpec:
    """The rotary embedding, spelled as transformers 5 does (`rope_parameters`) or as before (`rope_theta` at the top,
    `rope_scaling` beside it). A theta among the parameters wins over one at the top, as in transformers.
    """
    where = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    values = config.table(where)
    if any(isinstance(value, dict) for value in values.values()):
        raise unsupported(f"{where} that differ from layer to layer")
    table = Config(values)
    if table.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0)) != 1.0:
        raise unsupported("partial_rotary_factor other than 1")
    theta = table.number("rope_theta", config.number("rope_theta", 10000.0))
    spelled = table.text("rope_type", table.text("type", "default"))
    scaling = _SPELLINGS.get(spelled, spelled)
    original = max_position
    if scaling in ("llama3", "yarn", "longrope"):  # at the top it wins: transformers' rule, made for Phi-3
        inner = table.integer("original_max_position_embeddings", max_position)
        original = config.integer("original_max_position_embeddings", inner)
    names: tuple[str, ...]
    match scaling:
        case "default":
            return RopeSpec(dim, theta)
        case "linear" | "dynamic":
            return RopeSpec(dim, theta, scaling, original, (("factor", table.number("factor")),))
        case "llama3":
            names = ("factor", "low_freq_factor", "high_freq_factor")
            return RopeSpec(dim, theta, scaling, original, tuple((name, table.number(name)) for name in names))
        case "yarn":
            names = ("attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow")
            yarn = [(name, table.number(name)) for name in names if values.get(name)]
            yarn.append(("factor", table.number("factor", max_position / original)))
            yarn.append(("truncate", float(table.switch("truncate", True))))
            return RopeSpec(dim, theta, scaling, original, tuple(yarn))
        case "longrope":
            names = ("short_factor", "long_factor")
            factors = [(name, table.numbers(name, dim // 2)) for name in names]
            factor = ("factor", table.number("factor", max_position / original))
            given = [(name, table.number(name)) for name in ("attention_factor",) if name in table]
            return RopeSpec(dim, theta, scaling, original, (*factors, factor, *given))
    raise ModelDataError(
        f"{CONFIG_FILE}: rope type {spelled!r} is unknown; expected one of {', '.join(get_args(RopeScaling))}"
    )


def unsupported(what: str) -> ModelDataError:
    """For what a config asks and this version does not do."""
    return ModelDataError(f"{CONFIG_FILE}: {what}: this version does not support it")


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def _wrong(name: str, value: object, expected: str) -> ModelDataError:
    return ModelDataError(f"{CONFIG_FILE}: {name} is {json.dumps(value)[:80]}, expected {expected}")
