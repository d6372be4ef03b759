"""What a client is told when its request fails: OpenAI's error object, its HTTP status and its headers.

One class for all of them: what handles a request raises nothing else on purpose.
"""

from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from ..params import ParameterError

RETRY_AFTER_SECONDS = 2  # a restart of the engine, or a place in the queue, rarely comes sooner

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A request that fails. `param` names the field at fault, `code` is for programs, `message` for people."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}

    @property
    def body(self) -> bytes:
        """{"error": {...}}: the body of a reply, and the data of a stream's last event but [DONE]."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error: dict[str, Any] = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})

    def response(self) -> Response:
        return Response(self.body, self.status, self.headers, "application/json")


class ClientGone(Exception):
    """The client closed its connection: nobody is left to be told anything."""


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str, *, retry_after: int = RETRY_AFTER_SECONDS, close: bool = False) -> ApiError:
    """503: not now. `close` ends the connection too, so that a retry may reach another server."""
    headers = {"retry-after": str(retry_after)} | ({"connection": "close"} if close else {})
    return ApiError(503, message, code=code, headers=headers)


def internal_error() -> ApiError:
    return ApiError(500, "the server failed on this request; its log says why", code="internal_error")


def from_parameter(error: ParameterError, code: str | None = None, **names: str) -> ApiError:
    """A refused value of `params`; `names` says what the API calls a field, where that differs."""
    field = names.get(error.field, error.field)
    return invalid(f"{field}: {error.reason}", field, code)


async def on_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def on_client_gone(_: Request, error: Exception) -> Response:
    """The reply goes nowhere; the status is what proxies log for it."""
    return Response(status_code=499)


def _is_route(request: Request, path: str) -> bool:
    """Whether the request would have found its handler at `path`: a base URL without /v1 is a common slip."""
    scope = dict(request.scope) | {"path": path}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own: an unknown path, a wrong method."""
    assert isinstance(error, HTTPException)
    method, path = request.method[:20], request.scope["path"][:200]
    if error.status_code == 404:
        near = f"did you mean /v1{path}?" if _is_route(request, f"/v1{path}") else "GET / lists what there is"
        message, code = f"there is no {method} {path}; {near}", "not_found"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message, code = f"{path} does not take {method}, only {allowed}", "method_not_allowed"
    else:
        message, code = error.detail, None
    return ApiError(error.status_code, message, code=code, headers=dict(error.headers or {})).response()


async def on_unexpected(_: Request, error: Exception) -> Response:
    """A fault of ours; the log has the traceback, the client gets none of it."""
    return internal_error().response()
