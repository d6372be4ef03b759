"""popc, clz, brev, bfind, bmsk, szext: what is asked of a word's bits."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers

pytestmark = pytest.mark.usefixtures("soft")


def words(kind, seed):
    dtype = integers.DTYPES[kind]
    powers = [integers.wrap(1 << i, dtype) for i in range(dtype.itemsize * 8)]
    return np.concatenate([np.array(integers.corners(dtype) + powers, dtype), integers.samples(dtype, 300, seed)])


@pytest.mark.parametrize("width", [32, 64])
def test_popc_counts_ones(width):
    a = words(f"u{width}", 1)
    got = ptx.each(f"popc.b{width} {{d}}, {{a}};", a, result=np.uint32)
    exact.check(got, exact.apply(int.bit_count, a, dtype=np.uint32), a)


@pytest.mark.parametrize("width", [32, 64])
def test_clz_counts_leading_zeros(width):
    a = words(f"u{width}", 2)
    got = ptx.each(f"clz.b{width} {{d}}, {{a}};", a, result=np.uint32)
    exact.check(got, exact.apply(lambda x: width - x.bit_length(), a, dtype=np.uint32), a)


@pytest.mark.parametrize("width", [32, 64])
def test_brev_reverses(width):
    a = words(f"u{width}", 3)
    got = ptx.each(f"brev.b{width} {{d}}, {{a}};", a, result=a.dtype)
    exact.check(got, exact.apply(lambda x: int(f"{x:0{width}b}"[::-1], 2), a, dtype=a.dtype), a)


@pytest.mark.parametrize("shift", ["", ".shiftamt"])
@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bfind_finds_the_highest_bit_unlike_the_sign(kind, shift):
    a = words(kind, 4)
    got = ptx.each(f"bfind{shift}.{kind} {{d}}, {{a}};", a, result=np.uint32)
    msb = a.dtype.itemsize * 8 - 1

    def reference(value):
        found = (~value if value < 0 else value).bit_length() - 1
        return 0xFFFFFFFF if found < 0 else msb - found if shift else found

    exact.check(got, exact.apply(reference, a, dtype=np.uint32), a)


EDGES = np.array([0, 1, 2, 7, 15, 16, 30, 31, 32, 33, 63, 64, 255, 0xFFFFFFFF], np.uint32)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_bmsk_makes_a_mask(mode):
    """`b` ones from position `a`; .wrap takes both modulo 32, .clamp cuts at the word's end."""
    a, b = np.repeat(EDGES, EDGES.size), np.tile(EDGES, EDGES.size)
    got = ptx.each(f"bmsk.{mode}.b32 {{d}}, {{a}}, {{b}};", a, b, result=np.uint32, version="7.6")

    def reference(start, width):
        if mode == "wrap":
            start, width = start & 31, width & 31
        return sum(1 << i for i in range(32) if start <= i < start + width)

    exact.check(got, exact.apply(reference, a, b, dtype=np.uint32), a, b)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_szext_extends_the_low_bits(kind, mode):
    """The low `b` bits of `a`, extended by zero or sign; none of them is 0, and 32 or more, clamped, all."""
    a = np.repeat(words("u32", 5), EDGES.size)
    b = np.resize(EDGES, a.size)
    got = ptx.each(f"szext.{mode}.{kind} {{d}}, {{a}}, {{b}};", a, b, result=np.uint32, version="7.6")

    def reference(value, width):
        width = width & 31 if mode == "wrap" else min(width, 32)
        low = value & ((1 << width) - 1)
        return integers.wrap(low - (1 << width), np.uint32) if kind == "s32" and width and low >> (width - 1) else low

    exact.check(got, exact.apply(reference, a, b, dtype=np.uint32), a, b)
