"""Step 2: the driver's first calls, by ctypes in a process that has done nothing else, and what the card says."""

import ctypes
import time
from collections.abc import Callable

from .. import raw
from ..job import Failed, Job

_PATIENCE = 30.0  # s, for a fabric that is not ready after a boot


def run(job: Job) -> None:
    start = time.perf_counter()
    cuda = raw.library()
    loaded = time.perf_counter()
    job.put(library_ms=_ms(loaded - start), not_ready=0)
    _patiently(job, "cuInit", lambda: cuda.cuInit(0))
    initialised = time.perf_counter()
    version, count, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    raw.call(cuda, "cuDriverGetVersion", ctypes.byref(version))
    raw.call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    raw.call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    name = ctypes.create_string_buffer(256)
    raw.call(cuda, "cuDeviceGetName", name, len(name), device)
    job.put(
        name=name.value.decode(errors="replace"),
        driver_version=version.value,
        devices=count.value,
        init_ms=_ms(initialised - loaded),
        attributes=raw.device_attributes(cuda),
    )
    context = ctypes.c_void_p()
    start = time.perf_counter()
    _patiently(job, "cuDevicePrimaryCtxRetain", lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    job.put(context_ms=_ms(time.perf_counter() - start))
    raw.call(cuda, "cuCtxSetCurrent", context)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    raw.call(cuda, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    job.put(free_bytes=free.value, total_bytes=total.value)
    raw.call(cuda, "cuDevicePrimaryCtxRelease_v2", device)


def _patiently(job: Job, name: str, call: Callable[[], int]) -> None:
    """Retries while the fabric between the GPUs is not ready, and counts how often it was not."""
    deadline = time.monotonic() + min(_PATIENCE, job.seconds_left() - 5)
    while code := call():
        if code != raw.FABRIC_NOT_READY or time.monotonic() > deadline:
            raise Failed(f"{name}: error {code}")
        job.put(not_ready=job.figures["not_ready"] + 1)
        time.sleep(0.25)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
