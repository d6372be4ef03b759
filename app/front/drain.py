"""Leaving without cutting anyone off: new work is refused while what runs may finish."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from .supervisor import shutting_down


class Drain:
    """Counts the requests that are being answered, from their headers to the last byte of the reply."""

    def __init__(self) -> None:
        self.draining = False
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        """From now on every POST is answered 503 and its connection closed."""
        self.draining = True

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._active > 0

    async def until_idle(self) -> None:
        await self._idle.wait()

    async def idle(self, seconds: float) -> bool:
        """Whether everything has been answered within so many seconds."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True

    @contextmanager
    def request(self) -> Iterator[None]:
        self._active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()


class DrainLayer:
    """The ASGI layer that does the counting and the refusing."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
        elif self._drain.draining:
            await shutting_down().response()(scope, receive, send)
        else:
            with self._drain.request():
                await self._app(scope, receive, send)
