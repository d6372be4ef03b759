"""cuInit and the primary context in a thread, through ctypes alone: begun before anything else is imported.

A driver takes 0.2-0.4 s for them, and Python's imports meanwhile need the CPU but not the driver. Nothing is decided
here and no failure is told: whoever opens the device makes the same calls again and says what is wrong.
"""

import ctypes
import os
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...messages import Span
    from ...timeline import Timeline

LIBRARY = "libcuda.so.1"


def environment() -> None:
    """What the driver reads from the environment when it is initialised.

    Lazy loading, its default, loads a kernel at its first launch, which must not happen while a graph is captured.
    """
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")


class EarlyContext(threading.Thread):
    """Makes device `ordinal`'s primary context. `began` and `ended` are time.monotonic(); None: it is at it."""

    def __init__(self, ordinal: int) -> None:
        super().__init__(name="cuda-start", daemon=True)
        self._ordinal = ordinal
        self._span: Span | None = None
        self.began = time.monotonic()
        self.ended: float | None = None

    def run(self) -> None:
        _retain(self._ordinal)
        self.ended = time.monotonic()
        self._end_span()

    def note(self, timeline: "Timeline") -> None:
        """Puts it on the timeline, of which there was none when it began."""
        self._span = timeline.add("context", self.began, None, thread="driver", after="python")
        self._end_span()

    def _end_span(self) -> None:
        if self._span is not None and self.ended is not None:
            self._span.end = self.ended


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
