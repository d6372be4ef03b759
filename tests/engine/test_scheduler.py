"""Who runs when: chunks, order, fairness, waiting for a twin's pages, preemption."""

import numpy as np
import pytest

from pilotlight.engine.engine import Engine
from pilotlight.engine.pages import IntegrityError
from tests.engine.oracle import Collector, MakeOracle, Oracle, drain, engine_of, expected, run_all, submit


def sizes(model: Oracle) -> list[list[int]]:
    """New tokens of each sequence, for each step."""
    return [np.diff(batch.starts).tolist() for batch in model.batches]


def test_prompts_are_packed_into_chunks_and_decoded_together(oracle: MakeOracle) -> None:
    model = oracle(num_pages=40)
    run_all(engine_of(model, batched=32), [submit(i, [i] * n, max_tokens=2) for i, n in enumerate([10, 50, 3])])
    assert sizes(model) == [[10, 22], [1], [28, 3], [1, 1]]


def test_a_long_prompt_holds_up_running_streams_for_one_chunk_at_a_time(oracle: MakeOracle) -> None:
    model = oracle(num_pages=40, max_model_len=500)
    engine = engine_of(model, batched=16)
    engine.submit(submit(0, [1], max_tokens=40))
    engine.step()
    engine.submit(submit(1, range(200), max_tokens=1))
    collector = drain(engine)
    steps = sizes(model)
    assert [len(step) == 1 and step[0] > 1 for step in steps[2:27]] == [True, False] * 12 + [True]
    assert collector.result(1) == expected(submit(1, range(200), max_tokens=1), 500)


def test_a_lone_long_prompt_is_computed_without_pauses(oracle: MakeOracle) -> None:
    model = oracle(num_pages=40, max_model_len=500)
    run_all(engine_of(model, batched=64), [submit(0, range(200), max_tokens=2)])
    assert sizes(model) == [[64], [64], [64], [8], [1]]


def test_first_come_first_served_within_a_priority(oracle: MakeOracle) -> None:
    engine = engine_of(oracle(num_pages=40), seqs=1)
    collector = run_all(
        engine,
        [submit(id_, [id_], priority=priority, max_tokens=2) for id_, priority in enumerate([0, 0, 5, -1, 0])],
    )
    assert list(collector.outputs) == [3, 0, 1, 4, 2]


def test_a_prompt_of_better_priority_gets_the_chunk_first(oracle: MakeOracle) -> None:
    model = oracle(num_pages=40, max_model_len=500)
    engine = engine_of(model, batched=32)
    engine.submit(submit(0, range(200), max_tokens=1))
    engine.step()
    engine.submit(submit(1, range(7, 47), priority=-1, max_tokens=1))
    collector = drain(engine)
    assert list(collector.outputs) == [1, 0]
    assert sizes(model)[1:3] == [[32], [8, 24]]


def test_no_more_sequences_run_than_allowed(oracle: MakeOracle) -> None:
    engine = engine_of(oracle(num_pages=40), seqs=3)
    for id_ in range(10):
        engine.submit(submit(id_, [id_] * 5))
    collector = Collector()
    while engine.has_work:
        collector.add(engine.step())
        assert engine.stats.running <= 3
    assert all(len(collector.tokens(id_)) == 8 for id_ in range(10))


def test_I09_a_twin_waits_for_the_pages_instead_of_computing_them_again(oracle: MakeOracle) -> None:
    model = oracle(num_pages=40)
    prompt = [*range(16 * 3), 1, 2, 3, 4, 5]
    submits = [submit(id_, prompt, choice=id_, max_tokens=4) for id_ in range(3)]
    collector = run_all(engine_of(model, batched=16), submits)
    for item in submits:
        assert collector.result(item.id) == expected(item, 200)
    assert [collector.cached(id_) for id_ in range(3)] == [0, 48, 48]
    assert model.computed == 53 + 2 * 5 + 3 * 3


def test_a_twin_waits_for_the_common_part_only(oracle: MakeOracle) -> None:
    model = oracle(num_pages=40)
    common = list(range(32))
    submits = [submit(0, common + [7] * 40, max_tokens=1), submit(1, common + [8] * 40, max_tokens=1)]
    collector = run_all(engine_of(model, batched=16), submits)
    assert collector.cached(1) == 32
    assert sizes(model) == [[16], [16], [16], [16], [8, 8], [16], [16]]
    assert [collector.result(item.id) for item in submits] == [expected(item, 200) for item in submits]


def test_who_waits_for_a_twin_lets_others_pass_and_survives_its_abort(oracle: MakeOracle) -> None:
    engine = engine_of(oracle(num_pages=40), batched=16)
    submits = [submit(0, [1] * 60), submit(1, [1] * 60, seed=5), submit(2, [2] * 4)]
    for item in submits:
        engine.submit(item)
    collector = Collector()
    for _ in range(3):
        collector.add(engine.step())
    engine.abort([0])
    drain(engine, collector)
    assert 0 not in collector.outputs
    assert [collector.result(item.id) for item in submits[1:]] == [expected(item, 200) for item in submits[1:]]
    # The third chunk was under way when the abort came: nobody knows of its page.
    assert collector.cached(1) == (32 if engine.model.lookahead else 48)


def test_a_better_priority_does_not_wait_for_a_worse_twin(oracle: MakeOracle) -> None:
    model = oracle(num_pages=40)
    engine = engine_of(model, batched=16)
    engine.submit(submit(0, [1] * 60, priority=3, max_tokens=1))
    engine.step()
    engine.submit(submit(1, [1] * 60, max_tokens=1))
    collector = drain(engine)
    assert list(collector.outputs) == [1, 0]
    assert collector.cached(1) == (0 if model.lookahead else 16)  # what was known when it came


def test_without_prefix_caching_nothing_is_reused_and_nobody_waits(oracle: MakeOracle) -> None:
    model = oracle(num_pages=40)
    submits = [submit(id_, [1] * 32, max_tokens=1) for id_ in range(2)]
    collector = run_all(engine_of(model, batched=64, caching=False), submits)
    assert sizes(model) == [[32, 32]]
    assert collector.cached(1) == 0


def test_short_requests_one_after_another_touch_few_pages(oracle: MakeOracle) -> None:
    model = oracle(num_pages=1000)
    engine = engine_of(model, caching=False)
    for id_ in range(50):
        run_all(engine, [submit(id_, [id_] * 20)])
    assert max(int(batch.slots.max()) for batch in model.batches) < 2 * 16


def test_out_of_pages_the_last_in_order_is_preempted(oracle: MakeOracle) -> None:
    model = oracle(num_pages=4, max_model_len=64)
    engine = engine_of(model, seqs=3)
    submits = [submit(id_, [id_] * 12, max_tokens=40, priority=[0, 1, 0][id_]) for id_ in range(2)]
    for item in submits:
        engine.submit(item)
    collector = Collector()
    while not engine.stats.preemptions:
        collector.add(engine.step())
        engine.check_integrity()
    assert [sequence.id for sequence in engine.scheduler.running] == [0]
    assert [sequence.id for sequence in engine.scheduler.waiting] == [1]
    drain(engine, collector)
    assert [collector.result(item.id) for item in submits] == [expected(item, 64) for item in submits]


def test_nobody_is_preempted_for_pages_that_come_free_with_the_step_under_way() -> None:
    """Two sequences fill the pool; the last in order needs a page just when the other's last token is coming."""
    model = Oracle(num_pages=3, max_model_len=48, lookahead=True)
    engine = engine_of(model)
    items = [submit(0, [1] * 14, max_tokens=4), submit(1, [2] * 13, max_tokens=6)]
    collector = run_all(engine, items)
    assert [collector.result(item.id) for item in items] == [expected(item, 48) for item in items]
    assert engine.stats.preemptions == 0
    assert sizes(model) == [[14, 13], [1, 1], [1, 1], [1, 1], [1], [1]]


def test_who_was_preempted_can_be_admitted_in_the_same_step(oracle: MakeOracle) -> None:
    model = oracle(num_pages=8, max_model_len=128)
    engine = engine_of(model)
    item = submit(0, [1] * 30, max_tokens=60)
    engine.submit(item)
    collector = Collector()
    for _ in range(5):
        collector.add(engine.step())
    (sequence,) = engine.scheduler.running
    before = sequence.admission
    engine.scheduler._preempt(sequence)
    collector.add(engine.step())
    engine.check_integrity()
    assert engine.scheduler.running == [sequence]
    assert sequence.admission > before
    drain(engine, collector)
    assert collector.result(0) == expected(item, 128)


def test_nobody_overtakes_who_waits_for_pages(oracle: MakeOracle) -> None:
    engine = engine_of(oracle(num_pages=8, max_model_len=128))
    engine.submit(submit(0, [1] * 60, max_tokens=20))
    engine.step()
    engine.submit(submit(1, [2] * 80, max_tokens=1))
    engine.submit(submit(2, [3] * 5, max_tokens=1))
    collector = drain(engine)
    assert list(collector.outputs) == [0, 1, 2]
    assert engine.stats.preemptions == 0


def test_a_newcomer_leaves_a_page_for_each_that_runs(oracle: MakeOracle) -> None:
    engine = engine_of(oracle(num_pages=4, max_model_len=64))
    engine.submit(submit(0, [1] * 15, max_tokens=10))
    engine.step()
    engine.submit(submit(1, [2] * 33, max_tokens=2))  # needs the three pages that are free
    collector = drain(engine)
    assert engine.stats.preemptions == 0
    assert list(collector.outputs) == [0, 1]


def damage_table(engine: Engine) -> None:
    engine.scheduler.tables[0, 0] += 1


def damage_number(engine: Engine) -> None:
    engine.scheduler.running[0].number = 3


def damage_order(engine: Engine) -> None:
    engine.scheduler.running.reverse()


def damage_published(engine: Engine) -> None:
    engine.scheduler.running[0].published -= 1


def damage_coming(engine: Engine) -> None:
    engine.scheduler.running[0].coming += 1


def damage_tokens(engine: Engine) -> None:
    engine.scheduler.running[0].tokens[3] += 1


def damage_waiting(engine: Engine) -> None:
    engine.scheduler.waiting[0].computed = 1


def damage_known(engine: Engine) -> None:
    del engine._sequences[1]


@pytest.mark.parametrize(
    "damage",
    [
        *(damage_table, damage_number, damage_order, damage_published, damage_coming, damage_tokens),
        *(damage_waiting, damage_known),
    ],
)
def test_the_check_finds_each_kind_of_damage(oracle: MakeOracle, damage: object) -> None:
    engine = engine_of(oracle(num_pages=20), seqs=2)
    for id_ in range(3):
        engine.submit(submit(id_, [id_] * 20))
    for _ in range(3):
        engine.step()
    engine.check_integrity()
    assert callable(damage)
    damage(engine)
    with pytest.raises(IntegrityError):
        engine.check_integrity()
