"""Model families: each a small file that turns a config.json into a `Description`.

To add one, write its file and name it in `_FAMILIES`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import ModelDataError
from ..config import CONFIG_FILE, Config
from ..spec import Description
from . import llama, mistral, qwen2

_FAMILIES = (llama, mistral, qwen2)
_DESCRIBE: dict[str, Callable[[Config], Description]] = {
    architecture: family.describe for family in _FAMILIES for architecture in family.ARCHITECTURES
}


def describe(config: Mapping[str, Any]) -> Description:
    """The model that a config.json describes. Raises ModelDataError for what is wrong or not supported, by name."""
    architectures = Config(config).texts("architectures")
    known = f"this version serves {', '.join(sorted(_DESCRIBE))}"
    if not architectures:
        raise ModelDataError(f"{CONFIG_FILE}: architectures is missing; {known}")
    if architectures[0] not in _DESCRIBE:
        raise ModelDataError(f"{CONFIG_FILE}: the architecture {architectures[0]!r} is not supported; {known}")
    return _DESCRIBE[architectures[0]](Config(config))
