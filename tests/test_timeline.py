"""The start's spans: right clocks, blocks that fail, and an exec time that is believed only where it can be right."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pilotlight import FIRST_LINE
from pilotlight.timeline import EXEC_TIME, Timeline, exec_time, process_start


def test_span_records_its_block_even_when_that_fails() -> None:
    timeline = Timeline("engine")
    before = time.monotonic()
    with timeline.span("weights", 7):
        inside = time.monotonic()
    with pytest.raises(KeyError), timeline.span("broken", thread="other", after="weights"):
        raise KeyError
    after = time.monotonic()
    weights, broken = timeline.spans
    assert (weights.process, weights.name, weights.bytes) == ("engine", "weights", 7)
    assert weights.end is not None
    assert broken.end is not None
    assert before <= weights.start <= inside <= weights.end <= broken.start <= broken.end <= after
    assert (broken.name, broken.bytes, broken.thread, broken.after) == ("broken", 0, "other", "weights")


def test_a_span_is_there_while_it_runs_and_may_learn_its_bytes() -> None:
    timeline = Timeline("engine")
    with timeline.span("weights") as span:
        assert timeline.spans == [span]
        assert span.end is None
        span.bytes = 9
    assert timeline.spans[0].end is not None
    assert timeline.spans[0].bytes == 9


def test_what_begins_in_the_main_thread_is_told() -> None:
    told: list[list[str]] = []
    timeline = Timeline("engine")
    timeline.on_begin = lambda: told.append([span.name for span in timeline.spans])
    with timeline.span("a"), timeline.span("beside", thread="other"):
        pass
    timeline.add("over already", 1.0, 2.0)
    timeline.begin("b")
    assert told == [["a"], ["a", "beside", "over already", "b"]]


@pytest.mark.parametrize("age", [0.0, 0.25, 3000.0])
def test_the_exec_time_comes_from_whoever_started_us(age: float) -> None:
    given = FIRST_LINE - age
    assert exec_time({EXEC_TIME: repr(given)}) == (given, "environment", "")


@pytest.mark.parametrize(
    "text",
    [
        "soon",
        "nan",
        "inf",
        "-inf",
        "-1",
        "1e300",
        "\u0661",
        repr(FIRST_LINE + 5),
        repr(FIRST_LINE - 7200),
        " ",
        "1" * 999,
        "1\n2",
    ],
)
def test_an_exec_time_that_cannot_be_right_is_passed_over_in_one_line(text: str) -> None:
    """No number, before the machine was up, later than our first line, hours ago (left in a shell's environment)."""
    found = exec_time({EXEC_TIME: text})
    assert (found.time, found.origin) == (pytest.approx(process_start(), abs=0.011), "proc")
    assert found.complaint.startswith(f"{EXEC_TIME}={text[:40]!r} is passed over: ")
    assert len(found.complaint.splitlines()) == 1


@pytest.mark.parametrize("environ", [{}, {EXEC_TIME: ""}])
def test_without_an_exec_time_the_kernel_is_asked(environ: dict[str, str]) -> None:
    found = exec_time(environ)
    assert (found.origin, found.complaint) == ("proc", "")


def test_the_interpreter_s_own_start_ends_with_the_first_line_of_ours() -> None:
    """In a fresh interpreter, whose exec is timed from outside."""
    code = (
        "from pilotlight.timeline import *\n"
        "import time\n"
        "timeline = Timeline('front')\n"
        "timeline.add_interpreter(exec_time(os.environ).time, time.monotonic())\n"
        "print(*(moment for span in timeline.spans for moment in (span.start, span.end)))\n"
    )
    before = time.monotonic()
    environment = os.environ | {EXEC_TIME: repr(before)}
    done = subprocess.run(
        [sys.executable, "-c", "import os;" + code], env=environment, capture_output=True, text=True
    )
    python_start, python_end, imports_start, imports_end = map(float, done.stdout.split())
    assert python_start == before
    assert python_start < python_end == imports_start < imports_end < time.monotonic()


def test_process_start_is_what_the_kernel_says() -> None:
    """Another way to the same moment: a process's /proc directory is as old as the process."""
    age = time.monotonic() - process_start()
    assert age > 0
    born = Path("/proc/stat").read_text().partition("btime ")[2].split()[0]
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    wall_age = time.time() - (int(born) + int(ticks) / 100)
    assert age == pytest.approx(wall_age, abs=2)  # btime is in whole seconds


def test_process_start_survives_a_name_with_parentheses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fields = " ".join(str(number) for number in range(4, 53))
    line = tmp_path / "stat"
    line.write_text(f"1 (a) b (c)) S {fields}\n")
    real_open = open
    monkeypatch.setattr("builtins.open", lambda path, *rest: real_open(line if "stat" in path else path, *rest))
    ticks_since_boot = 22
    boot = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    assert process_start() + boot == pytest.approx(ticks_since_boot / 100, abs=0.01)
