"""Answers on their way to the client: server-sent events as the tokens come, or one reply at the end.

Headers leave at once and a comment follows every few seconds, so that no proxy takes a long prefill for a dead
server. Whoever closes the connection stops the work: one watcher per request waits for that.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .body import until_gone
from .engine_client import Channel
from .errors import ApiError, ClientGone
from .generation import Choice, Generation, Update
from .startup import Startup

_Written = TypeVar("_Written")

KEEP_ALIVE_SECONDS = 5.0
_KEEP_ALIVE = b": keep-alive\n\n"
_DONE = b"data: [DONE]\n\n"
_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the events
)


# Line ends to Python's str.splitlines, and so to many clients, that JSON may hold as they are.
_OTHER_LINE_ENDS = tuple((end.encode(), b"\\u%04x" % ord(end)) for end in "\x85\u2028\u2029")


def one_line(value: Any) -> bytes:
    """JSON that no client takes for several lines."""
    data = orjson.dumps(value)
    if not data.isascii():
        for raw, escaped in _OTHER_LINE_ENDS:
            data = data.replace(raw, escaped)
    return data


class Events(ABC):
    """An endpoint's wire format: updates to events, each `data: {...}` and an empty line.

    What does not change from token to token is made once: an event is `_prefix`, the choice's index and what is the
    endpoint's own, `_suffix`.
    """

    def __init__(self, generation: Generation, head: dict[str, Any], include_usage: bool) -> None:
        self._generation = generation
        self._head = head
        self._include_usage = include_usage
        self._prefix = b"data: " + one_line(head)[:-1] + b',"choices":[{"index":'
        self._suffix = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"

    @abstractmethod
    def of(self, update: Update) -> Iterator[bytes]: ...

    def last(self) -> bytes:
        """What stands before [DONE]: the usage event, or nothing."""
        if not self._include_usage:
            return b""
        return b"data: %b\n\n" % one_line(self._head | {"choices": [], "usage": self._generation.usage()})

    @staticmethod
    def _reason(choice: Choice) -> bytes:
        """`"finish_reason":...,"stop_reason":...` of a choice's last event."""
        return one_line({"finish_reason": choice.finish, "stop_reason": choice.stop_reason})[1:-1]


class EventStream(Response):
    """A running generation as an ASGI response."""

    def __init__(self, generation: Generation, events: Events, startup: Startup) -> None:
        super().__init__()
        self._generation = generation
        self._startup = startup
        self._events = events
        self._wrote_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        generation, events, channel = self._generation, self._events, self._generation.channel
        loop = asyncio.get_running_loop()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            write = self._startup.first_writer(send)
            async with _watched(receive, channel), self._keeping_alive(loop, channel):
                while not generation.done:
                    updates = await generation.updates()
                    body = b"".join([event for update in updates for event in events.of(update)])
                    if not body and updates:
                        continue  # text held back: it may be the start of a stop string, or of a character
                    self._wrote_at = loop.time()
                    await write({"type": "http.response.body", "body": body or _KEEP_ALIVE, "more_body": True})
            end = events.last()
        except ApiError as error:
            end = b"data: %b\n\n" % error.body
        except ClientGone:
            return
        finally:
            generation.close()
        await send({"type": "http.response.body", "body": end + _DONE})

    @asynccontextmanager
    async def _keeping_alive(self, loop: asyncio.AbstractEventLoop, channel: Channel) -> AsyncIterator[None]:
        """Wakes the channel whenever nothing was written for a while. One timer, not one per token."""

        timer: asyncio.TimerHandle

        def tick() -> None:
            nonlocal timer
            quiet = loop.time() - self._wrote_at
            if quiet >= KEEP_ALIVE_SECONDS:
                channel.wake()
                quiet = 0.0
            timer = loop.call_later(KEEP_ALIVE_SECONDS - quiet, tick)

        self._wrote_at = loop.time()
        timer = loop.call_later(KEEP_ALIVE_SECONDS, tick)
        try:
            yield
        finally:
            timer.cancel()


async def collect(
    request: Request, generation: Generation, write: Callable[[Update], _Written]
) -> list[list[_Written]]:
    """What `write` makes of every choice's updates, for one reply at the end. Raises ApiError, ClientGone.

    It is called as the tokens come: what all of them cost at once, every other request would wait for.
    """
    collected: list[list[_Written]] = [[] for _ in generation.choices]
    try:
        async with _watched(request.receive, generation.channel):
            while not generation.done:
                for update in await generation.updates():
                    collected[update.choice.index].append(write(update))
        request.app.state.service.startup.note_token("answer")
    finally:
        generation.close()
    return collected


@asynccontextmanager
async def _watched(receive: Receive, channel: Channel) -> AsyncIterator[None]:
    """Fails the channel as soon as the client closes the connection."""

    async def watch() -> None:
        await until_gone(receive)
        channel.fail(ClientGone())

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
