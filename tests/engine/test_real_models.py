"""The engine on the numpy device: CHAIN, whose tokens and log-probabilities are exact, and TINY, a random Llama.

CHAIN's answers do not depend on K/V, so they are compared bit by bit. TINY's do, and in fp32 the sums of a batch
may differ from those of a lone sequence in the last bits: tokens are equal, log-probabilities to 1e-4.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilotlight.engine.engine import Engine
from pilotlight.messages import Submit
from pilotlight.model.model import Model
from pilotlight.params import SamplingParams, to_sampling
from tests.engine.conftest import CHAIN, load
from tests.engine.lookahead import LookaheadModel
from tests.engine.oracle import Collector, drain, engine_of, run_all, submit
from tests.models import llama_config, llama_tensors, write_checkpoint

VOCAB = 320


class SmallPool:
    """A model seen through a pool of `num_pages`, so that sequences have to make room for each other."""

    def __init__(self, model: Any, num_pages: int) -> None:
        self.max_model_len = model.max_model_len
        self.num_pages = num_pages
        self.lookahead = model.lookahead
        self.start = model.start
        self.prepare = model.prepare


@pytest.fixture
def chain(chain_model: Model, lookahead: bool) -> Any:
    return LookaheadModel(chain_model) if lookahead else chain_model


@pytest.fixture
def tiny(tiny_model: Model, lookahead: bool) -> Any:
    return LookaheadModel(tiny_model) if lookahead else tiny_model


def prompt_of(seed: int, length: int) -> list[int]:
    """Random tokens that are not of the chain, so that its answer starts at its first token."""
    return np.random.default_rng(seed).integers(123, 256, length).tolist()


def solo(model: Any, item: Submit, **engine: Any) -> dict[str, Any]:
    return run_all(engine_of(model, **engine), [item]).result(item.id)


def assert_same(result: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal tokens and finish; log-probabilities to 1e-4."""
    for name in ("tokens", "finish", "stop_token"):
        assert result[name] == other[name]
    for name in ("logprobs", "prompt_logprobs"):
        assert flat(result[name]) == pytest.approx(flat(other[name]), abs=1e-4)


def flat(entries: Sequence[Any] | None) -> list[float]:
    def numbers() -> Iterator[float]:
        for entry in entries or ():
            if entry is not None:
                yield from (entry.token, entry.logprob)
                yield from (logprob for _, logprob in entry.top)

    return list(numbers())


# --- CHAIN ---------------------------------------------------------------------------------------------------


def test_chain_is_exact(chain: Any) -> None:
    result = solo(chain, submit(0, prompt_of(0, 5), temperature=0.0, max_tokens=30, logprobs=0))
    assert result["tokens"] == [*CHAIN, *CHAIN[:4]]


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), pages=st.integers(5, 20), batched=st.sampled_from([16, 50, 200]))
def test_on_chain_every_sequence_gets_bitwise_what_it_gets_alone(
    chain: Any, data: st.DataObject, pages: int, batched: int
) -> None:
    model = SmallPool(chain, pages)
    engine = engine_of(model, seqs=4, batched=batched)
    items, collector = [], Collector()
    for id_ in range(data.draw(st.integers(2, 7))):
        item = submit(
            id_,
            prompt_of(data.draw(st.integers(0, 2)), data.draw(st.integers(1, 70))),
            priority=data.draw(st.integers(0, 1)),
            choice=id_,
            seed=data.draw(st.integers(0, 3)),
            temperature=data.draw(st.sampled_from([0.0, 0.7, 2.0])),
            top_k=data.draw(st.sampled_from([0, 1, 5])),
            repetition_penalty=data.draw(st.sampled_from([1.0, 1.3])),
            frequency_penalty=data.draw(st.sampled_from([0.0, 1.0])),
            logprobs=data.draw(st.sampled_from([None, 0, 2])),
            prompt_logprobs=data.draw(st.sampled_from([None, None, 1])),
            max_tokens=data.draw(st.integers(1, 50)),
            stop_token_ids=(CHAIN[9],) if data.draw(st.booleans()) else (),
        )
        items.append(item)
        engine.submit(item)
        for _ in range(data.draw(st.integers(0, 4))):
            collector.add(engine.step())
            engine.check_integrity()
    aborted = data.draw(st.sets(st.sampled_from([item.id for item in items]), max_size=1))
    engine.abort(aborted)
    drain(engine, collector)
    for item in items:
        if item.id not in aborted:
            assert collector.result(item.id) == solo(model, item, batched=batched)


def test_A10_nan_ends_who_meets_it_with_an_error_and_no_other(tiny: Any, lookahead: bool, tmp_path: Path) -> None:
    config = llama_config()
    tensors = llama_tensors(config)
    tensors["model.embed_tokens.weight"][200] = np.nan
    model = load(write_checkpoint(tmp_path / "nan", config, tensors))
    calm = submit(1, [150, 151], temperature=0.0, max_tokens=20, logprobs=1)
    alone = solo(tiny, calm)
    engine = engine_of(LookaheadModel(model) if lookahead else model)
    collector = run_all(
        engine,
        [
            submit(0, [200] * 50, temperature=0.0),
            calm,
            submit(2, [150, 200], temperature=1.0, logprobs=2, prompt_logprobs=1),
        ],
    )
    assert_same(collector.result(1), alone)
    assert [collector.result(id_)["finish"] for id_ in (0, 2)] == ["error", "error"]
    # Whoever gets the pages in which the NaN lie must not see them behind its own tokens.
    for id_ in range(3, 8):
        again = submit(id_, [150, 151], temperature=0.0, max_tokens=20, logprobs=1)
        assert_same(run_all(engine, [again]).result(id_), alone)


def test_C15_min_tokens_then_the_forced_eos(chain: Any) -> None:
    eos = 257
    for min_tokens in (0, 1, 4):
        item = submit(
            0,
            prompt_of(0, 4),
            temperature=0.0,
            max_tokens=20,
            min_tokens=min_tokens,
            eos_token_ids=(eos,),
            logit_bias=((eos, 100.0),),
        )
        result = solo(chain, item)
        assert result["tokens"] == [*CHAIN[:min_tokens], eos]
        assert (result["finish"], result["stop_token"]) == ("stop", eos)


def test_only_allowed_tokens_come(chain: Any, tiny: Any) -> None:
    def told(*allowed: int, **arguments: Any) -> dict[str, Any]:
        params = SamplingParams(allowed_token_ids=allowed, max_tokens=9, **arguments)
        sampling = to_sampling(params, room=100, vocab_size=VOCAB, max_logprobs=5, eos_token_ids=[257])
        return msgspec.structs.asdict(sampling)

    item = submit(0, prompt_of(0, 4), **told(*CHAIN[:2], 122, temperature=0.0, logit_bias={257: 100.0}))
    mates = mixed(5, max_tokens=12)
    together = run_all(engine_of(chain, seqs=6), [item, *(Submit(9 + m.id, m.prompt, m.sampling) for m in mates)])
    # The third of the chain may not come, and of equals the first does; the EOS that is asked for may not either.
    assert together.tokens(0) == [*CHAIN[:2] * 4, CHAIN[0]]
    assert together.result(0) == solo(chain, item)
    drawn = submit(1, prompt_of(0, 40), **told(5, 31, 32, 319, temperature=2.0, repetition_penalty=1.1))
    assert set(solo(tiny, drawn)["tokens"]) <= {5, 31, 32, 319}


def test_C15_min_tokens_holds_back_stop_tokens_too(chain: Any) -> None:
    item = submit(0, prompt_of(0, 4), temperature=0.0, max_tokens=9, min_tokens=3, stop_token_ids=CHAIN[1:4])
    result = solo(chain, item)
    assert len(result["tokens"]) == 9 or result["stop_token"] in CHAIN[1:4]
    assert not set(result["tokens"][:3]) & set(CHAIN[1:4])


# --- TINY ----------------------------------------------------------------------------------------------------


def mixed(count: int, **sampling: Any) -> list[Submit]:
    """Prompts of different lengths and different parameters."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_k": 5},
        {"temperature": 1.0, "frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"temperature": 0.0, "repetition_penalty": 1.4},
        {"temperature": 1.2, "top_p": 0.8, "min_p": 0.05},
        {"temperature": 0.0, "logit_bias": ((5, 3.0), (9, -100.0))},
    ]
    return [
        submit(id_, prompt_of(id_, 1 + 17 * id_), choice=id_, logprobs=1, **(kinds[id_ % 6] | sampling))
        for id_ in range(count)
    ]


def test_I13_an_answer_does_not_depend_on_who_shares_the_batch(tiny: Any) -> None:
    items = mixed(8, max_tokens=24)
    collector = run_all(engine_of(tiny, seqs=8), items)
    for item in items:
        assert_same(collector.result(item.id), solo(tiny, item))


def test_chunks_of_a_prompt_are_the_whole_prompt(tiny: Any) -> None:
    item = submit(0, prompt_of(1, 150), temperature=0.0, max_tokens=10, logprobs=2, prompt_logprobs=2)
    whole = solo(tiny, item, batched=512)
    assert_same(solo(tiny, item, batched=16), whole)
    assert_same(solo(tiny, item, batched=37), whole)


def test_I03_prompt_logprobs_with_a_warm_cache(tiny: Any) -> None:
    prompt = prompt_of(2, 64)
    cold = solo(tiny, submit(0, prompt, max_tokens=1, temperature=0.0, prompt_logprobs=1, logprobs=1))
    engine = engine_of(tiny)
    run_all(engine, [submit(1, [*prompt[:48], 9], max_tokens=1), submit(2, prompt, max_tokens=1)])
    warm = run_all(engine, [submit(3, prompt, max_tokens=1, temperature=0.0, prompt_logprobs=1, logprobs=1)])
    assert_same(warm.result(3), cold)
    assert len(cold["prompt_logprobs"]) == 64
    assert cold["prompt_logprobs"][0] is None


def test_I05_preemption_changes_nothing(tiny: Any) -> None:
    model = SmallPool(tiny, 8)
    items = mixed(3, max_tokens=60, min_tokens=30, seed=1, eos_token_ids=(7, 8, 9))
    engine = engine_of(model, batched=32)
    collector = run_all(engine, items)
    assert engine.stats.preemptions
    for item in items:
        assert len(collector.tokens(item.id)) >= 30
        assert_same(collector.result(item.id), solo(tiny, item))


def test_I09_I11_reuse_changes_nothing(tiny: Any) -> None:
    prompt = prompt_of(4, 32)
    longer = prompt_of(5, 53)
    prompts = [prompt] * 3 + [longer] * 3
    items = [submit(id_, ids, temperature=0.0, max_tokens=40, logprobs=1) for id_, ids in enumerate(prompts)]
    alone = [solo(tiny, item) for item in items]
    engine = engine_of(tiny, seqs=6)  # from here on the model's pages are this engine's
    together = run_all(engine, items)
    for item in items:
        assert_same(together.result(item.id), alone[item.id])
        assert_same(run_all(engine, [item]).result(item.id), alone[item.id])
    assert [together.cached(id_) for id_ in range(6)] == [0, 16, 16, 0, 48, 48]


def test_C11_a_seeded_request_is_the_same_with_any_neighbour(tiny: Any) -> None:
    seeded = submit(0, prompt_of(6, 10), temperature=0.8, seed=42, max_tokens=20)
    alone = solo(tiny, seeded)["tokens"]
    for neighbour_seed in range(5):
        neighbour = submit(1, prompt_of(7, 30), temperature=0.8, seed=neighbour_seed, max_tokens=20)
        assert run_all(engine_of(tiny), [neighbour, seeded]).tokens(0) == alone


def test_C13_choices_differ_and_repeat(tiny: Any) -> None:
    choices = [submit(id_, prompt_of(8, 10), choice=id_, seed=7, max_tokens=12) for id_ in range(4)]
    prompts = [Submit(id_, prompt_of(8, 10), choices[0].sampling, prompt_index=id_) for id_ in range(4)]
    for items in (choices, prompts):
        first, again = (run_all(engine_of(tiny), items) for _ in range(2))
        assert len({tuple(first.tokens(id_)) for id_ in range(4)}) == 4
        assert [first.tokens(id_) for id_ in range(4)] == [again.tokens(id_) for id_ in range(4)]


def test_C17_penalties_count_what_they_should(tiny: Any) -> None:
    def first_logprobs(**sampling: float) -> list[float]:
        item = submit(0, [5] * 20, temperature=0.0, max_tokens=1, logprobs=5, **sampling)
        return flat(solo(tiny, item)["logprobs"])

    assert first_logprobs(frequency_penalty=2.0, presence_penalty=2.0) == first_logprobs()


@pytest.fixture
def engine(tiny: Any) -> Engine:
    return engine_of(tiny)


def test_neighbours_of_extreme_parameters_stay_well(engine: Engine, tiny: Any) -> None:
    calm = submit(0, prompt_of(9, 9), temperature=0.0, max_tokens=10, logprobs=1)
    extremes = [
        submit(1, [1, 2], repetition_penalty=1e-9, max_tokens=10),
        submit(2, [1, 2], repetition_penalty=1e9, max_tokens=10),
        submit(3, [1, 2], temperature=1e-5, max_tokens=10),
        submit(4, [1, 2], top_p=1e-9, min_p=1.0, max_tokens=10),
        submit(5, [1, 2], logit_bias=tuple((token, -100.0) for token in range(VOCAB)), max_tokens=10),
    ]
    collector = run_all(engine, [calm, *extremes])
    assert_same(collector.result(0), solo(tiny, calm))
    assert all(len(collector.tokens(item.id)) == 10 for item in extremes)


# --- SmolLM2 -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_I13_the_demo_model_answers_alike_alone_and_among_seven_mates(demo_snapshot: Path) -> None:
    model = load(demo_snapshot, max_model_len=128, max_num_seqs=8)
    mates = [
        {"temperature": 0.0},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 0.9, "top_k": 20},
        {"temperature": 0.0, "frequency_penalty": 1.0},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 0.0, "logit_bias": ((28, -100.0),)},
        {"temperature": 0.7, "min_p": 0.1},
        {"temperature": 0.0},
    ]
    random = np.random.default_rng(0)
    items = [
        submit(id_, random.integers(3, 49000, 3 + 9 * id_).tolist(), choice=id_, max_tokens=12, **sampling)
        for id_, sampling in enumerate(mates)
    ]
    together = run_all(engine_of(model, seqs=8, batched=128), items)
    for item in items:
        assert together.tokens(item.id) == solo(model, item, batched=128)["tokens"]
