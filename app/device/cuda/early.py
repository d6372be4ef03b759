"""cuInit and the primary context in a thread, through ctypes alone: begun before anything else is imported.

A driver takes 0.2-0.4 s for them, and Python's imports meanwhile need the CPU but not the driver. Nothing is decided
here and no failure is told: whoever opens the device makes the same calls again and says what is wrong.
"""

import ctypes
import os
import threading

LIBRARY = "libcuda.so.1"


def environment() -> None:
    """What the driver reads from the environment when it is initialised.

    Lazy loading, its default, loads a kernel at its first launch, which must not happen while a graph is captured.
    """
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")


def begin(ordinal: int) -> threading.Thread:
    """Starts to make device `ordinal`'s primary context, which the process keeps."""
    environment()
    thread = threading.Thread(target=_retain, args=(ordinal,), name="cuda-start", daemon=True)
    thread.start()
    return thread


def _retain(ordinal: int) -> None:
    try:
        library = ctypes.CDLL(LIBRARY)  # which lets other threads run during its calls
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if library.cuInit(0) == 0 and library.cuDeviceGet(ctypes.byref(device), ordinal) == 0:
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
