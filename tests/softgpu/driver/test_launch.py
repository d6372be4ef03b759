"""Launches: their limits, their parameters, registers and occupancy."""

import ctypes
import json
from pathlib import Path

import pytest
from cuda.bindings import driver

from tests.softgpu.fixtures import Soft

from . import calls
from .calls import code, ok, start

LIMITED = calls.module(
    calls.entry("at_most_64", calls.STORE, ".maxntid 64, 1, 1"),
    calls.entry("exactly_32", calls.STORE, ".reqntid 32, 1, 1"),
)


@pytest.mark.parametrize(
    ("grid", "block", "result"),
    [
        ((1, 1, 1), (1024, 1, 1), 0),
        ((1, 1, 1), (4, 4, 64), 0),
        ((0, 1, 1), (1, 1, 1), 1),
        ((1, 1, 0), (1, 1, 1), 1),
        ((1, 1, 1), (1, 0, 1), 1),
        ((1, 65536, 1), (1, 1, 1), 1),
        ((1, 1, 65536), (1, 1, 1), 1),
        ((1 << 31, 1, 1), (1, 1, 1), 1),
        ((1, 1, 1), (1025, 1, 1), 1),
        ((1, 1, 1), (1, 1, 65), 1),
        ((1, 1, 1), (512, 3, 1), 1),
    ],
)
def test_dimensions(soft: Soft, grid: tuple[int, int, int], block: tuple[int, int, int], result: int) -> None:
    start()
    (store,) = calls.functions(calls.KERNELS, "store")
    out = calls.words(1024)
    assert calls.launch_code(store, out, 1, grid=grid, block=block) == result
    assert soft.counters()["driver"]["launches"] == (result == 0)


def test_an_entrys_own_limits(soft: Soft) -> None:
    start()
    at_most, exactly = calls.functions(LIMITED, "at_most_64", "exactly_32")
    out = calls.words(128)
    assert (
        ok("cuFuncGetAttribute", driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, at_most) == 64
    )
    assert [calls.launch_code(at_most, out, 1, block=(threads, 1, 1)) for threads in (64, 65)] == [0, 1]
    assert [calls.launch_code(exactly, out, 1, block=(threads, 1, 1)) for threads in (32, 31, 64)] == [0, 1, 1]


def test_parameters_packed_by_the_caller(soft: Soft) -> None:
    start()
    (store,) = calls.functions(calls.KERNELS, "store")
    out = calls.words(1)
    packed = (ctypes.c_uint8 * 12).from_buffer_copy(out.to_bytes(8, "little") + (77).to_bytes(4, "little"))
    for bytes_given, result in ((12, 0), (8, calls.INVALID_VALUE)):
        size = ctypes.c_size_t(bytes_given)
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(packed), 2, ctypes.addressof(size), 0)
        assert code("cuLaunchKernel", store, 1, 1, 1, 1, 1, 1, 0, 0, 0, ctypes.addressof(extra)) == result
    assert code("cuLaunchKernel", store, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) == calls.INVALID_VALUE
    assert calls.read(out) == [77]


def test_parameters_are_told(soft: Soft) -> None:
    start()
    (store,) = calls.functions(calls.KERNELS, "store")
    assert [ok("cuFuncGetParamInfo", store, index) for index in range(2)] == [(0, 8), (8, 4)]
    assert code("cuFuncGetParamInfo", store, 2) == calls.INVALID_VALUE
    assert ok("cuFuncGetName", store) == b"store"


def test_extended_launch(soft: Soft) -> None:
    start()
    (store,) = calls.functions(calls.KERNELS, "store")
    out = calls.words(1)
    config = driver.CUlaunchConfig()
    config.gridDimX = config.gridDimY = config.gridDimZ = 1
    config.blockDimX = config.blockDimY = config.blockDimZ = 1
    arguments = ((out, 9), (ctypes.c_uint64, ctypes.c_uint32))
    assert code("cuLaunchKernelEx", config, store, arguments, 0) == 0
    assert calls.read(out) == [9]
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    attribute.value.cooperative = 1
    config.attrs, config.numAttrs = [attribute], 1
    assert code("cuLaunchKernelEx", config, store, arguments, 0) == calls.NOT_SUPPORTED
    assert len(soft.take_findings("unsupported")) == 1


def test_a_stream_of_another_context_is_refused(soft: Soft) -> None:
    soft.reset(devices=2)
    start(1)
    elsewhere = ok("cuStreamCreate", calls.NON_BLOCKING)
    start(0)
    here = ok("cuStreamCreate", calls.NON_BLOCKING)
    (store,) = calls.functions(calls.KERNELS, "store")
    out = calls.words(1)
    assert calls.launch_code(store, out, 1, stream=elsewhere) == calls.INVALID_HANDLE
    assert calls.launch_code(store, out, 1, stream=here) == 0


def manifest(directory: Path, **registers: int) -> Path:
    architectures = {name: {"registers": count} for name, count in registers.items()}
    entries = {"store": {"parameters": [], "architectures": architectures}}
    text = json.dumps({"format": 1, "modules": {"kernels": {"entries": entries}}})
    (directory / "manifest.json").write_text(text)
    return directory


# A warp's registers are allocated by 256, warps by four: 65,536 hold 16 warps of 128 registers and 17 take 20.
@pytest.mark.parametrize(
    ("registers", "threads", "result"),
    [(64, 1024, 0), (65, 1024, 701), (128, 512, 0), (128, 513, 701), (255, 256, 0), (255, 257, 701)],
)
def test_registers_bound_the_block(soft: Soft, tmp_path: Path, registers: int, threads: int, result: int) -> None:
    soft.reset(ptx_directory=manifest(tmp_path, sm_80=registers))
    start()
    (store,) = calls.functions(calls.KERNELS, "store")
    assert ok("cuFuncGetAttribute", driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, store) == registers
    assert calls.launch_code(store, calls.words(1024), 1, block=(threads, 1, 1)) == result


@pytest.mark.parametrize(("capability", "registers"), [(80, 40), (86, 50), (89, 50), (90, 60), (103, 70), (120, 32)])
def test_registers_are_those_of_the_architecture(soft: Soft, tmp_path: Path, capability: int, registers: int) -> None:
    given = manifest(tmp_path, sm_80=40, sm_86=50, sm_90=60, sm_100=70)
    soft.reset(ptx_directory=given, capability=capability)
    start()
    (store,) = calls.functions(calls.KERNELS, "store")
    assert ok("cuFuncGetAttribute", driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, store) == registers


# NVIDIA's occupancy calculator: blocks of a multiprocessor by capability, registers, threads, dynamic shared bytes.
@pytest.mark.parametrize(
    ("capability", "registers", "threads", "shared", "blocks"),
    [
        (80, 32, 256, 0, 8),
        (80, 64, 256, 0, 4),
        (80, 96, 256, 0, 2),
        (80, 40, 128, 0, 12),
        (80, 32, 32, 0, 32),
        (80, 32, 256, 40 << 10, 4),
        (86, 32, 256, 0, 6),
        (86, 32, 32, 0, 16),
        (89, 32, 32, 0, 24),
        (90, 168, 384, 0, 1),
        (120, 32, 128, 48 << 10, 2),
    ],
)
def test_occupancy(
    soft: Soft, tmp_path: Path, capability: int, registers: int, threads: int, shared: int, blocks: int
) -> None:
    soft.reset(capability=capability, ptx_directory=manifest(tmp_path, **{f"sm_{capability}": registers}))
    start()
    (store,) = calls.functions(calls.KERNELS, "store")
    assert ok("cuOccupancyMaxActiveBlocksPerMultiprocessor", store, threads, shared) == blocks
