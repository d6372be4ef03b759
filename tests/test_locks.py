"""constraints.txt and requirements.lock fit pyproject.toml and each other; scripts/lock makes them."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.distributions import NOT_FOR_SERVING, PYPROJECT, runtime

ROOT = Path(__file__).parent.parent
EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
RUNTIME: list[str] = PYPROJECT["project"]["dependencies"]


def pins(file: str) -> dict[str, str]:
    """Canonical name -> version. Each name stands once: one version for every supported Python."""
    lines = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / file).read_text(), re.MULTILINE)
    assert len(dict(lines)) == len(lines)
    return {canonicalize_name(name): version for name, version in lines}


@pytest.mark.parametrize("group", ["runtime", *EXTRAS])
def test_constraints_pin_what_pyproject_asks_for(group: str) -> None:
    pinned = pins("constraints.txt")
    for text in EXTRAS.get(group, RUNTIME):
        requirement = Requirement(text)
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{text} is pinned at {version}: run scripts/lock"


def test_image_has_the_constraints_versions() -> None:
    assert pins("requirements.lock").items() <= pins("constraints.txt").items()


def test_image_has_what_serving_needs_and_no_more() -> None:
    assert set(pins("requirements.lock")) == set(runtime())
    assert not NOT_FOR_SERVING & set(pins("requirements.lock"))


def test_every_package_of_the_image_has_hashes() -> None:
    blocks = re.split(r"^(?=[\w.-]+==)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in block for block in blocks)
