"""The check that attention's outputs pass: exact where the tolerance is 0, and deaf to nothing."""

import numpy as np
import pytest

from .paged import hold

ZEROS = np.zeros((2, 3))


def test_what_is_exact_passes_without_a_tolerance() -> None:
    hold(ZEROS, ZEROS, ZEROS, "row")


@pytest.mark.parametrize("value", [1e-9, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("tolerance", [0.0, 1e-10])
def test_what_is_off_is_named(value: float, tolerance: float) -> None:
    got = ZEROS.copy()
    got[1, 2] = value
    with pytest.raises(AssertionError, match=r"row \[1, 2\]"):
        hold(got, ZEROS, np.full_like(ZEROS, tolerance), "row")
