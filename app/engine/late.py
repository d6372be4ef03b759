"""What the start consists of after `Ready`, in the engine: wait for work, first prefill, what is made while idle.

Apart from the worker's loop, which asks one flag a step once the first token is there.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..messages import Output, Span, Spans
from ..timeline import Timeline

if TYPE_CHECKING:
    from .engine import Engine


class Late:
    """Notes spans, and tells the front: before the first token, and when all that is prepared late is there."""

    def __init__(
        self, engine: "Engine", timeline: Timeline, tell: Callable[[Spans], None], rest: Callable[[], None]
    ) -> None:
        """Made when there is nothing left to do but to wait for work.

        rest: waits a little for a message. A request that has been waiting for `Ready` is on its way, and is not to
        find the engine in the middle of something.
        """
        self._engine = engine
        self._timeline = timeline
        self._tell = tell
        self._rest = rest
        self._wait = timeline.begin("wait for work", after="submit")
        self._prefill: Span | None = None
        self._prepare: Span | None = None
        self._has_rested = False
        self.has_token = False  # the first one is there: `step` notes nothing more
        self.has_all = False  # all is prepared: nor does `prepare`

    def step(self) -> list[Output]:
        """The engine's step, up to the first one that gives a token."""
        if self._prefill is None:
            self._wait.end = time.monotonic()
            self._prefill = self._timeline.begin("prefill")
        outputs = self._engine.step()
        if any(output.tokens for output in outputs):
            self._prefill.end = time.monotonic()
            self.has_token = True
            self._tell(Spans(self._timeline.spans))
        elif not self._engine.has_work:
            self.give_up()
        return outputs

    def give_up(self) -> None:
        """There is no work any more, and no token came of it: the wait goes on, as if there had been none."""
        if self._prefill is not None and not self.has_token:
            self._timeline.spans.remove(self._prefill)
            self._prefill, self._wait.end = None, None

    def prepare(self) -> bool:
        """A little of what is left to idle moments, up to the first time that nothing is; whether something was."""
        if not self._has_rested:
            self._has_rested = True
            self._rest()
            return True
        if self._prepare is None:
            self._prepare = self._timeline.begin("prepare", thread="idle", after="report")
        if self._engine.prepare():
            return True
        self._prepare.end = time.monotonic()
        self.has_all = True
        self._tell(Spans(self._timeline.spans))
        return False
