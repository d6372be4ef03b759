"""Driver calls that the product never makes, by ctypes: attributes of devices and functions, and a first contact that
nothing imported before can colour. Numbers are those of cuda.h.

As a program it prints the first GPU's name: python -m scripts.gpu.raw LIBRARY.
"""

import ctypes
import sys
from typing import Any

LIBRARY = "libcuda.so.1"
NO_GPU = 69  # the exit code of `pilotlight` for what is not there
UNKNOWN = "unknown"  # the name of a GPU that the driver does not give
NO_DEVICE, FABRIC_NOT_READY = 100, 802

DEVICE_ATTRIBUTES = {
    "max_threads_per_block": 1,
    "clock_khz": 13,
    "sm_count": 16,
    "compute_mode": 20,
    "ecc": 32,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "threads_per_sm": 39,
    "unified_addressing": 41,
    "pci_bus": 33,
    "capability_major": 75,
    "capability_minor": 76,
    "shared_bytes_per_sm": 81,
    "registers_per_sm": 82,
    "managed_memory": 83,
    "compute_preemption": 90,
    "shared_bytes_per_block": 97,
    "host_register": 99,
    "blocks_per_sm": 106,
    "persisting_l2_bytes": 108,
}
FUNCTION_ATTRIBUTES = {"static_shared_bytes": 1, "local_bytes": 3, "registers": 4}


class NoGpuError(Exception):
    """There is nothing to check."""


class DriverError(Exception):
    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: error {code}")
        self.code = code


def library(name: str = LIBRARY) -> ctypes.CDLL:
    """Raises OSError where there is no driver."""
    return ctypes.CDLL(name)


def call(cuda: ctypes.CDLL, name: str, *arguments: Any) -> None:
    code = getattr(cuda, name)(*arguments)
    if code:
        raise DriverError(name, code)


def device_attributes(cuda: ctypes.CDLL, ordinal: int = 0) -> dict[str, int]:
    """Those that this driver knows."""
    found = {}
    for name, number in DEVICE_ATTRIBUTES.items():
        value = ctypes.c_int()
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, ordinal) == 0:
            found[name] = value.value
    return found


def function_attributes(cuda: ctypes.CDLL, function: int) -> dict[str, int]:
    """Of a function by its handle's address."""
    found = {}
    for name, number in FUNCTION_ATTRIBUTES.items():
        value = ctypes.c_int()
        if cuda.cuFuncGetAttribute(ctypes.byref(value), number, ctypes.c_void_p(function)) == 0:
            found[name] = value.value
    return found


def find_gpu(library_name: str) -> str:
    """The first GPU's name, or UNKNOWN where the driver has another trouble. Raises NoGpuError, saying why."""
    try:
        cuda = library(library_name)
    except OSError as error:
        raise NoGpuError(f"libcuda.so.1, which comes with the NVIDIA driver, cannot be loaded ({error})") from None
    name, count = ctypes.create_string_buffer(256), ctypes.c_int()
    code = cuda.cuInit(0)
    if code == NO_DEVICE or (code == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and not count.value):
        raise NoGpuError("the driver finds no GPU: see nvidia-smi, `--gpus all` of a container, CUDA_VISIBLE_DEVICES")
    if code or cuda.cuDeviceGetName(name, len(name), 0):
        return UNKNOWN
    return name.value.decode(errors="replace")


def main(library_name: str) -> int:
    try:
        print(find_gpu(library_name))
    except NoGpuError as why:
        print(why)
        return NO_GPU
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
