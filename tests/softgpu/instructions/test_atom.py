"""atom and red: every operation and type against a sequential run; what comes back is the value before."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers
from tests.softgpu.instructions.exact import F16, F32, F64

pytestmark = pytest.mark.usefixtures("soft")


def step(operation, old, operand, dtype):
    if operation == "inc":
        return 0 if old >= operand else old + 1
    if operation == "dec":
        return operand if old == 0 or old > operand else old - 1
    result = {
        "add": old + operand, "min": min(old, operand), "max": max(old, operand), "exch": operand,
        "and": old & operand, "or": old | operand, "xor": old ^ operand,
    }[operation]  # fmt: skip
    return integers.wrap(result, dtype)


CASES = [(operation, kind) for kind in ("u32", "s32", "u64", "s64") for operation in ("add", "min", "max")]
CASES = [case for case in CASES if case != ("add", "s64")]
CASES += [(operation, f"b{width}") for width in (32, 64) for operation in ("and", "or", "xor", "exch")]
CASES += [("inc", "u32"), ("dec", "u32")]


@pytest.mark.parametrize("space", ["global", "shared", ""])
@pytest.mark.parametrize(("operation", "kind"), CASES)
def test_each_lane_its_own_word(operation, kind, space):
    """32 words, 32 lanes: the value before and the value after."""
    dtype = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}")
    width = dtype.itemsize
    cell, operand = integers.tuples(dtype, 2, 0, seed=1)
    cell, operand = cell[: cell.size // 32 * 32], operand[: cell.size // 32 * 32]
    register = "%rd" if width == 8 else "%r"
    into, back, place = "", "", "[%at]"
    if space == "shared":
        place = "[%r40]"
        into = f"""
            mov.u32 %r40, cells;
            mad.lo.u32 %r40, %lane, {width}, %r40;
            st.shared.b{width * 8} {place}, {register}10;"""
        back = f"""
            ld.shared.b{width * 8} {register}13, {place};
            st.global.b{width * 8} [%at], {register}13;"""
    mnemonic = f"atom.{space}.{operation}.{kind}" if space else f"atom.{operation}.{kind}"
    body = f"""
        {ptx.fetch(register + "11", "%in0", f"b{width * 8}")}
        mad.wide.u32 %at, %thread, {width}, %out0;
        ld.global.b{width * 8} {register}10, [%at];
        {into}
        {mnemonic} {register}12, {place}, {register}11;
        {back}
        {ptx.put("%out1", f"b{width * 8}", register + "12")}"""
    text = ptx.module(body, inputs=1, outputs=2, before=f".shared .align 8 .b8 cells[{32 * width}];")
    after, before = ptx.run(text, [operand], [cell, (cell.size, dtype)], grid=cell.size // 32)
    exact.check(before, cell, cell, operand)
    exact.check(
        after, exact.apply(lambda x, y: step(operation, x, y, dtype), cell, operand, dtype=dtype), cell, operand
    )


@pytest.mark.parametrize(("operation", "kind"), [("add", "u32"), ("max", "s32"), ("xor", "b64"), ("inc", "u32")])
@pytest.mark.parametrize("red", [False, True])
def test_all_lanes_on_one_word(operation, kind, red):
    """In whatever order the lanes come, their results chain from the first value to the last."""
    dtype = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}")
    operand = integers.samples(dtype, 32, 2) if operation != "inc" else np.full(32, 20, np.uint32)
    first = integers.wrap(17, dtype)
    register = "%rd" if dtype.itemsize == 8 else "%r"
    name = f"red.global.{operation}.{kind} " if red else f"atom.global.{operation}.{kind} {register}11, "
    body = f"""
        {ptx.fetch(register + "10", "%in0", "b" + kind[1:])}
        {name}[%out0], {register}10;
        {"" if red else ptx.put("%out1", "b" + kind[1:], register + "11")}"""
    cell, before = ptx.run(
        ptx.module(body, inputs=1, outputs=2), [operand], [np.array([first], dtype), np.zeros(32, dtype)]
    )
    value = first
    for x in operand.tolist():
        value = step(operation, value, x, dtype)
    assert cell[0] == value
    if not red and operation in ("add", "xor"):
        seen = sorted([*before.tolist(), value])
        chain = [step(operation, old, x, dtype) for old, x in zip(before.tolist(), operand.tolist(), strict=True)]
        assert seen == sorted([first, *chain])


@pytest.mark.parametrize("width", [32, 64])
def test_cas_swaps_where_equal(width):
    dtype = np.dtype(f"u{width // 8}")
    cell = integers.samples(dtype, 32, 3)
    compare = np.where(np.arange(32) % 3 == 0, cell + dtype.type(1), cell)
    swap = integers.samples(dtype, 32, 4)
    register = "%rd" if width == 64 else "%r"
    body = f"""
        {ptx.fetch(register + "10", "%in0", f"b{width}")}
        {ptx.fetch(register + "11", "%in1", f"b{width}")}
        mad.wide.u32 %at, %thread, {width // 8}, %out0;
        atom.global.cas.b{width} {register}12, [%at], {register}10, {register}11;
        {ptx.put("%out1", f"b{width}", register + "12")}"""
    after, before = ptx.run(ptx.module(body, inputs=2, outputs=2), [compare, swap], [cell, (32, dtype)])
    exact.check(before, cell, cell)
    exact.check(after, np.where(compare == cell, swap, cell), cell)


@pytest.mark.parametrize("kind", ["f32", "f64", "f16x2"])
def test_float_add(soft, kind):
    """Rounds to nearest even. In global memory f32 flushes subnormals; in f64 and f16x2 they stay."""
    soft.reset(allow_float_atomics="probe")
    form = {"f32": F32, "f64": F64, "f16x2": F16}[kind]
    cell, operand = exact.tuples(form, 2, 288, seed=5)
    cell, operand = cell[:1856], operand[:1856]
    words = [side.view(np.uint32) if kind == "f16x2" else side for side in (cell, operand)]
    register = {"f32": "%f", "f64": "%fd", "f16x2": "%r"}[kind]
    memory = "b32" if kind == "f16x2" else kind
    body = f"""
        {ptx.fetch(register + "10", "%in0", memory)}
        mad.wide.u32 %at, %thread, {words[0].dtype.itemsize}, %out0;
        atom.global.add.{"noftz." if kind == "f16x2" else ""}{kind} {register}11, [%at], {register}10;"""
    text = ptx.module(body, inputs=1, outputs=1)
    (after,) = ptx.run(text, [words[1]], [words[0]], grid=words[0].size // 32)
    flush = kind == "f32"

    def reference(x, y):
        return exact.encode(exact.add(exact.decode(x, form, flush), exact.decode(y, form, flush)), form, ftz=flush)

    expected = exact.apply(reference, cell, operand, dtype=form.dtype)
    exact.check_any_nan(after.view(form.dtype), expected, form, cell, operand)
