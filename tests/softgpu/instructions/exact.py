"""Binary floating point from its definition: exact rationals rounded to any format in any direction.

The reference of these tests, apart from every floating-point unit (numpy's included), so that neither can excuse the
other. A value is a Fraction, or one of the floats nan, inf, -inf and -0.0, which no Fraction can be.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

Real = Fraction | float
MODES = ("rn", "rz", "rm", "rp")


@dataclass(frozen=True)
class Format:
    """A binary format; `finite` has neither infinities nor more than one NaN (e4m3)."""

    exponent_bits: int
    fraction_bits: int
    nan: int  # what an instruction gives for NaN
    finite: bool = False
    padding: int = 0  # zero bits below the fraction (tf32 in 32 bits)

    @property
    def width(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits + self.padding

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits << self.padding

    @property
    def largest(self) -> int:
        """Bits of the largest finite number."""
        if self.finite:
            return (1 << (self.exponent_bits + self.fraction_bits)) - 2
        return self.infinity - (1 << self.padding)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(f"u{max(self.width, 8) // 8}")

    @property
    def smallest_normal(self) -> Fraction:
        return power(1 - self.bias)


F64 = Format(11, 52, 0x7FFFFFFFFFFFFFFF)
F32 = Format(8, 23, 0x7FFFFFFF)
TF32 = Format(8, 10, 0x7FFFFFFF, padding=13)
F16 = Format(5, 10, 0x7FFF)
BF16 = Format(8, 7, 0x7FFF)
E4M3 = Format(4, 3, 0x7F, finite=True)
E5M2 = Format(5, 2, 0x7F)


def power(exponent: int) -> Fraction:
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def is_negative(value: Real) -> bool:
    return math.copysign(1, value) < 0 if isinstance(value, float) else value < 0


def is_finite(value: Real) -> bool:
    return isinstance(value, Fraction) or value == 0


def zero(negative: bool) -> Real:
    return -0.0 if negative else Fraction(0)


def decode(bits: int, form: Format, ftz: bool = False) -> Real:
    bits = int(bits)
    negative = bool(bits >> (form.width - 1))
    magnitude = (bits & ((1 << (form.width - 1)) - 1)) >> form.padding
    exponent, fraction = magnitude >> form.fraction_bits, magnitude & ((1 << form.fraction_bits) - 1)
    if form.finite and magnitude > form.largest:
        return math.nan
    if not form.finite and exponent == (1 << form.exponent_bits) - 1:
        return math.nan if fraction else -math.inf if negative else math.inf
    if magnitude == 0 or (ftz and exponent == 0):
        return zero(negative)
    if exponent:
        fraction |= 1 << form.fraction_bits
    value = fraction * power(max(exponent, 1) - form.bias - form.fraction_bits)
    return -value if negative else value


def encode(value: Real, form: Format, mode: str = "rn", *, ftz: bool = False, satfinite: bool = False) -> int:
    """The bits of `value` rounded to the format; rn ties to even, rna away from zero."""
    if isinstance(value, float) and math.isnan(value):
        return form.nan
    negative = is_negative(value)
    sign = int(negative) << (form.width - 1)
    if isinstance(value, float) and math.isinf(value):
        return sign | (form.largest if satfinite else form.infinity)
    if value == 0:
        return sign
    assert isinstance(value, Fraction)
    above, below = abs(value.numerator), value.denominator
    exponent = above.bit_length() - below.bit_length()
    exponent -= above << max(-exponent, 0) < below << max(exponent, 0)  # floor(log2(|value|))
    exponent = max(exponent, 1 - form.bias)
    shift = form.fraction_bits - exponent
    units = _round(above << max(shift, 0), below << max(-shift, 0), mode, negative)
    if ftz and units < 1 << form.fraction_bits:
        return sign
    # The hidden bit carries into the exponent, and a fraction rounded up to 2 does too: both by plain addition.
    magnitude = ((exponent + form.bias - 1) << form.fraction_bits) + units
    if magnitude > form.largest >> form.padding:
        to_largest = mode == "rz" or (mode == "rm" and not negative) or (mode == "rp" and negative)
        return sign | (form.largest if satfinite or to_largest else form.infinity)
    return sign | magnitude << form.padding


def _round(above: int, below: int, mode: str, negative: bool) -> int:
    """above / below, a size without its sign, to an integer."""
    floor, rest = divmod(above, below)
    if mode == "rn":
        return floor + (2 * rest > below or (2 * rest == below and floor % 2 == 1))
    if mode == "rna":
        return floor + (2 * rest >= below)
    return floor + (rest > 0 and mode == ("rm" if negative else "rp"))


def to_integer(value: Fraction, mode: str) -> int:
    """rn, rz, rm or rp of a rational to an integer."""
    size = _round(abs(value.numerator), value.denominator, mode, value < 0)
    return -size if value < 0 else size


def add(a: Real, b: Real, mode: str = "rn") -> Real:
    if not (is_finite(a) and is_finite(b)):
        return float(a if not is_finite(a) else 0) + float(b if not is_finite(b) else 0)
    total = Fraction(a) + Fraction(b)
    if total == 0:
        same = is_negative(a) == is_negative(b)
        return zero(is_negative(a) if same and a == 0 else mode == "rm")
    return total


def negate(a: Real) -> Real:
    return -0.0 if isinstance(a, Fraction) and a == 0 else Fraction(0) if a == 0 else -a


def multiply(a: Real, b: Real) -> Real:
    negative = is_negative(a) != is_negative(b)
    if not (is_finite(a) and is_finite(b)):
        if a != a or b != b or a == 0 or b == 0:
            return math.nan
        return -math.inf if negative else math.inf
    return zero(negative) if a == 0 or b == 0 else Fraction(a) * Fraction(b)


def fma(a: Real, b: Real, c: Real, mode: str = "rn") -> Real:
    return add(multiply(a, b), c, mode)


def divide(a: Real, b: Real) -> Real:
    if a != a or b != b:
        return math.nan
    negative = is_negative(a) != is_negative(b)
    if not is_finite(a):
        return (-math.inf if negative else math.inf) if is_finite(b) else math.nan
    if not is_finite(b):
        return zero(negative)
    if b == 0:
        return math.nan if a == 0 else -math.inf if negative else math.inf
    return zero(negative) if a == 0 else Fraction(a) / Fraction(b)


def root(a: Real) -> Real:
    """The square root, to 90 bits with a sticky bit below: enough to round it to 53 bits in any direction."""
    if a != a or (a != 0 and is_negative(a)):
        return math.nan
    if a == 0 or not is_finite(a):
        return a
    a = Fraction(a)
    shift = 180 - (a.numerator.bit_length() - a.denominator.bit_length())
    shift += shift % 2
    scaled = a * power(shift)
    whole = math.floor(scaled)
    digits = math.isqrt(whole)
    exact = scaled == whole and digits * digits == whole
    return (Fraction(digits) if exact else digits + Fraction(1, 4)) * power(-shift // 2)


def relu(value: Real) -> Real:
    """Negative values and -0 become +0; NaN stays."""
    return Fraction(0) if value == value and (value <= 0) else value


def corners(form: Format) -> list[int]:
    """Zeros, subnormals, ones, powers, the ends, infinities and NaNs, of both signs."""
    one = form.bias << form.fraction_bits
    hidden = 1 << form.fraction_bits
    units = [0, 1, 2, hidden // 2, hidden - 1, hidden, hidden + 1, one // 2, one - 1, one, one + 1, one + hidden]
    units += [one + hidden // 2, one + hidden + 1, (form.largest >> form.padding) - 1, form.largest >> form.padding]
    if not form.finite:
        top = form.infinity >> form.padding
        units += [top, top + 1, top + hidden // 2, top + hidden - 1]
    else:
        units.append(form.nan)
    return [sign | unit << form.padding for unit in units for sign in (0, 1 << (form.width - 1))]


def samples(form: Format, count: int, seed: int) -> np.ndarray:
    """Corners, then random numbers: half of any exponent, half of exponents near 1, where sums and ties meet."""
    generator = np.random.default_rng(seed)
    bits = generator.integers(0, 1 << form.width, count, dtype=np.uint64)
    near = generator.integers(form.bias - 4, form.bias + 5, count, dtype=np.uint64)
    keep = (1 << (form.width - 1)) | ((1 << (form.fraction_bits + form.padding)) - 1)
    moved = (bits & np.uint64(keep)) | near << np.uint64(form.fraction_bits + form.padding)
    bits = np.where(generator.random(count) < 0.5, moved, bits)
    # Short fractions make ties.
    short = np.uint64(((1 << form.width) - 1) ^ ((1 << (form.fraction_bits * 2 // 3 + form.padding)) - 1))
    bits = np.where(generator.random(count) < 0.3, bits & short, bits)
    if form.padding:
        bits &= np.uint64(((1 << form.width) - 1) ^ ((1 << form.padding) - 1))
    bits[: min(count, len(corners(form)))] = corners(form)[:count]
    return bits.astype(form.dtype)


def tuples(form: Format, arity: int, count: int, seed: int) -> list[np.ndarray]:
    """Sources of an instruction: corners with corners (all pairs; triples at random), then samples."""
    generator = np.random.default_rng(seed)
    points = corners(form)
    if arity == 2:
        crossed = np.array(list(itertools.product(points, repeat=2)), dtype=np.uint64)
    else:
        crossed = generator.choice(np.array(points, dtype=np.uint64), (len(points) ** 2, arity))
    generated = [samples(form, count, seed * 10 + i + 1) for i in range(arity)]
    for column in generated:
        generator.shuffle(column)
    return [np.concatenate([crossed[:, i].astype(form.dtype), generated[i]]) for i in range(arity)]


def apply(operation: Callable[..., int], *sources: np.ndarray, dtype: Any) -> np.ndarray:
    """`operation` of each element, as Python ints."""
    columns = [column.ravel().tolist() for column in np.broadcast_arrays(*sources)]
    return np.array([operation(*row) for row in zip(*columns, strict=True)], dtype=dtype)


def check(got: np.ndarray, expected: np.ndarray, *sources: np.ndarray) -> None:
    """Bitwise equality; says where the first difference is."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    got, expected = got.ravel(), expected.ravel()
    wrong = np.flatnonzero(got != expected)
    if wrong.size:
        i = int(wrong[0])
        given = ", ".join(_text(np.ravel(source)[i % np.size(source)]) for source in sources)
        found = f"got {_text(got[i])}, not {_text(expected[i])}"
        raise AssertionError(f"{wrong.size} of {got.size} differ, first [{i}]: of ({given}) {found}")


def check_any_nan(got: np.ndarray, expected: np.ndarray, form: Format, *sources: np.ndarray) -> None:
    """As check, but any NaN will do where one is due: the manual leaves the payload open."""
    both = is_nan(got, form) & is_nan(expected, form)
    check(np.where(both, expected, got), expected, *sources)


def is_nan(bits: np.ndarray, form: Format) -> np.ndarray:
    sign = form.dtype.type(1 << (form.width - 1))
    return (bits & ~sign) > form.dtype.type(form.largest if form.finite else form.infinity)


def _text(value: Any) -> str:
    return hex(int(value)) if np.asarray(value).dtype.kind == "u" else repr(value)


def as_floats(bits: np.ndarray | Sequence[int], form: Format) -> np.ndarray:
    """The values as float64 (exact for every format here)."""
    return np.array([float(decode(int(value), form)) for value in np.ravel(bits)])
