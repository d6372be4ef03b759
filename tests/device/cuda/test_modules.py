"""Kernels by name: which image a GPU gets, functions that are ready to be captured, arguments that fit."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight.device.cuda import driver, memory
from pilotlight.device.cuda.context import Context
from pilotlight.device.cuda.errors import CudaError
from pilotlight.device.cuda.images import Images
from pilotlight.device.cuda.launch import Gpu, Launch
from pilotlight.device.cuda.modules import Kernels
from pilotlight.errors import UnavailableError
from tests.softgpu.driver import calls
from tests.softgpu.fixtures import Soft

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


def write_images(directory: Path, architectures: tuple[str, ...] = ARCHITECTURES) -> Path:
    """A module `m` of one entry, (u64 out, u32 value): PTX, and a file for each architecture."""
    parameters = [{"type": "u64", "offset": 0, "bytes": 8}, {"type": "u32", "offset": 8, "bytes": 4}]
    entries = {"store": {"parameters": parameters, "static_shared_bytes": 0}}
    about = {"target": "sm_80", "cubins": {architecture: {} for architecture in ARCHITECTURES}, "entries": entries}
    (directory / "manifest.json").write_text(json.dumps({"format": 1, "modules": {"m": about}}))
    (directory / "m.ptx").write_bytes(calls.module(calls.entry("store", calls.STORE))[:-1])
    for architecture in architectures:
        (directory / architecture).mkdir()
        (directory / architecture / "m.cubin").write_text(architecture)
    return directory


@pytest.mark.parametrize(
    ("capability", "architecture"),
    [
        *[((8, 0), "sm_80"), ((8, 6), "sm_86"), ((8, 7), "sm_86"), ((8, 9), "sm_89"), ((9, 0), "sm_90")],
        *[((10, 0), "sm_100"), ((10, 3), "sm_100"), ((12, 0), "sm_120"), ((12, 1), "sm_120")],
    ],
)
def test_the_highest_image_up_to_the_gpus_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capability: tuple[int, int], architecture: str
) -> None:
    image = Images(write_images(tmp_path), capability, "a GPU").read("m")
    assert image.data.decode() == architecture
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("capability", "there"), [((8, 6), ("sm_89", "sm_90")), ((11, 0), ARCHITECTURES), ((8, 0), ())]
)
def test_ptx_where_there_is_none_and_once_a_loud_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capability: tuple[int, int], there: tuple[str, ...]
) -> None:
    images = Images(write_images(tmp_path, there), capability, "a GPU")
    with caplog.at_level(logging.WARNING):
        image, _ = images.read("m"), images.read("m")
    assert image.data == (tmp_path / "m.ptx").read_bytes() + b"\0"
    (line,) = caplog.messages
    assert "THE DRIVER COMPILES PTX NOW, which costs seconds" in line


def test_J07_a_gpu_too_old_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CudaError) as caught:
        Images(write_images(tmp_path), (7, 5), "Tesla T4 (compute capability 7.5)").read("m")
    assert str(caught.value) == (
        "Tesla T4 (compute capability 7.5): too old for these kernels, which need compute capability 8.0 or more "
        "(there are images for 8.0, 8.6, 8.9, 9.0, 10.0, 12.0); use another GPU, or --device cpu"
    )


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    images = Images(write_images(tmp_path, ()), (8, 0), "a GPU")
    (tmp_path / "m.ptx").unlink()
    with pytest.raises(UnavailableError, match=r"m\.ptx: cannot be read: No such file"):
        images.read("m")


@pytest.fixture
def kernels(soft: Soft, tmp_path: Path) -> Kernels:
    context = Context(0)
    return Kernels(context.gpu, [Images(write_images(tmp_path, ()), (8, 0), "a GPU").read("m")])


def launch(*arguments: Any, grid: tuple[int, int, int] = (1, 1, 1), shared: int = 0) -> Launch:
    return Launch("m", "store", grid, (4, 1, 1), shared, arguments)


def test_a_launch_hands_its_arguments_over(kernels: Kernels) -> None:
    """Two are enqueued before the first runs: each has its own arguments."""
    stream = driver.create_stream()
    addresses = [memory.allocate(16, "four words") for _ in range(2)]
    for value, address in enumerate(addresses, 7):
        kernels.launch(launch(address, value), stream)
    driver.synchronize_stream(stream)
    assert [calls.read(address, 4) for address in addresses] == [[7] * 4, [8] * 4]
    assert kernels.recent() == "store [1, 1, 1], store [1, 1, 1]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1,), "store takes 2 arguments, 1 given"),
        ((1, 2, 3), "store takes 2 arguments, 3 given"),
        ((1, 2**32), "argument 1 is 4294967296, which is no u32"),
        ((1, -1), "argument 1 is -1, which is no u32"),
        ((2**64, 1), "argument 0 is 18446744073709551616, which is no u64"),
        ((1, 2.0), "argument 1 is 2.0, which is no u32"),
        ((None, 1), "argument 0 is None, which is no u64"),
    ],
)
def test_arguments_that_are_not_the_entrys_are_refused(
    kernels: Kernels, arguments: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        kernels.launch(launch(*arguments), driver.create_stream())


def test_an_integer_is_no_float(soft: Soft, tmp_path: Path) -> None:
    context = Context(0)
    write_images(tmp_path, ())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["modules"]["m"]["entries"]["store"]["parameters"][1]["type"] = "f32"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    kernels = Kernels(context.gpu, [Images(tmp_path, (8, 0), "a GPU").read("m")])
    stream, address = driver.create_stream(), memory.allocate(16, "four words")
    with pytest.raises(ValueError, match="argument 1 is 1, expected f32"):
        kernels.launch(launch(address, 1), stream)
    with pytest.raises(ValueError, match=r"argument 1 is 1e\+300, which is no f32"):
        kernels.launch(launch(address, 1e300), stream)
    kernels.launch(launch(address, 1.5), stream)
    driver.synchronize_stream(stream)
    assert np.array(calls.read(address, 4), np.uint32).view(np.float32).tolist() == [1.5] * 4


def test_a_launch_that_the_driver_refuses_is_told_with_its_shape(kernels: Kernels) -> None:
    with pytest.raises(
        CudaError, match=r"cuLaunchKernel \(store, grid \(0, 1, 1\), block \(4, 1, 1\), 0 bytes shared\)"
    ):
        kernels.launch(launch(1, 1, grid=(0, 1, 1)), driver.create_stream())


def test_every_function_is_ready_to_be_captured(kernels: Kernels) -> None:
    """With all the shared memory that the GPU has for a block; a first use during a capture would be a finding."""
    stream, address = driver.create_stream(), memory.allocate(16, "four words")
    driver.begin_capture(stream)
    kernels.launch(launch(address, 9, shared=163 * 1024), stream)
    graph = driver.end_capture(stream)
    executable = driver.instantiate(graph)
    driver.destroy_graph(graph)
    driver.launch_graph(executable, stream)
    driver.synchronize_stream(stream)
    assert calls.read(address, 4) == [9] * 4
    driver.destroy_executable(executable)
    kernels.close()


def test_an_entry_that_the_image_lacks_is_told(soft: Soft, tmp_path: Path) -> None:
    Context(0)
    write_images(tmp_path, ())
    (tmp_path / "m.ptx").write_bytes(calls.module(calls.entry("other", calls.STORE))[:-1])
    image = Images(tmp_path, (8, 0), "a GPU").read("m")
    with pytest.raises(CudaError, match=r"cuModuleGetFunction \(store\): .* not those of this version"):
        Kernels(Gpu((8, 0), 4, 163 * 1024), [image])
