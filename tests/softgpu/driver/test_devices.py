"""Capability profiles: what a device says of itself, and how that bounds launches."""

import pytest
from cuda.bindings import driver

from tests.softgpu.fixtures import Soft

from . import calls
from .calls import code, ok, start

KIB = 1 << 10
# capability: shared bytes of a block (opt-in), of a multiprocessor, threads and blocks of one, bus width, clusters
CARDS = {
    80: (163, 164, 2048, 32, 5120, 0),
    86: (99, 100, 1536, 16, 384, 0),
    89: (99, 100, 1536, 24, 192, 0),
    90: (227, 228, 2048, 32, 6144, 1),
    100: (227, 228, 2048, 32, 8192, 1),
    120: (99, 100, 1536, 24, 512, 1),
}


def attribute(name: str) -> int:
    return ok("cuDeviceGetAttribute", getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), 0)


@pytest.mark.parametrize("capability", CARDS)
def test_profiles(soft: Soft, capability: int) -> None:
    optin, shared, threads, blocks, bus, clusters = CARDS[capability]
    soft.reset(capability=capability, sm_count=7, memory_bytes=24 << 30)
    start()
    assert (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")) == divmod(capability, 10)
    assert ok("cuDeviceComputeCapability", 0) == divmod(capability, 10)
    assert attribute("MULTIPROCESSOR_COUNT") == 7
    assert attribute("MAX_SHARED_MEMORY_PER_BLOCK") == 48 * KIB
    assert attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") == optin * KIB
    assert attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR") == shared * KIB
    assert attribute("MAX_THREADS_PER_MULTIPROCESSOR") == threads
    assert attribute("MAX_BLOCKS_PER_MULTIPROCESSOR") == blocks
    assert attribute("GLOBAL_MEMORY_BUS_WIDTH") == bus
    assert attribute("CLUSTER_LAUNCH") == clusters
    assert attribute("MAX_REGISTERS_PER_BLOCK") == attribute("MAX_REGISTERS_PER_MULTIPROCESSOR") == 65536
    assert attribute("UNIFIED_ADDRESSING") == attribute("MANAGED_MEMORY") == attribute("COOPERATIVE_LAUNCH") == 1
    assert ok("cuDeviceTotalMem", 0) == 24 << 30
    assert b"NVIDIA" in ok("cuDeviceGetName", 64, 0)


@pytest.mark.parametrize("capability", CARDS)
def test_dynamic_shared_memory_must_be_asked_for(soft: Soft, capability: int) -> None:
    soft.reset(capability=capability)
    start()
    most = CARDS[capability][0] * KIB
    (store,) = calls.functions(calls.KERNELS, "store")
    out = calls.words(1)
    assert calls.launch_code(store, out, 1, shared=48 * KIB) == 0
    assert calls.launch_code(store, out, 1, shared=48 * KIB + 1) == calls.INVALID_VALUE
    asked = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert code("cuFuncSetAttribute", store, asked, most + 1) == calls.INVALID_VALUE
    assert code("cuFuncSetAttribute", store, asked, most) == 0
    assert ok("cuFuncGetAttribute", asked, store) == most
    assert calls.launch_code(store, out, 2, shared=most) == 0
    assert calls.launch_code(store, out, 2, shared=most + 1) == calls.INVALID_VALUE
    assert calls.read(out) == [2]


def test_static_shared_memory_counts(soft: Soft) -> None:
    start()
    used = calls.entry("store", "mov.u32 %r3, kept;\nst.shared.u32 [%r3], %r1;\n" + calls.STORE)
    text = calls.module(used, before=".shared .align 4 .b8 kept[1024];")
    (store,) = calls.functions(text, "store")
    asked = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert ok("cuFuncGetAttribute", driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, store) == 1024
    assert ok("cuFuncGetAttribute", asked, store) == 47 * KIB
    assert code("cuFuncSetAttribute", store, asked, 162 * KIB + 1) == calls.INVALID_VALUE
    assert code("cuFuncSetAttribute", store, asked, 162 * KIB) == 0


def test_devices_differ(soft: Soft) -> None:
    soft.reset(devices=3)
    ok("cuInit", 0)
    assert ok("cuDeviceGetCount") == 3
    assert code("cuDeviceGet", 3) == 101
    names = [ok("cuDeviceGetPCIBusId", 16, device).partition(b"\0")[0] for device in range(3)]
    assert names == [b"0000:01:00.0", b"0000:02:00.0", b"0000:03:00.0"]
    assert int(ok("cuDeviceGetByPCIBusId", names[2])) == 2
    assert len({ok("cuDeviceGetUuid", device).bytes for device in range(3)}) == 3


def test_a_mig_slice_is_small_and_alone(soft: Soft) -> None:
    soft.reset(devices=2, mig=True, sm_count=108)
    ok("cuInit", 0)
    assert attribute("MULTIPROCESSOR_COUNT") == 14
    assert ok("cuDeviceGetCount") == 1
    assert b"MIG" in ok("cuDeviceGetName", 64, 0)


def test_an_unknown_attribute_is_refused(soft: Soft) -> None:
    ok("cuInit", 0)
    assert code("cuDeviceGetAttribute", driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX, 0) == calls.INVALID_VALUE
