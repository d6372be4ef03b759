"""bfe and bfi: positions and lengths are the low byte of their operands, and may reach past the register.

The 64-bit forms are kept to operands below 256: beyond, what ptxas makes of them is not what the manual's text says.
"""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers

pytestmark = pytest.mark.usefixtures("soft")

EDGES = [0, 1, 2, 7, 8, 15, 16, 30, 31, 32, 33, 48, 62, 63, 64, 65, 128, 254, 255, 256, 257, 0xFFFFFFFF]


def sources(dtype, seed):
    generator = np.random.default_rng(seed)
    positions = np.repeat(np.array(EDGES, np.uint32), len(EDGES))
    lengths = np.tile(np.array(EDGES, np.uint32), len(EDGES))
    positions = np.concatenate([positions, generator.integers(0, 70, 600).astype(np.uint32)])
    lengths = np.concatenate([lengths, generator.integers(0, 70, 600).astype(np.uint32)])
    if dtype.itemsize == 8:
        positions, lengths = positions % 256, lengths % 256
    values = generator.integers(0, 1 << 64, positions.size, dtype=np.uint64).astype(f"u{dtype.itemsize}").view(dtype)
    return values, positions, lengths


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_extract(kind):
    dtype = integers.DTYPES[kind]
    a, b, c = sources(dtype, seed=1)
    got = ptx.each(f"bfe.{kind} {{d}}, {{a}}, {{b}}, {{c}};", a, b, c, result=dtype)
    msb = dtype.itemsize * 8 - 1

    def reference(value, position, length):
        position, length = position & 255, length & 255
        bit = [value >> i & 1 for i in range(msb + 1)]
        sign = 0 if dtype.kind == "u" or length == 0 else bit[min(position + length - 1, msb)]
        bits = [bit[position + i] if i < length and position + i <= msb else sign for i in range(msb + 1)]
        return integers.wrap(sum(digit << i for i, digit in enumerate(bits)), dtype)

    exact.check(got, exact.apply(reference, a, b, c, dtype=dtype), a, b, c)


@pytest.mark.parametrize("width", [32, 64])
def test_insert(width):
    dtype = integers.DTYPES[f"u{width}"]
    b, c, e = sources(dtype, seed=2)
    a = integers.samples(dtype, b.size, 3)
    got = ptx.each(f"bfi.b{width} {{d}}, {{a}}, {{b}}, {{c}}, {{e}};", a, b, c, e, result=dtype)

    def reference(field, value, position, length):
        position, length = position & 255, length & 255
        for i in range(length):
            if position + i < width:
                value = value & ~(1 << (position + i)) | (field >> i & 1) << (position + i)
        return value

    exact.check(got, exact.apply(reference, a, b, c, e, dtype=dtype), a, b, c, e)
