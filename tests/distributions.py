"""What a distribution needs to run, by the metadata of what is installed here."""

import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT: dict[str, Any] = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())

# Declared by tokenizers, which imports it for downloads only: serving does without it.
NOT_FOR_SERVING = {"huggingface-hub"}


def runtime() -> dict[str, Distribution]:
    """Canonical name -> distribution of everything that serving needs on this Python."""
    return closure(PYPROJECT["project"]["dependencies"], without=NOT_FOR_SERVING)


def closure(requirements: Iterable[str], without: set[str]) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (
            name in found
            or name in without
            or (requirement.marker and not requirement.marker.evaluate({"extra": ""}))
        ):
            continue
        found[name] = distribution(name)
        waiting += [Requirement(text) for text in found[name].requires or ()]
    return found
