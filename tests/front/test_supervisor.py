"""The engine's life: start, death, restart, hang, giving up. Against real processes of the scripted engine."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pilotlight.errors import EngineDiedError
from pilotlight.front import supervisor as supervisor_module
from pilotlight.front.engine_client import Channel
from pilotlight.front.errors import ApiError
from pilotlight.front.process import start_engine
from pilotlight.front.supervisor import Supervisor
from pilotlight.messages import Output, Sampling, Submit
from pilotlight.settings import Settings
from tests.front.servers import fake_command


@asynccontextmanager
async def supervised(command: list[str] | None = None, **options: Any) -> AsyncIterator[Supervisor]:
    """A supervisor that listens to a scripted engine. `options` are settings, and behaviour for the rest."""
    settings = Settings(
        model="m", **{name: options.pop(name) for name in Settings.__struct_fields__ if name in options}
    )
    command = command or fake_command(**options)
    supervisor = Supervisor(settings, command, start_engine(command, settings))
    await supervisor.attach()
    try:
        yield supervisor
    finally:
        await supervisor.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(limited())


def submit(id: int, max_tokens: int = 3) -> Submit:
    return Submit(id, [1, 2], Sampling(max_tokens=max_tokens))


async def outputs_of(channel: Channel) -> list[Output]:
    """Everything up to the sequence's end."""
    outputs: list[Output] = []
    while not outputs or outputs[-1].finish is None:
        outputs += await channel.take()
    return outputs


async def failure_of(channel: Channel) -> ApiError:
    """What ends the request, whatever comes before."""
    try:
        while True:
            await channel.take()
    except ApiError as error:
        return error


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # no event tells
        await asyncio.sleep(0.005)


async def kill(supervisor: Supervisor) -> None:
    """Returns once the death is noticed."""
    os.kill(supervisor.engine_pid, signal.SIGKILL)
    await until(lambda: supervisor.ready is None)


async def ready_again(supervisor: Supervisor, restarts: int) -> None:
    await until(
        lambda: (supervisor.ready is not None and supervisor.restarts >= restarts) or supervisor.failure.done()
    )
    assert not supervisor.failure.done()


def test_a_sequence_goes_to_the_engine_and_its_outputs_come_back() -> None:
    async def test() -> None:
        async with supervised(tokens=[7, 8]) as supervisor:
            ready = await supervisor.wait_ready()
            assert (ready.max_model_len, supervisor.state) == (256, "ready")
            channel = Channel()
            supervisor.submit([submit(1)], channel)
            outputs = await outputs_of(channel)
            assert [token for output in outputs for token in output.tokens] == [7, 8, 7]
            assert outputs[-1].finish == "length"
            assert supervisor.outstanding == 0

    run(test)


def test_requests_wait_for_the_start_and_no_longer_than_they_are_told() -> None:
    async def test() -> None:
        async with supervised(ready_delay=0.2) as supervisor:
            with pytest.raises(ApiError, match="being loaded") as raised:
                supervisor.submit([submit(1)], Channel())
            assert raised.value.status == 503
            assert (await supervisor.wait_ready()).device == "fake"
        async with supervised(ready_delay=5, startup_timeout=0.05) as supervisor:
            with pytest.raises(ApiError, match="being loaded"):
                await supervisor.wait_ready()

    run(test)


def test_G04_a_killed_engine_fails_its_requests_at_once_and_is_started_again() -> None:
    async def test() -> None:
        async with supervised(interval=0.01, max_num_seqs=16) as supervisor:
            await supervisor.wait_ready()
            channels = [Channel() for _ in range(10)]
            for id, channel in enumerate(channels):
                supervisor.submit([submit(id, 10_000)], channel)
            await asyncio.gather(*(channel.take() for channel in channels))
            os.kill(supervisor.engine_pid, signal.SIGKILL)
            for channel in channels:
                error = await failure_of(channel)
                assert (error.status, error.code) == (503, "engine_died")
            with pytest.raises(ApiError, match="started again"):
                await supervisor.wait_ready()
            await ready_again(supervisor, restarts=1)
            channel = Channel()
            supervisor.submit([submit(99)], channel)
            assert (await outputs_of(channel))[-1].finish == "length"

    run(test)


def test_counters_never_fall_over_a_restart() -> None:
    async def test() -> None:
        async with supervised() as supervisor:
            await supervisor.wait_ready()
            for restarts in (0, 1, 2):
                await ready_again(supervisor, restarts)
                channel = Channel()
                supervisor.submit([submit(restarts)], channel)
                await outputs_of(channel)
                assert supervisor.counter("generated_tokens") == 3 * (restarts + 1)
                assert supervisor.counter("prompt_tokens") == 2 * (restarts + 1)
                if restarts < 2:
                    await kill(supervisor)
                    assert supervisor.counter("generated_tokens") == 3 * (restarts + 1)

    run(test)


def test_J05_too_many_deaths_end_it_with_70_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_BACKOFF", 0.001)

    async def test() -> None:
        async with supervised(max_engine_deaths=3) as supervisor:
            for restarts in (0, 1, 2):
                await ready_again(supervisor, restarts)
                await kill(supervisor)
            error = await supervisor.failure
            assert isinstance(error, EngineDiedError)
            assert error.exit_code == 70
            assert "3 times" in str(error)
            assert "SIGKILL" in str(error)
            with pytest.raises(ApiError, match="cannot run"):
                await supervisor.wait_ready()

    run(test)


def test_deaths_long_ago_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "DEATH_WINDOW", 0.0)
    monkeypatch.setattr(supervisor_module, "FIRST_BACKOFF", 0.001)

    async def test() -> None:
        async with supervised(max_engine_deaths=2) as supervisor:
            for restarts in (0, 1, 2):
                await ready_again(supervisor, restarts)
                await kill(supervisor)
            await ready_again(supervisor, 3)

    run(test)


def test_each_death_doubles_the_wait() -> None:
    async def test() -> None:
        async with supervised(max_engine_deaths=4) as supervisor:
            waits = []
            loop = asyncio.get_running_loop()
            for restarts in (0, 1, 2):
                await ready_again(supervisor, restarts)
                began = loop.time()
                os.kill(supervisor.engine_pid, signal.SIGKILL)
                await until(lambda: supervisor.restarts > restarts)  # noqa: B023
                waits.append(loop.time() - began)
            for wait, expected in zip(waits, (0.2, 0.4, 0.8), strict=True):
                assert expected <= wait < expected + 1

    run(test)


@pytest.mark.parametrize("code", [65, 69])
def test_J01_a_fatal_at_load_ends_it_with_its_own_code_and_no_second_try(code: int) -> None:
    async def test() -> None:
        async with supervised(fatal=["model.safetensors: is cut", code]) as supervisor:
            error = await supervisor.failure
            assert (str(error), error.exit_code) == ("model.safetensors: is cut", code)
            assert supervisor.restarts == 0

    run(test)


def test_J01_an_engine_that_dies_while_it_loads_is_not_tried_again() -> None:
    async def test() -> None:
        async with supervised(exit_before_ready=9) as supervisor:
            waiting = asyncio.ensure_future(supervisor.wait_ready())
            error = await supervisor.failure
            assert error.exit_code == 70
            assert "exited with code 9 while it loaded the model" in str(error)
            with pytest.raises(ApiError, match="cannot run"):
                await waiting

    run(test)


def test_a_fatal_in_a_restart_ends_it_too(tmp_path: Path) -> None:
    """The engine that runs first is another one: its successor finds the model gone."""

    async def test() -> None:
        async with supervised() as supervisor:
            await supervisor.wait_ready()
            supervisor._command = fake_command(fatal=["the model is gone", 66])
            os.kill(supervisor.engine_pid, signal.SIGKILL)
            error = await supervisor.failure
            assert (str(error), error.exit_code) == ("the model is gone", 66)

    run(test)


LEAVES = (
    "import os, socket, sys, time; from pilotlight.messages import *;"
    "s = socket.socket(fileno=int(sys.argv[1]));"
    "s.sendall(encode(Ready(256, 320, 64, 16, 'fake', 'float32', [])));"
    "data = s.recv(1 << 16);"
    "data += b'' if b'submit' in data else s.recv(1 << 16);"
)


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ("s.sendall(encode(Fatal('the GPU did not answer', 70))); time.sleep(60)", "the GPU did not answer"),
        ("os._exit(70)", "the engine exited with code 70 (its last lines say why)"),
    ],
)
def test_an_engine_that_leaves_a_hanging_device_fails_its_requests_at_once_and_is_replaced(
    last: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It leaves before --engine-timeout, by its own clock; that its process may hang at the end holds up nobody."""

    async def test() -> None:
        async with supervised([sys.executable, "-c", LEAVES + last], max_engine_deaths=3) as supervisor:
            await supervisor.wait_ready()
            supervisor._command = fake_command()
            channel = Channel()
            supervisor.submit([submit(1)], channel)
            async with asyncio.timeout(5):
                error = await failure_of(channel)
            assert (error.status, error.code) == (503, "engine_died")
            await ready_again(supervisor, restarts=1)
            again = Channel()
            supervisor.submit([submit(2)], again)
            assert (await outputs_of(again))[-1].finish == "length"

    run(test)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        f"{reason}; death 1 of 3, starting it again in 0.2 s"
    ]


def test_J05_a_fatal_while_serving_is_a_death_with_its_reason() -> None:
    """As after a CUDA error: only a new process clears it."""
    script = (
        "import socket, sys; from pilotlight.messages import *;"
        "s = socket.socket(fileno=int(sys.argv[1]));"
        "s.sendall(encode(Ready(256, 320, 64, 16, 'fake', 'float32', [])));"
        "s.recv(1 << 16); s.sendall(encode(Fatal('CUDA error 700', 1))); sys.exit(1)"
    )

    async def test() -> None:
        async with supervised([sys.executable, "-c", script], max_engine_deaths=1) as supervisor:
            error = await supervisor.failure
            assert error.exit_code == 70
            assert "CUDA error 700" in str(error)
            assert "once" in str(error)

    run(test)


def test_G04_an_engine_that_owes_a_step_for_too_long_is_killed(tmp_path: Path) -> None:
    async def test() -> None:
        once = str(tmp_path / "once")
        async with supervised(stall_after=2, once=once, engine_timeout=0.3) as supervisor:
            await supervisor.wait_ready()
            channel = Channel()
            supervisor.submit([submit(1, 100)], channel)
            error = await failure_of(channel)
            assert error.status == 503
            assert "no answer within 0.3 s" in error.message
            assert supervisor.ready is None
            await ready_again(supervisor, restarts=1)
            channel = Channel()
            supervisor.submit([submit(2)], channel)
            assert (await outputs_of(channel))[-1].finish == "length"

    run(test)


def test_an_engine_that_was_frozen_along_with_the_front_is_not_taken_for_a_hanging_one() -> None:
    """As a container that is paused; the engine gets going a little later than the front."""

    async def test() -> None:
        async with supervised(interval=0.001, engine_timeout=0.6) as supervisor:
            await supervisor.wait_ready()
            channel = Channel()
            supervisor.submit([submit(1, 1000)], channel)
            await channel.take()
            engine = supervisor.engine_pid
            os.kill(engine, signal.SIGSTOP)
            time.sleep(1.5)  # noqa: ASYNC251  # for this long nothing of the front runs
            asyncio.get_running_loop().call_later(0.1, os.kill, engine, signal.SIGCONT)
            assert (await outputs_of(channel))[-1].finish == "length"
            assert supervisor.engine_pid == engine

    run(test)


def test_J05_an_engine_that_hangs_while_it_loads_ends_the_server() -> None:
    async def test() -> None:
        async with supervised(ready_delay=600, startup_timeout=0.2) as supervisor:
            error = await supervisor.failure
            assert error.exit_code == 70
            assert str(error) == "the engine was not ready within 0.2 s (--startup-timeout)"

    run(test)


def test_an_engine_that_does_not_end_though_it_is_killed_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits inside a driver, where no signal reaches it; nor does its line close before it ends."""
    monkeypatch.setattr(supervisor_module, "KILL_GRACE", 0.1)
    real_kill = os.kill

    async def test() -> None:
        async with supervised(stall_after=2, engine_timeout=0.2) as supervisor:
            await supervisor.wait_ready()
            supervisor.submit([submit(1, 1000)], Channel())
            pid = supervisor.engine_pid
            monkeypatch.setattr(os, "kill", lambda *_: None)
            try:
                error = await supervisor.failure
                await supervisor.close()  # which does not wait for it either
            finally:
                real_kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)  # noqa: ASYNC222  # it is dead
            assert error.exit_code == 70
            assert str(error) == (
                "the engine finished no step within 0.2 s (--engine-timeout), and does not end though it was killed"
            )

    run(test)


def test_an_idle_engine_is_not_taken_for_a_hanging_one() -> None:
    async def test() -> None:
        async with supervised(engine_timeout=0.05) as supervisor:
            await supervisor.wait_ready()
            await asyncio.sleep(3 * supervisor_module.WATCH_INTERVAL)
            assert supervisor.ready is not None

    run(test)


def test_an_engine_that_talks_nonsense_is_replaced(tmp_path: Path) -> None:
    async def test() -> None:
        async with supervised(garbage_after=1, once=str(tmp_path / "once")) as supervisor:
            await supervisor.wait_ready()
            channel = Channel()
            supervisor.submit([submit(1, 100)], channel)
            assert (await failure_of(channel)).code == "engine_died"
            await ready_again(supervisor, restarts=1)

    run(test)


def test_closing_ends_a_stuck_engine_within_its_grace() -> None:
    async def test() -> None:
        async with supervised() as supervisor:
            await supervisor.wait_ready()
            pid = supervisor.engine_pid
            os.kill(pid, signal.SIGSTOP)
            began = asyncio.get_running_loop().time()
            await supervisor.close()
            assert asyncio.get_running_loop().time() - began < supervisor_module.EXIT_GRACE + 1
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            assert supervisor.not_ready().code == "shutting_down"

    run(test)


def test_an_engine_that_cannot_be_started_again_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    async def test() -> None:
        async with supervised() as supervisor:
            await supervisor.wait_ready()
            monkeypatch.setattr(supervisor_module, "start_engine", refuse)
            os.kill(supervisor.engine_pid, signal.SIGKILL)
            error = await supervisor.failure
            assert error.exit_code == 70
            assert "cannot be started again" in str(error)

    run(test)


def test_the_engine_follows_the_front_into_death() -> None:
    """The line closes, whatever way the front goes."""
    settings = Settings(model="m")
    process = start_engine(fake_command(), settings)
    process.line.recv(1 << 16)  # Ready
    process.line.shutdown(socket.SHUT_RDWR)
    process.line.close()
    assert os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1]) in (0, -signal.SIGPIPE)
