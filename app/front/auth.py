"""The API key, checked in one ASGI layer around the router; inside CORS, so that a browser can read a refusal too.

A platform's gateway may take Authorization for its own key, as RunPod's does; the server's then comes as X-API-Key.
"""

import hmac
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import ApiError


class KeyGuard:
    """Lets a request through that carries the key or is open to all. Compares bytes, in constant time."""

    def __init__(self, app: ASGIApp, key: str, is_open: Callable[[Scope], bool]) -> None:
        self._app = app
        self._key = key.encode()
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_open(scope) and not self._carries_key(scope):
            message = 'the API key is missing or wrong; send it as "Authorization: Bearer KEY" or "X-API-Key: KEY"'
            refusal = ApiError(
                401, message, code="invalid_api_key", headers={"www-authenticate": 'Bearer realm="pilotlight"'}
            )
            await refusal.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _carries_key(self, scope: Scope) -> bool:
        headers = scope["headers"]
        keys = [b"Bearer " + value for name, value in headers if name == b"x-api-key"]
        values = keys or [value for name, value in headers if name == b"authorization"]
        if len(values) != 1:  # none, or two that disagree about who is asking
            return False
        scheme, _, token = values[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._key)
