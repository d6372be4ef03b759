"""What a person calls a model becomes a directory: a path, or a snapshot of the hub's cache as it lies."""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotlight.errors import ModelNotFoundError
from pilotlight.source import hub_cache, is_hub_id, resolve_model

FIRST, SECOND = "a" * 40, "b" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.chdir(tmp_path)
    yield folder
    for entry in (folder, *folder.rglob("*")):
        if entry.is_dir() and not entry.is_symlink():
            entry.chmod(0o755)


def add(cache: Path, commit: str, files: dict[str, str], *, main: bool = False, model: str = "acme/tiny") -> Path:
    """A snapshot of links to blobs, as huggingface_hub lays it out."""
    repository = cache / f"models--{model.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    for name, content in files.items():
        blob = repository / "blobs" / f"{commit[:4]}{name.replace('/', '_')}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_text(content)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    if main:
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit)
    return snapshot


WHOLE = {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": "x"}
SHARDS = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}


def blob_of(snapshot: Path, name: str) -> Path:
    return (snapshot / name).resolve()


def test_a_directory_is_taken_as_given_even_where_the_cache_has_the_name(cache: Path, tmp_path: Path) -> None:
    add(cache, FIRST, WHOLE, main=True)
    assert resolve_model("acme/tiny") != Path("acme/tiny")
    directory = tmp_path / "acme" / "tiny"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{")  # what is wrong in it, its reader says
    assert resolve_model("acme/tiny") == Path("acme/tiny")
    assert resolve_model(str(directory)) == directory


def test_a_directory_that_is_no_model_is_refused_with_the_one_in_it(tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / "mine").mkdir(parents=True)
    said = f"{models}: holds no config.json; expected the directory of a snapshot or of a checkpoint"
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model(str(models))
    assert str(caught.value) == said
    (models / "mine" / "config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model(str(models))
    assert str(caught.value) == f"{said}; there is one in {models / 'mine'}"


def test_a_gguf_file_is_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    file = tmp_path / "model.Q4_1.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError, match=rf"`pilotlight build snapshot {file} -o DIR`"):
        resolve_model(str(file))


def test_another_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"x")
    with pytest.raises(ModelNotFoundError, match="is a file, expected a directory"):
        resolve_model(str(file))


CANNOT_BE = ["~nobody-of-that-name/x", "x" * 300, "a/" + "x" * 300]


@pytest.mark.parametrize(
    "name", ["./missing", "/no/such/dir", "a/b/c", "../x", "~/no-such-model", "owner/na me", *CANNOT_BE]
)
def test_a_path_that_is_not_there_is_not_looked_up_in_the_cache(name: str, cache: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no such directory$"):
        resolve_model(name)


def test_a_hub_id_that_is_not_cached_says_where_it_looked_and_what_to_do(cache: Path) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model("acme/other")
    assert str(cache) in str(caught.value)
    assert "`hf download acme/other`" in str(caught.value)


def test_a_hub_id_that_runpod_has_not_cached_says_what_to_do_there(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNPOD_ENDPOINT_ID", "x")
    with pytest.raises(
        ModelNotFoundError, match="name it as the endpoint's model, so that RunPod caches it"
    ) as caught:
        resolve_model("acme/other")
    assert "hf download" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "valid"), [("gpt2", True), ("a/b.c-d_e", True), (".hidden", False), ("a//b", False)]
)
def test_spelling_of_a_hub_id(name: str, valid: bool) -> None:
    assert is_hub_id(name) is valid


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HF_HUB_CACHE": "/c/hub", "HF_HOME": "/h"}, "/c/hub"),
        ({"RUNPOD_POD_ID": "x", "XDG_CACHE_HOME": "/x"}, "/runpod-volume/huggingface-cache/hub"),
        ({"RUNPOD_ENDPOINT_ID": "x", "BASE_PATH": "/mnt"}, "/mnt/huggingface-cache/hub"),
        ({"RUNPOD_ENDPOINT_ID": "x", "HF_HOME": "/h"}, "/h/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/h"}, "/old"),
        ({"HF_HUB_CACHE": "", "HF_HOME": "/h"}, "/h/hub"),
        ({"HF_HUB_CACHE": "~no-such-user/hub"}, "~no-such-user/hub"),
        ({"HF_HOME": "~no-such-user"}, "~no-such-user/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({}, str(Path("~/.cache/huggingface/hub").expanduser())),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], expected: str) -> None:
    assert hub_cache(environ) == Path(expected)


def test_J11_read_only_cache_is_used_through_its_links_and_nothing_is_written(cache: Path) -> None:
    snapshot = add(cache, FIRST, WHOLE | {"sub/extra.json": "{}"}, main=True)
    before = sorted(cache.rglob("*"))
    for entry in (cache, *before):
        if not entry.is_symlink():
            entry.chmod(0o555 if entry.is_dir() else 0o444)
    assert resolve_model("acme/tiny") == snapshot
    assert sorted(cache.rglob("*")) == before
    assert (snapshot / "model.safetensors").read_text() == "x"


def test_J11_refs_main_names_the_snapshot_among_several(cache: Path) -> None:
    add(cache, FIRST, WHOLE)
    snapshot = add(cache, SECOND, WHOLE, main=True)
    assert resolve_model("acme/tiny") == snapshot


def test_J13_only_complete_snapshot_is_used_with_a_warning(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    snapshot = add(cache, FIRST, WHOLE)
    broken = add(cache, SECOND, WHOLE)
    blob_of(broken, "model.safetensors").unlink()
    with caplog.at_level(logging.WARNING):
        assert resolve_model("acme/tiny") == snapshot
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no refs/main" in caplog.text


def test_J13_two_complete_snapshots_are_ambiguous(cache: Path) -> None:
    add(cache, FIRST, WHOLE)
    add(cache, SECOND, WHOLE)
    with pytest.raises(ModelNotFoundError, match=f"2 complete snapshots \\({FIRST}, {SECOND}\\); pass the directory"):
        resolve_model("acme/tiny")


@pytest.mark.parametrize("main", [True, False])
def test_J13_broken_link_is_named(cache: Path, main: bool) -> None:
    snapshot = add(cache, FIRST, WHOLE, main=main)
    blob_of(snapshot, "tokenizer.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json is a link to a blob that is missing"):
        resolve_model("acme/tiny")


def test_J13_refs_main_without_its_snapshot(cache: Path) -> None:
    shutil.rmtree(add(cache, FIRST, WHOLE, main=True))
    with pytest.raises(ModelNotFoundError, match=f"{FIRST}: is missing; complete it with `hf download acme/tiny`"):
        resolve_model("acme/tiny")


@pytest.mark.parametrize("text", [b"\xff\xfe", b"", b" \n", b".", b"../..", b"/etc", b"a\0b", b"x" * 5000])
def test_J13_damaged_refs_main_is_no_way_out_of_the_cache(cache: Path, text: bytes) -> None:
    add(cache, FIRST, WHOLE, main=True)
    (cache / "models--acme--tiny" / "refs" / "main").write_bytes(text)
    with pytest.raises(ModelNotFoundError, match="refs/main: is damaged: expected the name of a directory"):
        resolve_model("acme/tiny")


def test_cache_that_may_not_be_read_is_named(cache: Path) -> None:
    """As root's is for the image's user."""
    add(cache, FIRST, WHOLE, main=True)
    cache.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65532)
    try:
        with pytest.raises(ModelNotFoundError, match=r"^acme/tiny: .*: cannot be read: Permission denied$"):
            resolve_model("acme/tiny")
    finally:
        os.seteuid(user)


def test_J13_a_cache_folder_without_snapshots(cache: Path) -> None:
    (cache / "models--acme--tiny" / "blobs").mkdir(parents=True)
    with pytest.raises(ModelNotFoundError, match="none at all"):
        resolve_model("acme/tiny")


def test_J13_shards_that_the_index_names_are_part_of_complete(cache: Path) -> None:
    files = {
        "config.json": "{}",
        "model.safetensors.index.json": json.dumps(SHARDS),
        "model-1.safetensors": "x",
        "model-2.safetensors": "x",
    }
    snapshot = add(cache, FIRST, files, main=True)
    assert resolve_model("acme/tiny") == snapshot
    (snapshot / "model-2.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"model-2\.safetensors is missing"):
        resolve_model("acme/tiny")


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000, '{"weight_map": {"a": 5, "b": "c"}}'])
def test_J13_damaged_index_is_named(cache: Path, text: str) -> None:
    add(cache, FIRST, {"config.json": "{}", "model.safetensors.index.json": text}, main=True)
    with pytest.raises(ModelNotFoundError, match=r"model\.safetensors\.index\.json is damaged"):
        resolve_model("acme/tiny")


def test_J14_files_that_nobody_reads_are_not_asked_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object) -> None:
        raise AssertionError("a network call")

    monkeypatch.setattr("socket.socket.connect", no_network)
    snapshot = add(cache, FIRST, WHOLE, main=True)
    assert not (snapshot / "README.md").exists()
    assert resolve_model("acme/tiny") == snapshot
