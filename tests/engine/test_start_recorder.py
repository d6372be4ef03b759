"""What the engine notes of its start up to the first token: work that came to nothing is not part of it."""

from typing import Any, cast

import pytest

from pilotlight.engine.engine import Engine
from pilotlight.engine.start_recorder import StartRecorder
from pilotlight.messages import Output, Spans
from pilotlight.timeline import Timeline


class Scripted:
    """An engine whose steps give what they are told to."""

    def __init__(self, *steps: list[Output]) -> None:
        self.steps = list(steps)
        self.has_work = True

    def step(self) -> list[Output]:
        return self.steps.pop(0)


@pytest.mark.parametrize("end", ["aborted", "failed"])
def test_the_wait_for_work_goes_on_where_no_token_came_of_it(end: str) -> None:
    engine = Scripted([], [Output(1, [], "error", error="too long")] if end == "failed" else [], [Output(2, [5])])
    timeline, told = Timeline("engine"), list[Any]()
    recorder = StartRecorder(cast(Engine, engine), timeline, told.append, lambda: None)
    recorder.step()
    (wait, prefill) = timeline.spans
    assert (wait.name, prefill.name) == ("wait for work", "prefill")
    engine.has_work = False
    recorder.step()
    if end == "aborted":
        recorder.give_up()
    assert timeline.spans == [wait]
    assert wait.end is None
    engine.has_work = True
    recorder.step()
    assert recorder.has_token
    assert [span.name for span in timeline.spans] == ["wait for work", "prefill"]
    assert wait.end is not None
    assert wait.end > prefill.start, "it is another prefill"
    assert told == [Spans(timeline.spans)]
    recorder.give_up()
    assert len(timeline.spans) == 2, "the first token stays"
