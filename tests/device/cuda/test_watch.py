"""The deadline of a step: who misses it leaves the process, and says what the GPU did last."""

import logging
import math
import os
import threading

import pytest

from pilotlight.device.cuda.errors import failure
from pilotlight.device.cuda.watch import Watch
from pilotlight.errors import EXIT_ENGINE

RECENT = "graph_step [8], norm_rms_warp_bf16 [4, 1, 1]"


class Exit:
    """Takes the place of os._exit."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.called = threading.Event()

    def __call__(self, code: int) -> None:
        self.code = code
        self.called.set()


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Exit:
    made = Exit()
    monkeypatch.setattr(os, "_exit", made)
    return made


def test_a_step_that_hangs_ends_the_process(left: Exit, caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch("cuda:1", 0.02, lambda: RECENT)
    with caplog.at_level(logging.ERROR), watch:
        assert left.called.wait(10)
        watch.close()
    assert left.code == EXIT_ENGINE
    assert caplog.messages[0] == (
        "cuda:1: a step has not ended within 0.02 s, the GPU hangs; its last launches, the latest first: " + RECENT
    )


def test_between_steps_there_is_no_deadline(left: Exit) -> None:
    """Polled for longer than a step may take; each step has its own time."""
    watch = Watch("cuda:0", 0.02, lambda: RECENT)
    for _ in range(3):
        with watch:
            assert watch._deadline < math.inf
        assert watch._deadline == math.inf
    assert not left.called.wait(0.1)
    watch.close()


def test_a_process_that_was_frozen_does_not_leave(left: Exit, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wakes up behind the deadline, and ends the step before the thread looks again."""
    watch = Watch("cuda:0", 1000.0, lambda: RECENT)
    watch.close()
    polls = iter([False, False, False, True])

    def poll(seconds: float) -> bool:
        watch._deadline = next(deadlines)
        return next(polls)

    deadlines = iter([-5.0, math.inf, -4.0, -3.0])
    monkeypatch.setattr(watch._closed, "wait", poll)
    watch._work()
    assert not left.called.is_set()
    polls, deadlines = iter([False, False, True]), iter([-5.0, -5.0, -5.0])
    watch._work()
    assert left.called.is_set()


@pytest.mark.parametrize(("code", "told"), [(700, True), (2, False)])
def test_a_gpu_that_is_lost_is_told_with_what_it_did_last(
    caplog: pytest.LogCaptureFixture, code: int, told: bool
) -> None:
    watch = Watch("cuda:0", 60.0, lambda: RECENT)
    error = failure("cuEventSynchronize", code, "CUDA_ERROR", "words")
    with caplog.at_level(logging.ERROR), pytest.raises(type(error)), watch:
        raise error
    assert caplog.messages == [f"cuda:0 is lost; its last launches, the latest first: {RECENT}"] * told
    watch.close()
