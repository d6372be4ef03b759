"""cuInit and the primary context in a thread, through ctypes alone: begun before anything else is imported.

A driver takes 0.2-0.4 s for them, and Python's imports meanwhile need the CPU but not the driver. Nothing is decided
here and no failure is told: whoever opens the device makes the same calls again and says what is wrong.
"""

import ctypes
import os

from .. import Begun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...messages import Span
    from ...timeline import Timeline

LIBRARY = "libcuda.so.1"


def environment() -> None:
    """What the driver reads from the environment when it is initialised.

    Lazy loading, its default, puts off some of what loading a module does; none of it may happen in a capture.
    """
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")


class EarlyContext(Begun):
    """Makes device `ordinal`'s primary context."""

    def __init__(self, ordinal: int) -> None:
        super().__init__("cuda-start")
        self._ordinal = ordinal

    def work(self) -> None:
        _retain(self._ordinal)

    def begin_span(self, timeline: "Timeline") -> "Span":
        return timeline.add("context", self.began, None, thread="driver", after="python")


def begin(ordinal: int) -> EarlyContext:
    """Starts to make device `ordinal`'s primary context, which the process keeps."""
    environment()
    context = EarlyContext(ordinal)
    context.start()
    return context


def _retain(ordinal: int) -> None:
    try:
        library = ctypes.CDLL(LIBRARY)  # which lets other threads run during its calls
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if library.cuInit(0) == 0 and library.cuDeviceGet(ctypes.byref(device), ordinal) == 0:
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
