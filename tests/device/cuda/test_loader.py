"""From files to the GPU: every byte in its place, and what goes wrong with a file on the way."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight.device.cuda import driver, loader, memory
from pilotlight.device.cuda.context import Context
from pilotlight.device.cuda.errors import DeviceLostError
from pilotlight.device.layout import Extent
from pilotlight.errors import ModelDataError
from tests.kernels.harness import to_bf16
from tests.softgpu.driver import calls
from tests.softgpu.fixtures import Soft

PIECE = 4096


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "PIECE_BYTES", PIECE)


def write(path: Path, nbytes: int, seed: int = 0) -> np.ndarray:
    data = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    path.write_bytes(data.tobytes())
    return data


def loaded(extents: Sequence[Extent], nbytes: int, **options: Any) -> np.ndarray:
    """What lies in a slab after the load."""
    slab = memory.allocate(nbytes, "slab")
    calls.ok("cuMemsetD8", slab, 0xEE, nbytes)
    calls.ok("cuCtxSynchronize")
    loader.load(Context(0), extents, slab, **options)
    return np.array(calls.read(slab, nbytes // 4), np.uint32).view(np.uint8)


def start(soft: Soft, **knobs: Any) -> None:
    soft.reset(**knobs)
    Context(0)


@pytest.mark.parametrize("knobs", [{}, {"seed": 1}, {"seed": 2}, {"host_register_error": 801}])
def test_extents_of_several_files_lie_where_they_belong(soft: Soft, tmp_path: Path, knobs: dict[str, int]) -> None:
    """Many more pieces than slots, odd lengths, gaps that nobody fills; without page-locked memory too."""
    start(soft, **knobs)
    first, second = write(tmp_path / "a", 70_001), write(tmp_path / "b", 200_000, seed=1)
    extents = [
        Extent(tmp_path / "b", 8, 100_000, 512),
        Extent(tmp_path / "a", 1, 70_000, 100_608),
        Extent(tmp_path / "b", 150_000, 3, 0),
    ]
    expected = np.full(180_000, 0xEE, np.uint8)
    expected[512:100_512] = second[8:100_008]
    expected[100_608:170_608] = first[1:]
    expected[:3] = second[150_000:150_003]
    assert (loaded(extents, len(expected)) == expected).all()


def test_an_empty_model_loads(soft: Soft, tmp_path: Path) -> None:
    start(soft)
    write(tmp_path / "a", 10)
    assert (loaded([Extent(tmp_path / "a", 0, 0, 0)], 8) == 0xEE).all()
    assert (loaded([], 8) == 0xEE).all()


def test_fp32_is_rounded_to_the_nearest_bfloat16(soft: Soft, tmp_path: Path) -> None:
    start(soft)
    special = np.array(
        [
            0x3F808000,
            0x3F818000,
            0x3F808001,
            0x7F7FFFFF,
            0x7F800000,
            0xFF800000,
            0x80000000,
            0x7F800001,
            0xFFFFFFFF,
            1,
        ],
        np.uint32,
    )
    values = np.concatenate(
        [special, np.random.default_rng(0).standard_normal(9000).astype(np.float32).view(np.uint32)]
    )
    (tmp_path / "a").write_bytes(b"header.." + values.tobytes())
    slab = loaded([Extent(tmp_path / "a", 8, values.nbytes, 0)], values.nbytes // 2, narrow=True).view(np.uint16)
    assert slab[:10].tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x7F80, 0xFF80, 0x8000, 0x7FC0, 0x7FC0, 0]
    assert (slab[10:] == to_bf16(values[10:].view(np.float32))).all()


def test_a_file_that_was_cut_before(soft: Soft, tmp_path: Path) -> None:
    start(soft)
    write(tmp_path / "a", 1000)
    with pytest.raises(ModelDataError, match=r"/a: has 1000 bytes, its tensors end at byte 1001 or later"):
        loaded([Extent(tmp_path / "a", 1, 1000, 0)], 1000)


def test_a_file_that_is_not_there(soft: Soft, tmp_path: Path) -> None:
    start(soft)
    with pytest.raises(ModelDataError, match=r"/a: cannot be read: No such file or directory"):
        loaded([Extent(tmp_path / "a", 0, 8, 0)], 8)


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """`act` happens while the files are read, before the read at byte 20,480."""
    read = os.preadv

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        if offset == 5 * PIECE:
            act()
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)


def test_a_file_that_is_cut_while_it_is_read(soft: Soft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(soft)
    write(tmp_path / "a", 100_000)
    meanwhile(monkeypatch, lambda: os.truncate(tmp_path / "a", 5 * PIECE))
    with pytest.raises(ModelDataError, match=r"/a: ends at byte \d+, its tensors go on to \d+; it was cut while it"):
        loaded([Extent(tmp_path / "a", 0, 100_000, 0)], 100_000)


def test_a_file_that_is_changed_while_it_is_read(soft: Soft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(soft)
    write(tmp_path / "a", 100_000)
    meanwhile(monkeypatch, lambda: os.utime(tmp_path / "a", ns=(1, 1)))
    with pytest.raises(ModelDataError, match="/a: was changed while it was read"):
        loaded([Extent(tmp_path / "a", 0, 100_000, 0)], 100_000)


def test_a_file_that_another_takes_the_place_of(soft: Soft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(soft)
    write(tmp_path / "a", 100_000)
    write(tmp_path / "b", 100_000, seed=1)
    meanwhile(monkeypatch, lambda: (tmp_path / "b").rename(tmp_path / "a"))
    with pytest.raises(ModelDataError, match="/a: was changed while it was read"):
        loaded([Extent(tmp_path / "a", 0, 100_000, 0)], 100_000)


def test_a_file_that_is_taken_away(soft: Soft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(soft)
    write(tmp_path / "a", 100_000)
    meanwhile(monkeypatch, lambda: (tmp_path / "a").unlink())
    with pytest.raises(ModelDataError, match="/a: was taken away while it was read"):
        loaded([Extent(tmp_path / "a", 0, 100_000, 0)], 100_000)


def test_a_disk_that_fails(soft: Soft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(soft)
    write(tmp_path / "a", 100_000)

    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    meanwhile(monkeypatch, fail)
    with pytest.raises(ModelDataError, match="/a: cannot be read at byte 20480: Input/output error"):
        loaded([Extent(tmp_path / "a", 0, 100_000, 0)], 100_000)
    monkeypatch.undo()
    assert driver.memory_info()  # nothing is left in flight, and nothing is lost


def test_reads_that_bring_less_than_asked_for(soft: Soft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(soft)
    data = write(tmp_path / "a", 20_000)
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: read(fd, [buffers[0][:1000]], offset))
    assert (loaded([Extent(tmp_path / "a", 0, 20_000, 0)], 20_000) == data).all()


def test_a_gpu_that_is_lost_meanwhile(soft: Soft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(soft, launch_error=719, fault_at_launch=1)
    write(tmp_path / "a", 100_000)
    context, slab = Context(0), memory.allocate(100_000, "slab")
    (store,) = calls.functions(calls.KERNELS, "store")
    calls.warm(store)

    def lose() -> None:
        context.bind()
        calls.launch(store, slab, 1)
        calls.code("cuCtxSynchronize")

    meanwhile(monkeypatch, lose)
    with pytest.raises(DeviceLostError, match=r"\(719\)"):
        loader.load(context, [Extent(tmp_path / "a", 0, 100_000, 0)], slab)
