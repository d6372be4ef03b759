"""The driver's wrapper: what is refused and in which words, waiting for a fabric, the early start, the thin calls."""

import ctypes
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cuda.bindings import driver as cuda

from pilotlight.build import native_compiler
from pilotlight.device.cuda import driver, early, memory
from pilotlight.device.cuda.context import Context
from pilotlight.device.cuda.device import CudaDevice
from pilotlight.device.cuda.errors import STICKY, CudaError, DeviceLostError, failure
from pilotlight.errors import EXIT_ENGINE, EXIT_UNAVAILABLE
from tests.softgpu.driver import calls
from tests.softgpu.fixtures import Soft

ROOT = Path(__file__).parents[3]


def refusal(ordinal: int = 0) -> CudaError:
    """What opening the GPU raises; its message is one line."""
    with pytest.raises(CudaError) as caught:
        Context(ordinal)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == EXIT_UNAVAILABLE
    return caught.value


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"devices": 0}, "cuInit: CUDA_ERROR_NO_DEVICE (100), no CUDA-capable device is detected; no GPU is visible"),
        ({"driver_version": 12010}, "the NVIDIA driver is of CUDA 12.1, and at least 12.2 (driver 535) is needed"),
        ({"driver_version": 11080}, "of CUDA 11.8, and at least 12.2"),
        ({"init_error": 803}, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803), "),
        ({"init_error": 804}, "a libcuda for forward compatibility"),
        ({"init_error": 999}, "see nvidia-smi and dmesg on the host"),
        ({"init_error": 101}, "nvidia-smi -L"),
        ({"context_error": 46}, "cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE (46), "),
        ({"context_error": 101}, "no such GPU"),
    ],
)
def test_a_gpu_that_cannot_be_opened_is_refused_with_what_to_do(soft: Soft, knobs: dict, words: str) -> None:
    soft.reset(**knobs)
    assert words in str(refusal())


@pytest.mark.parametrize("version", [12020, 12040, 12080, 13000])
def test_drivers_from_the_floor_on_are_taken(soft: Soft, version: int) -> None:
    soft.reset(driver_version=version)
    Context(0)
    assert driver.driver_version() == version


def test_faults_that_stick_are_those_that_the_driver_says_do() -> None:
    """214 and 220, of the hardware's errors, are known by experience alone; 710 is a kernel's assertion."""
    said = {
        int(result)
        for result in cuda.CUresult
        if "the process must be terminated and relaunched" in " ".join((result.__doc__ or "").split())
    }
    assert len(said) > 10
    assert said | {214, 220, 710} == STICKY


def test_a_gpu_by_its_number(soft: Soft) -> None:
    soft.reset(devices=2)
    Context(1)
    assert "--device cuda:2: there is no such GPU; there are cuda:0, cuda:1" in str(refusal(2))


def test_a_gpu_that_is_hidden_is_refused_with_what_is_shown(soft: Soft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    soft.reset(devices=3)
    Context(1)
    assert "--device cuda:2: there is no such GPU; CUDA_VISIBLE_DEVICES=2,0 shows cuda:0, cuda:1" in str(refusal(2))


def test_a_device_that_is_dropped_leaves_the_thread_to_the_one_it_was_of(soft: Soft) -> None:
    """A collection drops it between any two calls."""
    soft.reset(devices=2)
    dropped, context = CudaDevice(1), Context(0)
    del dropped
    assert soft.counters()["calls"]["cuStreamDestroy"] == 1
    assert int(cuda.cuCtxGetDevice()[1]) == context.ordinal


def test_mig_is_a_gpu_like_any(soft: Soft) -> None:
    soft.reset(mig=True, capability=90)
    context = Context(0)
    assert "MIG" in context.title
    assert context.gpu.capability == (9, 0)
    assert context.gpu.shared_bytes == 227 * 1024


@pytest.mark.parametrize("where", ["init", "context"])
def test_a_fabric_that_becomes_ready_is_waited_for(
    soft: Soft, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    monkeypatch.setattr(driver, "_RETRY_SECONDS", 0.005)
    soft.reset(**{f"{where}_error": 802, f"{where}_error_seconds": 0.05})
    with caplog.at_level(logging.WARNING):
        Context(0)
    assert len(caplog.messages) == 1
    assert "the NVSwitch fabric is not ready yet, trying for 30 s" in caplog.text


@pytest.mark.parametrize("where", ["init", "context"])
def test_a_fabric_that_does_not_become_ready_is_told(soft: Soft, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(driver, "_RETRY_SECONDS", 0.005)
    monkeypatch.setattr(driver, "FABRIC_SECONDS", 0.02)
    soft.reset(**{f"{where}_error": 802})
    error = refusal()
    assert error.code == 802
    assert "nvidia-fabricmanager must run there" in str(error)
    assert str(error).endswith("(waited for 0.02 s)")


@pytest.mark.parametrize("code", sorted(STICKY))
def test_a_fault_that_sticks_loses_the_device(soft: Soft, code: int) -> None:
    soft.reset(launch_error=code, fault_at_launch=1)
    Context(0)
    function = driver.get_function(driver.load_module(calls.KERNELS, "kernels"), "store")
    stream = driver.create_stream()
    calls.launch(function, memory.allocate(4, "a word"), 1, stream=stream)
    with pytest.raises(DeviceLostError, match=rf"\({code}\), .*; the GPU is lost to this process") as caught:
        driver.synchronize_stream(stream)
    assert caught.value.exit_code == EXIT_ENGINE


@pytest.mark.parametrize(
    ("call", "make"),
    [
        ("cuMemAlloc", lambda: memory.allocate(4, "a word")),
        ("cuModuleLoadDataEx", lambda: driver.load_module(calls.KERNELS, "kernels")),
        ("cuLaunchKernel", lambda: driver.launch(*launch_arguments())),
        ("cuStreamSynchronize", lambda: driver.synchronize_stream(driver.create_stream())),
    ],
)
def test_a_result_that_is_newer_than_the_bindings_is_an_error_like_any(soft: Soft, call: str, make: Callable) -> None:
    """The bindings themselves raise ValueError."""
    soft.reset(fail_call=call, fail_error=12345)
    Context(0)
    with pytest.raises(
        CudaError, match=rf"^{call}: error 12345 \(12345\), of a driver that is newer than these"
    ) as caught:
        make()
    assert caught.value.code == 12345


def launch_arguments() -> tuple:
    function = driver.get_function(driver.load_module(calls.KERNELS, "kernels"), "store")
    values = (ctypes.c_uint64(memory.allocate(4, "a word")), ctypes.c_uint32(1))
    pointers = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
    return function, (1, 1, 1), (1, 1, 1), 0, driver.create_stream(), ctypes.addressof(pointers), "store"


def test_an_error_without_advice_is_told_as_it_is() -> None:
    assert str(failure("cuX", 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument", "norm")) == (
        "cuX (norm): CUDA_ERROR_INVALID_VALUE (1), invalid argument"
    )


def open_gpu(library: Path) -> "subprocess.CompletedProcess[str]":
    """In a process of its own, since this one has the soft GPU: it prints the exit code and the reason."""
    script = (
        "import sys\n"
        "from pilotlight.device.cuda import driver\n"
        "from pilotlight.device.cuda.context import Context\n"
        "from pilotlight.errors import PilotlightError\n"
        "driver.LIBRARY = sys.argv[1]\n"
        "try: Context(0)\n"
        "except PilotlightError as error: print(error.exit_code, error)"
    )
    command = [sys.executable, "-c", script, str(library)]
    environment = os.environ | {"LD_LIBRARY_PATH": str(library.parent)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_without_a_driver(tmp_path: Path) -> None:
    done = open_gpu(tmp_path / "libcuda.so.1")
    assert done.stdout.startswith("69 libcuda.so.1, which comes with the NVIDIA driver, cannot be loaded (")
    assert "or use --device cpu" in done.stdout


def test_a_driver_of_cuda_11_is_refused_though_the_bindings_cannot_use_it(tmp_path: Path) -> None:
    """It has no cuGetProcAddress_v2, by which they look everything up."""
    source = tmp_path / "driver.cpp"
    source.write_text('extern "C" int cuDriverGetVersion(int* version) { *version = 11080; return 0; }\n')
    native_compiler.make(tmp_path / "libcuda.so.1", str(source), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    done = open_gpu(tmp_path / "libcuda.so.1")
    assert done.stdout.startswith("69 the NVIDIA driver is of CUDA 11.8, and at least 12.2 (driver 535) is needed: ")


def test_images_that_a_driver_refuses(soft: Soft) -> None:
    soft.reset(capability=86, driver_version=12020)
    Context(0)
    with pytest.raises(
        CudaError, match=r"\(x\): CUDA_ERROR_NO_BINARY_FOR_GPU \(209\), .*; the compiled kernels have no"
    ):
        driver.load_module(softgpu_cubin(90), "x")
    newer = calls.module(calls.entry("store", calls.STORE), version="8.7")
    with pytest.raises(CudaError, match=r"8\.7.*CUDA_ERROR_UNSUPPORTED_PTX_VERSION \(222\).*update it on the host"):
        driver.load_module(newer, "x.ptx")
    soft.reset(ptx_jit_error=221)
    Context(0)
    with pytest.raises(CudaError, match="libnvidia-ptxjitcompiler"):
        driver.load_module(calls.KERNELS, "x.ptx")


def softgpu_cubin(capability: int) -> bytes:
    from tests.softgpu.driver.test_images import cubin

    return cubin("store", capability=capability)


def test_the_early_start_makes_the_context_that_is_opened_later(soft: Soft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    early.begin(0).join()
    assert calls.ok("cuDevicePrimaryCtxGetState", 0) == (0, 1)
    Context(0)
    driver.synchronize_stream(driver.create_stream())


@pytest.mark.parametrize("knobs", [{"init_error": 999}, {"context_error": 46}, {"devices": 0}])
def test_the_early_start_tells_no_failure(soft: Soft, knobs: dict) -> None:
    soft.reset(**knobs)
    early.begin(0).join()
    refusal()


def test_a_context_is_bound_to_each_thread_that_uses_it(soft: Soft) -> None:
    context = Context(0)
    codes = []

    def work() -> None:
        try:
            driver.memory_info()
        except CudaError as error:
            codes.append(error.code)
        context.bind()
        driver.memory_info()
        codes.append(0)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == [201, 0]


def test_out_of_memory_is_told_with_sizes(soft: Soft) -> None:
    soft.reset(memory_bytes=1 << 30)
    Context(0)
    with pytest.raises(CudaError) as caught:
        memory.allocate(2 << 30, "weights")
    assert str(caught.value).startswith(
        "weights: the GPU has no 2.15 GB in one piece, 1.07 GB of its 1.07 GB are free; lower "
    )
    assert caught.value.code == 2


@pytest.mark.parametrize("error", [801, 2, 1, 304, 999])
def test_host_memory_that_cannot_be_locked_is_used_as_it_is(
    soft: Soft, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    soft.reset(host_register_error=error)
    Context(0)
    buffer = memory.HostBuffer(16)
    assert not buffer.pinned
    assert "host memory is not page-locked" in caplog.text
    assert_copies_back(buffer)


def test_a_gpu_that_is_lost_while_memory_is_locked(soft: Soft) -> None:
    soft.reset(host_register_error=700)
    Context(0)
    with pytest.raises(DeviceLostError):
        memory.HostBuffer(16)


def test_a_fork_leaves_host_memory_where_the_gpu_finds_it(soft: Soft) -> None:
    """The kernel copies nothing of it ("dc" in its flags), so that the parent's pages stay the parent's."""
    Context(0)
    buffer = memory.HostBuffer(16)
    regions = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    (region,) = (region for region in regions if region.startswith(f"{buffer.address:x}-"))
    assert " dc" in re.findall(r"VmFlags:.*", region)[0]
    buffer.close()


def test_copies_pass_through_locked_memory(soft: Soft) -> None:
    soft.reset(strict_copies=True)
    Context(0)
    buffer = memory.HostBuffer(16)
    assert buffer.pinned
    assert_copies_back(buffer)


def assert_copies_back(buffer: memory.HostBuffer) -> None:
    stream, words = driver.create_stream(), np.frombuffer(buffer.view, np.uint32)
    address = memory.allocate(16, "four words")
    words[:] = [1, 2, 3, 4]
    event = driver.create_event()
    driver.copy_to_device(address, buffer.address, 16, stream)
    driver.record_event(event, stream)
    driver.synchronize_event(event)
    words[:] = 0
    driver.copy_to_host(buffer.address, address, 16, stream)
    driver.synchronize_stream(stream)
    assert words.tolist() == [1, 2, 3, 4]
    driver.destroy_event(event)
    driver.free(address)
    buffer.close()
    buffer.close()
