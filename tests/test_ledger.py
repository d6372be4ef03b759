"""The start's ledger: the path that decided, the gaps that nothing explains, and its three drawings."""

import itertools
import random

import pytest

from pilotlight.ledger import chrome_trace, critical_path, summary, unattributed, waterfall
from pilotlight.messages import Span

# Times are ms for the eye; the ledger's are seconds, and it makes no difference here.
START = [
    Span("front", "python", 0, 20),
    Span("front", "listen", 20, 30),
    Span("front", "imports", 31, 100),
    Span("front", "text", 100, 150, thread="text"),
    Span("engine", "python", 30, 50, after="listen"),
    Span("engine", "weights", 52, 200, 1000),
    Span("engine", "graphs", 201, None, thread="idle"),
    Span("front", "wait for engine", 150, 203, thread="text", after="weights"),
]


def path_of(spans: list[Span], end: float) -> list[tuple[str, float, float]]:
    return [(segment.span.name, segment.start, segment.end) for segment in critical_path(spans, end)]


def test_the_path_goes_back_through_what_was_awaited() -> None:
    """`wait for engine` counts from the end of the weights on; the front's imports and text decided nothing."""
    assert path_of(START, 203) == [
        ("python", 0, 20),
        ("listen", 20, 30),
        ("python", 30, 50),
        ("weights", 52, 200),
        ("wait for engine", 200, 203),
    ]
    assert unattributed(critical_path(START, 203), 0, 203) == 2


def test_the_path_goes_through_the_front_where_that_is_what_took_longest() -> None:
    spans = [*START[:-1], Span("front", "wait for engine", 250, 251, thread="text", after="weights")]
    spans[3] = Span("front", "text", 100, 250, thread="text", after="imports")
    assert [name for name, _, _ in path_of(spans, 251)] == ["python", "listen", "imports", "text", "wait for engine"]


def test_a_first_request_that_came_late_waited_for_itself() -> None:
    spans = [
        *START,
        Span("front", "wait for a request", 203, 1000, thread="request", after="wait for engine"),
        Span("front", "submit", 1000, 1001, thread="request"),
        Span("engine", "wait for work", 200, 1002, after="submit"),
        Span("engine", "prefill", 1002, 1010),
        Span("front", "wait for token", 1001, 1011, thread="request", after="prefill"),
    ]
    assert path_of(spans, 1011)[4:] == [
        ("wait for engine", 200, 203),
        ("wait for a request", 203, 1000),
        ("submit", 1000, 1001),
        ("wait for work", 1001, 1002),
        ("prefill", 1002, 1010),
        ("wait for token", 1010, 1011),
    ]


def test_nothing_that_ended_later_is_on_the_path() -> None:
    assert path_of(START, 60) == [("python", 0, 20), ("listen", 20, 30), ("python", 30, 50)]
    assert path_of(START, -1) == []


def test_a_span_without_an_origin_leaves_the_time_before_it_unattributed() -> None:
    path = critical_path([Span("engine", "weights", 70, 100)], 100)
    assert unattributed(path, 0, 100) == 70


@pytest.mark.parametrize("seed", range(20))
def test_the_path_of_any_spans_runs_forwards_and_without_overlap(seed: int) -> None:
    draw = random.Random(seed)
    spans = []
    for number in range(40):
        start = draw.randrange(100)
        end = start + draw.choice((0, 0, 1, 5, 30))
        spans.append(
            Span("front", f"s{number}", start, end, thread=draw.choice("abc"), after=f"s{draw.randrange(45)}")
        )
    path = critical_path(spans, 90)
    assert path
    for before, after in itertools.pairwise(path):
        assert before.start <= before.end <= after.start <= after.end
    for span, start, end in path:
        assert span.start <= start
        assert end == span.end
    assert 0 <= unattributed(path, 0, path[-1].end) <= path[-1].end


WEIGHTS = Span("engine", "weights", 10.05, 10.25, 1_800_000_000, after="imports")
SECONDS = [Span("front", "imports", 10.0, 10.05), WEIGHTS, Span("front", "text", 10.0, 10.2, thread="text")]


def test_summary_names_the_path_s_longest_first_with_rates() -> None:
    assert summary(SECONDS, 9.99, 10.25) == "ready in 260 ms: engine weights 200 @ 9.0 GB/s, front imports 50"


def test_waterfall_draws_each_span_on_the_common_clock() -> None:
    spans = [
        Span("engine", "ready", 10.2, 10.2),
        Span("engine", "weights", 10.05, 10.15, 900_000_000),
        Span("front", "imports", 10.0, 10.1),
        Span("engine", "graphs", 10.1, None),
    ]
    lines = waterfall(spans, width=20)
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


def test_chrome_trace_has_complete_events_in_microseconds_and_names_for_their_rows() -> None:
    """By the format's description: ph X with ts and dur, ph M for the names of processes and threads."""
    spans = [*SECONDS, Span("engine", "graphs", 10.25, None, thread="idle")]
    trace = chrome_trace(spans, critical_path(spans, 10.25), 9.99, 10.5)
    events = trace["traceEvents"]
    rows = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    drawn = {
        event["name"]: (
            processes[event["pid"]],
            rows[event["pid"], event["tid"]],
            event["ts"],
            event["dur"],
            event["args"],
        )
        for event in events
        if event["ph"] == "X"
    }
    assert drawn == {
        "imports": ("front", "main", 10_000, 50_000, {"critical": True}),
        "text": ("front", "text", 10_000, 200_000, {"critical": False}),
        "weights": ("engine", "main", 60_000, 200_000, {"critical": True, "bytes": 1_800_000_000}),
        "graphs": ("engine", "idle", 260_000, 250_000, {"critical": False}),
    }
    assert {event["ph"] for event in events} == {"X", "M"}


@pytest.mark.parametrize("seed", range(20))
def test_events_of_a_row_of_the_chrome_trace_nest_or_lie_apart(seed: int) -> None:
    """As its importer in Perfetto has it: by nanoseconds, in order of their start and then of the file."""
    rng = random.Random(seed)
    spans, at = list[Span](), 1000 + rng.random()
    for _ in range(50):
        start, at = at, at + 0.01 * rng.random()
        inner = start + rng.choice([0, 0.5]) * (at - start)
        spans += [Span("front", "inner", inner, at), Span("front", "outer", start, at)]
    drawn = [event for event in chrome_trace(spans, [], 999.9, at)["traceEvents"] if event["ph"] == "X"]
    open_until: list[int] = []
    for event in sorted(drawn, key=lambda event: int(event["ts"] * 1000)):
        start, end = int(event["ts"] * 1000), int(event["ts"] * 1000) + int(event["dur"] * 1000)
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or end <= open_until[-1], f"{event} overlaps what ends at {open_until[-1]} ns"
        open_until.append(end)
    assert len(drawn) == len(spans)
