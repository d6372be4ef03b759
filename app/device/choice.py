"""Which device a setting means, and opening it: `cpu`, `cuda`, `cuda:N`, or `auto`.

Apart from the devices so that neither imports the other: a server on the CPU loads no CUDA bindings.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:  # the engine asks for the ordinal before anything heavy is imported
    from ..settings import Settings
    from .base import Device

# What the NVIDIA driver makes where there is a GPU; under WSL 2 there is only the second.
_DEVICE_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


_log = logging.getLogger(__name__)


def cuda_ordinal(device: str) -> int | None:
    """The number of the GPU that `--device` names, None for the CPU. `auto` is the first GPU, where there is one."""
    if device == "auto":
        return 0 if any(file.exists() for file in _DEVICE_FILES) else None
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "cuda" else None


def open_device(settings: "Settings") -> "Device":
    """Raises UnavailableError for a device that cannot be used.

    So does `auto` for a GPU that is there and has a trouble: the CPU in its place would be slow, and paid like a GPU.
    """
    ordinal = cuda_ordinal(settings.device)
    fp8_pages = settings.kv_cache_dtype == "fp8"
    if ordinal is None:
        if fp8_pages:
            raise UsageError("--kv-cache-dtype fp8: the CPU keeps K/V in float32; leave it out")
    elif settings.dtype == "float32":
        raise UsageError("--dtype float32: a GPU computes in bfloat16 or float16; leave it out, or use --device cpu")
    else:
        from .cuda.device import CudaDevice
        from .cuda.errors import NO_DEVICE, CudaError

        try:
            return CudaDevice(ordinal, fp8_pages=fp8_pages)
        except CudaError as error:
            if settings.device != "auto" or error.code != NO_DEVICE:
                raise
            _log.warning("the CPU is used: %s", error)
    from .numpy_device import NumpyDevice  # here, so that a GPU's start does not load it

    return NumpyDevice()
