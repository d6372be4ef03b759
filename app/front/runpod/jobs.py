"""RunPod's handler: makes a job's input a request to our own API, and its reply what the handler yields.

Two forms of input, those of RunPod's vLLM worker:

    {"openai_route": "/v1/chat/completions", "openai_input": {...}}    any route of this server
    {"prompt" or "messages": ..., "sampling_params": {...}, "stream": false}

Whatever a job holds, the handler ends in an answer: the SDK would make a text of an exception, with its traceback.
"""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.types import ASGIApp

from ..drain import Drain
from ..errors import ApiError, internal_error, invalid
from ..routes import ROUTES
from .exchange import Exchange

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LARGEST_PART = 512 * 1024  # bytes of events yielded at once; RunPod takes 1 MB

_POSTS = {route.path for route in ROUTES if route.method == "POST"}

log = logging.getLogger(__name__)


class Jobs:
    def __init__(self, app: ASGIApp, model: str, drain: Drain) -> None:
        """`app` has the routes without the layers: a job comes through no connection, and RunPod has checked its key.

        `model` answers jobs that name none.
        """
        self._app = app
        self._model = model
        self._drain = drain

    async def handle(self, job: dict[str, Any]) -> AsyncIterator[Any]:
        """Yields one JSON value, or the events of a stream as texts, several in one where they come faster."""
        with self._drain.request():
            try:
                async with Exchange(self._app, *request_of(job.get("input"), self._model)) as reply:
                    if reply.content_type == "text/event-stream":
                        while parts := await reply.read(LARGEST_PART):
                            # Without comments: they are for a connection, and nobody holds one here.
                            if events := b"".join([part for part in parts if not part.startswith(b":")]):
                                yield events.decode()
                    else:
                        yield await _whole(reply)
            except ApiError as error:
                yield failure(error.body, error.status)
            except Exception:
                log.exception("a job failed")
                yield failure(internal_error().body, 500)


def request_of(given: Any, model: str) -> tuple[str, str, bytes]:
    """The method, the target and the JSON body that a job's input asks for. Raises ApiError."""
    if not isinstance(given, dict):
        raise invalid("input: expected an object", "input")
    if "openai_route" in given or "openai_input" in given:
        target, fields = given.get("openai_route") or CHAT, given.get("openai_input")
        if not isinstance(target, str) or not target.isascii():
            raise invalid('openai_route: expected a path such as "/v1/chat/completions"', "openai_route")
        if target.partition("?")[0] not in _POSTS:
            return "GET", target, b""
        fields = {} if fields is None else fields
    elif "messages" in given or "prompt" in given:
        target = CHAT if given.get("messages") is not None else COMPLETIONS
        fields = dict(given)
        sampling = fields.pop("sampling_params", None) or {}
        if not isinstance(sampling, dict):
            raise invalid("sampling_params: expected an object", "sampling_params")
        fields = sampling | fields
    else:
        raise invalid("input: expected openai_route and openai_input, or prompt, or messages", "input")
    if isinstance(fields, dict) and fields.get("model") is None:
        fields = fields | {"model": model}
    # Not by orjson, which is strict: what is no JSON (NaN) is to be refused where every request's is.
    return "POST", target, json.dumps(fields).encode()


async def _whole(reply: Exchange) -> Any:
    body = b""
    while parts := await reply.read(LARGEST_PART):
        body += b"".join(parts)
    if reply.status >= 400:
        return failure(body, reply.status)
    return orjson.loads(body) if reply.content_type == "application/json" else body.decode()


def failure(body: bytes, status: int) -> dict[str, Any]:
    """An error reply, flat: an object with an "error" in it would come out of the SDK as Python's text, not JSON."""
    return {"object": "error", **orjson.loads(body)["error"], "status": status}
