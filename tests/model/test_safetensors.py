"""The header that we write is what the safetensors library reads, and no mutation of one does worse than an error."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from pilotlight.device.layout import DATA_ALIGNMENT, DTYPE_BYTES, TENSOR_ALIGNMENT
from pilotlight.errors import ModelDataError
from pilotlight.model.safetensors import FILLER_PREFIX, Header, TensorEntry, plan_header, read_header

tables = st.dictionaries(
    st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__" and not name.startswith("filler.")),
    st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), st.lists(st.integers(0, 9), max_size=3)),
    max_size=8,
)
quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def plan(table: dict[str, tuple[str, list[int]]]) -> Header:
    return plan_header((name, dtype, tuple(shape)) for name, (dtype, shape) in table.items())  # type: ignore[misc]


@quick
@given(table=tables)
def test_written_header_is_read_alike_by_us_and_by_the_library(
    table: dict[str, tuple[str, list[int]]], tmp_path: Path
) -> None:
    header = plan(table)
    data = np.random.default_rng(0).bytes(header.file_size - header.data_start)
    file = tmp_path / "weights.safetensors"
    file.write_bytes(header.encoded + data)
    assert read_header(file) == header
    with safetensors.safe_open(file, "np") as reference:
        assert {name for name in reference.keys() if not name.startswith(FILLER_PREFIX)} == set(table)  # noqa: SIM118
        for name, (dtype, shape) in table.items():
            assert (header.tensors[name].dtype, list(header.tensors[name].shape)) == (dtype, shape)
            found = reference.get_slice(name)
            assert (found.get_dtype(), found.get_shape()) == (dtype, shape)
    raw = {entry["name"]: entry["data"] for entry in _library_entries(file)}
    for name in table:
        entry = header.tensors[name]
        assert data[entry.offset - header.data_start :][: entry.nbytes] == raw[name]


@quick
@given(table=tables)
def test_written_header_keeps_order_and_alignment(table: dict[str, tuple[str, list[int]]]) -> None:
    header = plan(table)
    assert header.data_start % DATA_ALIGNMENT == 0
    entries = [entry for name, entry in header.tensors.items() if not name.startswith(FILLER_PREFIX)]
    assert {entry.name for entry in entries} == set(table)
    if all(entry.nbytes for entry in entries):
        assert [entry.name for entry in entries] == list(table)
    for entry in entries:
        assert (entry.offset - header.data_start) % TENSOR_ALIGNMENT == 0


@quick
@given(table=tables, data=st.data())
def test_mutated_header_is_read_or_refused(
    table: dict[str, tuple[str, list[int]]], data: st.DataObject, tmp_path: Path
) -> None:
    header = plan(table)
    content = bytearray(header.encoded.rstrip(b" ") + bytes(header.file_size - header.data_start))
    content[:8] = (len(header.encoded.rstrip(b" ")) - 8).to_bytes(8, "little")
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["set", "cut", "insert"])):
            case "set":
                content[position] = data.draw(st.integers(0, 255))
            case "cut":
                del content[max(position, 1) :]
            case "insert":
                content[position:position] = data.draw(st.binary(min_size=1, max_size=3))
    file = tmp_path / "mutated.safetensors"
    file.write_bytes(content)
    try:
        entries = read_header(file).tensors.values()
    except ModelDataError as error:
        entries, message = [], str(error)
    else:
        message = f"{file}: "
    assert message.startswith(f"{file}: ")
    assert all(entry.offset + entry.nbytes <= len(content) for entry in entries)


def test_library_file_is_read_with_the_bytes_where_we_say(tmp_path: Path) -> None:
    tensors = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.arange(5, dtype=np.float16)}
    file = tmp_path / "model.safetensors"
    save_file(tensors, file, metadata={"format": "pt"})
    header = read_header(file)
    assert header.metadata == {"format": "pt"}
    assert header.file_size == file.stat().st_size
    content = file.read_bytes()
    for name, tensor in tensors.items():
        entry = header.tensors[name]
        assert content[entry.offset : entry.offset + entry.nbytes] == tensor.tobytes()


def test_our_file_loads_with_the_library_into_the_right_values(tmp_path: Path) -> None:
    tensors = {"z.weight": np.arange(7, dtype=np.float32), "a.weight": np.full((3, 2), 2, np.float16)}
    header = plan({"z.weight": ("F32", [7]), "a.weight": ("F16", [3, 2])})
    content = bytearray(header.encoded + bytes(header.file_size - header.data_start))
    for name, tensor in tensors.items():
        entry = header.tensors[name]
        content[entry.offset : entry.offset + entry.nbytes] = tensor.tobytes()
    (tmp_path / "ours.safetensors").write_bytes(content)
    loaded = load_file(tmp_path / "ours.safetensors")
    assert set(loaded) == {"z.weight", "a.weight", "filler.0"}
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(loaded[name], tensor)


def test_filler_stands_where_a_tensor_would_lose_its_alignment() -> None:
    header = plan({"a": ("F32", [1]), "b": ("F32", [64]), "c": ("F32", [1])})
    start = header.data_start
    assert list(header.tensors.values()) == [
        TensorEntry("a", "F32", (1,), start, 4),
        TensorEntry("filler.0", "U8", (252,), start + 4, 252),
        TensorEntry("b", "F32", (64,), start + 256, 256),
        TensorEntry("c", "F32", (1,), start + 512, 4),
    ]


def test_metadata_is_kept() -> None:
    header = plan_header([("a", "F32", (1,))], {"pilotlight": "1"})
    assert header.metadata == {"pilotlight": "1"}
    assert json.loads(header.encoded[8:])["__metadata__"] == {"pilotlight": "1"}


@pytest.mark.parametrize("names", [("a", "a"), ("filler.3", "b"), ("b", "__metadata__")])
def test_a_name_that_is_taken_is_a_programming_error(names: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="is taken"):
        plan_header([(name, "F32", (1,)) for name in names], {"x": "y"})


def _library_entries(file: Path) -> list[dict[str, object]]:
    return [{"name": name, **entry} for name, entry in safetensors.deserialize(file.read_bytes())]


def test_a_pipe_in_a_files_place_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "weights.safetensors")
    with pytest.raises(ModelDataError, match=r"weights\.safetensors: is a pipe, expected a file"):
        read_header(tmp_path / "weights.safetensors")
