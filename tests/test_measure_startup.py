"""scripts/measure_startup: servers that start in every way, the page cache, and the figures that come out."""

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from scripts.bench_table import between
from scripts.startup import budget, compare, failures, growth, ledger, pages, tables
from scripts.startup.__main__ import parse
from scripts.startup.compare import Condition
from scripts.startup.figures import line, median_index, quartiles, summary
from scripts.startup.start import TOKENS, Side, Start, measure
from tests.models import write_chain

ROOT = Path(__file__).parent.parent
FAKE = (sys.executable, "-I", "-S", str(ROOT / "tests" / "fake_server.py"), "{port}")
SPAN = {"process": "front", "name": "python", "start": 0.0, "end": 0.03, "bytes": None, "critical": True}
SECONDS = {"port_open": 0.05, "ready": 0.2, "first_token": 0.5}
LEDGER = {"object": "startup", "seconds": SECONDS, "unattributed": 0.00123, "spans": [SPAN]}


def fake(*knobs: str, **changes: Any) -> Side:
    return Side("fake", (*FAKE, *knobs), prompt="hello", **changes)


# --- one start ----------------------------------------------------------------------------------------------------


def test_a_servers_marks_in_their_order(tmp_path: Path) -> None:
    start = measure(fake(), "queued", tmp_path / "log")
    assert start.marks.keys() == {"port_open", "first_200", "request", "first_token"}
    assert list(start.marks.values()) == sorted(start.marks.values())
    assert 0 < start.marks["port_open"] < start.marks["first_token"] < 20
    assert start.ledger is None


def test_a_server_that_refuses_while_it_loads_is_asked_again(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    start = measure(fake("refuse=3", f"write={asked}"), "queued", tmp_path / "log")
    requests = [line.partition(" ") for line in asked.read_text().splitlines()]
    bodies = [json.loads(body) for path, _, body in requests if path == "/v1/completions"]
    assert len(bodies) == 4
    assert all(body["prompt"] == "hello" and body["max_tokens"] == TOKENS and body["stream"] for body in bodies)
    assert sum(path == "/health" for path, _, _ in requests) == 4
    assert start.marks["first_token"] > start.marks["request"]


def test_a_late_request_is_not_sent_before_the_server_is_ready(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    side = fake("refuse=2", f"write={asked}", live="/live", ready="/ready")
    start = measure(side, "late", tmp_path / "log")
    paths = [line.partition(" ")[0] for line in asked.read_text().splitlines()]
    assert paths.index("/v1/completions") > max(at for at, path in enumerate(paths) if path == "/ready")
    assert paths.count("/ready") == 3
    assert start.marks["ready"] <= start.marks["request"] <= start.marks["first_token"]


def test_what_a_server_says_of_its_start_is_kept(tmp_path: Path) -> None:
    start = measure(fake(f"startup={json.dumps(LEDGER)}", startup="/startup"), "queued", tmp_path / "log")
    assert start.ledger == LEDGER
    assert measure(fake(startup="/startup"), "queued", tmp_path / "log").ledger is None


def test_a_server_that_dies_is_told_with_its_name_code_and_log(tmp_path: Path) -> None:
    with pytest.raises(
        SystemExit, match=r"(?s)fake: the server did not start and left with code 1: .*no weights here"
    ):
        measure(fake("die"), "queued", tmp_path / "log")


def test_a_server_that_never_opens_its_port_has_its_time(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"fake: the server did not start within 0\.3 s"):
        measure(fake("deaf", timeout=0.3), "queued", tmp_path / "log")


def test_a_server_that_always_refuses_has_its_time(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"fake: the server did not start within 1 s"):
        measure(fake("refuse=1000000", timeout=1.0), "queued", tmp_path / "log")


def test_a_peer_on_a_port_of_its_own(tmp_path: Path) -> None:
    from scripts.bench_server import free_port

    port = free_port()
    side = Side("own", (*FAKE[:-1], str(port)), url=f"http://127.0.0.1:{port}")
    assert measure(side, "queued", tmp_path / "log").marks["first_token"] > 0


def test_processes_that_serve_nothing(tmp_path: Path) -> None:
    ends = measure(Side("dies", (*FAKE[:-1], "0", "die=3"), until="exit"), "queued", tmp_path / "log")
    assert (list(ends.marks), ends.code) == (["exit"], 3)
    told = measure(Side("tells", (*FAKE[:-1], "0", "die"), until="exit"), "queued", tmp_path / "log")
    assert (told.code, told.said) == (1, "no weights here")
    prints = Side("prints", (sys.executable, "-c", "print('a')"), until="line")
    assert list(measure(prints, "queued", tmp_path / "log").marks) == ["first_token"]
    hangs = Side("hangs", (*FAKE[:-1], "0", "deaf"), until="exit", timeout=0.2)
    with pytest.raises(SystemExit, match=r"hangs: it did not end within 0\.2 s"):
        measure(hangs, "queued", tmp_path / "log")


# --- the page cache -----------------------------------------------------------------------------------------------


def write_weights(directory: Path) -> Path:
    directory.mkdir()
    file = directory / "weights.safetensors"
    file.write_bytes(os.urandom(50 * mmap.PAGESIZE + 1))
    return file


def test_dropped_pages_are_gone_and_come_back(tmp_path: Path) -> None:
    file = write_weights(tmp_path / "model")
    assert pages.resident(file) == (51, 51)  # just written
    command = ["stat", "--file-system", "--format=%T", tmp_path]
    if subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() in ("tmpfs", "ramfs"):
        pytest.skip("this file system has its files in these pages alone")
    pages.prepare([file], "dropped")
    assert pages.resident(file) == (0, 51)
    pages.prepare([file], "hot")
    assert pages.resident(file) == (51, 51)
    assert 0 < pages.touch(file) < 10


def test_busy_processes_compute_until_they_are_no_longer_wanted() -> None:
    before = set(psutil.Process().children())
    with pages.busy(2):
        processes = set(psutil.Process().children()) - before
        assert [process.status() for process in processes] == [psutil.STATUS_RUNNING] * 2
    assert not any(process.is_running() for process in processes)


def test_pages_that_stay_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_weights(tmp_path / "model")
    monkeypatch.setattr(pages, "let_go", lambda _: None)
    monkeypatch.setattr(pages, "_PAUSE", 0.0)
    with pytest.raises(SystemExit, match=r"weights\.safetensors: 51 of its 51 pages stay in the page cache"):
        pages.drop([file])


def test_pages_that_a_process_maps_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_weights(tmp_path / "model")
    monkeypatch.setattr(pages, "_PAUSE", 0.0)
    with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        assert len(bytes(mapping)) == 50 * mmap.PAGESIZE + 1
        with pytest.raises(SystemExit, match="some process maps"):
            pages.drop([file])


def test_the_weights_that_a_command_names(tmp_path: Path) -> None:
    file = write_weights(tmp_path / "model")
    gguf = tmp_path / "other.gguf"
    gguf.write_bytes(b"GGUF")
    (tmp_path / "model" / "config.json").write_text("{}")
    side = Side("any", ("server", "-m", str(gguf), str(tmp_path / "model"), "--port", "{port}"))
    assert side.weights == (gguf, file)


# --- figures ------------------------------------------------------------------------------------------------------


def test_medians_and_quartiles() -> None:
    assert summary([{"port": 3.0, "token": 9.0}, {"port": 1.0, "token": 8.0}, {"port": 2.00004, "token": 4.0}]) == {
        "median": {"port": 2.0, "token": 8.0},
        "quartiles": {"port": [1.5, 2.5], "token": [6.0, 8.5]},
        "starts": {"port": [3.0, 1.0, 2.0], "token": [9.0, 8.0, 4.0]},
    }
    assert quartiles([5.0]) == [5.0, 5.0]


def test_the_start_that_stands_for_all() -> None:
    assert median_index([0.5, 0.1, 0.3]) == 2
    assert median_index([0.5, 0.1, 0.3, 0.4]) == 2  # of two in the middle the faster


def test_the_line_through_sizes() -> None:
    fit = line([1.0, 2.0, 4.0], [2.5, 4.5, 8.5])
    assert (fit.slope, fit.offset, fit.r2) == pytest.approx((2.0, 0.5, 1.0))
    assert line([1.0, 2.0, 3.0], [1.0, 3.0, 1.0]).r2 == pytest.approx(0.0)


def test_ratios_are_ours_over_theirs() -> None:
    entries = {
        "pilotlight": {"median": {"port_open": 0.05, "request": 0.05, "first_200": 0.2, "first_token": 0.3}},
        "other": {"median": {"port_open": 0.1, "request": 0.1, "first_token": 0.6}},
        "python": {"median": {"exit": 0.02}},
    }
    assert compare.ratios(entries, "pilotlight") == {
        "other": {"port_open": 0.5, "first_token": 0.5},
        "python": {"port_open over exit": 2.5},
    }


def test_growth_is_read_from_the_spans_that_move_the_weights() -> None:
    spans = [
        {"name": "weights", "start": 0.3, "end": 0.6, "bytes": 990},
        {"name": "read ahead", "start": 0.1, "end": 0.4, "bytes": 1000},
        {"name": "weights again", "start": 0.8, "end": 0.9, "bytes": 1000},
        {"name": "tokenizer", "start": 0.0, "end": 0.9, "bytes": 10},
        {"name": "graphs", "start": 0.0, "end": None, "bytes": 5000},
        {"name": "after the first token", "start": 1.5, "end": 2.0, "bytes": 5000},
    ]
    document = {"seconds": {"first_token": 1.4}, "spans": spans}
    assert [span["start"] for span in ledger.spans(document)] == [0.0, 0.1, 0.3, 0.8]
    assert ledger.load_seconds(document, 1000) == pytest.approx(0.6)
    with pytest.raises(SystemExit, match="no span"):
        ledger.load_seconds(document | {"spans": spans[3:5]}, 1000)


def test_growth_is_a_line_whose_slope_is_compared_with_the_machines() -> None:
    points = [
        {
            "bytes": int(size * 1e9),
            "median": {
                "load": 0.02 + 0.5 * size,
                "machine": 0.4 * size,
                "machine_busy": 0.01 + 0.625 * size,
                "touch": 0.05 * size,
                "first_token": 0.3 + 0.6 * size,
            },
        }
        for size in (1, 2, 4)
    ]
    found = growth.lines(points)
    assert found["load"] == {"s_per_gb": 0.5, "s_at_0": 0.02, "r2": 1.0}
    assert (found["load_over_machine"], found["load_over_busy"], found["passes"]) == (1.25, 0.8, 2.0)


@pytest.mark.parametrize("gigabytes", growth.GIGABYTES)
def test_growths_snapshots_have_about_the_size_that_was_asked(gigabytes: float) -> None:
    from scripts.gpu import weights

    assert weights.size_of(growth.config_of(gigabytes)) == pytest.approx(gigabytes * 1e9, rel=0.05)


# --- in turn ------------------------------------------------------------------------------------------------------


def test_every_side_starts_in_every_round_and_the_order_is_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_weights(tmp_path / "model")
    calls: list[tuple[str, str, str]] = []
    prepared: list[str] = []

    def started(side: Side, request: str, log: Path) -> Start:
        calls.append((side.name, prepared[-1], request))
        return Start({"exit" if side.until == "exit" else "first_token": 0.1 * len(calls)})

    monkeypatch.setattr(compare, "measure", started)
    monkeypatch.setattr(pages, "prepare", lambda files, state: prepared.append(state))
    three = [Side("a", ("a", str(file))), Side("b", ("b", str(file))), Side("c", ("c",), until="exit")]
    under = compare.conditions(["hot", "dropped"], ["queued"])
    starts = compare.rounds(three, under, 2, tmp_path / "log", lambda *_: None)
    hot = [name for name, state, _ in calls if state == "hot"]
    assert hot == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert [name for name, state, _ in calls if state == "dropped"] == ["a", "b", "b", "a", "a", "b"]
    assert {name: len(each) for name, each in starts[under[0]].items()} == {"a": 2, "b": 2, "c": 2}
    assert starts[under[1]].keys() == {"a", "b"}
    assert 0.1 not in [start.marks.get("first_token") for start in starts[under[0]]["a"]]  # the first is not counted


def test_the_median_starts_ledger_is_recorded() -> None:
    starts = [
        Start({"port_open": 0.1, "first_token": seconds}, LEDGER | {"unattributed": seconds / 100})
        for seconds in (0.5, 0.2, 0.3)
    ]
    found = compare.result([fake()], {Condition("hot", "queued"): {"fake": starts}})
    entry = found["conditions"]["hot, queued"]["fake"]
    assert (entry["ledger"]["start"], entry["ledger"]["unattributed"]) == (2, 0.003)
    assert entry["unattributed"] == [0.005, 0.002, 0.003]
    assert found["commands"]["fake"].startswith("python -I -S tests/fake_server.py ")


# --- tables and pictures ------------------------------------------------------------------------------------------


def recorded(**changes: Any) -> dict[str, Any]:
    """What a run would have written, of two sides under one condition."""
    machine = {"cpu": "CPU", "features": ["avx2"], "cores": 2}
    head = {"machine": machine, "count": 3, "date": "2026-01-01", "file": "startup.json", "model": "m"}
    starts = {
        "pilotlight": [Start({"port_open": 0.05, "first_token": token}, LEDGER) for token in (0.2, 0.25, 0.4)],
        "other": [Start({"port_open": 0.01, "first_token": 0.5})] * 3,
        "python": [Start({"exit": 0.02})] * 3,
    }
    sides = [Side(name, ("x",)) for name in starts]
    result = compare.result(sides, {Condition("hot", "queued"): starts})
    ratios = {name: compare.ratios(each, "pilotlight") for name, each in result["conditions"].items()}
    return head | {"dtype": "bfloat16"} | result | {"against": ratios} | changes


def test_tables_stand_between_their_markers_and_are_made_once(tmp_path: Path) -> None:
    page = "before\n<!-- startup:begin -->\nold\n<!-- startup:end -->\nafter\n"
    empty = tables.insert(page, tmp_path)
    assert "old" not in empty
    assert "Nothing is recorded in benchmarks/startup.json yet." in empty
    (tmp_path / "startup.json").write_text(json.dumps(recorded()))
    made = tables.insert(page, tmp_path)
    assert "| hot, queued | pilotlight | 50 ms | 250 ms | 225-325 ms |  |" in made
    assert "| hot, queued | other | 10 ms | 500 ms | 500-500 ms | 0.50x |" in made
    assert "| hot, queued | python | exit after 20 ms |  | 20-20 ms | 2.50x |" in made
    assert made.startswith("before\n")
    assert made.endswith("after\n")
    assert tables.insert(made, tmp_path) == made


def test_a_page_without_an_end_marker_is_not_cut() -> None:
    page = "before\n<!-- startup:begin -->\nold\nafter\n"
    with pytest.raises(SystemExit, match="has <!-- startup:begin --> and no <!-- startup:end --> after it"):
        between(page, "startup", "new\n")


def test_the_readmes_table_has_the_first_tokens_alone() -> None:
    rows = list(tables.short(recorded()))
    assert rows[0] == "| exec to first token | weights in the page cache |"
    assert rows[2:5] == ["| pilotlight | 250 ms |", "| other | 500 ms |", ""]


def test_the_table_of_other_ways_says_how_much_longer_each_takes() -> None:
    ours, others = (0.2, 0.25, 0.4), (0.21, 0.28, 0.46)  # by 10, 30 and 60 ms, in turn
    starts = {
        name: [Start({"port_open": 0.05, "first_200": 0.1, "first_token": token}) for token in tokens]
        for name, tokens in (("pilotlight", ours), ("other", others))
    }
    under = {Condition(state, "queued"): starts for state in compare.PAGES}
    rows = list(tables.ways(recorded(**compare.result([Side(name, ("x",)) for name in starts], under))))
    assert rows[0].startswith("| way | hot, queued: port open | hot, queued: first 200 | hot, queued: first token |")
    assert rows[2:4] == [
        "| pilotlight | 50 ms | 100 ms | 250 ms |  | 250 ms |  |",
        "| other | 50 ms | 100 ms | 280 ms | 30 ms (20 to 45) | 280 ms | 30 ms (20 to 45) |",
    ]


def test_the_tables_of_text_growth_and_failures() -> None:
    entries = {f"q {kind}": {"median": {"first_token": seconds}} for kind, seconds in (("text", 0.21), ("ids", 0.2))}
    rows = list(tables.text(recorded(conditions={"hot, queued": entries}, later={"q": 0.01})))
    assert rows[2] == "| q | 210 ms | 200 ms | 10.0 ms |"
    points = [
        {
            "bytes": size * 10**9,
            "median": {
                "load": 0.1 * size,
                "machine": 0.1 * size,
                "machine_busy": 0.16 * size,
                "touch": 0.05 * size,
                "first_token": 0.3 + 0.2 * size,
            },
        }
        for size in (1, 2)
    ]
    rows = list(tables.growth(recorded(pages={"hot": {"points": points, "lines": growth.lines(points)}})))
    assert rows[2] == "| 1.00 GB | hot | 100 ms | 100 ms | 160 ms | 50 ms | 500 ms |"
    assert "load 100.0 (R² 1.000)" in rows[5]
    assert "beyond the load 2.0 passes over memory" in rows[5]
    failure = {"exit": 0.1, "quartiles": [0.09, 0.12], "codes": [69], "starts": [0.1], "said": ""}
    assert list(tables.failures(recorded(failures={"no GPU": failure})))[2] == "| no GPU | 100 ms | 90-120 ms | 69 |"


@pytest.mark.parametrize(("model", "total"), budget.TOTALS.items())
def test_the_budgets_lines_fit_into_its_total(model: str, total: float) -> None:
    planned = budget.lines(model)
    assert 0.1 < sum(line.seconds for line in planned) < total
    assert all(line.seconds >= 0 for line in planned)


def test_a_card_that_was_met_has_a_column_beside_the_budget() -> None:
    spans = [SPAN | {"process": "engine", "name": "context", "start": 0.1, "end": 0.4}]
    spans.append(SPAN | {"process": "engine", "name": "weights", "start": 0.4, "end": None})
    start = {"first_token_s": 0.65, "spans": spans}
    report = {"steps": [{"name": "starts", "figures": {"models": {"Qwen2.5-0.5B": start}}}]}
    unmet = {"steps": [{"name": "host", "figures": {}}]}
    rows = list(budget.table({"gpu-h100": report, "gpu-l4": unmet}))
    assert rows[0].endswith("| budget | measured: gpu-h100 |")
    assert next(row for row in rows if row.startswith("| context")).endswith("| 250 ms | 300 ms |")
    assert next(row for row in rows if row.startswith("| weights, 0.99 GB")).endswith(" 33 ms |  |")
    assert (
        next(row for row in rows if "exec to first token" in row)
        == "| **exec to first token** | **700 ms** | 650 ms |"
    )
    assert "No card has measured this yet" in list(budget.table({}))[-1]


@pytest.mark.reference
def test_the_picture_has_every_side_and_span(tmp_path: Path) -> None:
    mpl = pytest.importorskip("matplotlib")
    mpl.use("svg")
    mpl.rcParams["svg.fonttype"] = "none"
    from scripts.startup import drawing

    drawing.draw(recorded(), tmp_path / "a.svg")
    picture = (tmp_path / "a.svg").read_text()
    for words in ("front: python", "pilotlight (hot, queued)", "other (hot, queued)", "python (hot, queued): exit"):
        assert words in picture


# --- the command --------------------------------------------------------------------------------------------------


def test_options_behind_a_peer_are_of_that_peer() -> None:
    words = ["starts", "model", "--peer", "a=server {port}", "--peer", "b=other x", "--url", "http://127.0.0.1:1234"]
    args = parse([*words, "--model-name", "m", "--", "--max-num-seqs", "4"])
    first, second = args.peer
    assert (first.name, first.command, first.url) == ("a", ("server", "{port}"), "")
    assert (second.url, second.model_name, second.live) == ("http://127.0.0.1:1234", "m", "/health")
    assert (args.model, args.flags, args.starts) == ("model", ["--max-num-seqs", "4"], 15)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["starts", "--url", "http://x"], "--url stands behind the --peer"),
        (["starts", "--peer", "nothing"], "expected NAME=COMMAND"),
        (["starts", "--starts", "0"], "--starts"),
        (["starts", "--pages", "cold"], "--pages"),
    ],
)
def test_what_it_refuses(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(words)
    assert why in capsys.readouterr().err


NUMBERS = {"type": "array", "items": {"type": "number", "minimum": 0}}
ENTRY = {
    "type": "object",
    "properties": {
        "median": {"type": "object", "additionalProperties": {"type": "number"}},
        "quartiles": {"type": "object", "additionalProperties": NUMBERS | {"minItems": 2, "maxItems": 2}},
        "starts": {"type": "object", "additionalProperties": NUMBERS},
        "unattributed": {"type": "array", "items": {"type": "number"}},
        "ledger": {"type": "object", "required": ["start", "spans", "unattributed"]},
    },
    "required": ["median", "quartiles", "starts"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "machine": {"type": "object", "required": ["cpu", "cores", "kernel", "load_before"]},
        "versions": {"type": "object", "required": ["python", "pilotlight"]},
        "command": {"type": "string", "pattern": "^scripts/measure_startup starts "},
        "date": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"},
        "count": {"type": "integer", "minimum": 1},
        "commands": {"type": "object", "additionalProperties": {"type": "string"}},
        "conditions": {
            "type": "object",
            "additionalProperties": {"type": "object", "additionalProperties": ENTRY},
        },
        "against": {"type": "object"},
    },
    "required": ["machine", "versions", "command", "date", "count", "commands", "conditions"],
}


def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, ROOT / "scripts" / "measure_startup", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_our_server_beside_another(tmp_path: Path) -> None:
    model = write_chain(tmp_path / "chain", range(97, 123), loop=True)
    report = tmp_path / "report" / "startup.json"
    peer = f"--peer=fake={' '.join(FAKE)} refuse=1"
    done = run("starts", model, "--starts", "1", "--baselines", peer, "-o", report, "--", "--max-num-seqs", "4")
    assert done.returncode == 0, done.stderr
    result = json.loads(report.read_text())
    jsonschema.validate(result, SCHEMA)
    entries = result["conditions"]["hot, queued"]
    assert list(entries) == ["pilotlight", "fake", "python -I -c pass", "hello world of Starlette and uvicorn"]
    ours = entries["pilotlight"]["median"]
    assert ours["port_open"] < ours["first_200"] < ours["first_token"]
    assert list(entries["python -I -c pass"]["median"]) == ["exit"]
    assert "first_token" not in entries["hello world of Starlette and uvicorn"]["median"]
    assert result["against"]["hot, queued"]["fake"]["first_token"] > 0
    assert str(tmp_path) not in result["commands"]["python -I -c pass"]
    assert "8/8 " in done.stderr


def test_nothing_to_start_is_one_line() -> None:
    done = run("starts")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "measure_startup: there is nothing to start: name a MODEL or a --peer\n"


def test_failures_are_timed_with_their_codes(tmp_path: Path) -> None:
    found = failures.measure(1, tmp_path, lambda *_: None)["failures"]
    assert {name: entry["codes"] for name, entry in found.items()} == {
        "a model file that is cut": [65],
        "a model that is not there": [66],
        "no GPU": [69],
        "a port that is taken": [69],
        "a flag that does not exist": [2],
    }
    assert all(entry["said"].startswith("pilotlight: ") for entry in found.values())
    assert all(0 < entry["exit"] == entry["starts"][0] < failures.TIMEOUT for entry in found.values())
