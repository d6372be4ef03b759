"""Weights that are read before anybody asks for them: the same bytes, awaited where needed, refused where changed."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from pilotlight.device import mapped, read_ahead
from pilotlight.device.layout import Extent, Layout, Placed
from pilotlight.timeline import Timeline

BYTES = bytes(range(256)) * 1000


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(read_ahead, "_begun", [])
    monkeypatch.setattr(read_ahead, "_WINDOW", 8192)  # so that there are several
    path = tmp_path / "weights.safetensors"
    path.write_bytes(BYTES)
    return path


def layout_of(path: Path) -> Layout:
    return Layout((Placed("w", (200,), "I8", 100, 200),), (Extent(path, 5, 1000, 0),), 1000)


def test_what_was_begun_is_used_and_read_only(file: Path) -> None:
    ahead = read_ahead.begin(str(file), mapped=True)
    assert ahead is not None
    ((_, views),) = mapped.tensors_of(layout_of(file))
    assert bytes(views[0]) == BYTES[105:305]
    assert views[0].readonly
    view = read_ahead.mapping_of(file)
    assert view is not None
    assert (len(view), view.obj) == (len(BYTES), views[0].obj)
    assert ahead.ended is not None


def test_another_spelling_of_the_path_is_the_same_file(file: Path) -> None:
    read_ahead.begin(f"{file.parent}/./{file.name}", mapped=True)
    assert read_ahead.is_begun(file)


@pytest.mark.parametrize("change", ["longer", "other"])
def test_a_file_that_is_another_one_by_now_is_mapped_anew(file: Path, change: str) -> None:
    read_ahead.begin(str(file), mapped=True)
    after = BYTES + b"!" if change == "longer" else BYTES[::-1]
    beside = file.with_name("beside")
    beside.write_bytes(after)
    os.replace(beside, file)
    assert read_ahead.mapping_of(file) is None
    ((_, views),) = mapped.tensors_of(layout_of(file))
    assert bytes(views[0]) == after[105:305]


def test_a_file_that_is_to_be_copied_is_read_and_not_kept(file: Path) -> None:
    ahead = read_ahead.begin(str(file), mapped=False)
    assert ahead is not None
    assert read_ahead.mapping_of(file) is None


@pytest.mark.parametrize("mapped", [True, False])
def test_what_cannot_be_read_is_told_by_whoever_needs_it(file: Path, mapped: bool) -> None:
    assert read_ahead.begin(str(file.with_name("missing")), mapped=mapped) is None
    file.write_bytes(b"")
    empty = read_ahead.begin(str(file), mapped=mapped)
    assert empty is not None
    assert empty.result() is None


def test_a_kernel_that_cannot_fill_a_mapping_is_asked_to_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    c, asked = ctypes.CDLL(None), list[tuple[int, int]]()
    advise = c.madvise

    def madvise(address: int, size: int, advice: int) -> int:
        asked.append((size, advice))
        return -1 if advice == read_ahead.POPULATE_READ else int(advise(ctypes.c_void_p(address), size, advice))

    monkeypatch.setattr(c, "madvise", madvise)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: c)
    ahead = read_ahead.begin(str(file), mapped=True)
    assert ahead is not None
    view = ahead.result()
    assert view is not None
    assert bytes(view) == BYTES
    assert asked == [(8192, read_ahead.POPULATE_READ), (len(BYTES), mmap.MADV_WILLNEED)]


@pytest.mark.parametrize("mapped", [True, False])
def test_a_pipe_in_a_files_place_is_not_waited_for(file: Path, mapped: bool) -> None:
    file.unlink()
    os.mkfifo(file)
    ahead = read_ahead.begin(str(file), mapped=mapped)
    assert ahead is not None
    assert ahead.result() is None


@pytest.mark.parametrize("is_begun", [True, False])
def test_the_timeline_says_who_moved_the_bytes(file: Path, is_begun: bool) -> None:
    timeline = Timeline("engine")
    if is_begun:
        ahead = read_ahead.begin(str(file), mapped=True)
        assert ahead is not None
        ahead.join()
        ahead.note(timeline)
    with mapped.loading(layout_of(file), timeline):
        list(mapped.tensors_of(layout_of(file)))
    assert [span.name for span in timeline.spans] == (["weights", "wait for weights"] if is_begun else ["weights"])
    moved = timeline.spans[0]
    assert moved.bytes == (len(BYTES) if is_begun else 1000)
    assert moved.end is not None
    assert moved.end > moved.start
