"""A model that RunPod has cached for an endpoint: served from where it lies, read-only, by the worker's own names."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.front.servers import ServerProcess
from tests.models import write_tiny

COMMIT = "317b7eb96312eda0c431d1dab1af958a308cb35e"


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """Blobs and links as huggingface_hub lays them out, in a file system that nobody may write."""
    source = write_tiny(tmp_path / "source")
    repository = tmp_path / "volume" / "huggingface-cache" / "hub" / "models--acme--tiny"
    for file in sorted(source.iterdir()):
        blob = repository / "blobs" / f"0{file.name}"
        link = repository / "snapshots" / COMMIT / file.name
        blob.parent.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        file.rename(blob)
        link.symlink_to(os.path.relpath(blob, link.parent))
    source.rmdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    everything = [tmp_path / "volume", *(tmp_path / "volume").rglob("*")]
    for path in everything:
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() else 0o444)
    yield tmp_path / "volume"
    for path in everything:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def listing(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_mtime_ns) for path in folder.rglob("*"))


def test_cached_model_is_served_offline_and_nothing_is_written(volume: Path) -> None:
    environ = {
        "RUNPOD_ENDPOINT_ID": "4m7x2k9q",
        "BASE_PATH": str(volume),
        "HF_ENDPOINT": "http://127.0.0.1:9",  # nobody is asked
        "PILOTLIGHT_MODEL": "/model",  # the image's own
    }
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        environ[name] = ""
    before = listing(volume)
    with ServerProcess(Path("acme/tiny"), names=None, env=environ) as server:
        address = server.ready()
        (card,) = httpx.get(f"{address}/v1/models").json()["data"]
        assert card["id"] == "acme/tiny"
        assert card["root"].endswith(f"models--acme--tiny/snapshots/{COMMIT}")
        body = {"model": "acme/tiny", "prompt": "hi", "max_tokens": 3, "temperature": 0}
        reply = httpx.post(f"{address}/v1/completions", json=body, timeout=30)
        assert reply.json()["usage"]["completion_tokens"] == 3
    assert listing(volume) == before
