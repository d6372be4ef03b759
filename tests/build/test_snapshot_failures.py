"""A build that fails, is interrupted or finds no room leaves one line, the right exit code, and all as it was."""

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight.build import snapshot as snapshot_module
from pilotlight.build import writer
from pilotlight.build.snapshot import build_snapshot, command
from pilotlight.errors import ModelDataError, ModelNotFoundError, PilotlightError, UnavailableError, UsageError
from tests.build.tiny import CONFIG, TENSORS, beside
from tests.hostile.files import HOSTILE, write
from tests.models import write_checkpoint, write_tiny


@pytest.mark.parametrize("name", [name for name in HOSTILE if "metadata" not in name])
def test_H15_hostile_source_leaves_nothing(name: str, tmp_path: Path) -> None:
    directory = write_tiny(tmp_path / "tiny")
    content, _ = HOSTILE[name]
    write(directory / "model.safetensors", content)
    with pytest.raises(ModelDataError, match=rf"^{directory}/model\.safetensors: "):
        build_snapshot(str(directory), tmp_path / "out")
    assert beside(tmp_path / "out") == []


def test_H15_exit_code_of_the_process(tmp_path: Path) -> None:
    directory = write_tiny(tmp_path / "tiny")
    os.truncate(directory / "model.safetensors", (directory / "model.safetensors").stat().st_size - 4)
    done = run_build(directory, tmp_path / "out")
    assert done.returncode == 65
    assert done.stdout == ""
    assert done.stderr.startswith(f"pilotlight: {directory}/model.safetensors: the file is cut")
    assert done.stderr.count("\n") == 1
    assert beside(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("value", "dtype", "reason"),
    [(1e5, "float16", "holds 1e.05, which is more than F16 can hold"), (np.inf, "bfloat16", "holds NaN or an inf")],
)
def test_overflow_names_the_tensor_and_leaves_nothing(value: float, dtype: str, reason: str, tmp_path: Path) -> None:
    tensors = {name: tensor.copy() for name, tensor in TENSORS.items()}
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    directory = write_checkpoint(tmp_path / "wild", CONFIG, tensors)
    with pytest.raises(ModelDataError, match=rf"tensor 'model\.layers\.1\.mlp\.up_proj\.weight' {reason}"):
        build_snapshot(str(directory), tmp_path / "out", dtype)
    assert beside(tmp_path / "out") == []


def test_missing_tensor_leaves_nothing(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in TENSORS.items() if name != "model.norm.weight"}
    with pytest.raises(ModelDataError, match=r"model\.safetensors: tensor 'model\.norm\.weight' is missing"):
        build_snapshot(str(write_checkpoint(tmp_path / "less", CONFIG, tensors)), tmp_path / "out")
    assert beside(tmp_path / "out") == []


def test_H20_tokenizer_of_another_form(tiny: Path, tmp_path: Path) -> None:
    (tiny / "tokenizer.json").rename(tiny / "tokenizer.model")
    with pytest.raises(ModelDataError, match=r"tiny/tokenizer\.json: is missing; tokenizer\.model is not read"):
        build_snapshot(str(tiny), tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer.json", "", "is not a tokenizer.json"),
        ("tokenizer.json", None, "is missing"),
        ("tokenizer_config.json", "{", "is not JSON"),
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id is"),
        ("chat_template.jinja", b"\xff", "is not UTF-8"),
    ],
)
def test_documents_that_could_not_be_served(
    name: str, content: str | bytes | None, reason: str, tiny: Path, tmp_path: Path
) -> None:
    if content is None:
        (tiny / name).unlink()
        (tiny / name).mkdir()
    else:
        (tiny / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ModelDataError, match=rf"tiny/{name}: .*{reason}"):
        build_snapshot(str(tiny), tmp_path / "out")
    assert beside(tmp_path / "out") == []


def test_snapshot_is_not_a_source(tiny: Path, tmp_path: Path) -> None:
    build_snapshot(str(tiny), tmp_path / "out")
    with pytest.raises(ModelDataError, match="is a snapshot already"):
        build_snapshot(str(tmp_path / "out"), tmp_path / "again")


@pytest.mark.parametrize("source", ["./nothing", "/no/such/model.gguf", "a/b/c", "~nobody-of-that-name/x", "x" * 300])
def test_source_that_is_not_there(source: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=f"^{source}: no such file or directory$"):
        build_snapshot(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "required: SOURCE, -o"),
        (["x"], "required: -o"),
        (["x", "-o", "y", "--dtype", "int4"], "invalid choice: 'int4'"),
        (
            ["x", "-o", "y", "--shard-bytes", "2T"],
            "--shard-bytes: expected a number of bytes, such as 2000M or 2G, found '2T'",
        ),
        (
            ["x", "-o", "y", "--shard-bytes", "0"],
            "--shard-bytes: expected a number of bytes, such as 2000M or 2G, found '0'",
        ),
        (["x", "-o", "y", "--quantize"], "unrecognized arguments: --quantize"),
    ],
)
def test_wrong_arguments(arguments: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=f"^build snapshot: .*{reason}"):
        command(arguments)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command(["--help"])
    assert caught.value.code == 0
    assert "--dtype {auto,float32,float16,bfloat16,int8}" in capsys.readouterr().out


def test_missing_extra_is_one_line(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(UnavailableError, match=r"needs the build extra: pip install 'pilotlight\[build\]'"):
        build_snapshot(str(tiny), tmp_path / "out")


def test_full_disk_is_seen_before_writing(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda place: free)
    with pytest.raises(UnavailableError, match=r"0\.0 MB are free, the snapshot needs 0\.5 MB"):
        build_snapshot(str(tiny), tmp_path / "out")
    assert beside(tmp_path / "out") == []


def run_build(source: Path, output: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "pilotlight", "build", "snapshot", str(source), "-o", str(output)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, **options)


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """The kernel refuses a write in the middle, as a full disk would."""
    directory = write_tiny(tmp_path / "tiny")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    done = run_build(directory, tmp_path / "out", preexec_fn=limit)
    assert done.returncode == 69
    assert done.stderr == f"pilotlight: {tmp_path}/out: File too large; {tmp_path}/out is as it was\n"
    assert beside(tmp_path / "out") == []


def test_read_only_parent_is_one_line(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UnavailableError, match="Permission denied"):
        build_snapshot(str(tiny), tmp_path / "out")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("standing", [False, True])
def test_interrupted_build_leaves_all_as_it_was(
    number: signal.Signals, code: int, standing: bool, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    if standing:
        build_snapshot(str(tiny), output, "float16")
    before = {file.name: file.read_bytes() for file in output.iterdir()} if standing else None
    original = snapshot_module.write_document

    def interrupted(file: Path, content: bytes) -> None:
        assert any(".partial-" in name for name in beside(output))
        original(file, content)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(snapshot_module, "write_document", interrupted)
    handler = signal.getsignal(signal.SIGTERM)
    assert command([str(tiny), "-o", str(output), "--force"]) == code
    assert signal.getsignal(signal.SIGTERM) is handler
    assert beside(output) == (["out"] if standing else [])
    if standing:
        assert {file.name: file.read_bytes() for file in output.iterdir()} == before


def test_failed_rename_puts_the_old_one_back(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out"
    build_snapshot(str(tiny), output, "float16")
    before = {file.name: file.read_bytes() for file in output.iterdir()}
    original = Path.rename
    calls: list[Path] = []

    def second_fails(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        return original(self, target)

    monkeypatch.setattr(Path, "rename", second_fails)
    with pytest.raises(UnavailableError, match="Input/output error"):
        build_snapshot(str(tiny), output, "float32", force=True)
    assert {file.name: file.read_bytes() for file in output.iterdir()} == before
    assert beside(output) == ["out"]


def test_what_a_killed_build_left_is_removed_and_a_living_one_is_not(tiny: Path, tmp_path: Path) -> None:
    for output in (tmp_path / "out", tmp_path / "o[u]t"):
        dead = tmp_path / f"{output.name}.partial-00c0ffee"
        dead.mkdir()
        (dead / "weights.safetensors").write_bytes(b"half")
        with writer.replacing(output) as living:
            (living / "file").write_text("x")
            build_snapshot(str(tiny), output)
            assert beside(output) == [output.name, living.name]
            assert (living / "file").exists()


def test_what_others_keep_beside_the_output_stays(tiny: Path, tmp_path: Path) -> None:
    """Only a directory that a build can have named is taken for a killed build's."""
    (tmp_path / "out.partial-mine").mkdir()
    (tmp_path / "out.partial-mine" / "letter.txt").write_text("dear")
    (tmp_path / "out.partial-0000000a").write_text("a file")
    (tmp_path / "out.partial-0000000b").symlink_to(tmp_path / "out.partial-mine")
    build_snapshot(str(tiny), tmp_path / "out")
    names = ["out", "out.partial-0000000a", "out.partial-0000000b", "out.partial-mine"]
    assert beside(tmp_path / "out") == names
    assert (tmp_path / "out.partial-mine" / "letter.txt").read_text() == "dear"


def test_file_system_without_locks(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS, where a directory cannot be locked: it builds, and removes nothing that may be another's."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(writer.fcntl, "flock", refuse)
    (tmp_path / "out.partial-00c0ffee").mkdir()
    assert build_snapshot(str(tiny), tmp_path / "out")
    assert beside(tmp_path / "out") == ["out", "out.partial-00c0ffee"]


def test_two_builds_at_once_both_end_well(tiny: Path, tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def build() -> None:
        try:
            build_snapshot(str(tiny), tmp_path / "out", force=True)
        except (PilotlightError, OSError) as error:
            errors.append(error)

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) < 2
    assert build_snapshot(str(tiny), tmp_path / "out") is False
    assert beside(tmp_path / "out") == ["out"]
