"""What the tests of approximate instructions share: jitter by seed, held to the documented error."""

import numpy as np

from tests.softgpu import ptx
from tests.softgpu.fixtures import Soft

SEEDS = range(4)


def held(soft: Soft, line: str, source: np.ndarray, true: np.ndarray, error: np.ndarray, result=np.float32) -> None:
    """Runs `line` under several seeds: all within `error` of `true`, some differing; without jitter none differs."""
    results = []
    for seed in SEEDS:
        soft.reset(seed=seed)
        got = ptx.each(line, source, result=result)
        wrong = np.flatnonzero(~(np.abs(got.astype(np.float64) - true) <= error))
        assert not wrong.size, (
            f"seed {seed}: {wrong.size} of {got.size} past the error, first of {source[wrong[0]]!r}: "
            f"got {got[wrong[0]]!r}, true {true[wrong[0]]!r}, allowed {error[wrong[0]]!r}"
        )
        results.append(got)
    assert any(np.any(results[0] != other) for other in results[1:]), "the seed moves nothing"
    still = []
    for seed in SEEDS:
        soft.reset(seed=seed, jitter=False)
        still.append(ptx.each(line, source, result=result))
        np.testing.assert_array_equal(still[-1], still[0])
    again = []
    for _ in range(2):
        soft.reset(seed=1)
        again.append(ptx.each(line, source, result=result))
    np.testing.assert_array_equal(*again, err_msg="one seed gives two results")


def ulp(value: np.ndarray) -> np.ndarray:
    """The distance between neighbouring float32 at each value, as float64."""
    return np.spacing(np.abs(value).astype(np.float32)).astype(np.float64)


def spread(count: int, low: int, high: int, seed: int) -> np.ndarray:
    """Positive float32 with exponents drawn evenly from [low, high)."""
    generator = np.random.default_rng(seed)
    return np.ldexp(generator.uniform(1, 2, count), generator.integers(low, high, count)).astype(np.float32)


def same_with_signs(got: np.ndarray, expected: np.ndarray) -> None:
    """Equality in which -0 is not +0 and any NaN equals any other."""
    np.testing.assert_array_equal(got, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(expected)[numbers])
