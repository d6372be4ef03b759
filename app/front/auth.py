"""Who may ask: the API key, as one ASGI layer around the router, inside CORS (a browser is to read a refusal too)."""

import hmac
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import ApiError


class KeyGuard:
    """Lets a request through that carries the key, or whose path is open. Compares bytes, in constant time."""

    def __init__(self, app: ASGIApp, key: str, is_open: Callable[[str], bool]) -> None:
        self._app = app
        self._key = key.encode()
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_open(scope["path"]) and not self._carries_key(scope):
            message = 'the API key is missing or wrong; send it as "Authorization: Bearer KEY"'
            refusal = ApiError(
                401, message, code="invalid_api_key", headers={"www-authenticate": 'Bearer realm="pilotlight"'}
            )
            await refusal.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _carries_key(self, scope: Scope) -> bool:
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(values) != 1:  # none, or two that disagree about who is asking
            return False
        scheme, _, token = values[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._key)
