"""Against a brute-force reference in double precision that follows the definition token by token."""

import itertools
import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pilotlight.device.base import MaskWords, SampleRow
from pilotlight.device.random import bits_of_all, stream_key
from pilotlight.device.sampling import sample, score, threshold, unpack_mask
from pilotlight.messages import Sampling
from tests.device import chi_square
from tests.device.masks import pack_mask

LOGITS = np.array([1.5, 0.2, -0.4, 2.0, 0.9, -1.3, 0.0, 1.1, -2.2, 0.6, -0.1, 1.7], np.float32)


def sampling(**changes: Any) -> Sampling:
    return Sampling(**({"max_tokens": 100} | changes))


def row(changes: Any, *, prompt: Sequence[int] = (), output: Sequence[int] = (), choice: int = 0) -> SampleRow:
    parameters = changes if isinstance(changes, Sampling) else sampling(**changes)
    return SampleRow(parameters, stream_key(parameters.seed, 0, choice), prompt, output)


def allowing(tokens: Collection[int]) -> MaskWords:
    """The words of base.py's definition, bit by bit."""
    words = [0] * (max(tokens) // 32 + 1)
    for token in tokens:
        words[token // 32] |= 1 << token % 32
    return np.array(words, np.uint32)


def one(logits: np.ndarray, wanted: SampleRow) -> int:
    return sample(np.array([logits], np.float32), [wanted])[0][0]


def adjusted(logits: np.ndarray, parameters: Sampling, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
    """Steps 2 to 5 of the definition."""
    values = [float(value) for value in logits]
    for token, bias in parameters.logit_bias:
        values[token] += bias
    for token in {*prompt, *output}:
        factor = parameters.repetition_penalty
        values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
    for token, count in Counter(output).items():
        values[token] -= parameters.frequency_penalty * count + parameters.presence_penalty
    if len(output) < parameters.min_tokens:
        for token in parameters.eos_token_ids + parameters.stop_token_ids:
            values[token] = -math.inf
    return values


def probabilities(
    logits: np.ndarray, parameters: Sampling, prompt: Sequence[int] = (), output: Sequence[int] = ()
) -> np.ndarray:
    """What the draw of step 8 must follow, at a temperature above zero."""
    values = adjusted(logits, parameters, prompt, output)
    largest = max(values)
    weights = [math.exp((value - largest) / parameters.temperature) for value in values]
    if parameters.top_k:
        kth = sorted(values, reverse=True)[min(parameters.top_k, len(values)) - 1]
        weights = [weight if value >= kth else 0.0 for weight, value in zip(weights, values, strict=True)]
    if parameters.top_p < 1:
        total = math.fsum(weights)
        above = [math.fsum(other for other in weights if other > weight) for weight in weights]
        weights = [
            weight if mass < parameters.top_p * total else 0.0 for weight, mass in zip(weights, above, strict=True)
        ]
    if parameters.min_p:
        weights = [weight if weight >= parameters.min_p else 0.0 for weight in weights]
    return np.array(weights) / math.fsum(weights)


def check_draws(tokens: Sequence[int], expected: np.ndarray) -> None:
    """Nothing outside the support, and a chi-square test of the rest; rare tokens count as one."""
    counts = np.bincount(tokens, minlength=len(expected))
    assert counts[expected == 0].sum() == 0
    common = expected * len(tokens) >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum()) * len(tokens)
    if wanted[-1] < 5:
        assert abs(observed[-1] - wanted[-1]) < 8
        observed, wanted = observed[:-1], wanted[:-1] * (observed[:-1].sum() / wanted[:-1].sum())
    if len(wanted) > 1:
        assert 0.002 < chi_square.p_value(observed, wanted) < 0.998


# The distributions. Positions are the sample index, so that one sequence's own stream is what is tested.


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 2.0},
        {"top_k": 5},
        {"top_k": 1},
        {"top_p": 0.7},
        {"top_p": 0.05},
        {"min_p": 0.3},
        {"top_k": 8, "top_p": 0.8},
        {"top_p": 0.9, "min_p": 0.2},
        {"temperature": 0.7, "top_k": 7, "top_p": 0.9, "min_p": 0.05},
        {"logit_bias": ((8, 4.0), (3, -100.0), (0, 1.0))},
    ],
    ids=str,
)
def test_draws_follow_the_exact_distribution(changes: dict[str, Any]) -> None:
    n = 8000
    parameters = sampling(seed=11, **changes)
    rows = [row(parameters, output=range(position)) for position in range(n)]
    tokens, _ = sample(np.tile(LOGITS, (n, 1)), rows)
    check_draws(tokens, probabilities(LOGITS, parameters))


@pytest.mark.parametrize(
    "changes",
    [
        {"repetition_penalty": 1.5},
        {"repetition_penalty": 0.7},
        {"presence_penalty": 1.2},
        {"frequency_penalty": 0.6},
        {"frequency_penalty": -0.4, "presence_penalty": -0.5},
        {
            "repetition_penalty": 1.3,
            "frequency_penalty": 0.3,
            "presence_penalty": 0.2,
            "temperature": 0.8,
            "top_k": 9,
        },
        {"min_tokens": 9, "eos_token_ids": (3,), "stop_token_ids": (0, 11)},
        {"logit_bias": ((3, 2.0), (5, 3.0)), "repetition_penalty": 1.4, "presence_penalty": 0.5, "top_p": 0.95},
    ],
    ids=str,
)
def test_draws_follow_the_exact_distribution_with_a_history(changes: dict[str, Any]) -> None:
    n = 8000
    prompt, output = [3, 3, 8, 1], [0, 4, 4, 4, 5, 0]
    parameters = sampling(seed=12, **changes)
    rows = [row(parameters, prompt=prompt, output=output, choice=choice) for choice in range(n)]
    tokens, _ = sample(np.tile(LOGITS, (n, 1)), rows)
    check_draws(tokens, probabilities(LOGITS, parameters, prompt, output))


def test_draws_from_a_large_vocabulary_follow_the_exact_distribution() -> None:
    # Large enough that most tokens are ruled out before their logarithms: the tail must still get its share.
    vocab, n = 5000, 4000
    logits = np.full(vocab, -8.0, np.float32)  # 4990 tokens with 1.67 of weight in all
    logits[:10] = np.linspace(0, -3, 10)
    parameters = sampling(seed=2)
    expected = probabilities(logits, parameters)
    rows = [row(parameters, output=range(position)) for position in range(n)]
    tokens = np.array(sample(np.tile(logits, (n, 1)), rows)[0])
    grouped = np.bincount(np.minimum(tokens, 10), minlength=11)
    assert 0.002 < chi_square.p_value(grouped, np.append(expected[:10], expected[10:].sum()) * n) < 0.998
    tail = tokens[tokens >= 10] - 10
    assert len(tail) > 1000
    bins = np.bincount(tail * 20 // 4990, minlength=20)
    widths = np.bincount(np.arange(4990) * 20 // 4990) / 4990
    assert 0.002 < chi_square.p_value(bins, widths * len(tail)) < 0.998


def test_C13_choices_and_prompts_of_one_seed_draw_independently() -> None:
    n = 6000
    logits = np.linspace(0, 1, 6, dtype=np.float32)
    keys = [stream_key(7, 0, 0), stream_key(7, 0, 1), stream_key(7, 1, 0), stream_key(8, 0, 0)]
    draws = []
    for key in keys:
        rows = [SampleRow(sampling(seed=7), key, (), range(position)) for position in range(n)]
        draws.append(sample(np.tile(logits, (n, 1)), rows)[0])
    for first in range(4):
        for second in range(first):
            table = np.zeros((6, 6))
            np.add.at(table, (draws[first], draws[second]), 1)
            assert 0.002 < chi_square.independence(table) < 0.998


# The definition, exactly.


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, Sampling, list[int], list[int]]:
    vocab = draw(st.integers(2, 40))
    logits = np.array(draw(st.lists(st.floats(-15, 15, width=32), min_size=vocab, max_size=vocab)), np.float32)
    ids = st.integers(0, vocab - 1)
    parameters = sampling(
        temperature=draw(st.sampled_from([0.3, 0.7, 1.0, 1.9])),
        top_k=draw(st.sampled_from([0, 1, 2, 5, vocab - 1, vocab, vocab + 1, 9_999_999])),
        top_p=draw(st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01])),
        min_p=draw(st.sampled_from([0.0, 0.001, 0.1, 0.9])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.2, 0.8])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5, -1.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.5, -0.3])),
        logit_bias=tuple(draw(st.dictionaries(ids, st.floats(-40, 40, width=32), max_size=3)).items()),
        min_tokens=draw(st.sampled_from([0, 3])),
        eos_token_ids=(0,),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        logprobs=draw(st.sampled_from([None, 0, 3])),
    )
    prompt = draw(st.lists(ids, min_size=1, max_size=8))
    return logits, parameters, prompt, draw(st.lists(ids, max_size=8))


def away_from_boundaries(values: list[float], parameters: Sampling) -> bool:
    """Whether rounding to fp32 can move no token over the edge of a filter. Nothing here underflows in double."""
    largest = max(values)
    if any(0 < above - below < 1e-4 for below, above in itertools.pairwise(sorted(values))):
        return False  # equal in fp32 perhaps, though not here
    finite = sorted((value - largest for value in values if value > -math.inf), reverse=True)
    kept = [value for value in finite if value >= finite[: parameters.top_k][-1]] if parameters.top_k else finite
    likelihoods = np.array(kept) / parameters.temperature
    weights = np.exp(likelihoods)
    mass = np.cumsum(weights) / weights.sum()
    if np.abs(mass - parameters.top_p).min() < 1e-5 and parameters.top_p < 1:
        return False
    return not parameters.min_p or np.abs(likelihoods - math.log(parameters.min_p)).min() > 1e-4


@settings(max_examples=300, deadline=None)
@given(cases())
def test_filters_keep_the_reference_support(case: tuple[np.ndarray, Sampling, list[int], list[int]]) -> None:
    logits, parameters, prompt, output = case
    values = adjusted(logits, parameters, prompt, output)
    assume(away_from_boundaries(values, parameters))
    expected = probabilities(logits, parameters, prompt, output)
    as_fp32 = np.array(values, np.float32)
    least = threshold(as_fp32, as_fp32.max(), parameters)
    kept = np.flatnonzero(as_fp32 >= (-np.inf if least is None else least))
    assert kept[np.isfinite(as_fp32[kept])].tolist() == np.flatnonzero(expected > 0).tolist()


@settings(max_examples=300, deadline=None)
@given(cases())
def test_the_token_is_the_one_the_definition_names(case: tuple[np.ndarray, Sampling, list[int], list[int]]) -> None:
    logits, parameters, prompt, output = case
    assume(away_from_boundaries(adjusted(logits, parameters, prompt, output), parameters))
    expected = probabilities(logits, parameters, prompt, output)
    bits = bits_of_all(stream_key(parameters.seed, 0, 0), len(output), len(logits))
    scores = [
        math.log(probability) - math.log(-math.log1p(-(((int(word) >> 12) + 0.5) / 2**52)))
        if probability
        else -math.inf
        for probability, word in zip(expected, bits, strict=True)
    ]
    first, second = sorted(scores, reverse=True)[:2]
    assume(first - second > 1e-4)
    assert one(logits, row(parameters, prompt=prompt, output=output)) == scores.index(first)


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_ruling_out_tokens_early_changes_no_draw(spread: float) -> None:
    vocab = 20_000
    logits = (np.random.default_rng(3).standard_normal(vocab) * spread).astype(np.float32)
    for choice in range(100):
        key = stream_key(4, 0, choice)
        u = ((bits_of_all(key, 0, vocab) >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52
        scores = logits.astype(np.float64) - np.log(-np.log1p(-u))
        assert one(logits, SampleRow(sampling(), key, (), ())) == int(scores.argmax())


@settings(max_examples=100, deadline=None)
@given(st.lists(cases(), min_size=2, max_size=6))
def test_C11_a_row_gets_the_same_alone_and_in_any_batch(
    batch: list[tuple[np.ndarray, Sampling, list[int], list[int]]],
) -> None:
    vocab = min(len(logits) for logits, *_ in batch)
    matrix = np.array([logits[:vocab] for logits, *_ in batch])
    rows = []
    for _, parameters, prompt, output in batch:
        bias = tuple((token % vocab, value) for token, value in parameters.logit_bias)
        fitting = msgspec.structs.replace(parameters, logit_bias=bias)
        rows.append(row(fitting, prompt=[t % vocab for t in prompt], output=[t % vocab for t in output]))
    tokens, logprobs = sample(matrix.copy(), rows)
    for index, wanted in enumerate(rows):
        alone = sample(matrix[index : index + 1].copy(), [wanted])
        assert ([tokens[index]], [logprobs[index]]) == alone
    order = list(reversed(range(len(rows))))
    backwards = sample(matrix[order].copy(), [rows[index] for index in order])
    assert backwards == (tokens[::-1], logprobs[::-1])


# Greedy.


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    logits = np.array([[0, 3, 1, 3], [2, 2, 2, 2], [-5, -7, -1, -1]], np.float32)
    assert sample(logits.copy(), [row({"temperature": 0.0})] * 3) == ([1, 0, 2], [None] * 3)


def test_greedy_beside_sampled_rows_is_the_same() -> None:
    logits = np.random.default_rng(1).standard_normal((6, 500)).astype(np.float32)
    rows = [row({"temperature": 0.0 if index % 2 else 1.0}) for index in range(6)]
    tokens, _ = sample(logits.copy(), rows)
    assert tokens[1::2] == logits[1::2].argmax(axis=1).tolist()


@pytest.mark.parametrize("temperature", [0.0, -0.0, 9e-6])
def test_C09_a_temperature_next_to_zero_is_greedy(temperature: float) -> None:
    logits = np.array([1.0, 1.0 + 2**-20, 0.5])
    assert {one(logits, row({"temperature": temperature}, choice=choice)) for choice in range(50)} == {1}


def test_greedy_heeds_penalties_bias_and_bans() -> None:
    logits = np.array([4.0, 3.0, 2.0, 1.0])
    greedy = {"temperature": 0.0}
    assert one(logits, row(greedy | {"logit_bias": ((3, 5.0),)})) == 3
    assert one(logits, row(greedy | {"repetition_penalty": 2.0}, prompt=[0])) == 1
    assert one(logits, row(greedy | {"frequency_penalty": 0.6}, output=[0, 0])) == 1
    assert one(logits, row(greedy | {"presence_penalty": 1.5}, output=[0])) == 1
    assert one(logits, row(greedy | {"min_tokens": 1, "eos_token_ids": (0,), "stop_token_ids": (1,)})) == 2


def test_a_forbidding_bias_is_not_drawn() -> None:
    logits = np.zeros(8)
    forbidding = {"logit_bias": tuple((token, -100.0) for token in range(8) if token != 5)}
    assert {one(logits, row(forbidding, choice=choice)) for choice in range(200)} == {5}


# Masks.


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(1, 400))
def test_a_mask_is_the_words_of_its_definition(tokens: set[int], vocab: int) -> None:
    words = pack_mask(sorted(tokens, reverse=True))
    assert words.dtype == np.uint32
    assert words.tolist() == allowing(tokens).tolist()
    assert unpack_mask(words, vocab).tolist() == [token in tokens for token in range(vocab)]


@settings(max_examples=200, deadline=None)
@given(cases(), st.data())
def test_a_mask_is_a_ban_of_all_else(
    case: tuple[np.ndarray, Sampling, list[int], list[int]], data: st.DataObject
) -> None:
    """The same token as from logits of which the others are impossible, whatever stands beside the mask."""
    logits, parameters, prompt, output = case
    allowed = data.draw(st.sets(st.integers(0, len(logits) - 1), min_size=1))
    wanted = row(parameters, prompt=prompt, output=output)
    banned = [-math.inf if token not in allowed else float(value) for token, value in enumerate(logits)]
    expected = sample(np.array([banned], np.float32), [wanted])[0]
    wanted.mask = lambda: allowing(allowed)
    tokens, logprobs = sample(logits[None].copy(), [wanted])
    assert tokens == expected
    assert tokens[0] in allowed or (tokens[0] == -1 and allowed == {0} and len(output) < parameters.min_tokens)
    if parameters.logprobs is not None and tokens[0] >= 0:  # of the raw logits: a mask changes none
        assert logprobs == [score(logits[None], np.array(tokens, np.int32), parameters.logprobs)[0]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_leaves_its_neighbours_and_is_asked_for_once_a_step(temperature: float) -> None:
    asked = []

    def mask() -> MaskWords:
        asked.append(None)
        return allowing({2})

    rows = [row({"temperature": temperature}, choice=choice) for choice in range(3)]
    plain, _ = sample(np.tile(LOGITS, (3, 1)), rows)
    rows[1].mask = mask
    assert sample(np.tile(LOGITS, (3, 1)), rows)[0] == [plain[0], 2, plain[2]]
    assert len(asked) == 1


def test_a_mask_that_is_shorter_than_the_vocabulary_forbids_the_rest_and_one_of_nothing_leaves_no_token() -> None:
    logits = np.arange(100, dtype=np.float32)
    short = row({"temperature": 0.0})
    short.mask = lambda: np.array([2**32 - 1], np.uint32)
    assert one(logits, short) == 31
    short.mask = lambda: np.zeros(4, np.uint32)
    assert one(logits, short) == -1


# Edges of the parameters.


def test_top_k_and_top_p_and_min_p_keep_all_equals_of_their_last() -> None:
    logits = np.array([1.0, 3.0, 2.0, 2.0, 2.0, 0.0])

    def support(**changes: Any) -> set[int]:
        return {one(logits, row(changes, choice=choice)) for choice in range(400)}

    assert support(top_k=2) == {1, 2, 3, 4}
    assert support(top_k=1) == {1}
    mass = np.exp(logits) / np.exp(logits).sum()
    assert support(top_p=float(mass[1]) + 0.01) == {1, 2, 3, 4}
    assert support(top_p=float(mass[1]) - 0.01) == {1}
    assert support(min_p=1.0) == {1}
    assert support(min_p=math.exp(-1) * 0.999) == {1, 2, 3, 4}
    assert support(top_p=0.0) == {1}


@pytest.mark.parametrize("top_k", [0, 12, 13, 9_999_999])
def test_C06_a_top_k_of_the_vocabulary_or_more_is_no_limit(top_k: int) -> None:
    rows = [row({"top_k": top_k, "seed": 3}, output=range(position)) for position in range(300)]
    free = [row({"seed": 3}, output=range(position)) for position in range(300)]
    beside = [row({"top_k": 1, "seed": 3}, output=range(position)) for position in range(300)]
    tokens, _ = sample(np.tile(LOGITS, (900, 1)), [*rows, *free, *beside])
    assert tokens[:300] == tokens[300:600]
    assert set(tokens[600:]) == {3}


@pytest.mark.parametrize("penalty", [1e-9, 1e9, 1e-45, 1e300])
def test_C07_extreme_repetition_penalties_give_finite_draws(penalty: float) -> None:
    extreme = row({"repetition_penalty": penalty, "logprobs": 2}, prompt=[0, 5, 6], output=[3])
    tokens, logprobs = sample(np.tile(LOGITS, (2, 1)), [extreme, row({"logprobs": 2}, choice=4)])
    values = adjusted(LOGITS, extreme.sampling, extreme.prompt, extreme.output)
    if penalty < 1:
        assert tokens[0] == 3  # far above the rest
    else:
        assert tokens[0] not in (0, 3, 5)
    assert values[tokens[0]] > -1e6
    assert tokens[1] == sample(LOGITS[None].copy(), [row({}, choice=4)])[0][0]
    assert all(math.isfinite(entry.logprob) for entry in logprobs if entry)


def test_extreme_logits_and_temperatures_draw_the_largest() -> None:
    logits = np.array([-3e38, 3e38, -np.inf, 0.0], np.float32)
    for temperature in (1e-5, 1.0, 2.0):
        for filters in ({}, {"top_p": 0.9}, {"top_p": 1 - 1e-12}, {"min_p": 0.5}, {"top_k": 3}):
            assert one(logits, row({"temperature": temperature, **filters})) == 1
    assert {one(np.array([0.0, -np.inf, 1.0]), row({"temperature": 1e9}, choice=c)) for c in range(50)} == {0, 2}


def test_impossible_tokens_are_never_drawn() -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[[17, 640]] = [0.0, -1.0]
    for filters in ({}, {"top_k": 900}, {"top_p": 1 - 1e-15}, {"min_p": 1e-30}):
        assert {one(logits, row({**filters}, choice=choice)) for choice in range(100)} == {17, 640}


def test_C15_min_tokens_bans_until_exactly_that_many() -> None:
    forced = {"min_tokens": 4, "eos_token_ids": (2,), "logit_bias": ((2, 100.0),)}
    tokens = [one(LOGITS, row(forced, output=[7] * generated)) for generated in range(6)]
    assert 2 not in tokens[:4]
    assert tokens[4:] == [2, 2]


def test_min_tokens_bans_eos_even_when_it_is_ignored_and_passes_over_ids_beyond_the_logits() -> None:
    parameters = {"min_tokens": 1, "ignore_eos": True, "eos_token_ids": (3, 50_000), "temperature": 0.0}
    assert one(LOGITS, row(parameters)) == 11


def test_C17_presence_and_frequency_count_the_output_alone() -> None:
    plain = sample(np.tile(LOGITS, (300, 1)), [row({}, prompt=[3] * 50, choice=choice) for choice in range(300)])
    penal = {"frequency_penalty": 2.0, "presence_penalty": 2.0}
    first = sample(np.tile(LOGITS, (300, 1)), [row(penal, prompt=[3] * 50, choice=choice) for choice in range(300)])
    assert first == plain
    assert one(LOGITS, row({"temperature": 0.0, **penal}, prompt=[3], output=[3])) == 11
    assert one(LOGITS, row({"temperature": 0.0, "repetition_penalty": 3.0}, prompt=[3])) == 11


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {}, {"top_k": 2, "top_p": 0.5, "logprobs": 3}], ids=str)
def test_A10_a_row_with_a_nan_gives_minus_one_and_leaves_its_neighbours(bad: float, changes: dict[str, Any]) -> None:
    logits = np.tile(LOGITS, (3, 1))
    logits[1, 6] = bad
    ban = {"min_tokens": 3, "eos_token_ids": (6,)}
    rows = [row(changes), row(changes | ban), row(changes)]
    tokens, logprobs = sample(logits, rows)
    alone = sample(LOGITS[None].copy(), [row(changes)])
    assert tokens == [alone[0][0], -1, alone[0][0]]
    assert logprobs == [alone[1][0], None, alone[1][0]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_any_possible_token_gives_minus_one(temperature: float) -> None:
    everything = {"min_tokens": 1, "stop_token_ids": tuple(range(12)), "temperature": temperature, "logprobs": 1}
    assert sample(LOGITS[None].copy(), [row(everything)]) == ([-1], [None])
    assert sample(np.full((1, 9), -np.inf, np.float32), [row({"temperature": temperature})]) == ([-1], [None])


# Log-probabilities.


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(0, 45))
def test_logprobs_are_the_log_softmax_of_the_raw_logits(
    case: tuple[np.ndarray, Sampling, list[int], list[int]], top: int
) -> None:
    logits, parameters, prompt, output = case
    wide = logits.astype(np.float64)
    expected = wide - np.log(np.exp(wide - wide.max()).sum()) - wide.max()
    ranked = sorted(range(len(logits)), key=lambda token: (-wide[token], token))[:top]
    parameters = msgspec.structs.replace(parameters, logprobs=top)
    [token], [sampled] = sample(logits[None].copy(), [row(parameters, prompt=prompt, output=output)])
    scored = score(np.array([logits, logits]), np.array([len(logits) - 1, 0], np.int32), top)
    for entry, of in ((sampled, token), (scored[0], len(logits) - 1), (scored[1], 0)):
        assert entry is not None
        assert entry.token == of
        assert entry.logprob == pytest.approx(expected[of], abs=1e-5)
        assert [token for token, _ in entry.top] == ranked
        assert [value for _, value in entry.top] == pytest.approx(expected[ranked].tolist(), abs=1e-5)


def test_logprobs_of_a_large_vocabulary_are_exact() -> None:
    logits = (np.random.default_rng(5).standard_normal((3, 150_000)) * 4 + 300).astype(np.float32)
    wide = logits.astype(np.float64)
    expected = wide - wide.max(1, keepdims=True)
    expected -= np.log(np.exp(expected).sum(1, keepdims=True))
    for entry, values in zip(score(logits, np.array([5, 77, 149_999], np.int32), 20), expected, strict=True):
        assert entry.logprob == pytest.approx(values[entry.token], abs=1e-5)
        order = np.argsort(-values, kind="stable")[:20]
        assert [token for token, _ in entry.top] == order.tolist()
        assert [value for _, value in entry.top] == pytest.approx(values[order].tolist(), abs=1e-5)


def test_asking_for_logprobs_changes_no_token() -> None:
    plain = [row({"seed": 9, "top_k": 6}, output=range(position)) for position in range(200)]
    asking = [row({"seed": 9, "top_k": 6, "logprobs": 4}, output=range(position)) for position in range(200)]
    tokens, logprobs = sample(np.tile(LOGITS, (400, 1)), [*plain, *asking])
    assert tokens[:200] == tokens[200:]
    assert logprobs[:200] == [None] * 200
    assert all(entry is not None and len(entry.top) == 4 for entry in logprobs[200:])


def test_score_of_an_impossible_target_is_minus_infinity() -> None:
    logits = np.array([[0.0, -np.inf, 0.0]], np.float32)
    [entry] = score(logits, np.array([1], np.int32), 3)
    assert entry.logprob == -math.inf
    assert entry.top == ((0, pytest.approx(-math.log(2))), (2, pytest.approx(-math.log(2))), (1, -math.inf))


# transformers' own processors, live.


@pytest.mark.reference
@pytest.mark.parametrize("seed", range(5))
def test_the_support_is_that_of_transformers(seed: int) -> None:
    torch = pytest.importorskip("torch")
    warpers = pytest.importorskip("transformers.generation.logits_process")
    random = np.random.default_rng(seed)
    logits = (random.standard_normal(300) * 2).astype(np.float32)
    prompt = random.integers(0, 300, 40).tolist()
    chain = [
        (warpers.RepetitionPenaltyLogitsProcessor(1.3), {"repetition_penalty": 1.3}),
        (warpers.TemperatureLogitsWarper(0.8), {"temperature": 0.8}),
        (warpers.TopKLogitsWarper(60), {"top_k": 60}),
        (warpers.TopPLogitsWarper(0.9), {"top_p": 0.9}),
        (warpers.MinPLogitsWarper(0.02), {"min_p": 0.02}),
    ]
    scores, changes = torch.tensor(logits)[None], {}
    for warper, change in chain:
        scores, changes = warper(torch.tensor([prompt]), scores), changes | change
        reference = torch.softmax(scores[0].double(), -1).numpy()
        expected = probabilities(logits, sampling(**changes), prompt)
        assert np.array_equal(expected > 0, reference > 0)
        np.testing.assert_allclose(expected, reference, atol=1e-6)
