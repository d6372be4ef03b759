"""Both ways of stepping for the engine's tests, and the real models, loaded once each."""

from functools import partial
from pathlib import Path

import pytest

from pilotlight.model.model import Model, load_model
from pilotlight.settings import from_kwargs
from pilotlight.timeline import Timeline
from tests.engine.oracle import MakeOracle, Oracle
from tests.models import write_chain, write_tiny

CHAIN = tuple(range(97, 123))  # a to z, and again


def load(directory: Path, **settings: object) -> Model:
    return load_model(directory, from_kwargs(model=str(directory), **settings), Timeline("engine"))


@pytest.fixture(params=[False, True], ids=["in_turn", "lookahead"])
def lookahead(request: pytest.FixtureRequest) -> bool:
    """Whether a step is started before the one before it is done."""
    return bool(request.param)


@pytest.fixture
def oracle(lookahead: bool) -> MakeOracle:
    return partial(Oracle, lookahead=lookahead)


@pytest.fixture(scope="session")
def chain_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain(tmp_path_factory.mktemp("models") / "chain", CHAIN, loop=True)


@pytest.fixture(scope="session")
def chain_model(chain_directory: Path) -> Model:
    return load(chain_directory)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(write_tiny(tmp_path_factory.mktemp("models") / "tiny"))
