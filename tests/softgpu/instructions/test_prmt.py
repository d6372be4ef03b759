"""prmt: bytes picked from two registers by four selectors, or by one of the six named patterns."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers

pytestmark = pytest.mark.usefixtures("soft")

# The manual's table: for each mode and selector (c & 3), the source bytes of d.b3, d.b2, d.b1, d.b0.
PATTERNS = {
    "f4e": ("3210", "4321", "5432", "6543"),
    "b4e": ("5670", "6701", "7012", "0123"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("3210", "3211", "3222", "3333"),
    "ecr": ("0000", "1110", "2210", "3210"),
    "rc16": ("1010", "3232", "1010", "3232"),
}


def test_generic_form_copies_bytes_or_their_sign():
    a, b, c = integers.tuples(np.uint32, 3, 2000, seed=1)
    got = ptx.each("prmt.b32 {d}, {a}, {b}, {c};", a, b, c, result=np.uint32)

    def reference(x, y, selectors):
        both, word = y << 32 | x, 0
        for i in range(4):
            selector = selectors >> 4 * i & 15
            byte = both >> 8 * (selector & 7) & 255
            word |= (255 * (byte >> 7) if selector & 8 else byte) << 8 * i
        return word

    exact.check(got, exact.apply(reference, a, b, c, dtype=np.uint32), a, b, c)


@pytest.mark.parametrize("mode", PATTERNS)
def test_named_pattern(mode):
    a, b = integers.samples(np.uint32, 64, 2), integers.samples(np.uint32, 64, 3)
    c = np.resize(np.array([0, 1, 2, 3, 4, 0xFFFFFFFD, 0x12345678, 0x8000000B], np.uint32), 64)  # c & 3 counts
    got = ptx.each(f"prmt.b32.{mode} {{d}}, {{a}}, {{b}}, {{c}};", a, b, c, result=np.uint32)

    def reference(x, y, selector):
        picked = [int(digit) for digit in PATTERNS[mode][selector & 3]]
        return sum(((y << 32 | x) >> 8 * byte & 255) << 8 * (3 - i) for i, byte in enumerate(picked))

    exact.check(got, exact.apply(reference, a, b, c, dtype=np.uint32), a, b, c)
