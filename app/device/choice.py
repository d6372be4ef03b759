"""Which device a setting means, and opening it: `cpu`, `cuda`, `cuda:N`, or `auto`.

Apart from the devices so that neither imports the other: a server on the CPU loads no CUDA bindings.
"""

import os

from ..errors import UnavailableError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:  # the engine asks for the ordinal before anything heavy is imported
    from ..settings import Settings
    from .base import Device

# What the NVIDIA driver makes where there is a GPU; under WSL 2 there is only the second.
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg")
# Where container runtimes mount the driver's library; no image of ours carries one.
_LIBRARIES = tuple(
    os.path.join(place, "libcuda.so.1")
    for place in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64")
)
_NO_FP8 = "--kv-cache-dtype fp8: the CPU keeps K/V in float32 or float16; leave it out"
_HANGS_AT = 0.9  # of the time after which the front kills an engine: so a device can still say what it did last


def cuda_ordinal(device: str) -> int | None:
    """The number of the GPU that `--device` names, None for the CPU.

    `auto` is the first GPU, where there is one or the container's runtime says so.
    """
    if device == "auto":
        return 0 if any(map(os.path.exists, _DEVICE_FILES)) or _is_promised() else None
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "cuda" else None


def open_device(settings: "Settings") -> "Device":
    """Raises UnavailableError for a device that cannot be used.

    `auto` too raises for a GPU that is there and does not work: the CPU in its place would be slow, at a GPU's price.
    """
    ordinal = cuda_ordinal(settings.device)
    fp8_pages = settings.kv_cache_dtype == "fp8"
    if ordinal is None:
        if fp8_pages:
            raise UsageError(_NO_FP8)
    elif settings.dtype == "float32":
        raise UsageError("--dtype float32: a GPU computes in bfloat16 or float16; leave it out, or use --device cpu")
    else:
        from .cuda.device import CudaDevice
        from .cuda.errors import NO_DEVICE, CudaError

        try:
            return CudaDevice(ordinal, fp8_pages=fp8_pages, step_seconds=_HANGS_AT * settings.engine_timeout)
        except CudaError as error:
            if settings.device != "auto" or error.code != NO_DEVICE or (_is_promised() and not _is_hidden()):
                raise
            if fp8_pages:
                raise UsageError(f"{_NO_FP8}, or make a GPU usable: {error}") from None
            _warn("the CPU is used: %s", error)
    return _open_cpu(settings)


def _warn(message: str, error: Exception) -> None:
    import logging

    logging.getLogger(__name__).warning(message, error)


def _is_promised() -> bool:
    """Whether the container's runtime says that there is a GPU: whoever starts the container pays for one.

    NVIDIA's runtime reads NVIDIA_VISIBLE_DEVICES. A number or a UUID comes from whoever assigned that GPU. `all` is
    what our image says wherever it runs, so there it takes the driver's library, which the runtime mounts.
    """
    visible = os.environ.get("NVIDIA_VISIBLE_DEVICES", "")
    if visible == "all":
        return any(map(os.path.exists, _LIBRARIES))
    return visible not in ("", "none", "void")


def _is_hidden() -> bool:
    """Whether the user hides every GPU."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")


def _open_cpu(settings: "Settings") -> "Device":
    """The CPU library, where it is there and loads; numpy where it is not, and where fp32 throughout is asked for."""
    from . import host, native_library  # here, so that a GPU's start does not load them

    if settings.dtype == "auto":
        try:
            library = native_library.Library(native_library.find(), host.usable_cpus())
        except UnavailableError as error:
            _warn("the CPU computes with numpy, which is several times slower: %s", error)
        else:
            from .native_device import NativeDevice

            return NativeDevice(library)
    from .numpy_device import NumpyDevice

    return NumpyDevice()
