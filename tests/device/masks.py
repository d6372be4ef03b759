"""Masks of allowed tokens for the devices' tests; a request's own is made in params.py."""

from collections.abc import Sequence

import numpy as np

from pilotlight.device.base import MaskWords


def pack_mask(tokens: Sequence[int]) -> MaskWords:
    """The mask that allows `tokens` and no other."""
    bits = np.zeros(max(tokens, default=0) // 32 * 32 + 32, np.bool_)
    bits[list(tokens)] = True
    return np.packbits(bits, bitorder="little").view("<u4")
