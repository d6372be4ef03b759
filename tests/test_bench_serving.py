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
    command = [sys.executable, SCRIPT, model, *options, "-o", report, "--", "--max-num-seqs", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    result = json.loads(report.read_text())
    assert result["model"] == "chain"
    assert result["command"].startswith("scripts/bench_serving ")
    assert list(result["streams"]) == ["pilotlight"]
    for entry in result["streams"]["pilotlight"].values():
        assert len(entry["rounds"]["tokens_per_s"]) == 2
        assert min(entry["tokens_per_s"], entry["ttft_ms"], entry["tpot_ms"]) > 0
    assert result["memory"].keys() == {"front", "engine"}
    for figures in result["memory"].values():
        assert figures["peak_rss_mb"] >= figures["pss_mb"] > 10
    assert len(result["start_to_first_token"]["pilotlight"]["rounds"]) == 2
    assert result["against_best_peer"] == {}


def test_a_server_that_does_not_start_is_shown_with_its_log(tmp_path: Path) -> None:
    model = write_chain(tmp_path / "chain", [97])
    command = [sys.executable, SCRIPT, model, "--", "--max-num-seqs", "none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "--max-num-seqs" in done.stderr
    assert "Traceback" not in done.stderr
