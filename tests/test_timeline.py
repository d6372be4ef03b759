"""The start's ledger: right clocks, right sums, a drawing that fits."""

import time
from pathlib import Path

import pytest

from pilotlight.messages import Span
from pilotlight.timeline import Timeline, process_start, summary, waterfall

SPANS = [
    Span("front", "imports", 10.0, 10.1),
    Span("engine", "weights", 10.05, 10.15, nbytes := 900_000_000),
    Span("engine", "ready", 10.2, 10.2),
]


def test_span_records_its_block_even_when_that_fails() -> None:
    timeline = Timeline("engine")
    before = time.monotonic()
    with timeline.span("weights", 7):
        inside = time.monotonic()
    with pytest.raises(KeyError), timeline.span("broken"):
        raise KeyError
    after = time.monotonic()
    weights, broken = timeline.spans
    assert (weights.process, weights.name, weights.bytes) == ("engine", "weights", 7)
    assert before <= weights.start <= inside <= weights.end <= broken.start <= broken.end <= after
    assert (broken.name, broken.bytes) == ("broken", 0)


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


def test_summary_names_the_longest_first_with_rates() -> None:
    line = summary([*SPANS, *(Span("front", f"small {i}", 10.0, 10.0 + i / 1000) for i in range(9))])
    assert line.startswith("ready in 200 ms: ")
    assert "engine weights 100 @ 9.0 GB/s" in line
    assert "front imports 100, " in line
    assert line.endswith("front small 5 5")
    assert len(line.splitlines()) == 1


def test_waterfall_draws_each_span_on_the_common_clock() -> None:
    lines = waterfall(list(reversed(SPANS)), width=20)
    names = [line.split("|")[0].split() for line in lines]
    assert names == [["front", "imports"], ["engine", "weights"], ["engine", "ready"]]
    bars = [line.split("|")[1] for line in lines]
    assert bars[0] == "█" * 10 + " " * 10
    assert bars[1] == " " * 5 + "█" * 10 + " " * 5
    assert bars[2] == " " * 19 + "█", "a moment still gets one block, inside the frame"
    assert lines[1].endswith("   100 ms @ 9.0 GB/s")
    assert lines[0].endswith("   100 ms")


def test_waterfall_of_one_moment_is_no_division_by_zero() -> None:
    assert waterfall([Span("front", "a", 5.0, 5.0, 3)], width=4) == ["front  a                  |█   |      0 ms"]
