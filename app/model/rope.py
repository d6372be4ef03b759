"""Rotary tables: from a `RopeSpec` to the cos and sin of every position that a server admits.

The frequencies are those of transformers (modeling_rope_utils.py), with one difference that every server with
cached K has: a table is made once, for the configured context length. transformers' "dynamic" recomputes its
frequencies as a sequence grows and its "longrope" changes from short to long factors when a sequence passes the
original length, after which the K already cached is of other frequencies. Here, as in vLLM, `dynamic` scales for the
configured length and `longrope` takes the long factors if that length is beyond the original one. So they agree with
transformers on a prompt of the configured length, and on any prompt where that length is within the original one.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..device.base import Float32
from ..errors import ModelDataError
from .config import CONFIG_FILE
from .spec import RopeSpec

Float64 = NDArray[np.float64]


def rotary_table(rope: RopeSpec, length: int) -> tuple[Float32, Float32]:
    """cos and sin of the angles, times the attention factor: [length, dim / 2] each.

    Raises ModelDataError for parameters of which no numbers come.
    """
    try:
        with np.errstate(over="raise", invalid="raise", divide="ignore"):
            frequencies, attention_factor = inverse_frequencies(rope, length)
            # Angles are rounded to fp32, as transformers has them: the tables of long contexts differ otherwise.
            angles = np.arange(length, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
            factor = np.float32(attention_factor)
            return np.cos(angles) * factor, np.sin(angles) * factor
    except ArithmeticError:
        raise ModelDataError(
            f"{CONFIG_FILE}: no angles come of rope_theta {rope.theta:g} and the {rope.scaling} rope's parameters"
        ) from None


def inverse_frequencies(rope: RopeSpec, length: int) -> tuple[Float64, float]:
    """Radians a position for each rotated pair, [dim / 2], and the factor on cos and sin, for a context `length`."""
    parameters: dict[str, Any] = dict(rope.parameters)
    match rope.scaling:
        case "linear":
            return _default(rope.theta, rope.dim) / parameters["factor"], 1.0
        case "dynamic":
            return _dynamic(rope, length, parameters["factor"]), 1.0
        case "llama3":
            return _llama3(rope, **parameters), 1.0
        case "yarn":
            return _yarn(rope, parameters)
        case "longrope":
            return _longrope(rope, length, parameters)
    return _default(rope.theta, rope.dim), 1.0


def _default(theta: float, dim: int) -> Float64:
    return theta ** -(np.arange(0, dim, 2) / dim)


def _dynamic(rope: RopeSpec, length: int, factor: float) -> Float64:
    """NTK scaling: theta grows so that the longest wave spans `length` positions."""
    stretch = factor * max(length, rope.original_max_position) / rope.original_max_position - (factor - 1)
    return _default(rope.theta * stretch ** (rope.dim / (rope.dim - 2)), rope.dim)


def _llama3(rope: RopeSpec, factor: float, low_freq_factor: float, high_freq_factor: float) -> Float64:
    """Llama 3.1: long waves are divided by `factor`, short ones kept, those between are blended."""
    frequencies = _default(rope.theta, rope.dim)
    turns = rope.original_max_position * frequencies / (2 * math.pi)  # in the context of the training
    keep = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
    return frequencies * (keep + (1 - keep) / factor)


def _yarn(rope: RopeSpec, parameters: dict[str, Any]) -> tuple[Float64, float]:
    """YaRN (https://arxiv.org/abs/2309.00071): between two pairs, found by their turns, scaling fades in."""
    factor = parameters["factor"]

    def pair_with(turns: float) -> float:
        return rope.dim * math.log(rope.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_with(parameters.get("beta_fast", 32)), pair_with(parameters.get("beta_slow", 1))
    if parameters["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001
    scaled = np.clip((np.arange(rope.dim // 2) - low) / (high - low), 0, 1)
    frequencies = _default(rope.theta, rope.dim) * (1 - scaled + scaled / factor)
    if "attention_factor" in parameters:
        return frequencies, parameters["attention_factor"]
    if "mscale" in parameters and "mscale_all_dim" in parameters:
        ratio = _yarn_mscale(factor, parameters["mscale"]) / _yarn_mscale(factor, parameters["mscale_all_dim"])
        return frequencies, ratio
    return frequencies, _yarn_mscale(factor, 1.0)


def _yarn_mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(rope: RopeSpec, length: int, parameters: dict[str, Any]) -> tuple[Float64, float]:
    """LongRoPE (https://arxiv.org/abs/2402.13753): a divisor for each pair, one set within the original length."""
    original, factor = rope.original_max_position, parameters["factor"]
    divisors = parameters["long_factor" if length > original else "short_factor"]
    attention_factor = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return _default(rope.theta, rope.dim) / np.array(divisors), parameters.get("attention_factor", attention_factor)
