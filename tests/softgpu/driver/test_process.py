"""A process and the driver: initialisation, forks, contexts per thread, faults that stick, and the knobs for them."""

import threading
from typing import Any

import pytest
from cuda.bindings import driver

from tests.softgpu.fixtures import Soft

from . import calls
from .calls import child, code, ok, start


def test_nothing_works_before_cuinit(soft: Soft) -> None:
    soft.reset(driver_version=12040)
    assert code("cuDeviceGetCount") == calls.NOT_INITIALIZED
    assert code("cuCtxGetCurrent") == calls.NOT_INITIALIZED
    assert ok("cuDriverGetVersion") == 12040
    ok("cuInit", 0)
    assert ok("cuDeviceGetCount") == 1


def test_a_forked_child_is_refused() -> None:
    script = """
import os
start()
read_end, write_end = os.pipe()
if os.fork() == 0:
    os.write(write_end, json.dumps([code("cuDeviceGetCount"), code("cuInit", 0), code("cuCtxSynchronize")]).encode())
    os._exit(0)
os.wait()
print(json.dumps([json.loads(os.read(read_end, 100)), code("cuCtxSynchronize")]))
"""
    assert child(script) == [[3, 3, 3], 0]


def test_a_thread_has_no_context_until_it_sets_one(soft: Soft) -> None:
    context = start()
    codes = []

    def elsewhere() -> None:
        codes.append(code("cuMemAlloc", 16))
        codes.append(code("cuCtxSetCurrent", context))
        codes.append(code("cuMemAlloc", 16))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert codes == [calls.INVALID_CONTEXT, 0, 0]
    assert code("cuMemAlloc", 16) == 0


def test_contexts_are_a_stack(soft: Soft) -> None:
    primary = start()
    device = ok("cuDeviceGet", 0)
    other = ok("cuCtxCreate", None, 0, device) if _takes_parameters() else ok("cuCtxCreate", 0, device)
    assert int(ok("cuCtxGetCurrent")) == int(other) != int(primary)
    assert int(ok("cuCtxPopCurrent")) == int(other)
    assert int(ok("cuCtxGetCurrent")) == int(primary)
    ok("cuCtxPushCurrent", other)
    ok("cuCtxDestroy", other)
    assert int(ok("cuCtxGetCurrent")) == int(primary)
    assert code("cuCtxSetCurrent", other) == calls.INVALID_CONTEXT


def _takes_parameters() -> bool:
    return "ctxCreateParams" in (driver.cuCtxCreate.__doc__ or "")


def test_the_last_release_destroys_the_primary_context(soft: Soft) -> None:
    start()
    device = ok("cuDeviceGet", 0)
    ok("cuDevicePrimaryCtxRetain", device)
    calls.words(4)
    before = ok("cuMemGetInfo")[0]
    ok("cuDevicePrimaryCtxRelease", device)
    assert ok("cuDevicePrimaryCtxGetState", device) == (0, 1)
    ok("cuDevicePrimaryCtxRelease", device)
    assert ok("cuDevicePrimaryCtxGetState", device) == (0, 0)
    assert code("cuDevicePrimaryCtxRelease", device) == calls.INVALID_CONTEXT
    assert code("cuMemAlloc", 16) == calls.INVALID_CONTEXT
    start()
    assert ok("cuMemGetInfo")[0] > before  # its memory went with it


@pytest.mark.parametrize("error", [100, 803, 804, 999])
def test_cuinit_fails_as_told(soft: Soft, error: int) -> None:
    soft.reset(init_error=error)
    assert code("cuInit", 0) == error
    assert code("cuInit", 0) == error
    assert code("cuDeviceGetCount") == calls.NOT_INITIALIZED


def test_cuinit_recovers_in_time(soft: Soft) -> None:
    soft.reset(init_error=802, init_error_seconds=0.05)
    assert code("cuInit", 0) == 802
    attempts = 0
    while code("cuInit", 0) == 802:
        attempts += 1
    assert attempts > 0
    start()


@pytest.mark.parametrize("error", [46, 101, 802])
def test_contexts_fail_as_told(soft: Soft, error: int) -> None:
    soft.reset(context_error=error)
    ok("cuInit", 0)
    device = ok("cuDeviceGet", 0)
    assert code("cuDevicePrimaryCtxRetain", device) == error
    assert ok("cuDevicePrimaryCtxGetState", device) == (0, 0)


def test_no_device(soft: Soft) -> None:
    soft.reset(devices=0)
    assert code("cuInit", 0) == 100


@pytest.mark.parametrize("fault", [214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719])
def test_after_a_fault_every_call_returns_it(soft: Soft, fault: int) -> None:
    soft.reset(launch_error=fault, fault_at_launch=2)
    start()
    (store,) = calls.functions(calls.KERNELS, "store")
    out = calls.words(1)
    calls.launch(store, out, 7)
    ok("cuCtxSynchronize")
    calls.launch(store, out, 8)
    assert code("cuCtxSynchronize") == fault
    sticky: list[tuple[Any, ...]] = [
        ("cuCtxSynchronize",),
        ("cuMemAlloc", 16),
        ("cuMemFree", out),
        ("cuStreamCreate", 0),
        ("cuEventCreate", 0),
        ("cuDeviceGetCount",),
        ("cuModuleLoadData", calls.KERNELS),
        ("cuStreamQuery", 0),
    ]
    assert {code(*call) for call in sticky} == {fault}
    assert calls.launch_code(store, out, 9) == fault
    assert code("cuDriverGetVersion") == 0
    soft.reset()
    start()


def test_a_kernels_own_fault_sticks(soft: Soft) -> None:
    start()
    (store,) = calls.functions(calls.KERNELS, "store")
    calls.launch(store, 0x10, 1)
    assert code("cuCtxSynchronize") == calls.ILLEGAL_ADDRESS
    assert code("cuMemAlloc", 16) == calls.ILLEGAL_ADDRESS
    (found,) = soft.take_findings("out-of-bounds")
    assert "store" in found.where


def test_errors_have_names_and_words(soft: Soft) -> None:
    assert ok("cuGetErrorName", driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS) == b"CUDA_ERROR_ILLEGAL_ADDRESS"
    assert ok("cuGetErrorString", driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY) == b"out of memory"
    for result in driver.CUresult:
        assert ok("cuGetErrorName", result).decode() == result.name
        assert ok("cuGetErrorString", result)


def test_a_call_that_is_not_built_is_refused_by_name(soft: Soft) -> None:
    start()
    assert code("cuMemAllocManaged", 64, 1) == calls.NOT_SUPPORTED
    (found,) = soft.take_findings("unsupported")
    assert "cuMemAllocManaged" in found.what


def test_reset_forgets_everything(soft: Soft) -> None:
    start()
    out = calls.words(4)
    stream = ok("cuStreamCreate", 0)
    soft.reset()
    assert code("cuCtxGetCurrent") == calls.NOT_INITIALIZED
    start()
    assert code("cuStreamSynchronize", stream) == calls.INVALID_HANDLE
    assert code("cuMemFree", out) == calls.INVALID_VALUE
    assert soft.counters()["driver"]["allocations"] == 0
