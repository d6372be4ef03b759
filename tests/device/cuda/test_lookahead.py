"""Steps begun before the one before is finished, over tokens that the host does not know yet."""

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight.device.base import SampleRow
from pilotlight.device.random import stream_key
from pilotlight.messages import Sampling
from pilotlight.model.model import Model, Running
from tests.device.masks import pack_mask
from tests.model.harness import Context, Runner
from tests.models import llama_tensors, write_checkpoint

from .bench import Bench, config_of, last_logits, twin, write_snapshot

pytestmark = pytest.mark.gpu

SEQS = 16
_admissions = count(1 << 40)  # none of which a Runner gives
NUMBERS = [9, 14, 11]  # of the sequences, apart from those that `last_logits` gives
ASKED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 40, "frequency_penalty": 0.6, "repetition_penalty": 1.2},
    {"temperature": 1.0, "logprobs": 2, "min_tokens": 3, "stop_token_ids": (5, 6)},
]


@pytest.fixture(scope="module")
def model(shared_bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Model:
    config = config_of()
    directory = write_snapshot(tmp_path_factory.mktemp("models"), "bfloat16", config, llama_tensors(config))
    return shared_bench.load(directory, max_model_len=256, max_num_seqs=SEQS)


class Chain:
    """Sequences that decode side by side; `outputs` is what is known of them."""

    def __init__(self, model: Model, asked: list[dict[str, Any]], runner: Runner, sequences: list[Context]) -> None:
        self.model, self.runner = model, runner
        self.sequences = [twin(sequence) for sequence in sequences]
        self.outputs: list[list[int]] = [[] for _ in asked]
        self.rows = [
            SampleRow(Sampling(**({"max_tokens": 9} | changes)), stream_key(number, 0, 0), [1, 2, number], output)
            for number, (changes, output) in enumerate(zip(asked, self.outputs, strict=True))
        ]
        self.admission = next(_admissions)
        self.begun = 0
        self.running: Running

    def start(self, tokens: list[int]) -> Running:
        batch = self.runner.batch(
            [(sequence, [token]) for sequence, token in zip(self.sequences, tokens, strict=True)]
        )
        batch.rows = self.rows
        batch.numbers = np.array(NUMBERS[: len(self.rows)], np.int32)
        batch.admissions = np.full(len(self.rows), self.admission)
        batch.sample_positions = np.full(len(self.rows), self.begun, np.int32)
        self.begun += 1
        return self.model.start(batch)

    def finish(self, running: Running) -> Any:
        sampled = running.result()
        for output, token in zip(self.outputs, sampled.tokens, strict=True):
            output.append(token)
        return sampled

    def unknown(self) -> list[int]:
        return [~number for number in NUMBERS[: len(self.rows)]]


def prompts(runner: Runner) -> list[Context]:
    sequences = [runner.sequence() for _ in ASKED]
    for number, sequence in enumerate(sequences):
        last_logits(runner, [(sequence, list(range(number, 3 * number + 13)))])
    return sequences


def one_by_one(chain: Chain, steps: int) -> list[Any]:
    found = []
    tokens = [7] * len(chain.rows)
    for _ in range(steps):
        running = chain.start(tokens)
        running.complete()
        found.append(chain.finish(running))
        tokens = found[-1].tokens
    return found


def looking_ahead(chain: Chain, steps: int) -> list[Any]:
    found, running = [], chain.start([7] * len(chain.rows))
    running.complete()
    for _ in range(steps - 1):
        following = chain.start(chain.unknown())
        found.append(chain.finish(running))
        following.complete()
        running = following
    return [*found, chain.finish(running)]


def test_tokens_that_are_not_known_are_those_that_will_be(bench: Bench, model: Model) -> None:
    """Two steps are always under way. Tokens, log-probabilities and K/V are the same to the last bit."""
    runner = Runner(model)
    sequences = prompts(runner)
    first, second = Chain(model, ASKED, runner, sequences), Chain(model, ASKED, runner, sequences)
    expected = one_by_one(first, 6)
    assert looking_ahead(second, 6) == expected
    assert len({tuple(output) for output in first.outputs}) == len(ASKED)
    after = [last_logits(runner, [(sequence, [3]) for sequence in chain.sequences]) for chain in (first, second)]
    assert (after[0] == after[1]).all()


def test_a_mask_sees_the_tokens_of_the_step_before(bench: Bench, model: Model) -> None:
    """It is asked for when they are known: each step's allows what follows its sequence's last token alone."""
    runner = Runner(model)
    sequences = prompts(runner)[:1]
    chain = Chain(model, ASKED[:1], runner, sequences)
    output = chain.outputs[0]
    chain.rows[0].mask = lambda: np.array([1 << (output[-1] + 1) if output else 1 << 20], np.uint32)
    assert [sampled.tokens for sampled in looking_ahead(chain, 5)] == [[20], [21], [22], [23], [24]]


def test_two_steps_that_bring_masks_and_histories(bench: Bench, model: Model) -> None:
    """What the second brings does not take the place of what the first has still to be given."""
    runner = Runner(model)
    sequences = prompts(runner)
    changes = {"temperature": 0.0, "presence_penalty": 2.0, "repetition_penalty": 1.5}

    def chains() -> list[Chain]:
        made = [Chain(model, [changes], runner, [sequence]) for sequence in sequences[:2]]
        for chain, tokens in zip(made, ([20, 21, 22], [23, 24, 25, 40]), strict=True):
            chain.rows[0].prompt = tokens[:1] * 9
            chain.rows[0].mask = lambda tokens=tokens: pack_mask(tokens)
        return made

    expected = [one_by_one(chain, 1)[0].tokens for chain in chains()]
    under_way = chains()
    for chain in under_way:
        chain.running = chain.start([7])
        chain.running.complete()
    assert [chain.finish(chain.running).tokens for chain in under_way] == expected


def test_a_prompt_begins_behind_a_step_that_is_under_way(bench: Bench, model: Model) -> None:
    """A step that is launched kernel by kernel, and takes other places, beside one that is replayed."""
    runner = Runner(model)
    sequences = prompts(runner)
    alone = one_by_one(Chain(model, ASKED, runner, sequences), 3)
    prompt = list(range(50))
    expected = model.run(runner.batch([(runner.sequence(), prompt)])).tokens
    chain = Chain(model, ASKED, runner, sequences)
    found, running = [], chain.start([7] * len(chain.rows))
    for _ in range(2):
        other = model.start(runner.batch([(runner.sequence(), prompt)]))
        found.append(chain.finish(running))
        running = chain.start(found[-1].tokens)
        assert other.result().tokens == expected
    assert [*found, chain.finish(running)] == alone


def test_A10_a_token_of_nan_is_told_and_the_steps_behind_it_go_on(bench: Bench, tmp_path: Path) -> None:
    """What it is followed by reads some row of the embedding; neighbours do not notice."""
    config = config_of()
    tensors = llama_tensors(config)
    tensors["model.embed_tokens.weight"][9] = np.nan
    model = bench.load(write_checkpoint(tmp_path, config, tensors), max_model_len=256, max_num_seqs=SEQS)
    runner = Runner(model)
    sequences = prompts(runner)
    good = Chain(model, ASKED[:2], runner, sequences[:2])
    expected = [sampled.tokens[1] for sampled in looking_ahead(good, 4)]
    chain = Chain(model, ASKED[:2], runner, sequences[:2])
    running = chain.start([9, 7])
    following = chain.start(chain.unknown())
    found = [chain.finish(running), chain.finish(following)]
    assert found[0].tokens == [-1, expected[0]]
    assert found[1].tokens[1] == expected[1]
