"""uvicorn as this server runs it: no signal handlers, no headers of its own, no patience at the end."""

from contextlib import AbstractContextManager, nullcontext

import uvicorn
from starlette.types import ASGIApp

IDLE_CONNECTION_SECONDS = 75  # more than load balancers keep theirs: 60, most often
FLUSH_SECONDS = 1  # for the last bytes to leave


class WebServer(uvicorn.Server):
    def __init__(self, app: ASGIApp, *, access_log: bool) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
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
