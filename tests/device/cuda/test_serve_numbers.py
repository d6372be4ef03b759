"""A server on the GPU beside one on the CPU: the same requests, and answers that agree as far as they are decided.

Logits lie close, those of random weights above all. So a token is compared where the CPU's two best are further apart
than what both of them may be off, and an answer up to the first token in which the two need not agree and do not.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from pilotlight.build.snapshot import build_snapshot
from tests.front.servers import ServerProcess, metric
from tests.model.demo import GOLDEN
from tests.models import llama_tensors
from tests.tokenizers import byte_tokenizer

from .bench import config_of, write_snapshot
from .servers import CudaServer, ask, body_of

POOL = 12  # pages of the GPU's servers, and four sequences that take up to eight


@dataclass(frozen=True)
class Case:
    config: dict[str, Any]
    flags: tuple[str, ...]
    page_bytes: int
    error: float  # of a log-probability
    embedded: float = 1.0  # a token's own share is taken times this: random weights make much of what fp8 loses


# Errors were measured: 0.028 and 0.098.
CASES = {
    "heads of 64": Case({}, (), page_bytes=16384, error=0.06),
    "heads of 128, fp8 pages": Case(
        {"head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 1},
        ("--kv-cache-dtype", "fp8"),
        page_bytes=8192,
        error=0.15,
        embedded=8.0,
    ),
}


@dataclass(frozen=True)
class Pair:
    """Clients of two servers, and what a log-probability may be off."""

    cuda: httpx.Client
    cpu: httpx.Client
    error: float

    def ask(self, bodies: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The log-probabilities of each answer, the GPU's and the CPU's. All of the bodies are asked for at once."""

        def answers(client: httpx.Client) -> list[dict[str, Any]]:
            return list(pool.map(lambda body: ask(client, **body)["logprobs"], bodies))

        with ThreadPoolExecutor(len(bodies)) as pool:
            return list(zip(answers(self.cuda), answers(self.cpu), strict=True))


@contextmanager
def servers(snapshot: Path, error: float, report: Path, *flags: str, cuda: Sequence[str] = ()) -> Iterator[Pair]:
    """cuda: flags of the GPU's server alone."""
    on_cpu = ServerProcess(snapshot, "--device", "cpu", *flags)
    on_cuda = CudaServer(snapshot, *flags, *cuda, report=report)
    with on_cpu, on_cuda, on_cpu.client() as cpu_client, on_cuda.client() as cuda_client:
        yield Pair(cuda_client, cpu_client, error)
        assert on_cuda.stop().findings == []


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    case, place = CASES[request.param], tmp_path_factory.mktemp("pair")
    config = config_of(vocab_size=byte_tokenizer().size, **case.config)
    tensors = llama_tensors(config)
    tensors["model.embed_tokens.weight"] *= case.embedded
    snapshot = write_snapshot(place, "bfloat16", config, tensors)
    flags = ("--max-model-len", "128", "--max-num-batched-tokens", "48")
    cuda = (*case.flags, "--kv-cache-memory-bytes", str(POOL * case.page_bytes))
    with servers(snapshot, case.error, place / "report.json", *flags, cuda=cuda) as made:
        yield made


def tokens_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, count).tolist()


def agree(cuda: dict[str, Any], cpu: dict[str, Any], error: float) -> int:
    """Compares two answers up to where they part; how many of the tokens were decided."""
    decided = 0
    for at, best in enumerate(cpu["top_logprobs"]):
        found = cuda["top_logprobs"][at]
        if best is None:  # a prompt's first token
            assert found is None
            continue
        first, second = sorted(best.values(), reverse=True)[:2]
        is_decided = first - second > 2 * error
        if cpu["tokens"][at] != cuda["tokens"][at]:
            assert not is_decided
            break
        assert cuda["token_logprobs"][at] == pytest.approx(cpu["token_logprobs"][at], abs=error)
        if is_decided:
            assert max(found, key=found.get) == max(best, key=best.get)
        decided += is_decided
    return decided


def test_greedy_answers_are_the_cpus_where_they_are_decided(pair: Pair) -> None:
    """Ragged prompts in chunks, and decode steps of up to four sequences."""
    bodies = [body_of(tokens_of(seed, 3 + 9 * seed), max_tokens=16, logprobs=2) for seed in range(8)]
    assert sum(agree(*answers, pair.error) for answers in pair.ask(bodies)) > 20


def test_a_prompt_that_is_echoed_has_the_cpus_log_probabilities(pair: Pair) -> None:
    """Teacher-forced: every position's alternatives, of prompts that are cut into chunks and share steps."""
    bodies = [body_of(tokens_of(9 + n, 40 * n + 5), max_tokens=1, echo=True, logprobs=3) for n in range(3)]
    assert sum(agree(*answers, pair.error) for answers in pair.ask(bodies)) > 50


def test_answers_of_sequences_that_share_a_prefix_and_make_room_for_each_other(pair: Pair) -> None:
    before = [metric(pair.cuda, name) for name in ("num_preemptions_total", "prefix_cache_hits_total")]
    prompts = [tokens_of(30, 35) + tokens_of(31 + n, 5) for n in range(5)]
    bodies = [body_of(prompt, max_tokens=40, logprobs=2) for prompt in prompts]
    assert sum(agree(*answers, pair.error) for answers in pair.ask(bodies)) > 10
    after = [metric(pair.cuda, name) for name in ("num_preemptions_total", "prefix_cache_hits_total")]
    assert after[0] > before[0]
    assert after[1] >= before[1] + 2 * 32


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_model_says_what_it_says_on_the_cpu(demo_gguf: Path, tmp_path: Path) -> None:
    """SmolLM2-135M: four streams that join and leave one by one, as prompts are cut into chunks. An error of 0.08
    was measured."""
    build_snapshot(str(demo_gguf), tmp_path / "snapshot", "bfloat16")
    prompts = [case["prompt_ids"] for case in json.loads(GOLDEN.read_text())[:4]]
    bodies = [body_of(prompt, max_tokens=16, ignore_eos=True, logprobs=2) for prompt in prompts]
    flags = ("--max-model-len", "128", "--max-num-batched-tokens", "16")
    with servers(tmp_path / "snapshot", 0.15, tmp_path / "report.json", *flags) as pair:
        pair.cuda.timeout = 600
        assert sum(agree(*answers, pair.error) for answers in pair.ask(bodies)) > 40
