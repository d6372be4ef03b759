"""One request to an ASGI application of this process, and its reply as it comes. No socket, no client library.

Bodies are handed on as they were sent, whole: what a route writes at once (an event, a JSON reply) is never cut.
"""

import asyncio
from collections import deque
from types import TracebackType
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message


class Exchange:
    """A context manager; to leave it early is to close the connection."""

    def __init__(self, app: ASGIApp, method: str, target: str, body: bytes) -> None:
        """`target` is the path, as a client sends it, with a query if there is one; `body` is JSON."""
        path, _, query = target.partition("?")
        self._app = app
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
            "client": None,
            "server": None,
        }
        self._body: bytes | None = body
        self._parts: deque[bytes] = deque()
        self._news = asyncio.Event()
        self.status = 0
        self.content_type = ""

    async def __aenter__(self) -> "Exchange":
        """Returns with the reply's status; its body may have yet to come. Raises what the application raises."""
        self._task = asyncio.create_task(self._run())
        try:
            while not self.status and not self._task.done():
                await self._wait()
        except asyncio.CancelledError:  # left before it was entered: `__aexit__` will not be called
            self._task.cancel()
            raise
        if not self.status:
            self._task.result()
            raise RuntimeError(f"no reply to {self._scope['method']} {self._scope['path']}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # seen: `read` raised it, or nobody is left to be told

    async def read(self, limit: int) -> list[bytes]:
        """The parts that have come since the last call, waited for if need be; none at the end.

        Together they have at most `limit` bytes, unless one alone is longer.
        """
        while not self._parts:
            if self._task.done():
                self._task.result()
                return []
            await self._wait()
        taken = [self._parts.popleft()]
        size = len(taken[0])
        while self._parts and (size := size + len(self._parts[0])) <= limit:
            taken.append(self._parts.popleft())
        return taken

    async def _wait(self) -> None:
        await self._news.wait()
        self._news.clear()

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        finally:
            self._news.set()

    async def _receive(self) -> Message:
        if self._body is None:
            await asyncio.get_running_loop().create_future()  # this client goes away by cancelling only
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: dict[bytes, Any] = dict(message["headers"])
            self.content_type = headers.get(b"content-type", b"").decode().partition(";")[0]
            self.status = message["status"]
        elif message.get("body"):
            self._parts.append(message["body"])
        self._news.set()
