"""Integer sources for the tests beside it, and Python's unbounded integers cut to a register's width."""

import itertools
from typing import Any

import numpy as np

DTYPES = {
    f"{sign}{bits}": np.dtype(f"{'i' if sign == 's' else 'u'}{bits // 8}") for sign in "us" for bits in (16, 32, 64)
}


def wrap(value: int, dtype: Any) -> int:
    """`value` modulo 2^width, as the type reads it."""
    dtype = np.dtype(dtype)
    bits = dtype.itemsize * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value


def clamp(value: int, dtype: Any) -> int:
    limits = np.iinfo(dtype)
    return min(max(value, int(limits.min)), int(limits.max))


def corners(dtype: Any) -> list[int]:
    bits = np.dtype(dtype).itemsize * 8
    points = [0, 1, 2, 3, -1, -2, 7, 31, 32, 33, 1 << (bits // 2), (1 << (bits // 2)) - 1]
    points += [1 << (bits - 1), (1 << (bits - 1)) - 1, (1 << (bits - 1)) + 1, 0x5555555555555555, 0xAAAAAAAAAAAAAAAA]
    return [wrap(point, dtype) for point in points]


def samples(dtype: Any, count: int, seed: int) -> np.ndarray:
    """Random numbers of every size: uniform bits shifted right by a random amount."""
    dtype = np.dtype(dtype)
    generator = np.random.default_rng(seed)
    bits = dtype.itemsize * 8
    raw = generator.integers(0, 1 << 64, count, dtype=np.uint64, endpoint=False) >> np.uint64(64 - bits)
    raw >>= generator.integers(0, bits, count, dtype=np.uint64) * (generator.random(count) < 0.5).astype(np.uint64)
    return raw.astype(f"u{dtype.itemsize}").view(dtype)


def tuples(dtype: Any, arity: int, count: int, seed: int) -> list[np.ndarray]:
    """Sources of an instruction: corners with corners (all pairs; triples at random), then random numbers."""
    points = corners(dtype)
    if arity == 2:
        crossed = np.array(list(itertools.product(points, repeat=2)), dtype=dtype)
    else:
        crossed = np.random.default_rng(seed).choice(np.array(points, dtype=dtype), (len(points) ** 2, arity))
    return [np.concatenate([crossed[:, i], samples(dtype, count, seed * 10 + i + 1)]) for i in range(arity)]


def bits(dtype: Any) -> np.dtype:
    """The unsigned type of the same width."""
    return np.dtype(f"u{np.dtype(dtype).itemsize}")
