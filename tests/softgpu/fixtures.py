"""The pytest fixture `soft`: a fresh soft GPU for one test, which fails by findings that the test has not taken."""

from collections.abc import Iterator

import pytest

from . import Finding, Knob, counters, expect_zero, findings, load, reset


class Soft:
    """The soft GPU in a test's hands."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def reset(self, **knobs: Knob) -> None:
        """Starts over under these knobs; what was found so far is checked first."""
        self.check()
        self._taken.clear()
        reset(**knobs)

    def take_findings(self, rule: str) -> list[Finding]:
        """The findings of this rule, which the test expects and answers for."""
        self._taken.add(rule)
        return [found for found in findings() if found.rule == rule]

    def counters(self) -> dict:
        return counters()

    def expect_zero(self, address: int, nbytes: int) -> None:
        expect_zero(address, nbytes)

    def check(self) -> None:
        """Fails the test where there are findings that it has not taken."""
        left = [found for found in findings() if found.rule not in self._taken]
        if left:
            pytest.fail(
                "\n".join(f"{found.rule}: {found.what}\n    at {found.where}" for found in left), pytrace=False
            )


# What a driver reads from the environment: a test sets what it needs, and finds nothing that another process set.
_DRIVER_VARIABLES = ("CUDA_MODULE_LOADING", "CUDA_DISABLE_PTX_JIT", "CUDA_VISIBLE_DEVICES")


@pytest.fixture
def soft(monkeypatch: pytest.MonkeyPatch) -> Iterator[Soft]:
    for name in _DRIVER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    load()
    reset()
    card = Soft()
    yield card
    try:
        card.check()
    finally:
        reset()
