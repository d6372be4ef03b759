"""kernels/sample.cu against the reference sampler on the same fp32 logits: the same tokens.

The draw itself is the same to 1e-14. Where top-p cuts differs by what fp32 exponentials do, 2^-22 of the mass: inputs
here are random enough that no cut falls there, or exact.
"""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight.device import sampling
from pilotlight.device.base import SampleRow
from pilotlight.device.cuda import sample
from pilotlight.device.random import bits_of
from tests.device.test_sampling import check_draws, probabilities

from .hardships import every_hardship
from .harness import Card
from .sampled import Array, Batch, check, close, expected, row, same

VOCABS = [1, 2, 31, 32, 33, 1000, 4096, 4097]
LOG2E = math.log2(math.e)  # the temperature at which a unit of depth halves a mass
ALONE: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 0},
    {"temperature": 0.0, "logprobs": 20},
    {},
    {"temperature": 1e-5},
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"temperature": 1e9},
    {"top_k": 1},
    {"top_k": 2},
    {"top_k": 50},
    {"top_k": 9_999_999},
    {"top_p": 0.0},
    {"top_p": 1e-6},
    {"top_p": 0.5},
    {"top_p": 0.95},
    {"top_p": 1 - 1e-12},
    {"min_p": 1e-30},
    {"min_p": 0.02},
    {"min_p": 1.0},
    {"logprobs": 5},
    {"top_k": 20, "top_p": 0.8, "temperature": 0.7},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.1, "logprobs": 3},
]
PENALTIES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7, "temperature": 0.0},
    {"repetition_penalty": 1e9, "logprobs": 4},
    {"repetition_penalty": 1e-9},
    {"frequency_penalty": 0.7},
    {"presence_penalty": 1.5, "temperature": 0.0},
    {"frequency_penalty": -0.5, "presence_penalty": -1.0, "top_p": 0.9},
    {"repetition_penalty": 1.1, "frequency_penalty": 0.3, "presence_penalty": 0.2, "top_k": 9, "logprobs": 20},
]


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh inputs in every run; pytest prints the seed of a test that fails."""
    seed = int(np.random.SeedSequence().entropy % 2**32)  # type: ignore[operator]
    print(f"inputs of seed {seed}")
    return np.random.default_rng(seed)


def normal(rng: np.random.Generator, rows: int, vocab: int, spread: float = 3.0) -> Array:
    return (rng.standard_normal((rows, vocab)) * spread).astype(np.float32)


def rows_of(rng: np.random.Generator, asked: Sequence[dict[str, Any]], vocab: int) -> list[SampleRow]:
    """With a seed and a history each, which draws at few tokens so that some come often."""
    return [
        row(
            changes, seed=int(rng.integers(1 << 40)),
            prompt=rng.integers(0, vocab, 30).tolist(),
            output=rng.integers(0, min(vocab, 40), rng.integers(1, 20)).tolist(),
        )
        for changes in asked
    ]  # fmt: skip


def draws(card: Card, logits: Sequence[float], changes: dict[str, Any], n: int, **history: Sequence[int]) -> Array:
    """What n sequences of different seeds draw from the same logits."""
    rows = [row(changes, seed=seed, **history) for seed in range(n)]
    batch = Batch(card, rows, len(logits))
    batch.join()
    return np.array(batch.step(np.tile(np.array(logits, np.float32), (n, 1)))[0])


# --- the reference's tokens ------------------------------------------------------------------------------------


@pytest.mark.smallest
@pytest.mark.parametrize("vocab", VOCABS)
def test_every_parameter_alone(gpu: Card, rng: np.random.Generator, vocab: int) -> None:
    check(gpu, normal(rng, len(ALONE), vocab), rows_of(rng, ALONE, vocab))


@pytest.mark.smallest
@pytest.mark.parametrize("vocab", [33, 4097])
def test_penalties(gpu: Card, rng: np.random.Generator, vocab: int) -> None:
    check(gpu, normal(rng, len(PENALTIES), vocab), rows_of(rng, PENALTIES, vocab))


@pytest.mark.smallest
def test_every_token_of_a_history_is_penalized(gpu: Card) -> None:
    """Of tokens that one thread holds, all of them: generated ones twice, those of the prompt once."""
    logits = np.zeros((2, 4200), np.float32)
    logits[:, [5, 261, 517, 4101]] = [10.0, 9.75, 9.5, 9.25]
    logits[:, 4102] = 9.0
    penalties = {"presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.125, "temperature": 0.0}
    rows = [
        row(penalties, prompt=[5, 261, 517], output=[5, 261, 517, 4101] * 2),
        row({"repetition_penalty": 1.125, "temperature": 0.0}, prompt=[5, 261, 517, 4101]),
    ]
    check(gpu, logits, rows)
    assert expected(logits, rows)[0] == [4102, 4102]


@pytest.mark.smallest
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bias_and_bans(gpu: Card, rng: np.random.Generator, temperature: float) -> None:
    """More changes than a block has threads, tokens that come twice, and bans up to one token before."""
    vocab = 9000
    many = tuple((int(token), float(rng.normal())) for token in rng.integers(0, vocab, 600))
    banned = {"min_tokens": 5, "eos_token_ids": (7, vocab + 3), "stop_token_ids": (4100, 8999)}
    towards = tuple((token, 40.0) for token in (7, 4100, 8999))
    asked = [
        {"logit_bias": many},
        {"logit_bias": ((4095, 30.0), (4096, 30.5), (0, 29.0))},
        {"logit_bias": ((3, 0.1), (3, 1e8), (3, -1e8), (3, 50.0))},  # in fp32 their order matters
        {"logit_bias": tuple((token, -100.0) for token in range(1, vocab))},
        *({"logit_bias": towards, **banned} for _ in range(3)),
    ]
    outputs = [[], [1], [2, 2], [], [1] * 4, [1] * 5, []]
    rows = [
        row(changes | {"temperature": temperature, "logprobs": 2}, seed=index, output=output)
        for index, (changes, output) in enumerate(zip(asked, outputs, strict=True))
    ]
    logits = normal(rng, len(rows), vocab)
    check(gpu, logits, rows)
    tokens = expected(logits, rows)[0]
    assert tokens[3] == 0
    assert not {tokens[4], tokens[6]} & {7, 4100, 8999}
    assert tokens[5] in (7, 4100, 8999)


@pytest.mark.smallest
def test_masks(gpu: Card, rng: np.random.Generator) -> None:
    """A grammar allows few tokens, one, none, or all; a logit that is not sound makes its row so, allowed or not."""
    vocab = 8197
    asked = [{}, {"temperature": 0.0}, {"top_k": 3, "logprobs": 5}, {"top_p": 0.9}, {}, {}, {"top_p": 0.5}, {}]
    masks = rng.random((len(asked), vocab)) < 0.05
    masks[1] = False
    masks[1, vocab - 1] = True
    masks[4] = False
    masks[5] = True
    masks[6:, :100] = False
    logits = normal(rng, len(asked), vocab)
    logits[6, 50], logits[7, 50] = np.nan, np.inf
    rows = rows_of(rng, asked, vocab)
    check(gpu, logits, rows, masks=masks)
    tokens = expected(logits, rows, masks)[0]
    assert tokens[1] == vocab - 1
    assert [tokens[4], tokens[6], tokens[7]] == [-1] * 3


@pytest.mark.parametrize(
    ("vocab", "rows"), [(32000, 8), (49152, 6), (128256, 4), (151936, 4), (262144, 2)], ids=lambda value: str(value)
)
def test_vocabularies_of_models(gpu: Card, rng: np.random.Generator, vocab: int, rows: int) -> None:
    asked = [{}, {"top_k": 20, "top_p": 0.8, "temperature": 0.7, "logprobs": 20}, {"top_p": 0.95, "temperature": 0.8},
             {"temperature": 0.0}, {"min_p": 0.05, "repetition_penalty": 1.1}, {"logprobs": 20, "top_k": 50},
             {"temperature": 1.3, "top_p": 0.9}, {"frequency_penalty": 0.4, "logit_bias": ((0, 1.0),)}]  # fmt: skip
    check(gpu, normal(rng, rows, vocab, 2.5), rows_of(rng, asked[:rows], vocab))


def random_rows(rng: np.random.Generator, count: int, vocab: int) -> list[SampleRow]:
    """All parameters at once, each left out more often than not."""
    choices: dict[str, list[Any]] = {
        "temperature": [0.0, 0.01, 0.3, 0.7, 1.5, 2.0],
        "top_k": [1, 2, 5, 20, max(vocab - 1, 1), vocab, vocab + 1, max(vocab // 2, 1)],
        "top_p": [1e-6, 0.1, 0.5, 0.9, 0.95, 0.999],
        "min_p": [1.0, 0.5, 0.1, 0.01],
        "repetition_penalty": [1.2, 0.8, 2.0],
        "frequency_penalty": [0.5, -1.0, 2.0],
        "presence_penalty": [0.5, -1.0, 2.0],
        "min_tokens": [3, 9],
        "logprobs": [0, 1, 5, 20],
    }
    asked = []
    for _ in range(count):
        changes = {name: values[rng.integers(len(values))] for name, values in choices.items() if rng.random() < 0.35}
        ids = rng.integers(0, vocab, 4).tolist()
        asked.append(
            changes
            | {"eos_token_ids": (ids[0],), "stop_token_ids": (ids[1],)}
            | {"logit_bias": ((ids[2], 3.0), (ids[3], -4.0))}
        )
    return rows_of(rng, asked, vocab)


@pytest.mark.parametrize("vocab", [2, 33, 500, 5000])
def test_everything_mixed(gpu: Card, rng: np.random.Generator, vocab: int) -> None:
    logits = normal(rng, 64, vocab)
    logits[::4] = np.round(logits[::4] * 8) / 8  # many are equal
    check(gpu, logits, random_rows(rng, 64, vocab))


@pytest.mark.slow
@pytest.mark.parametrize("vocab", [2, 31, 32, 100, 1000, 5000, 12_000])
@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0, 30.0])
def test_thousands_of_rows(gpu: Card, rng: np.random.Generator, vocab: int, spread: float) -> None:
    logits = normal(rng, 128, vocab, spread)
    logits[::4] = np.round(logits[::4] * 4) / 4
    logits[::9][rng.random((15, vocab)) < 0.3] = -np.inf
    check(gpu, logits, random_rows(rng, 128, vocab))


# --- edges ------------------------------------------------------------------------------------------------------


@pytest.mark.smallest
@pytest.mark.parametrize("greedy", [False, True], ids=["full", "greedy"])
def test_greedy_takes_the_lowest_of_equals(gpu: Card, greedy: bool) -> None:
    logits = np.full((6, 9001), -7.5, np.float32)
    logits[0, [8999, 4096, 4095]] = 3.0
    logits[1] = 2.0
    logits[2, [9000, 5000]] = -0.0
    logits[2, 4999] = 0.0
    logits[3, 4] = -1e-45
    logits[4] = -np.inf
    logits[4, 8192] = -3e38
    logits[5, [300, 44]] = 3e38
    rows = [row({"temperature": 0.0})] * 6
    batch = Batch(gpu, rows, 9001)
    assert batch.step(logits, greedy=greedy) == ([4095, 0, 4999, 4, 8192, 44], [None] * 6)


@pytest.mark.smallest
def test_greedy_over_more_slices_than_a_warp_has_lanes(gpu: Card) -> None:
    logits = np.zeros((2, 135_169), np.float32)
    logits[0, 135_168] = logits[1, 131_072] = logits[1, 135_168] = 1.0
    batch = Batch(gpu, [row({"temperature": 0.0})] * 2, logits.shape[1])
    assert batch.step(logits, greedy=True)[0] == [135_168, 131_072]


@pytest.mark.smallest
def test_a_row_that_is_not_sound(gpu: Card, rng: np.random.Generator) -> None:
    """A NaN of either sign or +infinity, wherever it is and whatever is asked; neighbours are as alone."""
    asked = [{"temperature": 0.0}, {}, {"top_k": 2, "top_p": 0.5, "logprobs": 3}, {"temperature": 0.0, "logprobs": 1},
             {"min_tokens": 50, "eos_token_ids": (6,)}, {"repetition_penalty": 2.0}]  # fmt: skip
    negative_nan = np.array([0xFFC00000], np.uint32).view(np.float32)[0]
    for bad in (np.nan, negative_nan, np.inf):
        rows = rows_of(rng, [changes for changes in asked for _ in range(2)], 4200)
        logits = normal(rng, len(rows), 4200)
        logits[::2, 6] = bad
        logits[4, 6], logits[4, 4199] = 0.0, bad
        for each in rows:
            each.output = [*each.output, 6]
        batch = Batch(gpu, rows, 4200)
        batch.join()
        tokens, logprobs = batch.step(logits)
        assert tokens[::2] == [-1] * 6
        assert logprobs[::2] == [None] * 6
        same((tokens, logprobs), expected(logits, rows), rows)


@pytest.mark.smallest
def test_a_row_without_any_possible_token(gpu: Card) -> None:
    everything = {"min_tokens": 1, "stop_token_ids": tuple(range(12)), "logprobs": 1}
    rows = [row(everything), row(everything | {"temperature": 0.0}), row({"top_p": 0.5}), row({"temperature": 0.0})]
    logits = np.zeros((4, 12), np.float32)
    logits[2:] = -np.inf
    assert Batch(gpu, rows, 12).step(logits) == ([-1] * 4, [None] * 4)
    finite_to_infinite = [row({"logit_bias": ((5, 3e38),), "temperature": t}) for t in (0.0, 1.0)]
    assert Batch(gpu, finite_to_infinite, 12).step(np.full((2, 12), 3e38, np.float32))[0] == [-1, -1]


@pytest.mark.smallest
@pytest.mark.parametrize("changes", [{}, {"top_k": 900}, {"top_p": 1 - 1e-15}, {"min_p": 1e-30}], ids=str)
def test_impossible_tokens_are_never_drawn(gpu: Card, changes: dict[str, Any]) -> None:
    logits = np.full(1000, -np.inf)
    logits[[17, 640]] = [0.0, -1.0]
    assert set(draws(gpu, logits.tolist(), changes, 40).tolist()) == {17, 640}
    logits[17] = -np.inf
    assert set(draws(gpu, logits.tolist(), changes, 5).tolist()) == {640}


def key_for(bits: int, token: int) -> int:
    """The key of a sequence whose first random number for `token` is `bits`: the definition, backwards."""

    def unmixed(z: int) -> int:
        z ^= z >> 31 ^ z >> 62
        z = z * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
        z ^= z >> 27 ^ z >> 54
        z = z * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
        return z ^ z >> 30 ^ z >> 60

    gamma = 0x9E3779B97F4A7C15
    stream = (unmixed(bits) - (token + 1) * gamma) % 2**64
    return (unmixed(stream) - gamma) % 2**64


@pytest.mark.smallest
@pytest.mark.parametrize("changes", [{}, {"top_k": 300}], ids=str)
def test_extreme_random_numbers(gpu: Card, changes: dict[str, Any]) -> None:
    """Where the top half of the bits is all zeros, or all ones; of an unlikely token and of the likeliest."""
    cases = [
        (bits, token) for bits in (0, 1, 2**32 - 1, 2**32, 2**33, 2**64 - 2**32, 2**64 - 1) for token in (70, 150)
    ]
    rows = [SampleRow(row(changes).sampling, key_for(bits, token), (), ()) for bits, token in cases]
    for (bits, token), each in zip(cases, rows, strict=True):
        assert bits_of(each.key, 0, np.array([token])) == bits
    logits = np.zeros((len(rows), 300), np.float32)
    logits[:, 70], logits[:, 150] = -10.0, 2.0
    check(gpu, logits, rows)
    tokens = expected(logits, rows)[0]
    assert tokens[:10:2] == [70] * 5


@pytest.mark.smallest
def test_extreme_logits_and_temperatures(gpu: Card) -> None:
    asked = [
        {"temperature": t, **f} for t in (1e-5, 1.0, 2.0) for f in ({}, {"top_p": 0.9}, {"min_p": 0.5}, {"top_k": 3})
    ]
    logits = np.array([-3e38, 3e38, -np.inf, 0.0], np.float32)
    check(gpu, np.tile(logits, (len(asked), 1)), [row(changes, seed=n) for n, changes in enumerate(asked)])


@pytest.mark.smallest
def test_filters_keep_all_equals_of_their_last(gpu: Card) -> None:
    logits = [1.0, 3.0, 2.0, 2.0, 2.0, 0.0]
    total = sum(math.exp(x) for x in logits)

    def support(**changes: Any) -> set[int]:
        return set(draws(gpu, logits, changes, 40).tolist())

    assert support(top_k=2) == {1, 2, 3, 4}
    assert support(top_k=1) == {1}
    assert support(top_p=math.exp(3) / total + 0.01) == {1, 2, 3, 4}
    assert support(top_p=math.exp(3) / total - 0.01) == {1}
    assert support(top_k=4, top_p=0.0) == {1}
    assert support(min_p=1.0) == {1}
    assert support(min_p=math.exp(-1) * 0.999) == {1, 2, 3, 4}
    assert support(top_k=4, top_p=1 - 1e-9, min_p=1e-9) == {1, 2, 3, 4}


@pytest.mark.smallest
def test_a_mass_that_is_reached_exactly(gpu: Card) -> None:
    """Masses are integers: at this temperature 1/2, 1/4, 1/8, 1/8 of the whole, and a cut at 3/4 is one."""
    changes = {"temperature": LOG2E, "top_p": 0.75}
    assert set(draws(gpu, [4.0, 3.0, 2.0, 2.0], changes, 40).tolist()) == {0, 1}
    changes["top_p"] = 0.75 + 1e-12
    assert set(draws(gpu, [4.0, 3.0, 2.0, 2.0], changes, 40).tolist()) == {0, 1, 2, 3}
    changes = {"temperature": LOG2E, "top_p": 0.6, "top_k": 2}  # of what top-k left: 2/3 are the first token's
    assert set(draws(gpu, [4.0, 3.0, 2.0, 2.0], changes, 40).tolist()) == {0}
    changes["top_p"] = 0.67
    assert set(draws(gpu, [4.0, 3.0, 2.0, 2.0], changes, 40).tolist()) == {0, 1}


@pytest.mark.smallest
@pytest.mark.parametrize("flat", [True, False], ids=["equal", "near"])
def test_more_than_a_list_holds(gpu: Card, rng: np.random.Generator, flat: bool) -> None:
    """Thousands of tokens in one quarter of a unit: what the list cannot hold is taken from the logits."""
    vocab = 9100
    asked = [{"top_k": 5000}, {"top_p": 0.9}, {"top_k": 7000, "top_p": 0.5, "logprobs": 20}, {"logprobs": 20},
             {"top_p": 0.3, "presence_penalty": 1.0, "logit_bias": ((4096, 0.1),)}, {"top_k": 10}]  # fmt: skip
    logits = np.full((len(asked), vocab), 1.0, np.float32) + np.arange(len(asked), dtype=np.float32)[:, None] / 4
    if not flat:
        logits += rng.random(logits.shape, np.float32) * 0.2
    logits[3, [7, 519, 1031]] = 1.99  # one thread's
    check(gpu, logits, rows_of(rng, asked, vocab))


@pytest.mark.smallest
def test_a_list_that_is_just_full(gpu: Card, rng: np.random.Generator) -> None:
    """4,096 tokens in the bins above a gap, or one more: the list, or the logits."""
    for above in (4095, 4096, 4097):
        logits = normal(rng, 3, 6000, 0.01) - 20
        for index in range(3):
            logits[index, rng.permutation(6000)[:above]] = rng.random(above, np.float32) + 1.0
        rows = rows_of(rng, [{"top_k": above - 1}, {"top_k": above}, {"top_p": 0.99}], 6000)
        batch = Batch(gpu, rows, 6000)
        launches = batch.launches(logits)
        if gpu.soft:
            read = logit_bytes(gpu.counted(*launches)["sample_finish"])[0]
            assert (read > 0) == (above > 4096)
        else:
            gpu.run(*launches)
        same(batch.result(), expected(logits, rows), rows)


# --- distributions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"temperature": 0.7, "top_k": 7, "top_p": 0.9, "min_p": 0.05}], ids=str)
def test_draws_follow_the_exact_distribution(gpu: Card, changes: dict[str, Any]) -> None:
    logits = np.array([1.5, 0.2, -0.4, 2.0, 0.9, -1.3, 0.0, 1.1, -2.2, 0.6, -0.1, 1.7], np.float32)
    check_draws(draws(gpu, logits.tolist(), changes, 800).tolist(), probabilities(logits, row(changes).sampling))


# --- log-probabilities ------------------------------------------------------------------------------------------


@pytest.mark.smallest
@pytest.mark.parametrize("vocab", [1, 7, 33, 9000])
def test_logprobs_are_of_the_raw_logits(gpu: Card, rng: np.random.Generator, vocab: int) -> None:
    """Before penalties, bias and temperature; of a vocabulary of fewer tokens than asked for, all; ties by token."""
    asked = [
        {"logprobs": top, "temperature": t, "logit_bias": ((0, 5.0),)} for top in (0, 1, 7, 20) for t in (0.0, 0.8)
    ]
    rows = rows_of(rng, [*asked, {"logprobs": 20, "repetition_penalty": 1.5, "top_k": 3}], vocab)
    logits = normal(rng, len(rows), vocab)
    logits[::2] = np.round(logits[::2])
    logits[3] = -np.inf
    logits[3, vocab - 1] = -50.0
    check(gpu, logits, rows)


@pytest.mark.smallest
@pytest.mark.parametrize(("vocab", "top"), [(5, 20), (4097, 3), (4097, 0), (33, 20)])
def test_scores(gpu: Card, rng: np.random.Generator, vocab: int, top: int) -> None:
    logits = normal(rng, 6, vocab)
    logits[1] = np.round(logits[1])
    logits[2, 1:] = -np.inf
    logits[3, 2], logits[4, 0], logits[5] = np.nan, np.inf, -np.inf
    targets = rng.integers(0, vocab, 6).astype(np.int32)
    batch = Batch(gpu, [row()] * 6, vocab)
    for index, target in enumerate(targets):
        batch.records[index] = sample.score_record(int(target), top, vocab)
    gpu.run(*batch.launches(logits))
    read = sample.read_logprobs(
        batch.records, np.full(6, -1, np.int32), gpu.read(batch.values), gpu.read(batch.others)
    )
    for ours, theirs in zip(read[:3], sampling.score(logits[:3], targets[:3], top), strict=True):
        close(ours, theirs)
    for target, entry in zip(targets[3:], read[3:], strict=True):
        assert entry is not None
        assert (entry.token, math.isnan(entry.logprob), entry.top) == (target, True, ())
    assert (gpu.read(batch.tokens) == -1).all()  # poison: no token was written
    assert not gpu.read(batch.workspace)[: 6 * 2 * 1025 * 4].any()


def test_as_many_alternatives_as_the_settings_admit(gpu: Card, rng: np.random.Generator) -> None:
    logits = normal(rng, 1, 300)
    batch = Batch(gpu, [row({"logprobs": 100})], 300)
    values, others = gpu.output((1, 101), np.float32), gpu.output((1, 101), np.int32)
    tensors = sample.Tensors(
        logits=gpu.upload(logits).address, rows=gpu.upload(batch.records).address, tokens=batch.tokens.address,
        workspace=batch.workspace.address,
        workspace_rows=1, ids=batch.ids.address, values=values.address, others=others.address,
    )  # fmt: skip
    gpu.run(*sample.plan(tensors, rows=1, vocab=300, stride=300, most_logprobs=100))
    read = sample.read_logprobs(batch.records, gpu.read(batch.tokens), gpu.read(values), gpu.read(others))
    close(read[0], expected(logits, batch.rows)[1][0])


# --- what a result does not depend on ---------------------------------------------------------------------------


@pytest.mark.smallest
def test_a_row_is_the_same_alone_and_in_any_batch(gpu: Card, rng: np.random.Generator) -> None:
    """Bit for bit, the log-probabilities too."""
    rows = rows_of(rng, [*ALONE[18:], *PENALTIES[5:]], 4500)
    logits = normal(rng, len(rows), 4500, 1.0)
    together = Batch(gpu, rows, 4500)
    together.join()
    tokens, logprobs = together.step(logits)
    order = rng.permutation(len(rows)).tolist()
    shuffled = Batch(gpu, [rows[index] for index in order], 4500)
    shuffled.join()
    assert shuffled.step(logits[order]) == ([tokens[index] for index in order], [logprobs[index] for index in order])
    for index in (0, 2, len(rows) - 1):
        alone = Batch(gpu, [rows[index]], 4500)
        alone.join()
        assert alone.step(logits[index : index + 1]) == ([tokens[index]], [logprobs[index]])


@pytest.mark.smallest
def test_steps_on_one_workspace(gpu: Card, rng: np.random.Generator) -> None:
    """Counts are kept on the card; a sequence that was preempted gets the same ones from its tokens."""
    vocab = 4200
    asked = [
        *PENALTIES[:5],
        {"top_k": 5, "logprobs": 2},
        {"temperature": 0.0},
        {"min_tokens": 22, "eos_token_ids": (3,)},
    ]
    rows = [row(changes, seed=seed, prompt=[1, 2, 3], output=[5]) for seed, changes in enumerate(asked)]
    batch = Batch(gpu, rows, vocab)
    batch.join()
    for step in range(5):
        logits = normal(rng, len(rows), vocab, 1.0)
        logits[:, 3:9] += 8.0  # so that tokens repeat
        result = batch.step(logits)
        same(result, expected(logits, rows), rows)
        assert not gpu.read(batch.workspace)[: len(rows) * 2 * 1025 * 4].any()
        for each, token in zip(rows, result[0], strict=True):
            each.output = [*each.output, token]
        batch.records["position"] += 1
        if step == 2:
            before = gpu.read(batch.counts)[:, :vocab].copy()
            batch.join()
            assert (gpu.read(batch.counts)[:, :vocab] == before).all()


def test_batches_of_all_sizes_share_a_workspace(gpu: Card, rng: np.random.Generator) -> None:
    rows = rows_of(rng, [{"top_k": 3, "logprobs": 4}, {"top_p": 0.9}, {}, {"logprobs": 2}] * 3, 5000)
    large = Batch(gpu, rows, 5000)
    for count in (12, 3, 12, 1, 7, 12):
        small = Batch(gpu, rows[:count], 5000)
        small.workspace, small.workspace_rows = large.workspace, 12
        logits = normal(rng, count, 5000)
        same(small.step(logits), expected(logits, rows[:count]), rows[:count])


@pytest.mark.smallest
@pytest.mark.parametrize("greedy", [False, True], ids=["full", "greedy"])
def test_idle_rows_write_nothing(gpu: Card, rng: np.random.Generator, greedy: bool) -> None:
    """Whatever else their records say: those of sequences that have left may stay, but for their kind."""
    asked: list[dict[str, Any]] = [
        {"logprobs": 1}, {"logprobs": 20}, {"top_k": 5, "top_p": 0.9}, {"top_p": 0.9}, {"top_k": 5, "logprobs": 3},
        {"presence_penalty": 1.0},
    ]  # fmt: skip
    if greedy:
        asked = [{"temperature": 0.0, "presence_penalty": 1.0}] * 6
    rows = [row(changes, seed=seed) for seed, changes in enumerate(asked)]
    logits = normal(rng, 6, 50)
    logits[1] = np.nan
    idle, running = [1, 4, 5], [0, 2, 3]
    batch = Batch(gpu, rows, 50, idle=idle)
    batch.join()
    gpu.run(*batch.launches(logits, greedy=greedy))
    tokens, _ = expected(logits, rows)
    ids = gpu.read(batch.ids)[::-1]  # a row's slot is its number from the end
    for index in running:
        assert gpu.read(batch.tokens)[index] == ids[index] == tokens[index]
    for results in (gpu.read(batch.tokens), gpu.read(batch.values), gpu.read(batch.others), ids):
        assert (np.ascontiguousarray(results[idle]).view(np.uint8) == 0xFF).all()
    assert (gpu.read(batch.counts)[batch.records["history"][5], :50] == 0).all()
    assert not gpu.read(batch.workspace)[: 6 * 2 * 1025 * 4].any()


@every_hardship
def test_under_every_hardship(gpu: Card, rng: np.random.Generator) -> None:
    """Two slices, every kind of row, a list and logits beyond one."""
    asked = [{"temperature": 0.0, "logprobs": 20}, {}, {"top_k": 9, "top_p": 0.9}, {"top_p": 0.9}, *PENALTIES[-2:]]
    logits = normal(rng, len(asked), 4200)
    logits[3] *= 0.01
    check(gpu, logits, rows_of(rng, asked, 4200))


# --- history ----------------------------------------------------------------------------------------------------


@pytest.mark.smallest
def test_counts(gpu: Card, rng: np.random.Generator) -> None:
    """Two sequences in rows of their own, neighbours untouched; a count stops where its bits end."""
    vocab = 4111
    rows = [
        row(prompt=[4110, 0, 0, 7], output=[7, 7, 4095, 4096, 4110]),
        row(prompt=rng.integers(0, vocab, 2000).tolist(), output=[9] * 33_000 + [10] * 32_767 + [11] * 32_768),
        row(prompt=[], output=[0]),
    ]
    numbers = [4, 0, 2]
    counts = gpu.output((5, sample.count_stride(vocab)), np.uint16)
    histories, tokens = (gpu.upload(part) for part in sample.pack_histories(list(zip(rows, numbers, strict=True))))
    gpu.run(sample.history(counts.address, histories.address, tokens.address, sequences=3, vocab=vocab))
    read = gpu.read(counts)
    for each, number in zip(rows, numbers, strict=True):
        want = np.minimum(np.bincount(np.array(each.output), minlength=vocab), 0x7FFF)
        want[np.unique(np.array(each.prompt, int))] |= 0x8000
        assert (read[number, :vocab] == want).all()
    assert (read[[1, 3]] == 0xFFFF).all()  # poison
    assert (read[:, vocab:] == 0xFFFF).all()


def test_a_count_stops_in_a_step_too(gpu: Card) -> None:
    batch = Batch(gpu, [row({"temperature": 0.0, "frequency_penalty": 1e-9}, prompt=[1])], 8)
    counts = np.zeros(sample.count_stride(8), np.uint16)
    counts[:8] = [0, 0x8000, 0xFFFE, 0, 0, 0, 0, 0]
    gpu.write(batch.counts.address, counts)
    for expected_count in (0xFFFF, 0xFFFF):
        assert batch.step(np.eye(8, dtype=np.float32)[2:3] * 9)[0] == [2]
        assert gpu.read(batch.counts)[0, :3].tolist() == [0, 0x8000, expected_count]


# --- where it may read and write --------------------------------------------------------------------------------


@pytest.mark.smallest
def test_rows_that_lie_far_apart(gpu: Card, rng: np.random.Generator) -> None:
    """Logits and counts beyond 2^32 elements."""
    vocab = 4100
    stride = (1 << 31) + 5 if gpu.soft else vocab + 1
    far_count = (1 << 32) // sample.count_stride(vocab) + 3 if gpu.soft else 3
    rows = rows_of(
        rng, [{"presence_penalty": 1.0, "top_k": 4, "logprobs": 2}, {"temperature": 0.0, "logprobs": 0}] * 2, vocab
    )
    logits = normal(rng, 4, vocab)
    logits[:, 0] = 30.0
    rows[2].output = [0]
    batch = Batch(gpu, rows, vocab)
    pool = gpu.pool((3 * stride + vocab) * 4)
    for index in range(4):
        gpu.write(pool.address + index * stride * 4, logits[index])
    counts = gpu.pool((far_count + 1) * sample.count_stride(vocab) * 2)
    histories, tokens = (gpu.upload(part) for part in sample.pack_histories([(rows[0], 0), (rows[2], far_count)]))
    gpu.run(sample.history(counts.address, histories.address, tokens.address, sequences=2, vocab=vocab))
    batch.records["history"] = [0, -1, far_count, -1]
    batch.counts = counts
    gpu.run(*batch.plan(pool.address, stride))
    same(batch.result(), expected(logits, rows), rows)


# --- launches ---------------------------------------------------------------------------------------------------


def tensors() -> sample.Tensors:
    return sample.Tensors(logits=1 << 40, rows=2 << 40, tokens=3 << 40, workspace=4 << 40, workspace_rows=1 << 16)


def test_launches_depend_on_the_shape_alone() -> None:
    launches = sample.plan(tensors(), rows=7, vocab=151_936, stride=151_936)
    assert [launch.entry for launch in launches] == ["sample_scan", "sample_gather", "sample_finish"]
    assert [launch.grid for launch in launches] == [(38, 7, 1), (38, 7, 1), (7, 1, 1)]
    short = sample.plan(tensors(), rows=7, vocab=151_936, stride=151_936, greedy=True)
    assert [launch.entry for launch in short] == ["sample_scan", "sample_greedy"]
    assert [launch.grid for launch in short] == [(38, 7, 1), (2, 1, 1)]


def test_what_no_kernel_takes_is_refused() -> None:
    for options in ({"rows": 0}, {"rows": 1 << 16}, {"vocab": 0}, {"vocab": (1 << 18) + 1}, {"stride": 99}):
        with pytest.raises(ValueError, match="sample of"):
            sample.plan(tensors(), **({"rows": 1, "vocab": 100, "stride": 100} | options))
    with pytest.raises(ValueError, match="65537 rows in a workspace for 65536"):
        sample.plan(tensors(), rows=65_537, vocab=100, stride=100)
    with pytest.raises(ValueError, match="101 alternatives"):
        sample.plan(tensors(), rows=1, vocab=100, stride=100, most_logprobs=101)
    with pytest.raises(ValueError, match="101 alternatives"):
        sample.record(row({"logprobs": 101}), 1000)
    with pytest.raises(ValueError, match="histories of 0 sequences"):
        sample.history(1, 1, 1, sequences=0, vocab=5)


def test_what_counts_as_plain() -> None:
    records = np.array([sample.record(row(changes), 50) for changes in ALONE], sample.ROW)
    assert [sample.is_plain(records[index : index + 1]) for index in range(4)] == [True, False, False, False]
    assert not sample.is_plain(records)
    records["kind"][1:] = sample.IDLE
    assert sample.is_plain(records)


def test_who_needs_a_history() -> None:
    assert all(sample.needs_history(row(changes).sampling) for changes in PENALTIES)
    assert not any(sample.needs_history(row(changes).sampling) for changes in ALONE)


# --- what kernels/README.md states ------------------------------------------------------------------------------


def logit_bytes(counters: dict[str, Any]) -> tuple[int, int, int]:
    """Bytes, sectors and the fewest sectors of the loads of logits, which alone go through the read-only cache."""
    sites = [site for site in counters["sites"].values() if "ld.global.nc.f32" in site["text"]]
    moved, sectors, ideal = (sum(site[key] for site in sites) for key in ("bytes", "sectors", "ideal"))
    return moved, sectors, ideal


@pytest.mark.smallest
def test_bytes_moved(gpu: Card, rng: np.random.Generator) -> None:
    """Every logit once in scan; in gather only of slices that hold what is listed, or that are drawn from."""
    if not gpu.soft:
        pytest.skip("a card does not count")
    vocab = 3 * 4096
    logits = normal(rng, 1, vocab, 0.01)
    logits[0, 5000:5010] += 9.0
    for changes, gathered in (
        ({"temperature": 0.0}, 0),
        ({"top_k": 3, "logprobs": 2}, 4096),
        ({}, vocab),
        ({"top_p": 0.5}, vocab),
    ):
        batch = Batch(gpu, [row(changes)], vocab)
        launches = batch.plan(gpu.upload(logits).address, vocab)
        counted = gpu.counted(*launches)
        assert logit_bytes(counted["sample_scan"]) == (4 * vocab, vocab // 8, vocab // 8)
        assert logit_bytes(counted["sample_gather"]) == (4 * gathered, gathered // 8, gathered // 8)
        assert logit_bytes(counted["sample_finish"])[0] == 0
        for entry in counted.values():
            assert entry["local"]["requests"] == 0


@pytest.mark.smallest
def test_scores_taken_in_double(gpu: Card, rng: np.random.Generator) -> None:
    """One or two a slice, however flat the logits are: a logarithm in double takes the only reciprocals."""
    if not gpu.soft:
        pytest.skip("a card does not count")
    vocab = 3 * 4096
    for logits in (np.zeros((4, vocab), np.float32), normal(rng, 4, vocab)):
        batch = Batch(gpu, [row(seed=seed) for seed in range(4)], vocab)
        counted = gpu.counted(*batch.plan(gpu.upload(logits).address, vocab))["sample_gather"]
        assert 1 <= counted["instructions"]["rcp.approx"] <= 4 * 3 * 2


def test_stated_occupancy(request: pytest.FixtureRequest) -> None:
    manifest = json.loads((Path(request.config.getoption("ptx")) / "manifest.json").read_text())
    entries = manifest["modules"]["sample"]["entries"]
    text = (Path(__file__).parents[2] / "kernels" / "README.md").read_text()
    stated = re.findall(r"^\| sample_(\w+) \| (\d+) × (\d+) \| (\d+) \| (\d+) B \|", text, re.MULTILINE)
    assert {f"sample_{name}" for name, *_ in stated} == set(entries)
    for name, blocks, threads, registers, shared in stated:
        entry = entries[f"sample_{name}"]
        assert (entry["min_blocks"], entry["max_threads"]) == (int(blocks), int(threads))
        assert max(usage["registers"] for usage in entry["architectures"].values()) == int(registers)
        assert entry["static_shared_bytes"] == int(shared)


def test_stated_workspace() -> None:
    a_row, a_slice = 73_736, 40  # as the README says
    for rows, vocab in (1, 4096), (3, 4097), (256, 151_936):
        assert sample.workspace_bytes(rows, vocab) == rows * (a_row + a_slice * -(-vocab // 4096))
