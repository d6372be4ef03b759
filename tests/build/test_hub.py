"""A hub id is downloaded by the hub's protocol, and only what a snapshot needs; failures are one line."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.build.hub_server import COMMIT, Hub, serving
from tests.models import llama_config, llama_tensors, write_tiny

UNWANTED = {
    "README.md": "# tiny",
    ".gitattributes": "*.safetensors filter=lfs",
    "pytorch_model.bin": "old",
    "consolidated.safetensors": "other",
    "model.onnx": "other",
    "training_args.bin": "x",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = write_tiny(tmp_path / "repository")
    for name, content in UNWANTED.items():
        (directory / name).write_text(content)
    return directory


@pytest.fixture
def hub(repository: Path) -> Iterator[Hub]:
    with serving(Hub("acme/tiny", repository)) as running:
        yield running


def build(
    hub: Hub | None, tmp_path: Path, output: str = "out", model: str = "acme/tiny", **environ: str
) -> subprocess.CompletedProcess[str]:
    """A fresh process, since the library reads its environment once."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "XDG_"))}
    settings = {
        "HF_HOME": str(tmp_path / "cache"),
        "HF_ENDPOINT": hub.url if hub else "http://127.0.0.1:9",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    arguments = [sys.executable, "-m", "pilotlight", "build", "snapshot", model, "-o", str(tmp_path / output)]
    return subprocess.run(
        arguments, capture_output=True, text=True, timeout=90, env=clean | settings | environ, cwd=tmp_path
    )


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert done.returncode == code, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("pilotlight: acme/tiny: ")
    for part in parts:
        assert part in last
    assert "Traceback" not in done.stderr


def test_download_build_and_nothing_more(hub: Hub, repository: Path, tmp_path: Path) -> None:
    done = build(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["source"]["location"] == f"acme/tiny@{COMMIT}"
    assert hub.downloaded() == {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    for name in ("config.json", "tokenizer.json"):
        assert (tmp_path / "out" / name).read_bytes() == (repository / name).read_bytes()
    cached = tmp_path / "cache" / "hub" / "models--acme--tiny"
    assert (cached / "refs" / "main").read_text() == COMMIT

    # the same again: found, and no file fetched twice
    hub.requests.clear()
    done = build(hub, tmp_path)
    assert (done.returncode, hub.downloaded()) == (0, set())
    assert "already built" in done.stdout

    # without a network the cache does
    offline = build(None, tmp_path, "offline")
    assert offline.returncode == 0, offline.stderr
    switched_off = build(None, tmp_path, "off", HF_HUB_OFFLINE="1")
    assert switched_off.returncode == 0, switched_off.stderr
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("out", "offline", "off")]
    assert weights[0] == weights[1] == weights[2]


def test_shards_are_taken_by_the_index(repository: Path, tmp_path: Path) -> None:
    from tests.model.test_checkpoint import write_shards

    write_shards(repository, llama_tensors(llama_config()), 3)
    with serving(Hub("acme/tiny", repository)) as hub:
        done = build(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    shards = {f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)}
    assert {name for name in hub.downloaded() if name.endswith(".safetensors")} == shards


def test_model_that_the_hub_does_not_have(repository: Path, tmp_path: Path) -> None:
    with serving(Hub("acme/other", repository)) as hub:
        assert_refused(build(hub, tmp_path), 66, "the hub has no such model, or it is private and needs HF_TOKEN")
    assert not (tmp_path / "out").exists()


def test_gated_model(hub: Hub, tmp_path: Path) -> None:
    hub.gated = True
    assert_refused(build(hub, tmp_path), 66, "accepted accounts only; set HF_TOKEN")


def test_no_network_and_no_cache(tmp_path: Path) -> None:
    done = build(None, tmp_path)
    assert_refused(done, 69)
    told = (
        "is no file or directory here, and cannot be downloaded (Connection refused); without the hub, copy the "
        "model's directory or GGUF file to this machine and name that, or name a mirror in HF_ENDPOINT"
    )
    assert done.stderr.splitlines()[-1] == f"pilotlight: acme/tiny: {told}"


def test_repository_without_weights(hub: Hub, repository: Path, tmp_path: Path) -> None:
    (repository / "model.safetensors").unlink()
    done = build(hub, tmp_path)
    assert done.returncode == 65
    assert done.stderr.endswith(f"{COMMIT}: has neither model.safetensors nor model.safetensors.index.json\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow  # the library tries again for seconds
def test_download_that_is_cut_is_not_taken_for_whole(hub: Hub, tmp_path: Path) -> None:
    hub.cut = "model.safetensors"
    done = build(hub, tmp_path)
    assert "model.safetensors" in hub.downloaded()
    assert_refused(done, 69, "cannot be downloaded")
    assert not (tmp_path / "out").exists()
