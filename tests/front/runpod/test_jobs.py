"""The handler and its exchange with an application of this process, without the SDK."""

import asyncio
import logging
from typing import Any

import orjson
import pytest
from starlette.types import Message, Receive, Scope, Send

from pilotlight.front.drain import Drain
from pilotlight.front.runpod.exchange import Exchange
from pilotlight.front.runpod.jobs import LARGEST_PART, Jobs

EVENTS = [b"data: %d\n\n" % number for number in range(5)]


class App:
    """Replies with these parts, then raises, if told to. Notes what it was asked, and whether it was cut off."""

    def __init__(self, *parts: bytes, kind: bytes = b"text/event-stream; charset=utf-8", fault: str = "") -> None:
        self.parts, self.kind, self.fault = parts, kind, fault
        self.scope: Scope = {}
        self.body = b""
        self.cut = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.body = (await receive())["body"]
        start: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", self.kind)]}
        try:
            await send(start)
            for part in self.parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
                await asyncio.sleep(0)
            if self.fault == "hang":
                await receive()
        except asyncio.CancelledError:
            self.cut = True
            raise
        if self.fault:
            raise ValueError(self.fault)
        await send({"type": "http.response.body", "body": b""})


async def outputs(app: App, given: Any) -> list[Any]:
    drain = Drain()
    jobs = Jobs(app, "m", drain)
    found = [output async for output in jobs.handle({"id": "1", "input": given})]
    assert await drain.idle(5)
    return found


def test_request_is_what_a_connection_would_bring() -> None:
    app = App(b'{"a":1}', kind=b"application/json")
    target = "/v1/chat/completions?a=b%20c"
    assert asyncio.run(outputs(app, {"openai_route": target, "openai_input": {"é": 1}})) == [{"a": 1}]
    scope = app.scope
    assert (scope["method"], scope["path"], scope["query_string"]) == ("POST", target.partition("?")[0], b"a=b%20c")
    assert dict(scope["headers"]) == {b"content-type": b"application/json", b"content-length": b"27"}
    assert orjson.loads(app.body) == {"é": 1, "model": "m"}
    asyncio.run(outputs(app, {"openai_route": "/v1/models/a%2Fb", "openai_input": {"x": 1}}))
    assert (app.scope["method"], app.scope["path"], app.body) == ("GET", "/v1/models/a/b", b"")


def test_text_is_a_text_and_nothing_is_an_empty_one() -> None:
    assert asyncio.run(outputs(App("é".encode(), kind=b"text/plain"), {"prompt": "x"})) == ["é"]
    assert asyncio.run(outputs(App(kind=b""), {"prompt": "x"})) == [""]


def test_comments_of_a_stream_are_for_connections() -> None:
    parts = asyncio.run(outputs(App(EVENTS[0], b": keep-alive\n\n", EVENTS[1]), {"prompt": "x"}))
    assert "".join(parts).encode() == EVENTS[0] + EVENTS[1]


@pytest.mark.parametrize("kind", [b"text/event-stream", b"application/json"])
def test_fault_of_a_route_ends_the_job_with_an_object(kind: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        *before, error = asyncio.run(outputs(App(*EVENTS, kind=kind, fault="secret"), {"prompt": "x"}))
    assert "".join(before).encode() == (b"".join(EVENTS) if b"event" in kind else b"")
    assert (error["object"], error["code"], error["status"]) == ("error", "internal_error", 500)
    assert "secret" not in str(error)
    assert "ValueError: secret" in caplog.text


def test_input_too_deep_for_json_ends_the_job_with_an_object() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    (error,) = asyncio.run(outputs(App(), {"openai_route": "/v1/completions", "openai_input": deep}))
    assert error["status"] == 500


def test_what_has_come_is_read_at_once_within_the_limit() -> None:
    async def read(app: App, limit: int) -> list[bytes]:
        async with Exchange(app, "GET", "/", b"") as reply:
            await reply._task  # everything has come
            return [b"".join(parts) for parts in [await reply.read(limit) for _ in range(7)] if parts]

    assert asyncio.run(read(App(*EVENTS), LARGEST_PART)) == [b"".join(EVENTS)]
    assert asyncio.run(read(App(*EVENTS), 2 * len(EVENTS[0]))) == [
        b"".join(EVENTS[:2]), b"".join(EVENTS[2:4]), EVENTS[4],
    ]  # fmt: skip
    assert asyncio.run(read(App(*EVENTS), 1)) == EVENTS  # no part is cut


def test_job_that_is_given_up_before_its_reply_begins_ends_its_request() -> None:
    """As most are that are not streamed: their status comes with the whole answer."""
    is_cut = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await receive()
        finally:
            is_cut.set()

    async def run() -> None:
        handler = Jobs(app, "m", Drain()).handle({"id": "1", "input": {"prompt": "x"}})
        waiting = asyncio.ensure_future(anext(handler))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(is_cut.wait(), 5)

    asyncio.run(run())


def test_job_that_is_given_up_ends_its_request() -> None:
    app = App(EVENTS[0], fault="hang")
    drain = Drain()

    async def run() -> None:
        handler = Jobs(app, "m", drain).handle({"id": "1", "input": {"prompt": "x"}})
        assert await anext(handler) == EVENTS[0].decode()
        assert not await drain.idle(0.01)
        waiting = asyncio.ensure_future(anext(handler))
        await asyncio.sleep(0)
        waiting.cancel()  # as the SDK does on a stop signal
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await drain.idle(5)

    asyncio.run(run())
    assert app.cut
