"""A request's JSON body, read with a limit: nothing larger is ever held.

Refusing is the hard part. Whoever answers a client that is still sending, and then closes, makes the kernel reset
the connection, and the client sees that instead of the answer. So a reply ends only when the body has.
"""

import asyncio
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, ClientGone
from .protocol import decode

_DISCARD_BYTES, _DISCARD_SECONDS = 256 * 1024 * 1024, 10.0


async def until_gone(receive: Receive) -> None:
    """Returns once the client has closed its connection. For a request whose body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_json(request: Request, limit: int) -> dict[str, Any]:
    """The body's JSON object without its nulls. Raises ApiError (400, 413, 415), ClientGone."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = f"the content type must be application/json, got {kind[:80]!r}"
        raise ApiError(415, message, code="unsupported_media_type")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    body = bytearray()
    while True:
        received = await request.receive()
        if received["type"] == "http.disconnect":
            raise ClientGone
        body += received.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not received.get("more_body", False):
            return decode(bytes(body))


def _too_large(limit: int) -> ApiError:
    message = f"the request body is larger than {limit} bytes (--max-request-bytes)"
    return ApiError(413, message, code="too_large", headers={"connection": "close"})


class UnreadBodyLayer:
    """The ASGI layer that reads and drops what a reply did not wait for, within bounds."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        if b"transfer-encoding" not in headers and headers.get(b"content-length", b"0") == b"0":
            await self._app(scope, receive, send)
            return
        unread = True
        will_come = headers.get(b"expect", b"").lower() != b"100-continue"  # else only after we have asked for it

        async def tracking_receive() -> Message:
            nonlocal unread, will_come
            will_come = True
            message = await receive()
            unread = message.get("more_body", False)
            return message

        async def lingering_send(message: Message) -> None:
            is_end = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_end and unread and will_come:
                await send({**message, "more_body": True})
                await _discard(tracking_receive)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self._app(scope, tracking_receive, lingering_send)


async def _discard(receive: Receive) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            dropped = 0
            while dropped < _DISCARD_BYTES:
                message = await receive()
                if not message.get("more_body", False):
                    return
                dropped += len(message["body"])
