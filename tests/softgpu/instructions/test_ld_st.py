"""ld and st: widths, extension, vectors, cache operators and hints, shared, local and parameter space."""

import ctypes

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import exact, integers

pytestmark = pytest.mark.usefixtures("soft")


@pytest.mark.parametrize("kind", ["u8", "s8", "b8", "u16", "s16", "b16"])
def test_narrow_loads_extend_into_the_register(kind):
    width = int(kind[1:]) // 8
    a = integers.samples(f"u{width}", 64, 1)
    body = f"""
        mad.wide.u32 %at, %thread, {width}, %in0;
        ld.global.{kind} %r10, [%at];
        {ptx.put("%out0", "b32", "%r10")}"""
    (got,) = ptx.run(ptx.module(body, inputs=1, outputs=1), [a], [(64, np.uint32)], block=64)
    expected = a.view(f"i{width}").astype(np.int32).view(np.uint32) if kind[0] == "s" else a.astype(np.uint32)
    exact.check(got, expected, a)


def test_narrow_stores_write_the_low_bits_only():
    a = integers.samples(np.uint32, 64, 2)
    kept = integers.samples(np.uint8, 64 * 4, 3)
    body = f"""
        {ptx.fetch("%r10", "%in0", "u32")}
        mad.wide.u32 %at, %thread, 4, %out0;
        st.global.u8 [%at+1], %r10;
        cvt.u16.u32 %h1, %r10;
        st.global.u16 [%at+2], %h1;"""
    (got,) = ptx.run(ptx.module(body, inputs=1, outputs=1), [a], [kept], block=64)
    expected = kept.copy().reshape(64, 4)
    bytes_of = a.view(np.uint8).reshape(64, 4)
    expected[:, 1], expected[:, 2], expected[:, 3] = bytes_of[:, 0], bytes_of[:, 0], bytes_of[:, 1]
    exact.check(got.reshape(64, 4), expected)


VECTORS = [("v2", "b16", "%h"), ("v4", "b16", "%h"), ("v2", "b32", "%r"), ("v4", "u32", "%r"), ("v2", "b64", "%rd")]
VECTORS += [("v4", "f32", "%f"), ("v2", "f64", "%fd"), ("v4", "u8", "%h"), ("v2", "u8", "%h")]


@pytest.mark.parametrize(("vector", "kind", "register"), VECTORS)
@pytest.mark.parametrize("space", ["global", "shared"])
def test_vectors(vector, kind, register, space):
    """Element i of the vector is at address + i * width; here they are stored in reverse."""
    elements, width = int(vector[1:]), int(kind[1:]) // 8
    a = integers.samples(f"u{width}", 32 * elements, 4)
    names = [f"{register}{i + 8}" for i in range(elements)]
    forward, backward = ", ".join(names), ", ".join(reversed(names))
    size = elements * width
    through = f"""
        mov.u32 %r40, buffer;
        mad.lo.u32 %r40, %lane, {size}, %r40;
        st.shared.{vector}.{kind} [%r40], {{{backward}}};
        ld.shared.{vector}.{kind} {{{forward}}}, [%r40];
        mad.wide.u32 %at, %thread, {size}, %out0;
        st.global.{vector}.{kind} [%at], {{{forward}}};"""
    direct = f"""
        mad.wide.u32 %at, %thread, {size}, %out0;
        st.global.{vector}.{kind} [%at], {{{backward}}};"""
    body = f"""
        mad.wide.u32 %at, %thread, {size}, %in0;
        ld.global.{vector}.{kind} {{{forward}}}, [%at];
        {through if space == "shared" else direct}"""
    before = f".shared .align 16 .b8 buffer[{32 * size}];"
    (got,) = ptx.run(ptx.module(body, inputs=1, outputs=1, before=before), [a], [(a.size, a.dtype)])
    exact.check(got, a.reshape(32, elements)[:, ::-1].ravel(), a)


LOADS = ["ld.global", "ld.global.nc", "ld.global.ca", "ld.global.cg", "ld.global.cs", "ld.global.lu", "ld.global.cv"]
LOADS += ["ld", "ld.volatile.global", "ld.relaxed.gpu.global", "ld.acquire.gpu.global", "ld.weak.global"]
LOADS += [
    "ld.global.L1::no_allocate",
    "ld.global.L1::evict_last",
    "ld.global.L2::128B",
    "ld.global.nc.L1::no_allocate",
]
LOADS += ["ld.global.nc.L1::no_allocate.L2::256B"]


@pytest.mark.parametrize("load", LOADS)
def test_load_qualifiers_do_not_change_the_value(load):
    a = integers.samples(np.uint32, 32, 5)
    body = f"""
        mad.wide.u32 %at, %thread, 4, %in0;
        {load}.u32 %r10, [%at];
        {ptx.put("%out0", "b32", "%r10")}"""
    (got,) = ptx.run(ptx.module(body, inputs=1, outputs=1), [a], [(32, np.uint32)])
    exact.check(got, a, a)


STORES = ["st.global", "st.global.wb", "st.global.cg", "st.global.cs", "st.global.wt", "st", "st.volatile.global"]
STORES += ["st.relaxed.gpu.global", "st.release.gpu.global", "st.weak.global", "st.global.L1::no_allocate"]


@pytest.mark.parametrize("store", STORES)
def test_store_qualifiers_do_not_change_the_value(store):
    a = integers.samples(np.uint32, 32, 6)
    body = f"""
        {ptx.fetch("%r10", "%in0", "u32")}
        mad.wide.u32 %at, %thread, 4, %out0;
        {store}.u32 [%at], %r10;"""
    (got,) = ptx.run(ptx.module(body, inputs=1, outputs=1), [a], [(32, np.uint32)])
    exact.check(got, a, a)


def test_cache_policy_operand():
    a = integers.samples(np.uint32, 128, 7)
    body = """
        createpolicy.fractional.L2::evict_first.b64 %rd9, 1.0;
        mad.wide.u32 %at, %thread, 16, %in0;
        ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%r10, %r11, %r12, %r13}, [%at], %rd9;
        mad.wide.u32 %at, %thread, 16, %out0;
        st.global.L2::cache_hint.v4.u32 [%at], {%r10, %r11, %r12, %r13}, %rd9;"""
    (got,) = ptx.run(ptx.module(body, inputs=1, outputs=1), [a], [(128, np.uint32)])
    exact.check(got, a, a)


def test_local_memory_is_each_lane_s_own():
    a = integers.samples(np.uint32, 64, 8)
    body = f"""
        .local .align 8 .b8 stack[64];
        {ptx.fetch("%r10", "%in0", "u32")}
        mov.u32 %r11, stack;
        st.local.u32 [%r11+12], %r10;
        mov.u64 %rd1, stack;
        cvta.local.u64 %rd2, %rd1;
        ld.u32 %r12, [%rd2+12];
        ld.local.u16 %h1, [%r11+14];
        cvt.u32.u16 %r13, %h1;
        {ptx.put("%out0", "b32", "%r12", 2)}
        {ptx.put("%out0", "b32", "%r13", 2, offset=1)}"""
    (got,) = ptx.run(ptx.module(body, inputs=1, outputs=1), [a], [((64, 2), np.uint32)], block=64)
    exact.check(got[:, 0].copy(), a, a)
    exact.check(got[:, 1].copy(), a >> np.uint32(16), a)


def test_parameters_of_every_width():
    """Parameters lie at their own alignment; a .b8 array is a struct by value."""
    text = """
.version 7.4
.target sm_80
.address_size 64
.visible .entry probe(.param .u64 out, .param .u32 word, .param .align 8 .b8 pair[16])
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<8>;
    .reg .b16 %h<4>;
    ld.param.u64 %rd0, [out];
    ld.param.u32 %r0, [word];
    ld.param.u16 %h0, [word+2];
    ld.param.s8 %r1, [word+3];
    ld.param.v2.u32 {%r2, %r3}, [pair];
    ld.param.u64 %rd1, [pair+8];
    cvt.u32.u16 %r4, %h0;
    st.global.v4.u32 [%rd0], {%r0, %r4, %r1, %r2};
    st.global.u32 [%rd0+16], %r3;
    st.global.u64 [%rd0+24], %rd1;
    mov.u32 %r5, 0;
    st.global.u32 [%rd0+20], %r5;
    ret;
}
"""
    words = launch_with_struct(text, 0x89ABCDEF, (0x11111111, 0x22222222, 0x33333333, 0x44444444))
    expected = [0x89ABCDEF, 0x89AB, 0xFFFFFF89, 0x11111111, 0x22222222, 0, 0x33333333, 0x44444444]
    exact.check(words, np.array(expected, np.uint32))


def launch_with_struct(text, word, struct):
    with ptx.context():
        function = ptx.call("cuModuleGetFunction", ptx.load(text), b"probe")
        address = int(ptx.call("cuMemAlloc", 32))
        holders = [ctypes.c_uint64(address), ctypes.c_uint32(word), (ctypes.c_uint32 * 4)(*struct)]
        pointers = (ctypes.c_void_p * 3)(*[ctypes.addressof(holder) for holder in holders])
        ptx.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(pointers), 0)
        ptx.call("cuCtxSynchronize")
        out = np.empty(8, np.uint32)
        ptx.call("cuMemcpyDtoH", out.ctypes.data, address, out.nbytes)
        ptx.call("cuMemFree", address)
    return out


def test_guarded_lanes_neither_load_nor_store():
    a, kept = integers.samples(np.uint32, 32, 9), integers.samples(np.uint32, 32, 10)
    body = """
        setp.lt.u32 %p1, %lane, 11;
        mov.u32 %r10, 5;
        mad.wide.u32 %at, %thread, 4, %in0;
        @!%p1 mov.u64 %at, 0;
        @%p1 ld.global.u32 %r10, [%at];
        mad.wide.u32 %at, %thread, 4, %out0;
        and.b32 %r11, %lane, 1;
        setp.eq.u32 %p2, %r11, 0;
        @!%p2 st.global.u32 [%at], %r10;"""
    (got,) = ptx.run(ptx.module(body, inputs=1, outputs=1), [a], [kept])
    lanes = np.arange(32)
    exact.check(got, np.where(lanes % 2 == 0, kept, np.where(lanes < 11, a, np.uint32(5))), a)


@pytest.mark.parametrize("line", ["prefetch.global.L2 [%at];", "prefetch.global.L1 [%at];", "prefetchu.L1 [%at];"])
def test_prefetch_changes_nothing(line):
    a = integers.samples(np.uint32, 32, 11)
    body = f"""
        mad.wide.u32 %at, %thread, 4, %in0;
        {line}
        ld.global.u32 %r10, [%at];
        {ptx.put("%out0", "b32", "%r10")}"""
    (got,) = ptx.run(ptx.module(body, inputs=1, outputs=1), [a], [(32, np.uint32)])
    exact.check(got, a, a)
