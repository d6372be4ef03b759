"""The line's front end: channels, and what becomes of messages."""

import asyncio
import socket
from typing import Any

import pytest

from pilotlight.front import engine_client
from pilotlight.front.engine_client import Channel, EngineClient
from pilotlight.messages import (
    Abort,
    Fatal,
    FrameReader,
    Output,
    Ready,
    Sampling,
    Shutdown,
    Spans,
    Stats,
    StepDone,
    Submit,
    ToEngine,
    decode_to_engine,
    encode,
)


class Recorder:
    """The listener: what it was told, in order."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.stepped = asyncio.Event()
        self.lost = asyncio.Event()

    def on_ready(self, ready: Ready) -> None:
        self.heard.append(ready)

    def on_spans(self, spans: Spans) -> None:
        self.heard.append(spans)

    def on_step(self, step: StepDone) -> None:
        self.heard.append(step)
        self.stepped.set()

    def on_fatal(self, fatal: Fatal) -> None:
        self.heard.append(fatal)

    def on_lost(self) -> None:
        self.heard.append("lost")
        self.lost.set()


class Line:
    """A client and the other end of its line."""

    def __init__(self) -> None:
        self.listener = Recorder()
        self.client = EngineClient(self.listener)
        self._frames = FrameReader()

    async def __aenter__(self) -> "Line":
        ours, self.far = socket.socketpair()
        self.far.setblocking(False)
        self.transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: self.client, sock=ours)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.far.close()
        self.transport.abort()
        await self.listener.lost.wait()

    async def sent(self, count: int) -> list[ToEngine]:
        """The next messages that the engine gets."""
        messages: list[ToEngine] = []
        while len(messages) < count:
            data = await asyncio.get_running_loop().sock_recv(self.far, 1 << 16)
            messages += map(decode_to_engine, self._frames.feed(data))
        return messages

    async def say(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.far, data)


class Clock:
    """The client's `time`: it goes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(engine_client, "time", clock)
    return clock


def submit(id: int) -> Submit:
    return Submit(id, [1, 2], Sampling(max_tokens=4))


def step(*outputs: Output) -> bytes:
    return encode(StepDone(list(outputs), Stats(running=len(outputs))))


def test_what_cannot_be_sent_is_not_waited_for() -> None:
    async def run() -> None:
        async with Line() as line:
            unsendable = Submit(2, [2**64], Sampling(max_tokens=4))
            with pytest.raises(OverflowError):
                line.client.submit([submit(1), unsendable], Channel())
            assert line.client.outstanding == 0
            line.client.submit([submit(3), submit(4)], Channel())
            assert await line.sent(2) == [submit(3), submit(4)]

    asyncio.run(run())


def test_a_channel_gives_everything_that_has_come_in_order() -> None:
    async def run() -> None:
        channel = Channel()
        channel.put(Output(1, [5]))
        channel.put(Output(1, [6]))
        assert [output.tokens for output in await channel.take()] == [[5], [6]]
        waiting = asyncio.ensure_future(channel.take())
        await asyncio.sleep(0)
        assert not waiting.done()
        channel.put(Output(2, [7]))
        channel.put(Output(1, [8]))  # before the waiter runs
        assert [output.id for output in await waiting] == [2, 1]

    asyncio.run(run())


def test_a_wake_gives_nothing_and_loses_nothing() -> None:
    async def run() -> None:
        channel = Channel()
        channel.wake()  # nobody waits
        waiting = asyncio.ensure_future(channel.take())
        await asyncio.sleep(0)
        channel.wake()
        assert await waiting == []
        channel.put(Output(1, [5]))
        assert len(await channel.take()) == 1

    asyncio.run(run())


def test_a_failure_comes_at_once_and_the_first_one_counts() -> None:
    async def run() -> None:
        channel = Channel()
        waiting = asyncio.ensure_future(channel.take())
        await asyncio.sleep(0)
        channel.fail(ValueError("first"))
        channel.fail(ValueError("second"))
        with pytest.raises(ValueError, match="first"):
            await waiting
        channel.put(Output(1, [5]))
        with pytest.raises(ValueError, match="first"):
            await channel.take()

    asyncio.run(run())


def test_outputs_of_one_message_reach_the_channels_of_their_sequences() -> None:
    async def run() -> None:
        async with Line() as line:
            one, two = Channel(), Channel()
            line.client.submit([submit(1), submit(2)], one)
            line.client.submit([submit(3)], two)
            assert await line.sent(3) == [submit(1), submit(2), submit(3)]
            await line.say(step(Output(3, [7]), Output(1, [8]), Output(2, [9], "stop", 9)))
            assert [output.id for output in await one.take()] == [1, 2]
            assert [output.tokens for output in await two.take()] == [[7]]
            assert line.client.outstanding == 2  # the finished one is forgotten
            assert line.listener.heard[0].stats == Stats(running=3)

    asyncio.run(run())


def test_an_aborted_sequence_is_forgotten_and_its_late_outputs_are_dropped() -> None:
    async def run() -> None:
        async with Line() as line:
            channel = Channel()
            line.client.submit([submit(1), submit(2)], channel)
            line.client.abort([1, 99])  # 99: never known, or finished meanwhile
            line.client.abort([1])
            assert await line.sent(3) == [submit(1), submit(2), Abort([1])]
            await line.say(step(Output(1, [5]), Output(2, [6])))
            assert [output.id for output in await channel.take()] == [2]
            assert line.client.outstanding == 1

    asyncio.run(run())


def test_a_large_message_arrives_in_pieces() -> None:
    async def run() -> None:
        async with Line() as line:
            channel = Channel()
            line.client.submit([submit(1)], channel)
            data = step(Output(1, list(range(50_000))))
            for start in range(0, len(data), 7000):
                await line.say(data[start : start + 7000])
            (output,) = await channel.take()
            assert output.tokens == list(range(50_000))

    asyncio.run(run())


def test_silence_counts_only_while_something_is_owed(clock: Clock) -> None:
    async def run() -> None:
        async with Line() as line:
            clock.now += 3
            assert line.client.silent_for == 0.0
            channel = Channel()
            line.client.submit([submit(1)], channel)
            assert line.client.silent_for == 0.0  # the idle time before does not count
            clock.now += 3
            assert line.client.silent_for == 3.0
            line.client.submit([submit(2)], channel)
            assert line.client.silent_for == 3.0  # and what is asked meanwhile is no word of the engine
            await line.say(step(Output(1, [5])))
            await channel.take()
            assert line.client.silent_for == 0.0
            clock.now += 3
            line.client.abort([2])
            assert line.client.silent_for == 3.0
            line.client.abort([1])
            assert line.client.silent_for == 0.0

    asyncio.run(run())


def test_silence_that_is_excused_does_not_count(clock: Clock) -> None:
    async def run() -> None:
        async with Line() as line:
            line.client.submit([submit(1)], Channel())
            clock.now += 5
            line.client.excuse(3)
            assert line.client.silent_for == 2.0
            line.client.excuse(9)
            assert line.client.silent_for == 0.0

    asyncio.run(run())


def test_a_step_without_outputs_wakes_nobody_and_shows_that_the_engine_works(clock: Clock) -> None:
    """As an engine that looks ahead sends it with its first step, or after the last one was for nothing."""

    async def run() -> None:
        async with Line() as line:
            channel = Channel()
            line.client.submit([submit(1)], channel)
            waiting = asyncio.ensure_future(channel.take())
            clock.now += 3
            await line.say(step())
            await asyncio.wait_for(line.listener.stepped.wait(), 30)
            assert line.client.silent_for == 0.0
            assert (line.client.outstanding, waiting.done()) == (1, False)
            await line.say(step(Output(1, [5])))
            assert [output.tokens for output in await waiting] == [[5]]

    asyncio.run(run())


def test_the_end_of_the_line_is_told_after_the_last_words() -> None:
    async def run() -> None:
        async with Line() as line:
            line.client.shutdown()
            assert await line.sent(1) == [Shutdown()]
            await line.say(encode(Fatal("no memory", 69)))  # and leaves, but not yet
            await asyncio.wait_for(line.listener.lost.wait(), 30)
            assert line.listener.heard == [Fatal("no memory", 69), "lost"]

    asyncio.run(run())


@pytest.mark.parametrize("data", [b"\x03\x00\x00\x00abc", b"\xff\xff\xff\xffabc"])
def test_what_is_no_message_ends_the_line(data: bytes) -> None:
    async def run() -> None:
        async with Line() as line:
            await line.say(data)
            await asyncio.wait_for(line.listener.lost.wait(), 30)
            fatal, lost = line.listener.heard
            assert "no message" in fatal.message
            assert lost == "lost"

    asyncio.run(run())


def test_all_requests_fail_together_and_once() -> None:
    async def run() -> None:
        async with Line() as line:
            channel = Channel()
            line.client.submit([submit(1), submit(2)], channel)
            line.client.fail_all(ValueError("gone"))
            with pytest.raises(ValueError, match="gone"):
                await channel.take()
            assert line.client.outstanding == 0

    asyncio.run(run())
