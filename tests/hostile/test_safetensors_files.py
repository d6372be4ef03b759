"""Each hostile file gives one clean line that names it; each odd but valid one is read as the library reads it."""

from pathlib import Path

import pytest
import safetensors

from pilotlight.errors import ModelDataError
from pilotlight.model.checkpoint import open_checkpoint
from pilotlight.model.safetensors import read_header
from pilotlight.model.spec import TensorSpec
from tests.hostile.files import HOSTILE, VALID, safetensors_bytes, write

WANTED = [TensorSpec("embed.weight", (4,), ("a",))]


@pytest.mark.parametrize("name", HOSTILE)
def test_H15_hostile_file_is_one_line_that_names_file_and_reason(name: str, tmp_path: Path) -> None:
    content, reason = HOSTILE[name]
    file = write(tmp_path / "model.safetensors", content)
    with pytest.raises(ModelDataError) as caught:
        open_checkpoint(tmp_path, WANTED)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert reason in message
    assert "\n" not in message
    assert len(message) < len(str(file)) + 300
    message.encode()  # printable anywhere


@pytest.mark.parametrize("name", HOSTILE)
def test_H15_whatever_the_library_refuses_we_refuse(name: str, tmp_path: Path) -> None:
    """Guards the table itself: a file that the library takes must be one that we are stricter about on purpose."""
    file = write(tmp_path / "model.safetensors", HOSTILE[name][0])
    stricter = {"duplicate names"}
    try:
        with safetensors.safe_open(file, "np"):
            assert name in stricter
    except safetensors.SafetensorError:
        assert name not in stricter


@pytest.mark.parametrize("name", VALID)
def test_H15_odd_but_valid_file_is_read_as_the_library_reads_it(name: str, tmp_path: Path) -> None:
    file = write(tmp_path / "model.safetensors", VALID[name])
    header = read_header(file)
    with safetensors.safe_open(file, "np") as reference:
        assert set(header.tensors) == set(reference.keys())
        assert header.metadata == (reference.metadata() or {})
        for key, entry in header.tensors.items():
            tensor = reference.get_tensor(key)
            assert entry.shape == tensor.shape
            assert VALID[name][entry.offset : entry.offset + entry.nbytes] == tensor.tobytes()


def test_H15_unknown_dtype_matters_only_where_the_tensor_is_needed(tmp_path: Path) -> None:
    known = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    unknown = {"dtype": "F7_E9", "shape": [3], "data_offsets": [16, 20]}
    write(tmp_path / "model.safetensors", safetensors_bytes({"a": known, "b": unknown}, bytes(20)))
    assert open_checkpoint(tmp_path, WANTED).nbytes == 16
    with pytest.raises(ModelDataError, match=r"tensor 'b' is of dtype F7_E9, expected one of F32, F16, BF16"):
        open_checkpoint(tmp_path, [TensorSpec("norm.weight", (3,), ("b",))])


def test_H15_a_directory_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(ModelDataError, match=r"model\.safetensors: cannot be read: Is a directory"):
        open_checkpoint(tmp_path, WANTED)
