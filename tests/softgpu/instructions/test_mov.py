"""mov: values, immediates in every spelling, vectors packed and unpacked, addresses; cvta and isspacep."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers

pytestmark = pytest.mark.usefixtures("soft")

IMMEDIATES = [
    ("b32", "17", 17),
    ("b32", "-1", 0xFFFFFFFF),
    ("b32", "0x7fU", 0x7F),
    ("b32", "0XFF", 0xFF),
    ("b32", "017", 15),  # octal
    ("b32", "0b101", 5),
    ("s32", "-2147483648", 0x80000000),
    ("u32", "4294967295", 0xFFFFFFFF),
    ("f32", "0f3F800000", 0x3F800000),
    ("f32", "0F7fffffff", 0x7FFFFFFF),
    ("f32", "0d3FF0000000000000", 0x3F800000),
    ("f32", "1.5", 0x3FC00000),
    ("f32", "-0.5", 0xBF000000),
    ("f32", "1e-3", 0x3A83126F),
]


def test_immediates():
    lines = []
    for i, (kind, text, _) in enumerate(IMMEDIATES):
        lines += [f"mov.{kind} {{d}}, {text};", f"st.global.b32 [%out0+{4 * i}], {{d}};"]
    body = "\n".join(lines).replace("{d}", "%r10").replace("mov.f32 %r10", "mov.f32 %f10").splitlines()
    for i, line in enumerate(body):
        if "mov.f32" in line:
            body[i + 1] = body[i + 1].replace("%r10", "%f10")
    text = ptx.module("\n".join(body), outputs=1)
    (got,) = ptx.run(text, [], [(len(IMMEDIATES), np.uint32)], block=1)
    exact.check(got, np.array([value for *_, value in IMMEDIATES], np.uint32))


def test_wide_immediates():
    body = """
        mov.u64 %rd1, 0x123456789abcdef0;
        st.global.b64 [%out0], %rd1;
        mov.s64 %rd1, -2;
        st.global.b64 [%out0+8], %rd1;
        mov.f64 %fd1, 0d400921FB54442D18;
        st.global.f64 [%out0+16], %fd1;
        mov.u16 %h1, 65535;
        cvt.u64.u16 %rd1, %h1;
        st.global.b64 [%out0+24], %rd1;"""
    (got,) = ptx.run(ptx.module(body, outputs=1), [], [(4, np.uint64)], block=1)
    exact.check(got, np.array([0x123456789ABCDEF0, (1 << 64) - 2, 0x400921FB54442D18, 65535], np.uint64))


def test_registers_of_every_width():
    for kind in ("b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"):
        a = integers.samples(f"u{int(kind[1:]) // 8}", 100, 1)
        exact.check(ptx.each(f"mov.{kind} {{d}}, {{a}};", a, result=a.dtype), a, a)


def test_packing_puts_the_first_element_low():
    a, b = integers.samples(np.uint16, 64, 2), integers.samples(np.uint16, 64, 3)
    got = ptx.each("mov.b32 {d}, {{{a}, {b}}};", a, b, result=np.uint32)
    exact.check(got, a.astype(np.uint32) | b.astype(np.uint32) << 16, a, b)
    a, b = integers.samples(np.uint32, 64, 4), integers.samples(np.uint32, 64, 5)
    got = ptx.each("mov.b64 {d}, {{{a}, {b}}};", a, b, result=np.uint64)
    exact.check(got, a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32), a, b)
    halves = [integers.samples(np.uint16, 64, seed) for seed in (6, 7, 8, 9)]
    got = ptx.each("mov.b64 {d}, {{{a}, {b}, {c}, {e}}};", *halves, result=np.uint64)
    exact.check(got, sum(half.astype(np.uint64) << np.uint64(16 * i) for i, half in enumerate(halves)), *halves)


def test_unpacking():
    a = integers.samples(np.uint64, 64, 10)
    got = ptx.each("mov.b64 {{%r10, {d}}}, {a};", a, result=np.uint32)
    exact.check(got, (a >> np.uint64(32)).astype(np.uint32), a)
    got = ptx.each("mov.b64 {{%h1, %h2, {d}, %h3}}, {a};", a, result=np.uint16)
    exact.check(got, (a >> np.uint64(32)).astype(np.uint16), a)
    b = integers.samples(np.uint32, 64, 11)
    got = ptx.each("mov.b32 {{{d}, %h2}}, {a};", b, result=np.uint16)
    exact.check(got, b.astype(np.uint16), b)
    got = ptx.each("mov.b64 {{_, {d}}}, {a};", a, result=np.uint32, version="8.3")
    exact.check(got, (a >> np.uint64(32)).astype(np.uint32), a)


def test_addresses_of_variables():
    """Shared variables lie one behind another by alignment; a generic address and back is the same place."""
    before = """
        .shared .align 16 .b8 first[20];
        .shared .align 4 .b32 second;
        .global .align 8 .b32 table[4] = {10, 20, 30, 40};
        .const .align 4 .b32 fixed[2] = {7, 8};"""
    body = """
        mov.u32 %r10, first;
        mov.u32 %r11, first+4;
        sub.u32 %r12, %r11, %r10;
        st.global.b32 [%out0], %r12;
        and.b32 %r12, %r10, 15;
        st.global.b32 [%out0+4], %r12;
        mov.u64 %rd1, second;
        cvta.shared.u64 %rd2, %rd1;
        mov.b32 %r13, 1234;
        st.u32 [%rd2], %r13;
        ld.shared.u32 %r14, [second];
        st.global.b32 [%out0+8], %r14;
        cvta.to.shared.u64 %rd3, %rd2;
        sub.u64 %rd3, %rd3, %rd1;
        cvt.u32.u64 %r12, %rd3;
        st.global.b32 [%out0+12], %r12;
        ld.global.u32 %r12, [table+8];
        st.global.b32 [%out0+16], %r12;
        mov.u64 %rd4, table;
        cvta.global.u64 %rd5, %rd4;
        ld.u32 %r12, [%rd5+12];
        st.global.b32 [%out0+20], %r12;
        ld.const.u32 %r12, [fixed+4];
        st.global.b32 [%out0+24], %r12;
        isspacep.shared %p1, %rd2;
        isspacep.global %p2, %rd2;
        isspacep.global %p3, %rd5;
        selp.u32 %r12, 1, 0, %p1;
        selp.u32 %r13, 2, 0, %p2;
        selp.u32 %r14, 4, 0, %p3;
        add.u32 %r12, %r12, %r13;
        add.u32 %r12, %r12, %r14;
        st.global.b32 [%out0+28], %r12;"""
    (got,) = ptx.run(ptx.module(body, outputs=1, before=before), [], [(8, np.uint32)], block=1)
    exact.check(got, np.array([4, 0, 1234, 0, 30, 40, 8, 5], np.uint32))
