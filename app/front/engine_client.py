"""The front's end of the line to one engine process: sequences out, their outputs back to whoever waits for them.

An engine's client lives as long as the engine; the supervisor makes a new one for each restart. Everything here
runs on the event loop and keeps one rule: no message costs more than a dictionary look-up per sequence.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from ..messages import (
    Abort,
    Fatal,
    FrameReader,
    Output,
    Ready,
    Shutdown,
    Spans,
    StepDone,
    Submit,
    ToEngine,
    ToFront,
    decode_to_front,
    encode,
)


class Channel:
    """Where the outputs of one request's sequences wait for the task that writes its answer.

    Several outputs are taken at once, so a task that a slow client holds up costs memory for its own tokens only,
    and those are bounded by the context.
    """

    def __init__(self) -> None:
        self._outputs: list[Output] = []
        self.failure: Exception | None = None  # what ends the request
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: Output) -> None:
        self._outputs.append(output)
        self.wake()

    def fail(self, error: Exception) -> None:
        """Ends the request with `error`, before any output that still waits. The first failure counts."""
        if self.failure is None:
            self.failure = error
        self.wake()

    def wake(self) -> None:
        """Makes `take` return, with nothing if there is nothing."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Output]:
        """What has come since the last call; waits for something. Raises what `fail` was given."""
        if not self._outputs and self.failure is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.failure is not None:
            raise self.failure
        outputs, self._outputs = self._outputs, []
        return outputs


class Listener(Protocol):
    """Who is told what the engine says about itself."""

    def on_ready(self, ready: Ready) -> None: ...

    def on_spans(self, spans: Spans) -> None: ...

    def on_step(self, step: StepDone) -> None: ...

    def on_fatal(self, fatal: Fatal) -> None: ...

    def on_lost(self) -> None:
        """The line is closed: the engine is gone. Nothing follows."""


class EngineClient(asyncio.Protocol):
    """Speaks messages.py over the line, and knows which channel each running sequence belongs to."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._frames = FrameReader()
        self._transport: asyncio.WriteTransport | None = None
        self._channels: dict[int, Channel] = {}
        self._heard = time.monotonic()

    @property
    def outstanding(self) -> int:
        """Sequences submitted and not finished."""
        return len(self._channels)

    @property
    def silent_for(self) -> float:
        """Seconds for which the engine has owed a step and sent none; 0 while it owes nothing."""
        return max(time.monotonic() - self._heard, 0.0) if self._channels else 0.0

    def excuse(self, seconds: float) -> None:
        """So much of its silence is not the engine's."""
        self._heard += seconds

    def submit(self, sequences: Sequence[Submit], channel: Channel) -> None:
        if not self._channels:
            self._heard = time.monotonic()
        frames = b"".join([encode(sequence) for sequence in sequences])  # before anything waits for an answer
        self._channels |= dict.fromkeys([sequence.id for sequence in sequences], channel)
        self._write(frames)

    def abort(self, ids: Iterable[int]) -> None:
        """Forgets sequences, here and in the engine; those that have finished meanwhile are no error."""
        running = [id for id in ids if self._channels.pop(id, None) is not None]
        if running:
            self._send(Abort(running))

    def shutdown(self) -> None:
        self._send(Shutdown())

    def fail_all(self, error: Exception) -> None:
        """Every request that waits for this engine ends with `error`."""
        channels, self._channels = set(self._channels.values()), {}
        for channel in channels:
            channel.fail(error)

    def _send(self, message: ToEngine) -> None:
        self._write(encode(message))

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    # --- asyncio.Protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        try:
            for body in self._frames.feed(data):
                self._receive(decode_to_front(body))
        except (ValueError, msgspec.MsgspecError) as error:
            # Only a bug or a corrupt memory gets here; an engine that talks nonsense is as good as dead.
            assert self._transport is not None
            self._listener.on_fatal(Fatal(f"the engine sent what is no message: {error}", 1))
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.on_lost()

    def _receive(self, message: ToFront) -> None:
        match message:
            case StepDone(outputs=outputs):
                for output in outputs:
                    # None: aborted while this step ran.
                    channel = self._channels.get(output.id)
                    if channel is not None:
                        if output.finish is not None:
                            del self._channels[output.id]
                        channel.put(output)
                self._listener.on_step(message)
            case Ready():
                self._listener.on_ready(message)
            case Spans():
                self._listener.on_spans(message)
            case Fatal():
                self._listener.on_fatal(message)
                assert self._transport is not None
                self._transport.abort()  # a process whose device hangs may take long to leave; nobody waits for it
