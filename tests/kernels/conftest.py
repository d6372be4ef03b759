"""The `gpu` fixture of the kernels' tests, and the record of which entries they ran."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import softgpu

from .hardships import HARDSHIPS
from .harness import Card

_open: dict[str, Card] = {}  # at most one card, by its knobs: making one costs more than most tests
ran: set[str] = set()  # entries
ran_by_smallest: set[str] = set()
partly_collected: set[str] = set()  # files of which tests were left out, slow ones aside


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What every other test has run is looked at last."""
    items.sort(key=lambda item: item.path.name == "test_entries.py")
    partly_collected.update(
        argument.partition("::")[0].split("/")[-1] for argument in config.args if "::" in argument
    )


def pytest_deselected(items: list[pytest.Item]) -> None:
    partly_collected.update(item.path.name for item in items if item.get_closest_marker("slow") is None)


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Iterator[Card]:
    """A card. What the soft GPU finds during the test fails it. An indirect parameter is a dict of its knobs."""
    soft = request.config.getoption("gpu") == "soft"
    knobs: dict[str, Any] = getattr(request, "param", {})
    if not soft and knobs in HARDSHIPS[1:]:
        pytest.skip("a card has its own hardships: once is enough")
    card = _card(soft, request.config.getoption("ptx"), knobs)
    failed = request.session.testsfailed
    card.entries.clear()
    yield card
    ran.update(card.entries)
    if request.node.get_closest_marker("smallest"):
        ran_by_smallest.update(card.entries)
    found = softgpu.findings() if soft else []
    if found or request.session.testsfailed != failed:
        _open.clear()  # a fault sticks to its context, findings to the library: the next test starts afresh
    else:
        card.free_all()
    assert found == [], "\n".join(map(str, found))


def _card(soft: bool, ptx: Path, knobs: dict[str, Any]) -> Card:
    key = repr(sorted(knobs.items()))
    if key not in _open or _open[key].epoch != softgpu.epoch():
        for card in _open.values():
            card.close()
        _open.clear()
        _open[key] = Card(ptx, soft=soft, **(knobs if soft else {}))
    return _open[key]
