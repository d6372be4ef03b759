"""Bitwise logic: and, or, xor, not, cnot, the three-input table of lop3, and logic on predicates."""

import itertools

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers

pytestmark = pytest.mark.usefixtures("soft")


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("operation", ["and", "or", "xor"])
def test_two_inputs(operation, width):
    dtype = integers.DTYPES[f"u{width}"]
    a, b = integers.tuples(dtype, 2, 200, seed=1)
    got = ptx.each(f"{operation}.b{width} {{d}}, {{a}}, {{b}};", a, b, result=dtype)
    expected = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[operation](a, b)
    exact.check(got, expected, a, b)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_one_input(width):
    dtype = integers.DTYPES[f"u{width}"]
    a = np.concatenate([np.array(integers.corners(dtype), dtype), integers.samples(dtype, 100, 2)])
    exact.check(ptx.each(f"not.b{width} {{d}}, {{a}};", a, result=dtype), ~a, a)
    exact.check(ptx.each(f"cnot.b{width} {{d}}, {{a}};", a, result=dtype), (a == 0).astype(dtype), a)


def test_every_table_of_lop3():
    """Bit i of the result is bit (4a + 2b + c) of the table; all 256 tables, 64 of them a launch."""
    a, b, c = (np.array([word], np.uint32) for word in (0xDEADBEEF, 0x12F0A5C3, 0x9B3E0F71))
    for first in range(0, 256, 64):
        lines = ["mov.b32 {d}, 0;"]
        for table in range(first, first + 64):
            lines += [
                f"lop3.b32 %r10, {{a}}, {{b}}, {{c}}, {table};",
                ptx.put("%in0", "b32", "%r10", 64, offset=table - first),
            ]
        text = "\n".join(lines).format(a="%r20", b="%r21", c="%r22", d="%r23").replace("%in0", "%out0")
        loads = [ptx.fetch(f"%r{20 + i}", f"%in{i}", "b32", index="%r30") for i in range(3)]
        body = "\n".join(["mov.u32 %r30, 0;", *loads, text])
        (got,) = ptx.run(ptx.module(body, inputs=3, outputs=1), [a, b, c], [((1, 64), np.uint32)], block=1)
        expected = [
            sum(
                (table >> (4 * (int(a[0]) >> i & 1) + 2 * (int(b[0]) >> i & 1) + (int(c[0]) >> i & 1)) & 1) << i
                for i in range(32)
            )
            for table in range(first, first + 64)
        ]
        exact.check(got[0], np.array(expected, np.uint32))


@pytest.mark.parametrize("operation", ["and", "or", "xor"])
def test_predicates(operation):
    a, b = np.array(list(itertools.product([False, True], repeat=2))).T
    got = ptx.each(f"{operation}.pred {{d}}, {{a}}, {{b}};", a, b, result=bool)
    expected = {"and": a & b, "or": a | b, "xor": a ^ b}[operation]
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(ptx.each("not.pred {d}, {a};", a, result=bool), ~a)
