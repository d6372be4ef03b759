"""The engine's promises to one sequence, whatever runs beside it; with the oracle as its model."""

import gc
from typing import Any

import pytest

from pilotlight.engine.engine import Engine
from pilotlight.engine.sequence import Sequence
from pilotlight.messages import Output
from tests.engine.oracle import Collector, MakeOracle, Oracle, drain, engine_of, expected, next_token, run_all, submit


def test_a_sequence_gets_its_tokens_logprobs_and_finish(oracle: MakeOracle) -> None:
    item = submit(3, [1, 2, 3], max_tokens=5, logprobs=2, seed=9)
    collector = run_all(engine_of(oracle()), [item])
    assert collector.result(3) == expected(item, 200)
    assert [len(output.tokens) for output in collector.outputs[3]] == [1] * 5


def test_I01_a_prompt_beyond_the_pool_is_refused_and_the_next_is_served(oracle: MakeOracle) -> None:
    engine = engine_of(oracle(num_pages=8, max_model_len=256))
    collector = run_all(engine, [submit(0, [1] * 150), submit(1, [2] * 5)])
    (refusal,) = collector.outputs[0]
    assert refusal.finish == "error"
    assert refusal.error == (
        "the prompt has 150 tokens, which leaves no room for an answer: the context is 128 tokens, "
        "prompt and answer together"
    )
    assert collector.result(1) == expected(submit(1, [2] * 5), 128)


def test_I01_an_answer_that_reaches_the_end_of_the_pool_ends_by_length(oracle: MakeOracle) -> None:
    engine = engine_of(oracle(num_pages=8, max_model_len=256))
    items = [submit(0, [1] * 100, max_tokens=100), submit(1, [2] * 5)]
    collector = run_all(engine, items)
    assert collector.result(0) == expected(items[0], 128)
    assert (len(collector.tokens(0)), collector.result(0)["finish"]) == (28, "length")
    assert collector.result(1)["finish"] == "length"


def test_B22_the_context_ends_an_answer_by_length(oracle: MakeOracle) -> None:
    collector = run_all(engine_of(oracle(max_model_len=30)), [submit(0, [1] * 10, max_tokens=10_000)])
    assert (len(collector.tokens(0)), collector.result(0)["finish"]) == (20, "length")


def test_a_refusal_can_be_aborted_too(oracle: MakeOracle) -> None:
    engine = engine_of(oracle(num_pages=8))
    engine.submit(submit(0, [1] * 150))
    engine.abort([0])
    assert not engine.has_work
    assert engine.step() == []


def test_I03_prompt_logprobs_are_the_same_with_a_warm_cache(oracle: MakeOracle) -> None:
    engine = engine_of(oracle(num_pages=40), batched=32)
    plain = submit(0, [*range(48), 9, 9], max_tokens=2)
    scored = [
        submit(1, [*range(64)], max_tokens=3, prompt_logprobs=1),
        submit(2, [*range(64)], max_tokens=3, prompt_logprobs=3, logprobs=0),
        submit(3, [*range(48), 5, 6, 7], max_tokens=3, prompt_logprobs=0),
    ]
    run_all(engine, [plain])
    for item in scored:
        collector = run_all(engine, [item])
        assert collector.result(item.id) == expected(item, 200)
        assert collector.cached(item.id) == 0
    together = run_all(engine_of(oracle(num_pages=40), batched=50), [plain, *scored])
    assert [together.result(item.id) for item in scored] == [expected(item, 200) for item in scored]


def test_I05_preemption_changes_nothing_for_the_preempted(oracle: MakeOracle) -> None:
    model = oracle(num_pages=4, max_model_len=64)
    engine = engine_of(model)
    items = [
        submit(id_, [id_] * 14, max_tokens=45, seed=1, logprobs=2, prompt_logprobs=1, frequency_penalty=1.0)
        for id_ in range(3)
    ]
    collector = run_all(engine, items)
    assert engine.stats.preemptions
    for item in items:
        assert collector.result(item.id) == expected(item, 64)
        assert [len(output.tokens) for output in collector.outputs[item.id]] == [1] * 45


def test_I05_recomputed_tokens_are_not_reported_as_cached(oracle: MakeOracle) -> None:
    engine = engine_of(oracle(num_pages=20), batched=16)
    engine.submit(submit(0, [*range(40)], max_tokens=2))
    engine.step()
    engine.step()
    engine.scheduler._preempt(engine.scheduler.running[0])
    collector = drain(engine)
    assert collector.cached(0) == 0
    assert engine.stats.prefix_hit_tokens == 0


def test_I07_a_recycled_page_is_not_taken_for_its_old_content(oracle: MakeOracle) -> None:
    model = oracle(num_pages=6)
    engine = engine_of(model)
    first = submit(0, [7] * 40, max_tokens=4)
    result = run_all(engine, [first]).result(0)
    for id_ in range(1, 6):
        run_all(engine, [submit(id_, [id_] * 40, max_tokens=4)])
    again = submit(9, [7] * 40, max_tokens=4)
    collector = run_all(engine, [again])
    assert collector.result(9) == result
    assert collector.cached(9) == 0


@pytest.mark.parametrize("max_tokens", [1, 40])
def test_I11_a_prompt_that_is_cached_whole_still_computes_its_last_token(oracle: MakeOracle, max_tokens: int) -> None:
    engine = engine_of(oracle(num_pages=40))
    items = [submit(id_, [*range(32)], max_tokens=max_tokens, logprobs=1) for id_ in range(3)]
    for index, item in enumerate(items):
        collector = run_all(engine, [item])
        assert collector.result(item.id) == expected(item, 200)
        assert collector.cached(item.id) == (16 if index else 0)


def test_a_cached_answer_is_reused_by_the_next_turn(oracle: MakeOracle) -> None:
    engine = engine_of(oracle(num_pages=40))
    turn = submit(0, [*range(20)], max_tokens=30)
    answer = run_all(engine, [turn]).tokens(0)
    following = submit(1, [*range(20), *answer, 4, 4], max_tokens=3)
    collector = run_all(engine, [following])
    assert collector.cached(1) == 48  # 20 + 29 tokens were computed
    assert collector.result(1) == expected(following, 200)


def test_I14_cached_pages_give_way_and_are_told_apart_from_used_ones(oracle: MakeOracle) -> None:
    engine = engine_of(oracle(num_pages=20, max_model_len=320))
    for id_ in range(500):
        run_all(engine, [submit(id_, [id_, *range(40)], max_tokens=1)])
    assert (engine.stats.pages_used, engine.stats.pages_total) == (0, 20)
    assert engine.stats.pages_cached >= 18
    large = submit(1000, [1] * 280, max_tokens=5)
    engine.submit(large)
    engine.step()
    assert engine.stats.pages_used == 18
    assert drain(engine).result(1000)["finish"] == "length"


def test_A10_logits_with_nan_end_one_sequence_and_no_other(oracle: MakeOracle) -> None:
    model = oracle(num_pages=20, nan={(1, 2, 3)})
    engine = engine_of(model)
    items = [submit(0, [1, 2, 3]), submit(1, [4, 5, 6], max_tokens=20)]
    collector = run_all(engine, items)
    (failed,) = collector.outputs[0]
    assert (failed.finish, failed.tokens) == ("error", [])
    assert failed.error
    assert "NaN" in failed.error
    assert collector.result(1) == expected(items[1], 200)


def test_A10_what_a_sequence_with_nan_computed_is_not_reused(oracle: MakeOracle) -> None:
    model = oracle(num_pages=20, nan={(*range(32), 1)})
    engine = engine_of(model)
    run_all(engine, [submit(0, [*range(32), 1])])
    collector = run_all(engine, [submit(1, [*range(32), 2])])
    assert collector.cached(1) == 0
    assert collector.result(1) == expected(submit(1, [*range(32), 2]), 200)


def test_stop_and_eos_tokens(oracle: MakeOracle) -> None:
    tokens = expected(submit(0, [1], max_tokens=20), 200)["tokens"]
    third = tokens[2]
    assert third not in tokens[:2]
    cases = {
        0: {"stop_token_ids": (third,)},
        1: {"eos_token_ids": (third,)},
        2: {"eos_token_ids": (third,), "ignore_eos": True},
        3: {"stop_token_ids": (third,), "ignore_eos": True},
        4: {"stop_token_ids": (third,), "max_tokens": 3},
    }
    items = [submit(id_, [1], **({"max_tokens": 6} | case)) for id_, case in cases.items()]
    collector = run_all(engine_of(oracle()), items)
    ends = {id_: collector.outputs[id_][-1] for id_ in cases}
    assert [len(collector.tokens(id_)) for id_ in cases] == [3, 3, 6, 3, 3]
    assert [ends[id_].finish for id_ in cases] == ["stop", "stop", "length", "stop", "stop"]
    assert [ends[id_].stop_token for id_ in cases] == [third, third, None, third, third]


def test_C13_choices_and_prompts_of_a_request_have_random_streams_of_their_own(oracle: MakeOracle) -> None:
    items = [submit(id_, [1, 2], choice=id_, seed=7) for id_ in range(4)]
    first, again = (run_all(engine_of(oracle()), items) for _ in range(2))
    assert len({tuple(first.tokens(id_)) for id_ in range(4)}) == 4
    assert first.outputs == again.outputs


def test_an_aborted_sequence_is_silent_and_its_pages_are_free_at_once(oracle: MakeOracle) -> None:
    engine = engine_of(oracle(num_pages=20), seqs=2, batched=16)
    items = [submit(0, [1] * 5, max_tokens=50), submit(1, [2] * 60), submit(2, [3] * 5)]
    for item in items:
        engine.submit(item)
    collector = Collector()
    for _ in range(3):
        collector.add(engine.step())
    assert engine.stats.running == 2  # one decodes, one is in its prompt, one waits
    before = len(collector.tokens(0))
    engine.abort([0, 1, 2, 77])
    assert engine.has_work == engine.model.lookahead  # a step that is under way comes in, for nothing
    assert (engine.stats.running, engine.stats.waiting, engine.stats.pages_used) == (0, 0, 0)
    engine.check_integrity()
    drain(engine, collector)
    assert len(collector.tokens(0)) == before


def test_a_stop_token_costs_a_step_at_most_and_nobody_hears_of_it() -> None:
    stop = expected(submit(0, [1], max_tokens=20), 200)["tokens"][2]
    items = [submit(0, [1], max_tokens=20, stop_token_ids=(stop,)), submit(1, [2] * 3, max_tokens=6, logprobs=1)]
    model = Oracle(lookahead=True)
    collector = run_all(engine_of(model), items)
    assert [collector.result(item.id) for item in items] == [expected(item, 200) for item in items]
    assert [len(batch.rows) for batch in model.batches] == [2, 2, 2, 2, 1, 1]  # the fourth has one for nothing


def test_a_limit_costs_nothing() -> None:
    model = Oracle(lookahead=True)
    run_all(engine_of(model), [submit(0, [1], max_tokens=3), submit(1, [2] * 3, max_tokens=6)])
    assert [len(batch.rows) for batch in model.batches] == [2, 2, 2, 1, 1, 1]


def test_tokens_come_while_the_next_step_is_under_way() -> None:
    model = Oracle(lookahead=True)
    engine = engine_of(model)
    engine.submit(submit(0, [1], max_tokens=3))
    seen = []
    while engine.has_work:
        outputs = engine.step()
        seen.append((len(outputs), len(model.under_way)))
    assert seen == [(0, 1), (1, 1), (1, 1), (1, 0)]
    assert [batch.tokens.tolist() for batch in model.batches] == [[1], [~0], [~0]]


@pytest.mark.parametrize("end", ["abort", "preempt"])
def test_what_was_computed_for_nothing_is_not_taken_for_anothers(end: str) -> None:
    """Two prompts in one step, with logits of every token; the first of them is stopped while the step runs."""
    model = Oracle(num_pages=20, lookahead=True)
    engine = engine_of(model, batched=200)
    items = [submit(id_, [id_ + 1] * 20, max_tokens=4, prompt_logprobs=1, logprobs=1) for id_ in range(3)]
    for item in items:
        engine.submit(item)
    assert engine.step() == []
    if end == "abort":
        engine.abort([0])
    else:
        engine.scheduler._preempt(engine.scheduler.running[0])
    collector = drain(engine)
    for item in items[end == "abort" :]:
        assert collector.result(item.id) == expected(item, 200)
    assert (0 in collector.outputs) == (end == "preempt")


def test_an_engine_that_is_left_with_a_stale_step_drains() -> None:
    model = Oracle(lookahead=True)
    engine = engine_of(model)
    engine.submit(submit(0, [1]))
    engine.step()
    engine.abort([0])
    assert engine.has_work
    assert (engine.step(), engine.has_work, model.under_way) == ([], False, [])
    assert len(model.batches) == 1
    assert engine.step() == []


def test_admissions_are_never_the_same_for_two_engines_on_one_device() -> None:
    """A device keeps what it counts of a sequence by number and admission, and outlives an engine."""
    model = Oracle(lookahead=True)
    for id_ in range(3):
        run_all(engine_of(model), [submit(id_, [id_ + 1])])
    by_sequence = [{int(admission) for admission in batch.admissions} for batch in model.batches]
    assert len(set.union(*by_sequence)) == 3


def test_G03_nothing_of_a_request_is_left_when_idle(oracle: MakeOracle) -> None:
    def alive() -> int:
        gc.collect()
        return sum(type(thing) in (Sequence, Output) for thing in gc.get_objects())

    before = alive()  # what other tests' modules keep
    engine = engine_of(oracle(num_pages=20))
    for id_ in range(200):
        engine.submit(submit(id_, [id_ % 7] * 20, logprobs=1, prompt_logprobs=1))
        if id_ % 2:
            engine.abort([id_])
    drain(engine)
    engine.model = oracle()  # the oracle keeps its batches
    assert alive() == before


def test_stats_count(oracle: MakeOracle) -> None:
    engine = engine_of(oracle(num_pages=40))
    items = [submit(0, [1] * 40, max_tokens=3), submit(1, [1] * 40, max_tokens=2), submit(2, [5], max_tokens=1)]
    run_all(engine, items)
    stats = engine.stats
    assert (stats.prompt_tokens, stats.generated_tokens) == (81, 6)
    assert (stats.prefix_queried_tokens, stats.prefix_hit_tokens) == (81, 32)
    assert (stats.running, stats.waiting, stats.pages_used, stats.pages_total) == (0, 0, 0, 40)
    assert stats.steps == len(engine.model.batches)
    assert stats.step_seconds > 0


def test_an_exception_in_the_model_is_not_swallowed() -> None:
    class Broken(Oracle):
        def start(self, batch: object) -> Any:
            raise FloatingPointError("the device failed")

    engine = Engine(Broken(), max_num_seqs=1, max_num_batched_tokens=16)
    engine.submit(submit(0, [1]))
    with pytest.raises(FloatingPointError):
        engine.step()


def test_the_oracle_depends_on_what_the_engine_must_get_right() -> None:
    base = next_token([1, 2], [3], 5)
    others = [next_token([1, 2, 3], [], 5), next_token([1, 2], [3], 6), next_token([1, 2], [4], 5)]
    assert base not in others
