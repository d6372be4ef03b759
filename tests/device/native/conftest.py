"""The CPU library, built where a server looks for it; or another one, such as one with a sanitizer in it."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pilotlight.build.native import build_native
from pilotlight.device import native_library
from pilotlight.device.native_library import Library
from pilotlight.errors import UnavailableError

from .memory import check_fences
from .ops import Ops

LEVELS = ("avx512_bf16", "avx512", "avx2", "portable")


@cache
def built() -> Path:
    given = os.environ.get("NATIVE_LIBRARY")
    if given:
        return Path(given)
    file = native_library.find()
    build_native(native_library.directory(), file)
    return file


@cache
def opened(threads: int, level: str | None = None) -> Library:
    """Once each: its threads sleep between the tests."""
    return Library(built(), threads, level)


@pytest.fixture(scope="session")
def file() -> Path:
    try:
        return built()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(params=LEVELS)
def ops(file: Path, request: pytest.FixtureRequest) -> Iterator[Ops]:
    """By two threads, at each level that this CPU has."""
    if request.param not in opened(1).levels:
        pytest.skip(f"this CPU has no {request.param}")
    yield Ops(opened(2, request.param))
    check_fences()
