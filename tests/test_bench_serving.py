"""scripts/bench_serving against a real server, with a model that takes no time."""

import json
import subprocess
import sys
from pathlib import Path

from scripts.bench_table import table
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


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, "nope"], capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("bench_serving: error: nope: has no config.json; expected ")
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


def test_readme_s_table_has_a_row_for_each_side_of_each_file() -> None:
    columns = {"1": {"tokens_per_s": 34.4, "ttft_ms": 30.2, "tpot_ms": 8.61}, "prefill": {"tokens_per_s": 758.0}}
    result = {
        "model": "m",
        "dtype": "bfloat16",
        "prompt_tokens": 64,
        "output_tokens": 128,
        "prefill_tokens": 512,
        "rounds": 5,
        "machine": {"cores": 2, "cpu": "CPU", "features": ["avx2"]},
        "streams": {"pilotlight": columns, "peer": {"1": {"tokens_per_s": 36.0}}},
        "memory": {
            name: {"peak_rss_mb": size} for name, size in (("front", 50.8), ("engine", 1145.0), ("peer", 1950.0))
        },
        "start_to_first_token": {"pilotlight": {"seconds": 0.267}},
    }
    files = {"benchmarks/a.json": result, "benchmarks/b.json": result | {"dtype": "int8", "output_tokens": 32}}
    lines = table(files).splitlines()
    assert lines[2:4] == [
        "| m bfloat16: pilotlight | 34 | 758 | 51 + 1145 MB |",
        "| m bfloat16: peer | 36 |  | 1950 MB |",
    ]
    assert [line.partition(":")[0] for line in lines[4:6]] == ["| m int8", "| m int8"]
    caption = "\n".join(lines[6:])
    assert (
        "token after it: 30 ms and 8.6 ms with 1 stream. From the process's start to its first token: 0.27 s."
        in caption
    )
    assert "[benchmarks/a.json](benchmarks/a.json) (answers of 128 tokens); [benchmarks/b.json]" in caption
    assert "(answers of 32 tokens)." in caption
    assert "docs/benchmark-a.svg" in caption
