"""`pilotlight serve --device cuda` as a process, on CHAIN: what it has to answer is known to the last bit."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.front.servers import eventually, metric, sse, stream
from tests.models import write_chain

from .servers import CHAIN, COMPLETIONS, TEXT, CudaServer, Report, ask, ask_all, body_of, text_of

POOL = 12  # pages, and four sequences that take up to six
FLAGS = ("--max-model-len", "96", "--max-num-batched-tokens", "32")


@pytest.fixture(scope="module")
def chain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain(tmp_path_factory.mktemp("models") / "chain", CHAIN, loop=True, head_dim=64)


@pytest.fixture(scope="module")
def chain(chain_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaServer]:
    """In a pool so small that sequences make room for each other; with the oldest driver that is taken, which has
    none of the functions that came later."""
    report = tmp_path_factory.mktemp("reports") / "chain.json"
    pages = str(POOL * 2 * 2 * 1 * 16 * 64 * 2)  # layers, K and V, heads, tokens, their size, bytes
    flags = (*FLAGS, "--kv-cache-memory-bytes", pages)
    knobs: dict[str, Any] = {"driver_version": 12020, "strict_copies": True, "report_at_waits": True}
    knobs |= {"adversarial": True, "block_order": "shuffle", "warp_order": "shuffle"}
    with CudaServer(chain_model, *flags, report=report, **knobs) as server:
        yield server
        require_peace(server.stop())


@pytest.fixture
def client(chain: CudaServer) -> Iterator[httpx.Client]:
    with chain.client() as made:
        yield made
    require_peace(chain.report())


def require_peace(report: Report) -> None:
    """Nothing was found but two copies of the rotary table, at the start: whatever comes later holds nobody up."""
    assert [found["rule"] for found in report.findings] == ["synchronous-copy"] * 2, report.findings


def prompt_of(seed: int, length: int) -> list[int]:
    """Random digits, none of which is of the chain: its answer starts at its first letter."""
    return np.random.default_rng(seed).integers(48, 58, length).tolist()


def test_streams_that_join_and_leave_and_make_room_for_each_other(chain: CudaServer, client: httpx.Client) -> None:
    """Prompts in chunks behind common prefixes; who is preempted goes on where it was."""
    before = metric(client, "num_preemptions_total")
    bodies = [body_of(prompt_of(n % 3, 5 + 4 * n), max_tokens=[60, 3, 50, 41, 1, 64][n % 6]) for n in range(10)]
    assert ask_all(client, bodies) == [TEXT[: body["max_tokens"]] for body in bodies]
    assert metric(client, "num_preemptions_total") > before
    assert metric(client, "kv_cache_pages", ',state="used"') == 0


def test_a_prefix_is_computed_once(client: httpx.Client) -> None:
    for hits in (0, 32):
        before = metric(client, "prefix_cache_hits_total")
        assert ask(client, prompt_of(7, 40))["text"] == TEXT[:12]
        assert metric(client, "prefix_cache_hits_total") - before == hits


def test_log_probabilities_are_the_same_bits_in_every_batch(client: httpx.Client) -> None:
    bodies = [body_of(prompt_of(n, 9), logprobs=2, max_tokens=20 + n) for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        choices = list(pool.map(lambda body: client.post(COMPLETIONS, json=body).json()["choices"][0], bodies))
    found = {value for choice in choices for value in choice["logprobs"]["token_logprobs"]}
    assert len(found) == 1
    assert found.pop() == pytest.approx(-1.2e-5, abs=2e-6)


def test_a_seed_gives_the_same_alone_among_neighbours_and_after_a_preemption(client: httpx.Client) -> None:
    bias = {str(digit): 12.0 for digit in range(48, 58)}  # so that a draw is none of the chain alone
    drawn = body_of(prompt_of(1, 9), temperature=2.0, logit_bias=bias, seed=5, max_tokens=40, priority=1)
    alone = ask(client, **drawn)["text"]
    assert ask(client, **drawn)["text"] == alone
    assert ask(client, **drawn | {"seed": 6})["text"] != alone
    before = metric(client, "num_preemptions_total")
    others = [body_of(prompt_of(n, 30), max_tokens=40) for n in range(3)]  # before it in order: it makes room
    assert ask_all(client, [drawn, *others])[0] == alone
    assert metric(client, "num_preemptions_total") > before


def test_parameters_of_sampling_reach_the_gpu(client: httpx.Client) -> None:
    """Bans, masks and penalties that leave one way to answer, at once and beside one that has none."""
    bodies = [
        body_of("1 ", logit_bias={"98": -100}, max_tokens=2),
        body_of("2 ", allowed_token_ids=[97, 98, 100, 122], max_tokens=9),
        body_of("3 ", frequency_penalty=2.0, allowed_token_ids=[97, 98], max_tokens=8),
        body_of("4 "),
    ]
    banned, masked, penalized, plain = ask_all(client, bodies)
    assert banned[0] == "a"
    assert banned[1] != "b"
    assert masked[:2] == "ab"
    assert set(masked) <= set("abdz")
    assert (penalized.count("a"), penalized.count("b")) == (4, 4)
    assert plain == TEXT[:12]


def test_a_client_that_goes_away_takes_its_sequences_along(client: httpx.Client) -> None:
    body = body_of("1 ", max_tokens=80, n=3, temperature=1.0)
    with client.stream("POST", COMPLETIONS, json=body | {"stream": True}) as response:
        next(sse(response))
    eventually(lambda: metric(client, "num_requests_running") == 0)
    assert metric(client, "kv_cache_pages", ',state="used"') == 0
    assert ask(client, "1 ")["text"] == TEXT[:12]


def test_a_stop_string_ends_an_answer(client: httpx.Client) -> None:
    """It is found in the front, some steps late: none of what was made meanwhile is sent or counted."""
    bodies = [body_of("1 ", stop=["fgh"], max_tokens=60, stream_options={"include_usage": True}), body_of("2 ")]
    with ThreadPoolExecutor(2) as pool:
        events, others = pool.map(lambda body: stream(client, COMPLETIONS, body), bodies)
    assert text_of(events) == "abcde"
    assert events[-2]["usage"]["completion_tokens"] == len("abcdefgh")
    assert text_of(others) == TEXT[:12]


def test_a_stop_token_ends_an_answer(client: httpx.Client) -> None:
    """It is seen a step late, and that step's token is not counted either."""
    before = metric(client, "generation_tokens_total")
    choice = ask(client, "1 ", stop_token_ids=[102], max_tokens=60)
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("abcde", "stop", 102)
    assert metric(client, "generation_tokens_total") - before == len("abcdef")


def test_the_context_ends_an_answer(client: httpx.Client) -> None:
    choice = ask(client, prompt_of(0, 90), max_tokens=6)
    assert (choice["text"], choice["finish_reason"]) == (TEXT[:6], "length")


def test_nothing_is_allocated_and_every_decode_step_is_a_replay(chain: CudaServer, client: httpx.Client) -> None:
    """By the soft GPU's own count, from the moment on when the server is ready and its graphs are made."""
    before = chain.settle()
    bodies = [body_of("1 ", max_tokens=30 + n, logprobs=n % 3) for n in range(6)]
    assert ask_all(client, bodies) == [TEXT[: body["max_tokens"]] for body in bodies]
    after = chain.report()
    for call in ("cuMemAlloc", "cuMemHostRegister", "cuStreamCreate", "cuEventCreate", "cuModuleLoadDataEx"):
        assert after.calls[call] == before.calls[call], call
    assert after.graphs == before.graphs == after.calls["cuStreamBeginCapture"] == after.calls["cuGraphInstantiate"]
    (replays, others), (replays_after, others_after) = before.decode_launches(), after.decode_launches()
    # Of the first step, before any request, and of a first request that came before its graph: one in each layer.
    assert others_after == others <= 4
    steps = after.calls["cuGraphLaunch"] - before.calls["cuGraphLaunch"]
    assert steps >= 60
    assert replays_after - replays == 2 * steps
