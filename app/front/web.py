"""uvicorn as this server runs it: no signal handlers, no headers of its own, no patience at the end."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import invalid

IDLE_CONNECTION_SECONDS = 75  # more than load balancers keep theirs: 60, most often
FLUSH_SECONDS = 1  # for the last bytes to leave


class Connection(H11Protocol):
    """A client's connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit_idleness()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._limit_idleness()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # after an error, too

    def _limit_idleness(self) -> None:
        """uvicorn waits for the first request, and for the rest of a request's head, without end."""
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def send_400_response(self, msg: str) -> None:
        """For bytes that are no HTTP. uvicorn's own is plain text, and fails where a reply has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            error = invalid("these bytes are no HTTP/1.1 request", code="invalid_http")
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(error.body))),
                ("connection", "close"),
            ]
            for event in (
                h11.Response(status_code=error.status, headers=headers, reason=b"Bad Request"),
                h11.Data(data=error.body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class WebServer(uvicorn.Server):
    def __init__(self, app: ASGIApp, *, access_log: bool, http: Callable[..., Any] = Connection) -> None:
        """http: makes the protocol of a connection."""
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("type[asyncio.Protocol]", http),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=access_log,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=IDLE_CONNECTION_SECONDS,
                timeout_graceful_shutdown=FLUSH_SECONDS,
            )
        )

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """None: the front's handlers were there before uvicorn was imported, and drain first."""
        return nullcontext()

    async def stop(self, serving: "asyncio.Task[None]", *, at_once: bool) -> None:
        """Ends `serving`, a task of `serve`, when uvicorn next looks, in 0.1 s; `at_once` if nobody is connected."""
        self.should_exit = True
        if at_once and not self.server_state.connections:
            serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
