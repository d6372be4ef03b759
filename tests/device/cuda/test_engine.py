"""The engine on the CUDA device: what comes out of prefix reuse, chunks, preemption and mixed batches."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pilotlight.build.snapshot import build_snapshot
from pilotlight.messages import Submit
from pilotlight.model.model import Model
from tests.device.masks import pack_mask
from tests.engine.conftest import CHAIN
from tests.engine.oracle import Collector, drain, engine_of, run_all, submit
from tests.engine.test_real_models import SmallPool, assert_same, prompt_of, solo
from tests.model.demo import GOLDEN
from tests.models import llama_tensors, write_chain

from .bench import Bench, config_of, write_snapshot

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def chain(shared_bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = write_chain(tmp_path_factory.mktemp("models"), CHAIN, loop=True, head_dim=64)
    return shared_bench.load(directory)


@pytest.fixture(scope="module")
def tiny(shared_bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Model:
    config = config_of()
    directory = write_snapshot(tmp_path_factory.mktemp("models"), "bfloat16", config, llama_tensors(config))
    return shared_bench.load(directory)


def test_chain_is_exact_for_sequences_that_join_and_leave(bench: Bench, chain: Model) -> None:
    """Prompts in chunks, a pool in which they make room for each other, and log-probabilities bit for bit."""
    items = [
        submit(id_, prompt_of(id_ % 2, 5 + 8 * id_), temperature=0.0, max_tokens=30 + 4 * id_, logprobs=1)
        for id_ in range(5)
    ]
    engine = engine_of(SmallPool(chain, 6), seqs=3, batched=32)
    collector = run_all(engine, items)
    assert engine.stats.preemptions
    for item in items:
        result = collector.result(item.id)
        assert result["tokens"] == [*CHAIN, *CHAIN][: item.sampling.max_tokens]
        (only,) = {(entry.logprob, len(entry.top)) for entry in result["logprobs"]}
        assert only == (pytest.approx(-1.2e-5, abs=2e-6), 1)


def test_sampling_has_its_parameters(bench: Bench, chain: Model) -> None:
    """A ban on the chain's next token, and a seed that gives the same at every try."""
    greedy = submit(0, prompt_of(0, 4), temperature=0.0, max_tokens=3, logit_bias=((CHAIN[1], -100.0),))
    tokens = run_all(engine_of(chain), [greedy]).tokens(0)
    assert tokens[0] == CHAIN[0]
    assert tokens[1] != CHAIN[1]
    hot = submit(0, prompt_of(0, 4), temperature=30.0, seed=5, max_tokens=6)
    first, again = (run_all(engine_of(chain), [hot]).tokens(0) for _ in range(2))
    assert first == again
    assert first != list(CHAIN[:6])


def drawn_submits(random: Random, count: int) -> list[Submit]:
    """Whatever a request may ask for, in all mixtures."""

    def maybe(share: float, make: Callable[[], Any], other: Any) -> Any:
        return make() if random.random() < share else other

    return [
        submit(
            id_,
            prompt_of(random.randrange(3), random.randint(1, 60)),
            priority=random.randrange(2),
            choice=id_,
            seed=random.randrange(3),
            max_tokens=random.randint(1, 24),
            temperature=random.choice([0.0, 0.0, 0.9, 30.0]),
            top_k=maybe(0.3, lambda: random.randint(1, 40), 0),
            top_p=maybe(0.3, lambda: random.uniform(0.3, 1), 1.0),
            min_p=maybe(0.2, lambda: random.uniform(0, 0.2), 0.0),
            repetition_penalty=maybe(0.3, lambda: random.uniform(0.8, 1.5), 1.0),
            frequency_penalty=maybe(0.3, lambda: random.uniform(-1, 1), 0.0),
            presence_penalty=maybe(0.2, lambda: 0.5, 0.0),
            logit_bias=maybe(0.2, lambda: tuple((random.randrange(288), 9.0) for _ in range(3)), ()),
            logprobs=maybe(0.3, lambda: random.randint(0, 3), None),
            prompt_logprobs=maybe(0.15, lambda: random.randint(0, 2), None),
            stop_token_ids=maybe(0.3, lambda: (CHAIN[random.randrange(2, 12)],), ()),
            min_tokens=maybe(0.2, lambda: random.randint(1, 8), 0),
            allowed_tokens=maybe(0.3, lambda: pack_mask(random.sample(range(288), 60)).tobytes(), b""),
        )
        for id_ in range(count)
    ]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))])
def test_I13_on_chain_every_sequence_gets_bitwise_what_it_gets_alone(bench: Bench, chain: Model, seed: int) -> None:
    """Among others that come, go, are aborted and make room for each other, with a step always under way."""
    random = Random(seed)
    items = drawn_submits(random, 12)
    engine, collector = (
        engine_of(SmallPool(chain, random.randint(7, 14)), seqs=random.randint(2, 5), batched=48),
        Collector(),
    )
    gone = set()
    for item in items:
        engine.submit(item)
        for _ in range(random.randrange(5)):
            collector.add(engine.step())
            engine.check_integrity()
        if random.random() < 0.15:
            gone.add(random.randrange(item.id + 1))
            engine.abort(gone)
    drain(engine, collector)
    for item in items:
        if item.id not in gone:
            assert collector.result(item.id) == solo(chain, item, batched=48), item


def test_I03_I11_prompt_logprobs_and_a_prompt_that_is_cached(bench: Bench, tiny: Model) -> None:
    item = submit(0, prompt_of(2, 48), temperature=0.0, max_tokens=4, prompt_logprobs=1, logprobs=1)
    cold = solo(tiny, item)
    engine = engine_of(tiny)
    run_all(engine, [submit(1, item.prompt, temperature=0.0, max_tokens=1)])
    warm = run_all(engine, [item])
    assert warm.cached(0) in (0, 32)  # with prompt log-probabilities the prompt is computed again
    assert_same(warm.result(0), cold)
    assert len(cold["prompt_logprobs"]) == 48
    again = run_all(engine, [submit(2, item.prompt, temperature=0.0, max_tokens=4)])
    assert again.cached(2) == 32
    assert again.tokens(2) == cold["tokens"]


def test_I07_a_page_that_was_used_anew_holds_nobody_elses_tokens(bench: Bench, tiny: Model) -> None:
    pool = SmallPool(tiny, 8)
    item = submit(0, prompt_of(1, 40), temperature=0.0, max_tokens=4)
    alone = solo(tiny, item)["tokens"]
    engine = engine_of(pool)
    for id_ in range(1, 4):
        assert run_all(engine, [item]).tokens(0) == alone
        run_all(engine, [submit(id_, prompt_of(10 + id_, 60), temperature=0.0, max_tokens=4)])
    assert run_all(engine, [item]).tokens(0) == alone


@pytest.mark.slow
def test_the_demo_model_says_what_it_says_on_the_cpu(bench: Bench, demo_gguf: Path, tmp_path: Path) -> None:
    """SmolLM2-135M in bfloat16, teacher-forced by the reference's answer.

    Measured: 0.057 at a prompt's first token, 0.031 and less behind it, 0.015 in decode steps; transformers in
    bfloat16 is off by 0.057 and 0.018.
    """
    build_snapshot(str(demo_gguf), tmp_path / "snapshot", "bfloat16")
    pair = bench.pair(tmp_path / "snapshot", max_model_len=128)
    case = json.loads(GOLDEN.read_text())[0]
    pair.step([(0, case["prompt_ids"])]).compare(0.08)
    decided = sum(pair.step([(0, [token])]).compare(0.025) for token in case["answer_ids"][:6])
    assert decided >= 4
