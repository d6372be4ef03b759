"""The random numbers of sampling: a pure function of (seed, prompt, choice, position, token), on every device.

Apart from sampling because each device repeats it bit for bit. There is no state and no order of calls: a token's
number is the same alone or in any batch, on a CPU or a GPU, at the first try or after a preemption.

Everything is one function applied five times. Let GAMMA = 0x9E3779B97F4A7C15 and all arithmetic be modulo 2^64:

    nth(state, n) = mix(state + (n + 1) * GAMMA)
    mix(z):  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
             z = (z ^ (z >> 27)) * 0x94D049BB133111EB
             return z ^ (z >> 31)

which is output number n of the generator SplitMix64 started at `state` (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014; constants of Vigna's splitmix64.c). Then

    key    = nth(nth(nth(0, seed), prompt_index), choice_index)   one for each sequence, 64 bits
    stream = nth(key, position)                                   position: tokens generated before this one
    bits   = nth(stream, token)

and from `bits`, without rounding, a double in the open interval (0, 1), of which the exponential is made:

    u = ((bits >> 12) + 0.5) * 2^-52
    e = -log1p(-u)                        in double precision

Small `e` win a draw, and near zero u has its full resolution: probabilities down to 1e-15 are drawn as they should.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

UInt64 = NDArray[np.uint64]
Float64 = NDArray[np.float64]

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def stream_key(seed: int, prompt_index: int, choice_index: int) -> int:
    """The 64-bit key of one sequence. A negative seed counts modulo 2^64."""
    return _nth(_nth(_nth(0, seed), prompt_index), choice_index)


def bits_of(key: int, position: int, tokens: NDArray[np.intp]) -> UInt64:
    """64 random bits for each of `tokens` at one position of one sequence."""
    return _mix_in_place(tokens.astype(np.uint64) * np.uint64(_GAMMA), key, position)


def bits_of_all(key: int, position: int, vocab_size: int) -> UInt64:
    """`bits_of` tokens 0 to vocab_size - 1."""
    return _mix_in_place(_counters(vocab_size).copy(), key, position)


def uniforms(bits: UInt64) -> Float64:
    """Doubles in the open interval (0, 1), multiples of 2^-53."""
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def exponentials(bits: UInt64) -> Float64:
    """Exponential variates of rate 1, between 2^-53 and 37."""
    return -np.log1p(-uniforms(bits))


def _nth(state: int, n: int) -> int:
    z = (state + (n + 1) * _GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def _mix_in_place(counters: UInt64, key: int, position: int) -> UInt64:
    """nth(stream, token) from counters = token * GAMMA."""
    z = counters
    z += np.uint64((_nth(key, position) + _GAMMA) & _MASK)
    shifted = z >> np.uint64(30)
    z ^= shifted
    z *= np.uint64(_MIX_1)
    np.right_shift(z, np.uint64(27), out=shifted)
    z ^= shifted
    z *= np.uint64(_MIX_2)
    np.right_shift(z, np.uint64(31), out=shifted)
    z ^= shifted
    return z


@lru_cache(maxsize=2)
def _counters(vocab_size: int) -> UInt64:
    return np.arange(vocab_size, dtype=np.uint64) * np.uint64(_GAMMA)
