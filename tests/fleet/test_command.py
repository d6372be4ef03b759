"""scripts/simulate_fleet as a person runs it: where its figures come from, what it prints, what it refuses."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotlight.errors import EXIT_USAGE, UsageError
from scripts.fleet import arrivals
from scripts.fleet.figures import Prices, figures
from scripts.fleet.fleet import Policy, simulate
from scripts.fleet.service import Point, Service, Start, assume, read_benchmark, read_start

ROOT = Path(__file__).parents[2]
BENCHMARK = ROOT / "benchmarks" / "cpu.json"


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "scripts/simulate_fleet", *arguments], cwd=ROOT, capture_output=True, text=True
    )


def answer(*arguments: str) -> Any:
    done = run("--json", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_service_and_start_are_the_benchmark_s() -> None:
    result = json.loads(BENCHMARK.read_text())
    service = read_benchmark(BENCHMARK)
    ours = result["streams"]["pilotlight"]
    seconds = result["start_to_first_token"]["pilotlight"]["seconds"]
    assert read_start(BENCHMARK) == Start(seconds, "benchmarks/cpu.json")
    assert [point.streams for point in service.points] == [1, 8, 32]
    at = service.at(8)
    assert (at.first, at.each) == pytest.approx((ours["8"]["ttft_ms"] / 1e3, ours["8"]["tpot_ms"] / 1e3))
    between = service.at(20)
    assert between.each == pytest.approx((ours["8"]["tpot_ms"] + ours["32"]["tpot_ms"]) / 2e3)
    assert service.scaled(128).at(1).first == pytest.approx(2 * service.at(1).first)
    # With all streams busy throughout, the tokens per second that were measured come out again.
    for point in service.points:
        seconds = point.first + (service.output_tokens - 1) * point.each
        measured = ours[str(point.streams)]["tokens_per_s"]
        assert point.streams * service.output_tokens / seconds == pytest.approx(measured, rel=0.05)
    with pytest.raises(UsageError, match=r"33 requests on one replica: benchmarks/cpu\.json goes up to 32"):
        service.at(33)


def test_start_is_the_slowest_of_those_with_a_request_from_the_beginning(tmp_path: Path) -> None:
    def sides(seconds: float) -> Any:
        return {"pilotlight": {"median": {"first_token": seconds}}, "peer": {"median": {"first_token": 9}}}

    file = tmp_path / "startup.json"
    conditions = {"hot, queued": sides(0.2), "dropped, queued": sides(0.4), "dropped, late": sides(3)}
    file.write_text(json.dumps({"conditions": conditions}))
    assert read_start(file) == Start(0.4, str(file))
    assert answer("--start", str(file), "--compare")["policy"]["start"] == 0.4
    file.write_text("{}")
    with pytest.raises(UsageError, match="no result of scripts/measure_startup or bench_serving"):
        read_start(file)


def test_one_request_an_hour_costs_its_start_its_answer_and_its_idle_time() -> None:
    told = answer("regular", "--rate", "1", "--hours", "24", "--idle", "30", "--price", "3.6", "--start", "10")
    fleet = told["fleets"]["start 10 s"]
    service = told["service"]["points"][0]
    seconds = service["first"] + (told["service"]["output_tokens"] - 1) * service["each"]
    assert told["trace"]["requests"] == 24
    assert told["start"] == {"seconds": 10, "source": "assumed"}
    assert fleet["cost"] == pytest.approx(24 * (10 + seconds + 30) * 0.001)
    assert fleet["cost_per_million"] == pytest.approx(fleet["cost"] / (24 * told["service"]["output_tokens"]) * 1e6)
    assert fleet["cold_share"] == 1
    assert fleet["ttft_p50"] == pytest.approx(10 + service["first"])
    assert told["fleets"]["always 1 of 3"]["cost"] == pytest.approx(24 * 3.6)
    assert set(told["fleets"]) == {
        "start 10 s", "start 60 s", "start 120 s", "always 1 of 3", "always 3 of 3",
    }  # fmt: skip


def test_table_says_what_was_measured_and_what_assumed() -> None:
    measured = run("--rate", "10", "--wait-worth", "0.01", "--price", "0.5", "--start", str(BENCHMARK)).stdout
    start = read_start(BENCHMARK).seconds
    assert f"service: benchmarks/cpu.json; start: {start:g} s, benchmarks/cpu.json" in measured
    assert f"--idle {start + 72:.3g} pays as much" in measured
    assumed = run("--rate", "10", "--assume-service", "1:0.05:0.01", "16:0.3:0.02", "--start", "5").stdout
    assert "service: assumed; start: 5 s, assumed" in assumed
    assert run("--rate", "10").stdout == run("--rate", "10").stdout


def test_reader_that_leaves_ends_it_quietly() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "scripts/simulate_fleet", "--rate", "1"]
    done = subprocess.run(command, cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_always_on_has_a_price_of_its_own() -> None:
    fleets = answer("--rate", "10", "--hours", "10", "--price", "2", "--always-on-price", "1", "--max", "1")["fleets"]
    assert fleets["always 1 of 1"]["cost"] == pytest.approx(10)


def test_trace_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("time,output_tokens\n2026-11-30T12:00:10,7\n2026-11-30T12:00:00,\n\n2026-11-30T12:01:00.5Z\n")
    trace = arrivals.read(file, output_tokens=100)
    assert [(each.time, each.output_tokens) for each in trace.arrivals] == [(0, 100), (10, 7), (60.5, 100)]
    assert (trace.name, trace.seconds) == ("trace.csv", 60.5)
    file.write_text("5\n2.5\n")
    assert [each.time for each in arrivals.read(file, output_tokens=1).arrivals] == [0, 2.5]
    file.write_text("5\n2.5\n", encoding="utf-8-sig")  # as spreadsheets save it
    assert len(arrivals.read(file, output_tokens=1).arrivals) == 2
    told = answer(str(file))
    assert told["trace"] == {"name": "trace.csv", "requests": 2, "seconds": 2.5}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1\nx\n", "trace.csv:2: time 'x': expected seconds, or a date as 2026-11-30T12:00:00"),
        ("1,2\n2,0\n", "trace.csv:2: output_tokens '0': expected a whole number, 1 or more"),
        ("1\ninf\n", "trace.csv:2: time 'inf': expected a finite number of seconds"),
        (
            "time\n30/11/2026\n5\n",
            "trace.csv:2: time '30/11/2026': expected seconds, or a date as 2026-11-30T12:00:00",
        ),
        ("a\n\n", "trace.csv: no line begins with a time, in seconds or as 2026-11-30T12:00:00"),
        ("", "trace.csv: no line begins with a time, in seconds or as 2026-11-30T12:00:00"),
    ],
)
def test_wrong_trace_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        arrivals.read(file, output_tokens=1)
    assert str(caught.value) == f"{tmp_path}/{said}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--concurrency", "33"], "33 requests on one replica: benchmarks/cpu.json goes up to 32; lower"),
        (["--limit", "4"], "--limit 4: expected at least --concurrency, 8"),
        (["--min", "4"], "--min 4: expected at most --max, 3"),
        (["no-such.csv"], "no-such.csv: No such file or directory"),
        (["--service", "pyproject.toml"], "no result of scripts/bench_serving"),
        (["--start", "-5"], "--start -5: expected seconds, 0 or more, or a file"),
        (["--start", "nan"], "--start nan: expected seconds, 0 or more, or a file"),
        (["--record", "/dev/null/x"], "--record /dev/null/x: cannot be written: Not a directory"),
        (["--assume-service", "1:2"], "--assume-service '1:2': expected STREAMS:FIRST:EACH"),
        (["--assume-service", "2:1:1"], "expected one point for each count of streams, and one for 1"),
        (["--assume-service", "1:0:1"], "expected times above 0"),
        (["--assume-service", "1:1:1", "--prompt-tokens", "5"], "--prompt-tokens: an assumed service says itself"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_simulated_is_refused_in_one_line(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert done.stderr.startswith("simulate_fleet: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flag", "text", "expected"),
    [
        ("--rate", "0", "a number above 0"),
        ("--share", "1", "a number between 0 and 1"),
        ("--hours", "inf", "a number above 0"),
        ("--idle", "-1", "a number, 0 or more"),
        ("--price", "nan", "a number, 0 or more"),
        ("--max", "1.5", "a whole number, 1 or more"),
    ],
)
def test_impossible_number_is_refused_by_its_flag(flag: str, text: str, expected: str) -> None:
    done = run(flag, text)
    assert done.returncode == 2
    assert done.stderr.endswith(f"argument {flag}: expected {expected}, found {text!r}\n")


def test_what_is_not_known_is_null_in_json() -> None:
    """Without a request there is no TTFT."""
    done = run("--json", "--rate", "1e-9")
    told = json.loads(done.stdout, parse_constant=pytest.fail)
    assert {fleet["ttft_p50"] for fleet in told["fleets"].values()} == {None}


def test_assumed_service_is_taken_as_it_is_said() -> None:
    service = assume(["16:0.3:0.02", "1:0.05:0.01"], 100)
    assert service.source == "assumed"
    assert service.points == (Point(1, 0.05, 0.01), Point(16, 0.3, 0.02))
    assert math.isclose(service.at(6).each, 0.01 + 5 / 15 * 0.01)


def test_recorded_sweeps_come_out_again() -> None:
    """One point of each, simulated anew from what benchmarks/fleet.json says of itself."""
    recorded = json.loads((ROOT / "benchmarks" / "fleet.json").read_text())
    fields = recorded["service"]
    service = Service(
        tuple(Point(**point) for point in fields["points"]),
        fields["source"],
        fields["prompt_tokens"],
        fields["output_tokens"],
    )
    for field in ("idle", "concurrency", "max_replicas"):
        sweep = recorded["fleet"][field]
        trace = arrivals.draw(
            sweep["process"],
            sweep["rate"] / 3600,
            sweep["days"] * 86400,
            output_tokens=sweep["output_tokens"],
            seed=1,
            **{name: sweep[name] for name in ("burst", "share") if name in sweep},
        )
        point = sweep["curves"]["10"][2]
        policy = Policy(**sweep["policy"] | {"start": 10.0, field: point[field]})
        result = figures(simulate(trace, service, policy), Prices(**recorded["prices"]), 0)
        assert float(f"{result.cost_per_million:.4g}") == point["cost_per_million"], field
        assert float(f"{result.ttft_p99:.4g}") == point["ttft_p99"], field
