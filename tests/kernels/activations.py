"""Activations by their formulas in float64: what the linear's and the gate's kernels are held to.

Apart from both tests because they share them, and from the numpy device because its fp32 loses digits that the
kernels keep.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilotlight.device.base import Activation

Array = NDArray[Any]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def activated(x: Array, activation: Activation) -> Array:
    x = x.astype(np.float64)
    if activation == "gelu":
        return 0.5 * x * (1 + _erf(x / math.sqrt(2)))
    # tanh-gelu is x * sigmoid(2 u), and silu x * sigmoid(x)
    u = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3) if activation == "gelu_tanh" else x
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-u))
