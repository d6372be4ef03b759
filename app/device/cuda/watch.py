"""What is done where a GPU does not come to the end of a step: a deadline, and the last launches in the log.

Apart from the device because it has a thread of its own: one that waits for a GPU that hangs can do nothing more. A
step costs it two assignments.
"""

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from ...errors import EXIT_ENGINE
from .errors import DeviceLostError

_POLLS = 40  # of the deadline's seconds
_LONGEST_POLL = 1.0  # seconds

_log = logging.getLogger(__name__)


class Watch:
    """`with watch:` around what enqueues or awaits a step. One that takes longer than `seconds` ends the process."""

    def __init__(self, name: str, seconds: float, recent: Callable[[], str]) -> None:
        """name: the device's. recent: its last launches, in words."""
        self._name = name
        self._seconds = seconds
        self._recent = recent
        self._deadline = math.inf
        self._closed = threading.Event()
        threading.Thread(target=self._work, name="cuda-watch", daemon=True).start()

    def __enter__(self) -> None:
        self._deadline = time.monotonic() + self._seconds

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Where the GPU is lost, what it did last is logged: that is where the fault came from."""
        self._deadline = math.inf
        if isinstance(error, DeviceLostError):
            _log.error("%s is lost; its last launches, the latest first: %s", self._name, self._recent())

    def close(self) -> None:
        self._closed.set()

    def _work(self) -> None:
        """A deadline has to be found missed twice: a process that was frozen wakes up behind all of them."""
        missed = math.inf
        while not self._closed.wait(min(self._seconds / _POLLS, _LONGEST_POLL)):
            deadline = self._deadline
            if time.monotonic() > deadline == missed:
                self._leave()
            missed = deadline if time.monotonic() > deadline else math.inf

    def _leave(self) -> None:
        """No exception and no cleanup: the thread that could act on it waits for the GPU, and so would the driver."""
        _log.error(
            "%s: a step has not ended within %g s, the GPU hangs; its last launches, the latest first: %s",
            *(self._name, self._seconds, self._recent()),
        )
        for handler in logging.getLogger().handlers:
            handler.flush()
        sys.stderr.flush()
        os._exit(EXIT_ENGINE)
