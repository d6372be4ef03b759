import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotlight.device.random import bits_of, bits_of_all, exponentials, stream_key, uniforms
from tests.device import chi_square

U64 = st.integers(0, 2**64 - 1)
KEY = stream_key(7, 0, 0)


def split_mix(state: int, n: int) -> int:
    """Output n of SplitMix64, stepped from the start as its authors write it."""
    for _ in range(n + 1):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def by_position(positions: range, token: int, key: int = KEY) -> np.ndarray:
    return np.concatenate([bits_of(key, position, np.array([token])) for position in positions])


def test_splitmix64_gives_its_published_outputs() -> None:
    # The first outputs for the seed 1234567, as printed by splitmix64.c of prng.di.unimi.it.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [split_mix(1234567, n) for n in range(4)] == published


@given(seed=U64, prompt=st.integers(0, 40), choice=st.integers(0, 40), position=st.integers(0, 40))
def test_bits_are_what_the_specification_says(seed: int, prompt: int, choice: int, position: int) -> None:
    key = split_mix(split_mix((seed * 0x9E3779B97F4A7C15) % 2**64, 0), prompt)
    key = split_mix(key, choice)
    assert stream_key(seed, prompt, choice) == key
    stream = split_mix(key, position)
    expected = [split_mix(stream, token) for token in range(70)]
    assert bits_of_all(key, position, 70).tolist() == expected
    assert bits_of(key, position, np.array([69, 0, 33])).tolist() == [expected[69], expected[0], expected[33]]


def test_large_tokens_and_positions_wrap_like_unsigned_integers() -> None:
    assert bits_of(2**64 - 1, 2**40, np.array([200_000]))[0] == bits_of_all(2**64 - 1, 2**40, 200_001)[-1]


def test_a_negative_seed_counts_modulo_two_to_the_64() -> None:
    assert stream_key(-1, 0, 0) == stream_key(2**64 - 1, 0, 0)
    assert stream_key(-1, 0, 0) != stream_key(1, 0, 0)


def test_the_shared_counters_are_not_written_to() -> None:
    first = bits_of_all(KEY, 3, 1000)
    bits_of_all(KEY, 4, 1000)
    assert np.array_equal(bits_of_all(KEY, 3, 1000), first)


def test_uniforms_stay_inside_the_open_interval() -> None:
    extremes = np.array([0, 2**64 - 1, 2**63], np.uint64)
    assert uniforms(extremes).tolist() == [2.0**-53, 1 - 2.0**-53, 0.5 + 2.0**-53]
    low, high, half = exponentials(extremes).tolist()
    assert low == pytest.approx(2.0**-53, rel=1e-12)
    assert high == pytest.approx(53 * math.log(2), rel=1e-12)
    assert half == pytest.approx(math.log(2), rel=1e-12)


def test_an_exponential_is_never_below_its_uniform() -> None:
    bits = np.concatenate([bits_of_all(KEY, 0, 100_000), bits_of_all(KEY, 1, 100_000) >> np.uint64(40)])
    assert np.all(exponentials(bits) >= uniforms(bits))


@pytest.mark.parametrize("axis", ["tokens", "positions", "seeds", "prompts", "choices"])
def test_uniforms_are_uniform_along_each_axis(axis: str) -> None:
    n, bins = 20_000, 200
    token = np.array([11])
    bits = {
        "tokens": lambda: bits_of_all(KEY, 0, n),
        "positions": lambda: by_position(range(n), 11),
        "seeds": lambda: np.concatenate([bits_of(stream_key(i, 0, 0), 0, token) for i in range(n)]),
        "prompts": lambda: np.concatenate([bits_of(stream_key(5, i, 0), 0, token) for i in range(n)]),
        "choices": lambda: np.concatenate([bits_of(stream_key(5, 0, i), 0, token) for i in range(n)]),
    }[axis]()
    u = uniforms(bits)
    counts = np.bincount((u * bins).astype(int), minlength=bins)
    assert 0.001 < chi_square.p_value(counts, np.full(bins, n / bins)) < 0.999
    # The other end of the word, and each bit alone: within 4.5 standard deviations of a half.
    low = np.bincount((bits & np.uint64(127)).astype(int), minlength=128)
    assert 0.001 < chi_square.p_value(low, np.full(128, n / 128)) < 0.999
    ones = [int(((bits >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(64)]
    assert max(abs(count - n / 2) for count in ones) < 4.5 * math.sqrt(n) / 2


def test_exponentials_are_exponential() -> None:
    n, bins = 100_000, 100
    edges = -np.log1p(-np.arange(bins) / bins)  # equally likely intervals
    counts = np.bincount(np.searchsorted(edges, exponentials(bits_of_all(KEY, 9, n)), side="right") - 1)
    assert 0.001 < chi_square.p_value(counts, np.full(bins, n / bins)) < 0.999


@pytest.mark.parametrize("pair", ["tokens", "positions", "far positions", "seeds", "prompts", "choices"])
def test_neighbours_are_independent(pair: str) -> None:
    n, bins = 40_000, 16
    key = stream_key(5, 3, 3)
    first = uniforms(bits_of_all(key, 20, n + 1))
    second = {
        "tokens": lambda: first[1:],
        "positions": lambda: uniforms(bits_of_all(key, 21, n)),
        "far positions": lambda: uniforms(bits_of_all(key, 20 + 2**16, n)),
        "seeds": lambda: uniforms(bits_of_all(stream_key(6, 3, 3), 20, n)),
        "prompts": lambda: uniforms(bits_of_all(stream_key(5, 4, 3), 20, n)),
        "choices": lambda: uniforms(bits_of_all(stream_key(5, 3, 4), 20, n)),
    }[pair]()
    table = np.zeros((bins, bins))
    np.add.at(table, ((first[:n] * bins).astype(int), (second * bins).astype(int)), 1)
    assert 0.001 < chi_square.independence(table) < 0.999


def test_prompt_and_choice_do_not_stand_for_each_other() -> None:
    keys = {stream_key(seed, prompt, choice) for seed in range(20) for prompt in range(20) for choice in range(20)}
    assert len(keys) == 8000


def test_each_input_bit_flips_half_the_output_bits() -> None:
    base = bits_of_all(KEY, 0, 2000)
    for flipped in (bits_of_all(KEY ^ (1 << bit), 0, 2000) for bit in range(64)):
        distance = np.bitwise_count(base ^ flipped).mean()
        assert abs(distance - 32) < 5 * 4 / math.sqrt(2000)
