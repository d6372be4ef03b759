"""Sampling on the card against the reference sampler on the card's own logits: the same tokens, step by step."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight.device import sampling
from pilotlight.device.base import Batch, SampleRow
from pilotlight.device.cuda import sample
from pilotlight.device.cuda.device import CudaDevice
from pilotlight.device.cuda.records import MOST_CHANGES
from pilotlight.device.random import stream_key
from pilotlight.messages import Sampling, TokenLogprob
from pilotlight.model.model import Model
from tests.device.masks import pack_mask
from tests.model.harness import Context, Runner, sample_at
from tests.models import llama_tensors

from .bench import Bench, all_logits, config_of, logits_of, read, twin, write_snapshot

pytestmark = pytest.mark.gpu

VOCAB = 321  # no multiple of 32: a mask's last word is used in part
SEQS = 32
_admissions = count(1 << 40)  # none of which a Runner gives
ASKED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 0},
    {"temperature": 0.9},
    {"top_k": 7, "top_p": 0.9, "logprobs": 5},
    {"min_p": 0.05, "temperature": 1.5},
    {"repetition_penalty": 1.4, "temperature": 0.0},
    {"frequency_penalty": 0.7, "presence_penalty": 0.4, "top_p": 0.8},
    {"temperature": 0.0, "logit_bias": ((5, 30.0), (7, 30.5), (320, 29.0)), "frequency_penalty": 2.0},
    {"temperature": 0.0, "logit_bias": ((9, 90.0),), "min_tokens": 2, "eos_token_ids": (9, VOCAB + 4)},
    {"stop_token_ids": (11, 3), "min_tokens": 3, "logprobs": 20},
    {"temperature": 0.0, "stop_token_ids": tuple(range(250)), "min_tokens": 3},  # most tokens that could come
]


def row_of(number: int, changes: dict[str, Any], output: Sequence[int] = (), mask: Any = None) -> SampleRow:
    prompt = np.random.default_rng(number).integers(0, VOCAB, 12).tolist()
    return SampleRow(
        Sampling(**({"max_tokens": 100} | changes)), stream_key(number, 0, 0), prompt, list(output), mask
    )


def asking(batch: Batch, rows: Sequence[SampleRow], numbers: Sequence[int], admission: int) -> Batch:
    """The batch with these rows, of sequences that keep their numbers from step to step."""
    batch.rows = list(rows)
    batch.numbers = np.array(numbers, np.int32)
    batch.admissions = np.full(len(rows), admission, np.int64)
    batch.sample_positions = np.array([len(row.output) for row in rows], np.int32)
    return batch


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = config_of(vocab_size=VOCAB)
    return write_snapshot(tmp_path_factory.mktemp("models"), "bfloat16", config, llama_tensors(config))


@pytest.fixture(scope="module")
def model(shared_bench: Bench, snapshot: Path) -> Model:
    return shared_bench.load(snapshot, max_model_len=256, max_num_seqs=SEQS)


def check(found: list[TokenLogprob | None], expected: list[TokenLogprob | None]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.token == other.token
            assert one.logprob == pytest.approx(other.logprob, abs=2e-6, rel=2e-7)
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
            assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=2e-6)


def run_steps(model: Model, rows: list[SampleRow], steps: int) -> None:
    """A prompt each, then one token after another, which the rows' outputs take: what the reference chooses."""
    runner = Runner(model)
    numbers = np.random.default_rng(3).permutation(np.arange(16, SEQS))[: len(rows)]  # below are the twins'
    admission = next(_admissions)
    sequences = [runner.sequence() for _ in rows]
    new = [list(row.prompt) for row in rows]
    for _ in range(steps):
        twins = [twin(sequence) for sequence in sequences]
        batch = asking(runner.batch(list(zip(sequences, new, strict=True))), rows, numbers, admission)
        logits = logits_of(model, runner.batch(list(zip(twins, new, strict=True))))
        sampled = model.run(batch)
        tokens, logprobs = sampling.sample(logits.copy(), rows)
        assert sampled.tokens == tokens
        check(sampled.logprobs, logprobs)
        new = [[token] for token in tokens]
        for row, token in zip(rows, tokens, strict=True):
            row.output.append(token)  # type: ignore[attr-defined]


def test_every_parameter_step_by_step(bench: Bench, model: Model) -> None:
    """Eagerly with the prompts, then replayed; counts and bans go on from what the sequences had when they joined."""
    rows = [row_of(number, changes) for number, changes in enumerate(ASKED)]
    run_steps(model, rows, 5)
    assert len({tuple(row.output) for row in rows}) == len(rows)


def test_greedy_rows_alone(bench: Bench, model: Model) -> None:
    run_steps(model, [row_of(number, ASKED[0]) for number in range(3)], 3)


def test_masks(bench: Bench, model: Model) -> None:
    """Of some rows, another at each step, shorter than the vocabulary or longer; in two launches."""
    outputs: list[list[int]] = []

    def mask(row: int) -> np.ndarray:
        step = len(outputs[row])
        allowed = [[40, 41, 42, 70], [3], [320, 100, 7]][(step + row) % 3]
        words = pack_mask(allowed)
        return np.append(words, [~np.uint32(0)] * 9).astype(np.uint32) if len(words) == 11 else words

    asked = [ASKED[0], ASKED[2], ASKED[3], ASKED[5], ASKED[7]]
    rows = [row_of(number, changes) for number, changes in enumerate(asked)]
    for index in (1, 2, 4):
        rows[index].mask = lambda index=index: mask(index)
    outputs += [row.output for row in rows]  # type: ignore[misc]
    run_steps(model, rows, 4)
    assert set(rows[1].output) <= {40, 41, 42, 70, 3, 320, 100, 7}


def test_a_history_is_counted_anew_for_whoever_has_the_number_next(bench: Bench, model: Model) -> None:
    """And where several join at once, more than are uploaded at once."""
    runner = Runner(model)
    changes = {"repetition_penalty": 1.9, "presence_penalty": 1.0, "temperature": 0.0}
    sequences = [runner.sequence() for _ in range(3)]
    for turn in range(2):
        output = np.random.default_rng(turn).integers(0, VOCAB, 110).tolist()
        rows = [row_of(number + turn, changes, output[number:]) for number in range(3)]
        twins = [twin(sequence) for sequence in sequences]
        batch = asking(
            runner.batch([(sequence, [8, 9]) for sequence in sequences]), rows, [14, 11, 12], next(_admissions)
        )
        logits = logits_of(model, runner.batch([(sequence, [8, 9]) for sequence in twins]))
        assert model.run(batch).tokens == sampling.sample(logits, rows)[0]


def test_prompt_logprobs(bench: Bench, model: Model) -> None:
    """More of them than have logits at once, beside a row that is sampled."""
    runner = Runner(model)
    prompt = np.random.default_rng(0).integers(0, VOCAB, 90).tolist()
    batch = runner.batch([(runner.sequence(), prompt)])
    batch.score_rows = np.arange(89, dtype=np.int32)
    batch.score_targets = np.array(prompt[1:], np.int32)
    batch.score_top = 3
    logits = all_logits(runner, [(runner.sequence(), prompt)])
    sampled = model.run(batch)
    expected = sampling.score(logits[:89], batch.score_targets, 3)
    check(list(sampled.scores), list(expected))
    assert sampled.tokens == [int(logits[89].argmax())]


def test_some_rows_of_a_prompt(bench: Bench, model: Model) -> None:
    """As they are wanted, whatever their order; none at all, of a chunk that is not a prompt's last."""
    runner = Runner(model)
    prompt = list(range(40))
    best = all_logits(runner, [(runner.sequence(), prompt)]).argmax(axis=1)
    for rows in ([39, 3, 17], [5, 6, 7], []):
        batch = sample_at(runner.batch([(runner.sequence(), prompt)]), rows)
        batch.numbers = np.arange(len(rows), dtype=np.int32)
        assert model.run(batch).tokens == best[rows].tolist()


def test_decode_steps_that_no_graph_replays(bench: Bench, model: Model) -> None:
    """Rows in another order, some of the rows, and rows that are scored as well."""
    runner = Runner(model)
    sequences = [runner.sequence() for _ in range(3)]
    for number, sequence in enumerate(sequences):
        logits_of(model, runner.batch([(sequence, list(range(number, number + 9)))]))
    steps = [(twin(sequence), [7 + number]) for number, sequence in enumerate(sequences)]
    logits = logits_of(model, runner.batch(steps))
    best = logits.argmax(axis=1)
    for rows, scored in (([2, 0, 1], []), ([1], []), ([0, 1, 2], [2, 0]), ([], [1])):
        batch = runner.batch([(twin(sequence), [7 + number]) for number, sequence in enumerate(sequences)])
        batch.sample_rows = np.array(rows, np.int32)
        asking(batch, [row_of(0, ASKED[0])] * len(rows), range(len(rows)), next(_admissions))
        batch.score_rows, batch.score_targets = np.array(scored, np.int32), np.full(len(scored), 5, np.int32)
        sampled = model.run(batch)
        assert sampled.tokens == best[rows].tolist()
        check(list(sampled.scores), list(sampling.score(logits[scored], batch.score_targets, 0)))


def test_what_there_is_no_room_for_is_refused(bench: Bench, model: Model) -> None:
    """It would be written past the results, or past the metadata."""
    runner = Runner(model)
    batch = runner.batch([(runner.sequence(), [1, 2, 3])])
    asking(batch, [row_of(0, {"logprobs": 21})], [0], next(_admissions))
    with pytest.raises(ValueError, match=r"^21 alternatives to a token: there is room for 20"):
        model.start(batch)
    bias = tuple((token % VOCAB, 1.0) for token in range(MOST_CHANGES + 1))
    asking(batch, [row_of(0, {"logit_bias": bias})], [0], next(_admissions))
    with pytest.raises(
        ValueError, match=rf"^{MOST_CHANGES + 1} tokens with a bias or a ban .* room for {MOST_CHANGES}"
    ):
        model.start(batch)
    asking(batch, [row_of(0, {})], [0], next(_admissions))
    batch.score_top = 21
    with pytest.raises(ValueError, match=r"^21 alternatives to a token: there is room for 20"):
        model.start(batch)
    batch = runner.batch([(Context([1] * 16, 255), [2]) for _ in range(SEQS + 1)])
    batch.pages = np.ones(1_000_000, np.int32)
    with pytest.raises(ValueError, match=rf"^no room for a step of {SEQS + 1} tokens, .* over 1000000 pages"):
        model.start(asking(batch, [row_of(0, {})] * (SEQS + 1), [0] * (SEQS + 1), next(_admissions)))


def test_the_largest_step_fits(bench: Bench, model: Model) -> None:
    """Every row with the longest context and the most changes: each record still leads to its own."""
    device = model.device
    assert isinstance(device, CudaDevice)
    runner = Runner(model)
    contexts = [Context([1] * 16, 255) for _ in range(SEQS)]
    rows = [
        row_of(number, {"logit_bias": tuple((token % VOCAB, float(number)) for token in range(MOST_CHANGES))})
        for number in range(SEQS)
    ]
    batch = runner.batch([(context, [2]) for context in contexts])
    step = device.begin(asking(batch, rows, range(SEQS), next(_admissions)))
    records = read(device, step.places.records, (SEQS,), sample.ROW)
    for number, record in enumerate(records):
        place = step.places.tail + sample.CHANGE.itemsize * int(record["first_change"])
        changes = read(device, place, (MOST_CHANGES,), sample.CHANGE)
        assert (changes["addend"] == number).all()
        assert (np.diff(changes["token"]) >= 0).all()
    assert (read(device, step.places.tail, (SEQS * 16,), np.int32) == 1).all()


def test_tallies_are_zero_before_the_first_step_and_after_each(bench: Bench, snapshot: Path) -> None:
    model = bench.load(snapshot, max_model_len=256, max_num_seqs=SEQS)
    device = model.device
    assert isinstance(device, CudaDevice)
    nbytes = device._largest.num_logits * sample._TALLIES_BYTES
    workspace = device._sampler._address + device._sampler._places.workspace
    assert not read(device, workspace, (nbytes,), np.uint8).any()
    run_steps(model, [row_of(number, changes) for number, changes in enumerate(ASKED)], 2)
    assert not read(device, workspace, (nbytes,), np.uint8).any()
