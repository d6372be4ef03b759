"""Device memory, pinned memory, copies and fills."""

import time

import numpy as np
import pytest
from cuda.bindings import driver

from tests.softgpu.fixtures import Soft

from . import calls
from .calls import code, ok, start


def test_allocations_are_256_aligned_and_poisoned(soft: Soft) -> None:
    start()
    first, second = int(ok("cuMemAlloc", 100)), int(ok("cuMemAlloc", 100))
    assert first % 256 == second % 256 == 0
    assert first > 1 << 40
    values = np.array(calls.read(first, 25), np.uint32).view(np.float32)
    assert np.isnan(values).all()


def test_memory_is_counted(soft: Soft) -> None:
    soft.reset(memory_bytes=1 << 30, free_memory_off=100 << 20)
    start()
    free, total = ok("cuMemGetInfo")
    assert total == 1 << 30
    assert free <= total - (100 << 20)
    block = ok("cuMemAlloc", 256 << 20)
    assert ok("cuMemGetInfo")[0] <= free - (256 << 20)
    assert code("cuMemAlloc", 1 << 30) == calls.OUT_OF_MEMORY
    ok("cuMemFree", block)
    assert ok("cuMemGetInfo")[0] == free


def test_what_is_no_allocation_cannot_be_freed(soft: Soft) -> None:
    start()
    block = int(ok("cuMemAlloc", 4096))
    assert code("cuMemAlloc", 0) == calls.INVALID_VALUE
    assert code("cuMemFree", block + 256) == calls.INVALID_VALUE
    assert code("cuMemFree", 0) == 0
    assert code("cuMemFree", block) == 0
    assert code("cuMemFree", block) == calls.INVALID_VALUE


def test_copies_beyond_an_allocation_are_refused(soft: Soft) -> None:
    start()
    host = np.zeros(64, np.uint32)
    block = int(ok("cuMemAlloc", 256))
    assert code("cuMemcpyHtoD", block, host.ctypes.data, 256) == 0
    assert code("cuMemcpyHtoD", block + 4, host.ctypes.data, 256) == calls.INVALID_VALUE
    assert code("cuMemcpyDtoH", host.ctypes.data, block + 252, 8) == calls.INVALID_VALUE
    assert code("cuMemsetD32", block, 0, 65) == calls.INVALID_VALUE
    assert code("cuMemsetD32", block + 2, 0, 1) == calls.INVALID_VALUE
    assert code("cuMemcpyHtoD", block, host.ctypes.data, 0) == 0
    assert code("cuMemcpyHtoD", 1 << 30, host.ctypes.data, 4) == calls.INVALID_VALUE


def test_copies_carry_bytes(soft: Soft) -> None:
    start()
    host = np.arange(64, dtype=np.uint32)
    first, second = int(ok("cuMemAlloc", 256)), int(ok("cuMemAlloc", 256))
    ok("cuMemcpyHtoD", first, host.ctypes.data, 256)
    ok("cuMemcpyDtoD", second, first, 256)
    ok("cuMemcpy", first, second + 128, 128)
    assert calls.read(second, 64) == host.tolist()
    assert calls.read(first, 64) == host[32:].tolist() + host[32:].tolist()
    counted = soft.counters()["driver"]
    assert (counted["h2d_bytes"], counted["d2h_bytes"], counted["d2d_bytes"]) == (256, 512, 384)


def test_fills(soft: Soft) -> None:
    start()
    block = calls.words(4)
    ok("cuMemsetD8", block, 0xAB, 3)
    ok("cuMemsetD16", block + 4, 0xCDEF, 1)
    ok("cuMemsetD32", block + 8, 0x12345678, 1)
    ok("cuMemsetD2D8", block + 12, 2, 0x11, 1, 2)
    assert calls.read(block, 4) == [0x00ABABAB, 0xCDEF, 0x12345678, 0x00110011]


def test_rows_are_copied_with_their_pitch(soft: Soft) -> None:
    start()
    host = np.arange(12, dtype=np.uint32).reshape(3, 4)
    block = calls.words(32)
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
    copy.srcHost, copy.srcPitch, copy.srcXInBytes, copy.srcY = host.ctypes.data, 16, 4, 1
    copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.dstDevice, copy.dstPitch = block, 32
    copy.WidthInBytes, copy.Height = 8, 2
    ok("cuMemcpy2D", copy)
    assert calls.read(block, 12) == [5, 6, 0, 0, 0, 0, 0, 0, 9, 10, 0, 0]
    copy.dstPitch = 4
    assert code("cuMemcpy2D", copy) == calls.INVALID_VALUE


def test_host_memory_is_registered_once(soft: Soft) -> None:
    start()
    host = np.zeros(4096, np.uint8)
    assert code("cuMemHostRegister", host.ctypes.data, 4096, 0) == 0
    assert code("cuMemHostRegister", host.ctypes.data + 64, 64, 0) == 712
    assert code("cuMemHostUnregister", host.ctypes.data + 64) == 713
    assert code("cuMemHostUnregister", host.ctypes.data) == 0
    assert code("cuMemHostUnregister", host.ctypes.data) == 713


def test_host_memory_cannot_be_registered_where_a_container_forbids_it(soft: Soft) -> None:
    soft.reset(host_register_error=801)
    start()
    host = np.zeros(4096, np.uint8)
    assert code("cuMemHostRegister", host.ctypes.data, 4096, 0) == calls.NOT_SUPPORTED
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
    assert ok("cuDeviceGetAttribute", attribute, 0) == 0


def test_pinning_takes_its_time(soft: Soft) -> None:
    soft.reset(pin_seconds_per_gb=50)
    start()
    begin = time.perf_counter()
    ok("cuMemHostAlloc", 1_000_000, 0)
    assert time.perf_counter() - begin >= 0.05


def test_pointers_say_what_they_are(soft: Soft) -> None:
    start()
    block = int(ok("cuMemAlloc", 1000))
    host = calls.pinned(4)
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert int(ok("cuPointerGetAttribute", kind, block + 8)) == 2
    assert int(ok("cuPointerGetAttribute", kind, host.ctypes.data)) == 1
    assert code("cuPointerGetAttribute", kind, np.zeros(4).ctypes.data) == calls.INVALID_VALUE
    base, size = ok("cuMemGetAddressRange", block + 8)
    assert (int(base), size) == (block, 1000)


def test_memory_of_a_stream_is_freed_in_its_order(soft: Soft) -> None:
    start()
    (store,) = calls.functions(calls.KERNELS, "store")
    stream = ok("cuStreamCreate", calls.NON_BLOCKING)
    block = ok("cuMemAllocAsync", 64, stream)
    calls.launch(store, block, 5, stream=stream)
    ok("cuMemFreeAsync", block, stream)
    ok("cuStreamSynchronize", stream)
    assert code("cuMemFree", block) == calls.INVALID_VALUE


class TestTwoDevices:
    def contexts(self, soft: Soft, **knobs: object) -> tuple[int, int]:
        """A word on each device: 11 on the first, 22 on the second, whose context is current."""
        soft.reset(devices=2, **knobs)
        start(0)
        first = calls.words(1, 11)
        start(1)
        return first, calls.words(1, 22)

    def test_peer_access_is_enabled_once(self, soft: Soft) -> None:
        self.contexts(soft)
        other = ok("cuDevicePrimaryCtxRetain", 0)
        assert ok("cuDeviceCanAccessPeer", 1, 0) == 1
        assert code("cuCtxDisablePeerAccess", other) == 705
        assert code("cuCtxEnablePeerAccess", other, 0) == 0
        assert code("cuCtxEnablePeerAccess", other, 0) == 704
        assert code("cuCtxDisablePeerAccess", other) == 0

    def test_copies_between_devices(self, soft: Soft) -> None:
        first, second = self.contexts(soft)
        ok("cuMemcpyPeer", second, ok("cuDevicePrimaryCtxRetain", 1), first, ok("cuDevicePrimaryCtxRetain", 0), 4)
        assert calls.read(second) == [11]

    def test_no_peer_access(self, soft: Soft) -> None:
        first, second = self.contexts(soft, peer_access=False)
        assert ok("cuDeviceCanAccessPeer", 0, 1) == 0
        assert code("cuCtxEnablePeerAccess", ok("cuDevicePrimaryCtxRetain", 0), 0) == 217
        ok("cuMemcpyDtoD", second, first, 4)  # through the host
        assert calls.read(second) == [11]

    @pytest.mark.parametrize(("dropped", "value"), [(False, 22), (True, 11)])
    def test_peer_writes_may_be_dropped_though_access_was_granted(
        self, soft: Soft, dropped: bool, value: int
    ) -> None:
        first, second = self.contexts(soft, peer_writes_dropped=dropped)
        ok("cuCtxEnablePeerAccess", ok("cuDevicePrimaryCtxRetain", 0), 0)
        ok("cuMemcpyDtoD", first, second, 4)
        assert calls.read(first) == [value]
