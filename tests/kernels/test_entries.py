"""Every entry in the manifest is run by the tests of its kernel, and by those marked `smallest` among them, since a
wrong in code that no test runs would pass. Runs after all others; skipped for a kernel not all of whose tests run."""

import json
from pathlib import Path

import pytest

from .conftest import partly_collected, ran, ran_by_smallest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    manifest = json.loads((metafunc.config.getoption("ptx") / "manifest.json").read_text())
    metafunc.parametrize(
        ("module", "entries"), [(name, set(m["entries"])) for name, m in manifest["modules"].items()]
    )


def test_every_entry_is_run(request: pytest.FixtureRequest, module: str, entries: set[str]) -> None:
    file = Path(__file__).with_name(f"test_{module}.py")
    assert file.exists(), "a kernel without tests"
    collected = {item.path for item in request.session.items}
    if file not in collected or file.name in partly_collected:
        pytest.skip(f"not all of {file.name} runs")
    assert not (missing := entries - ran), f"no test runs {sorted(missing)}"
    assert not (missing := entries - ran_by_smallest), f"no test marked `smallest` runs {sorted(missing)}"
