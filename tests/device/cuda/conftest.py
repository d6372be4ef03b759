"""Models on a card beside the same models on the CPU."""

from collections.abc import Iterator

import pytest

from tests import softgpu
from tests.softgpu.fixtures import soft

from .bench import Bench

__all__ = ["soft"]


@pytest.fixture(scope="module")
def shared_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """One card for the tests of a file; tests of such a file leave the soft GPU as it is."""
    with Bench(soft=request.config.getoption("gpu") == "soft") as made:
        yield made


@pytest.fixture
def bench(shared_bench: Bench) -> Iterator[Bench]:
    """The file's card. What the soft GPU finds during the test fails it."""
    yield shared_bench
    found = softgpu.findings() if shared_bench.soft else []
    if found:
        shared_bench.reset()
    assert found == [], "\n".join(map(str, found))
