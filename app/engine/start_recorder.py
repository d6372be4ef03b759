"""The engine's part of a start after `Ready`: the wait for work, the first prefill, what is prepared while idle.

Apart from the worker's loop, to which it is two flags once the start is over.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..messages import Output, Span, Spans
from ..timeline import Timeline

if TYPE_CHECKING:
    from .engine import Engine


class StartRecorder:
    """Does the engine's first steps and preparations, and records them as spans.

    The front is told of them with the first token, and when everything is prepared.
    """

    def __init__(
        self, engine: "Engine", timeline: Timeline, tell: Callable[[Spans], None], rest: Callable[[], None]
    ) -> None:
        """To be made when the engine is ready, since the wait for work begins here.

        rest: waits a little for a message. A request that waited for `Ready` is on its way now, and must not find the
        engine in the middle of a preparation.
        """
        self._engine = engine
        self._timeline = timeline
        self._tell = tell
        self._rest = rest
        self._wait = timeline.begin("wait for work", after="submit")
        self._prefill: Span | None = None
        self._prepare: Span | None = None
        self._has_rested = False
        self.has_token = False  # the first one is there: from now on the engine's own `step` will do
        self.is_prepared = False  # and its own `prepare`

    def step(self) -> list[Output]:
        """The engine's step, recorded as part of the first prefill."""
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
        """The work ended without a token, as when it was aborted: the wait goes on as if there had been none."""
        if self._prefill is not None and not self.has_token:
            self._timeline.spans.remove(self._prefill)
            self._prefill, self._wait.end = None, None

    def prepare(self) -> bool:
        """A little of what is left to idle moments. Returns whether there may be more."""
        if not self._has_rested:
            self._has_rested = True
            self._rest()
            return True
        if self._prepare is None:
            self._prepare = self._timeline.begin("prepare", thread="idle", after="report")
        if self._engine.prepare():
            return True
        self._prepare.end = time.monotonic()
        self.is_prepared = True
        self._tell(Spans(self._timeline.spans))
        return False
