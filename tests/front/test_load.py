"""Many clients at once through the real engine: answers stay right, the pool stays whole, memory stays flat."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.front.answers import COMPLETIONS, ask
from tests.front.servers import ServerProcess, Streams, eventually, metric
from tests.models import write_chain, write_tiny

REQUESTS, AT_ONCE = 200, 32


# The printable characters in a random order, again and again: an answer shows from where it started.
ORDER = random.Random(0).sample(range(32, 127), 95)
CONTEXT = 128


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = write_chain(tmp_path_factory.mktemp("models") / "chain", ORDER, loop=True, max_position=CONTEXT)
    # A small pool: 24 pages for sequences of up to 8, so that they wait, share and push each other out.
    flags = ("--max-num-seqs", "16", "--kv-cache-memory-bytes", str(2 * 2 * 16 * 16 * 4 * 24))
    with ServerProcess(path, *flags) as server:
        server.ready()
        yield server


def requests() -> list[dict[str, Any]]:
    """Different prompts, lengths and ends; some prompts begin alike."""
    chosen = random.Random(1)
    beginnings = ["", *("".join(chosen.choices("abcdefgh", k=40)) for _ in range(4))]
    bodies: list[dict[str, Any]] = []
    for _ in range(REQUESTS):
        rest = "".join(chosen.choices("ijklmnop", k=chosen.randrange(1, 20)))
        body = {
            "model": "m",
            "temperature": 0,
            "prompt": chosen.choice(beginnings) + rest,
            "max_tokens": chosen.randrange(1, 70),
            "stream": chosen.random() < 0.5,
        }
        bodies.append(body | ({"stop": chosen.choice("abcdef")} if chosen.random() < 0.3 else {}))
    return bodies


def answer_to(body: dict[str, Any]) -> tuple[str, str]:
    """Text and end of the only right answer, worked out from the chain."""
    start = ORDER.index(ord(body["prompt"][-1])) + 1
    length = min(body["max_tokens"], CONTEXT - len(body["prompt"]))
    text = "".join(chr(ORDER[(start + step) % len(ORDER)]) for step in range(length))
    stop = body.get("stop")
    return (text.partition(stop)[0], "stop") if stop and stop in text else (text, "length")


async def send(client: httpx.AsyncClient, body: dict[str, Any], patience: float | None) -> tuple[str, str] | None:
    """Text and end of an answer; None where the client lost its patience."""
    text, finish = "", ""
    try:
        async with asyncio.timeout(patience):
            if not body["stream"]:
                reply = await client.post(COMPLETIONS, json=body)
                assert reply.status_code == 200, reply.text
                choice = reply.json()["choices"][0]
                return choice["text"], choice["finish_reason"]
            async with client.stream("POST", COMPLETIONS, json=body) as response:
                assert response.status_code == 200
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        choice = httpx.Response(200, text=line[6:]).json()["choices"][0]
                        text += choice["text"]
                        finish = choice["finish_reason"] or finish
            return text, finish
    except TimeoutError:
        return None


async def send_all(address: str, bodies: list[dict[str, Any]]) -> list[tuple[str, str] | None]:
    """AT_ONCE at a time; about half of the clients leave after a random while."""
    chosen = random.Random(2)
    places = asyncio.Semaphore(AT_ONCE)
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    async with httpx.AsyncClient(base_url=address, timeout=60, limits=limits) as client:

        async def one(body: dict[str, Any], patience: float | None) -> tuple[str, str] | None:
            async with places:
                return await send(client, body, patience)

        return await asyncio.gather(
            *(one(body, chosen.random() * 0.3 if chosen.random() < 0.5 else None) for body in bodies)
        )


def test_G01_G03_two_hundred_requests_half_of_which_are_dropped(chain: ServerProcess) -> None:
    bodies = requests()
    with chain.client() as client:
        assert (answer := ask(client, COMPLETIONS, bodies[0] | {"stream": False})).text == answer_to(bodies[0])[0]
        assert answer.finish == answer_to(bodies[0])[1]
        answers = asyncio.run(send_all(chain.ready(), bodies))
        finished = [
            (answer, answer_to(body)) for answer, body in zip(answers, bodies, strict=True) if answer is not None
        ]
        assert len(finished) >= REQUESTS // 3
        assert all(answer == expected for answer, expected in finished)
        eventually(lambda: metric(client, "num_requests_running") == 0, 5)
        assert metric(client, "num_requests_waiting") == 0
        assert metric(client, "kv_cache_pages", ',state="used"') == 0
        assert metric(client, "num_preemptions_total") > 0
        assert metric(client, "prefix_cache_hits_total") > 0
        assert metric(client, "request_success_total", ',finished_reason="abort"') > 0


def test_G03_memory_stays_flat(chain: ServerProcess) -> None:
    """Rounds of requests with log-probabilities, half of them dropped: after the first ones nothing is added."""
    processes = [psutil.Process(chain.process.pid), psutil.Process(chain.engine_pid())]
    bodies = [body | {"logprobs": 5, "max_tokens": 20} for body in requests()]

    def resident() -> int:
        with chain.client() as client:
            eventually(lambda: metric(client, "num_requests_running") == 0, 5)
        return sum(process.memory_info().rss for process in processes)

    for _ in range(2):
        asyncio.run(send_all(chain.ready(), bodies))
    warm = resident()
    for _ in range(3):
        asyncio.run(send_all(chain.ready(), bodies))
    assert resident() - warm < 5_000_000  # 10 kB per request would be 6 MB, 1 kB per token about as much


def test_G04_the_engine_killed_under_ten_streams(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each hears of it within a second, and the next request after the restart is served; then once too often."""
    path = write_tiny(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=32768)
    flags = ("--max-engine-deaths", "2", "--max-model-len", "32768")
    with ServerProcess(path, *flags) as server, server.client() as client:
        endless = {"model": "m", "prompt": "hi", "max_tokens": 30_000, "stream": True, "ignore_eos": True}
        for deaths in (1, 2):
            streams = Streams(server.ready(), 10, endless)
            streams.wait_begun()
            killed_at = time.monotonic()
            os.kill(server.engine_pid(), signal.SIGKILL)
            streams.wait_ended()
            for events, ended_at in zip(streams.events, streams.ended_at, strict=True):
                assert ended_at - killed_at < 1
                assert events[-2]["error"]["code"] == "engine_died"
                assert events[-1] == "[DONE]"
            if deaths == 1:
                eventually(lambda: client.get("/health").status_code == 200, 20)
                assert ask(client, COMPLETIONS, {"prompt": "hi", "max_tokens": 3}).finish == "length"
        assert server.exit_code() == 70
        assert "2 times" in server.lines[-1]
