"""scripts/bench_serving against a real server, with a model that takes no time."""

import json
import subprocess
import sys
from pathlib import Path

from tests.models import write_chain

SCRIPT = Path(__file__).parent.parent / "scripts" / "bench_serving"


def test_it_measures_a_server_that_it_starts(tmp_path: Path) -> None:
    model = write_chain(tmp_path / "chain", range(97, 123), loop=True)  # each token is text, so each is an event
    report = tmp_path / "report" / "cpu.json"
    options = ["--streams", "1", "3", "--prompt-tokens", "20", "--output-tokens", "30", "--rounds", "2"]
    options += ["--prefill-tokens", "40"]
    command = [sys.executable, SCRIPT, model, *options, "-o", report, "--", "--max-num-seqs", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    result = json.loads(report.read_text())
    assert result["model"] == "chain"
    assert result["command"].startswith("scripts/bench_serving ")
    assert list(result["streams"]) == ["pilotlight"]
    assert list(result["streams"]["pilotlight"]) == ["1", "3", "prefill"]
    for entry in result["streams"]["pilotlight"].values():
        assert len(entry["rounds"]["tokens_per_s"]) == 2
        assert min(entry["tokens_per_s"], entry["ttft_ms"]) > 0
        assert entry["tpot_ms"] >= 0  # on a busy machine all of so fast an answer may come at once
    assert result["memory"].keys() == {"front", "engine"}
    for figures in result["memory"].values():
        assert figures["peak_rss_mb"] >= figures["pss_mb"] > 10
    assert len(result["start_to_first_token"]["pilotlight"]["rounds"]) == 2
    assert result["against"] == {}


def test_a_server_that_does_not_start_is_shown_with_its_log(tmp_path: Path) -> None:
    model = write_chain(tmp_path / "chain", [97])
    command = [sys.executable, SCRIPT, model, "--", "--max-num-seqs", "none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "--max-num-seqs" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_server_takes_its_turn(tmp_path: Path) -> None:
    model = write_chain(tmp_path / "chain", range(97, 123), loop=True)
    report = tmp_path / "cpu.json"
    serve = f"{sys.executable} -m pilotlight serve {model} --port {{port}}"
    peers = ["--peer", f"one@1={serve} --max-num-seqs 1", "--peer", f"many@2={serve}"]
    options = ["--streams", "1", "2", "--output-tokens", "10", "--rounds", "1", "--prefill-tokens", "0"]
    command = [sys.executable, SCRIPT, model, *options, *peers, "-o", report]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    result = json.loads(report.read_text())
    assert {name: list(columns) for name, columns in result["streams"].items()} == {
        "pilotlight": ["1", "2"],
        "one": ["1"],
        "many": ["2"],
    }
    ours, one = (result["streams"][name]["1"]["tokens_per_s"] for name in ("pilotlight", "one"))
    assert result["against"]["one"] == {"1": round(ours / one, 2)}
    assert result["memory"]["many"]["peak_rss_mb"] > 10
