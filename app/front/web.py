"""uvicorn as this server runs it: no signal handlers, no headers of its own, no patience at the end."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_CONNECTION_SECONDS = 75  # more than load balancers keep theirs: 60, most often
FLUSH_SECONDS = 1  # for the last bytes to leave


class WebServer(uvicorn.Server):
    def __init__(self, app: ASGIApp, *, access_log: bool, http: Callable[..., Any] = H11Protocol) -> None:
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
