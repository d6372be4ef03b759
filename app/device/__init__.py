"""Where a model computes. Here, what is begun on a thread before anything else is imported, whatever the device."""

import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..messages import Span
    from ..timeline import Timeline


class Begun(threading.Thread):
    """A thread that is started before there is a timeline, and put on it later. A subclass has its `work`."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.began = time.monotonic()
        self.ended: float | None = None  # None while it works
        self._span: Span | None = None

    def run(self) -> None:
        try:
            self.work()
        finally:
            self.ended = time.monotonic()
            self._end_span()

    def work(self) -> None:
        raise NotImplementedError

    def note(self, timeline: "Timeline") -> None:
        """Puts the thread on the timeline; its span ends when the work does, or did already."""
        self._span = self.begin_span(timeline)
        self._end_span()

    def begin_span(self, timeline: "Timeline") -> "Span":
        """A span that starts at `began` and has no end yet."""
        raise NotImplementedError

    def _end_span(self) -> None:
        if self._span is not None and self.ended is not None:
            self._span.end = self.ended
