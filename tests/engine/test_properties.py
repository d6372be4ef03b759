"""Any order of submit, step, abort and preempt keeps the books right, and each sequence gets what it gets alone."""

from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pilotlight.messages import Submit
from tests.engine.oracle import Collector, Oracle, drain, engine_of, expected, submit

# Prompts are made of few different blocks, so that they share prefixes, whole or in part.
PIECES = ([1] * 16, [2] * 16, [1] * 15 + [3], [4] * 5, [1] * 11, [5])
NAN = ((6,), (*[1] * 16, 6), (*[1] * 32, *[2] * 16, 6))
prompts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map(
    lambda pieces: list(chain.from_iterable(pieces))
) | st.sampled_from(NAN).map(list)
samplings = st.fixed_dictionaries(
    {"max_tokens": st.sampled_from([1, 2, 5, 17, 40, 500]), "seed": st.integers(0, 2)},
    optional={
        "stop_token_ids": st.just((7, 8)),
        "eos_token_ids": st.just((9, 10)),
        "ignore_eos": st.booleans(),
        "logprobs": st.integers(0, 2),
        "prompt_logprobs": st.integers(0, 2),
    },
)


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        lookahead=st.booleans(),
        pages=st.sampled_from([4, 7, 12, 40]),
        seqs=st.integers(1, 5),
        batched=st.sampled_from([16, 33, 200]),
        caching=st.sampled_from([True, True, False]),
    )
    def start(self, lookahead: bool, pages: int, seqs: int, batched: int, caching: bool) -> None:
        self.model = Oracle(pages, max_model_len=150, nan=NAN, lookahead=lookahead)
        self.engine = engine_of(self.model, seqs=seqs, batched=batched, caching=caching)
        self.collector = Collector()
        self.submitted: dict[int, Submit] = {}
        self.aborted: dict[int, int] = {}  # id -> tokens it had got

    @rule(prompt=prompts, sampling=samplings, priority=st.integers(-1, 1), copies=st.integers(1, 3))
    def submit(self, prompt: list[int], sampling: dict[str, Any], priority: int, copies: int) -> None:
        for choice in range(copies):
            item = submit(len(self.submitted), prompt, priority=priority, choice=choice, **sampling)
            self.submitted[item.id] = item
            self.engine.submit(item)

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.collector.add(self.engine.step())
            self.engine.check_integrity()

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.submitted)))
        self.engine.abort([id_, 10_000])
        self.aborted.setdefault(id_, len(self.collector.tokens(id_)))

    @precondition(lambda self: self.engine.scheduler.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """Beside those that small pools force: any sequence, at any time."""
        scheduler = self.engine.scheduler
        scheduler._preempt(data.draw(st.sampled_from(scheduler.running)))

    @invariant()
    def books_are_right(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.check_integrity()
        assert self.engine.has_work or not self.model.under_way
        stats, parts = self.engine.stats, self.collector.outputs
        sent = {id_: len(self.collector.tokens(id_)) for id_ in parts}
        assert stats.generated_tokens == sum(sent.values())
        assert stats.prompt_tokens == sum(len(self.submitted[id_].prompt) for id_, count in sent.items() if count)
        assert stats.steps == len(self.model.batches)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        drain(self.engine, self.collector)
        self.books_are_right()
        for id_, item in self.submitted.items():
            if id_ in self.aborted:
                assert len(self.collector.tokens(id_)) == self.aborted[id_]
            elif len(item.prompt) >= self.engine.max_len or tuple(item.prompt) in NAN:
                assert [part.finish for part in self.collector.outputs[id_]] == ["error"]
            else:
                assert self.collector.result(id_) == expected(item, self.engine.max_len)


TestEngine = pytest.mark.timeout(300)(EngineMachine.TestCase)
TestEngine.settings = settings(
    max_examples=200, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
