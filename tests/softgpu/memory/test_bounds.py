"""Where a kernel may touch memory at all: allocations to the byte, alignment, freed and foreign addresses."""

import ctypes

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.memory import rules

LOAD = "ld.global.{kind} %r10, [%at+{offset}];"


def load_at(offset: int, kind: str = "u32") -> str:
    return rules.module(f"mov.u64 %at, %in0;\n{LOAD.format(kind=kind, offset=offset)}", inputs=1)


@pytest.mark.parametrize(("size", "offset", "kind"), [(256, 252, "u32"), (5, 4, "u8"), (6, 4, "u16")])
def test_the_last_bytes_of_an_allocation_may_be_read(soft, size, offset, kind):
    ptx.run(load_at(offset, kind), [np.zeros(size, np.uint8)])


@pytest.mark.parametrize(
    ("size", "offset", "kind", "words"),
    [
        (256, 256, "u32", "0 bytes past the end"),
        (5, 5, "u8", "0 bytes past the end"),
        (6, 4, "u32", "straddles the end"),
        (256, 4096 + 256, "u32", "4096 bytes past the end"),
        (256, -4, "u32", "4 bytes before"),
    ],
)
def test_a_read_outside_is_named_with_its_distance(soft, size, offset, kind, words):
    found = rules.caught(
        soft, "out-of-bounds", load_at(offset, kind), "ld.global", [np.zeros(size, np.uint8)], code=700
    )
    assert words in found.what
    assert f"{size} bytes)" in found.what


def test_the_lane_and_block_of_a_write_outside_are_named(soft):
    text = rules.module(ptx.put("%in0", "b32", "%r2"), inputs=1)
    # 100 words for two blocks of 64 threads: thread 100 is thread 36 of block 1, lane 4 of its warp 1.
    found = rules.caught(soft, "out-of-bounds", text, "st.global", [rules.words(100)], code=700, grid=2, block=64)
    assert "block (1,0,0) warp 1 lane 4" in found.where
    soft.reset()
    ptx.run(rules.module(ptx.put("%in0", "b32", "%r2"), inputs=1), [rules.words(128)], grid=2, block=64)


@pytest.mark.parametrize(("space", "place"), [("global", "%rd1"), ("shared", "%r10"), ("local", "%rd1")])
@pytest.mark.parametrize("verb", ["ld", "st"])
def test_a_negative_address_is_outside(soft, verb, space, place):
    """The end of the access wraps to zero: what an index of -1 from the first byte gives."""
    access = f"ld.{space}.u32 %r11, [{place}];" if verb == "ld" else f"st.{space}.u32 [{place}], %r2;"
    text = rules.module(f"mov.u64 %rd1, -4;\nmov.u32 %r10, 0;\nsub.u32 %r10, %r10, 4;\n{access}", inputs=1)
    text = text.replace(".reg .b64 %at;", ".reg .b64 %at;\n.local .align 4 .b8 frame[16];")
    rules.caught(soft, "out-of-bounds", text, f"{verb}.{space}.u32", [rules.words(4)], code=700)
    # The same by an offset in the instruction, where it is not the register that wraps.
    text = rules.module(
        f"mov.u64 %rd1, 0;\nmov.u32 %r10, 0;\n{access.replace(place, place + '+-4')}", inputs=1
    ).replace(".reg .b64 %at;", ".reg .b64 %at;\n.local .align 4 .b8 frame[16];")
    soft.reset()
    rules.caught(soft, "out-of-bounds", text, f"{verb}.{space}.u32", [rules.words(4)], code=700)


def test_a_freed_allocation(soft):
    with ptx.context():
        address = int(ptx.call("cuMemAlloc", 64))
        ptx.call("cuMemFree", address)
        with pytest.raises(ptx.DriverError) as error:
            rules.launch(load_at(16), [address])
    assert error.value.code == 700
    (found,) = soft.take_findings("use-after-free")
    assert "16 bytes into freed" in found.what


def test_a_free_after_the_last_use(soft):
    with ptx.context():
        address = int(ptx.call("cuMemAlloc", 64))
        rules.launch(load_at(16), [address])
        ptx.call("cuMemFree", address)


def test_a_host_address_is_no_device_address(soft):
    host = (ctypes.c_uint32 * 4)()
    with ptx.context(), pytest.raises(ptx.DriverError):
        rules.launch(load_at(0), [ctypes.addressof(host)])
    (found,) = soft.take_findings("out-of-bounds")
    assert "no device address" in found.what


@pytest.mark.parametrize(("kind", "offset"), [("u32", 2), ("u64", 4), ("v4", 8), ("v2", 4)])
def test_misaligned(soft, kind, offset):
    loads = {
        "u32": "ld.global.u32 %r10, ",
        "u64": "ld.global.u64 %rd10, ",
        "v4": "ld.global.v4.u32 {%r10, %r11, %r12, %r13}, ",
        "v2": "ld.global.v2.u32 {%r10, %r11}, ",
    }

    def text(at: int) -> str:
        return rules.module(f"{loads[kind]}[%in0+{at}];", inputs=1)

    found = rules.caught(soft, "misaligned", text(offset), "ld.global", [rules.words(16)], code=716)
    assert "lane 0" in found.where
    soft.reset()
    ptx.run(text(16), [rules.words(16)])


def test_allocations_are_256_aligned_and_no_more(soft):
    with ptx.context():
        bases = [int(ptx.call("cuMemAlloc", 3000)) for _ in range(16)]
    assert all(base % 256 == 0 and base % 512 != 0 for base in bases)
    assert all(base > 1 << 40 for base in bases)
    assert len({base % 4096 for base in bases}) > 3


def test_what_nobody_has_written_is_nan(soft):
    (got,) = ptx.run(rules.module("", outputs=1), outputs=[(16, np.uint32)])
    assert (got == 0xFFFFFFFF).all()


# A pool as large as the card: the offset of its last gigabyte does not fit 32 bits.
NARROW = "mul.lo.u32 %r10, %r2, 1073741824;\ncvt.u64.u32 %rd1, %r10;"
WIDE = "mul.wide.u32 %rd1, %r2, 1073741824;"


@pytest.mark.parametrize(("offset", "right"), [(NARROW, False), (WIDE, True)])
def test_a_pool_of_the_whole_card_shows_offsets_that_wrap(soft, offset, right):
    text = rules.module(
        f"{offset}\nadd.u64 %at, %in0, %rd1;\nadd.u64 %at, %at, 0;\nst.global.u32 [%at], %r2;", inputs=1
    )
    with ptx.context():
        pool = int(ptx.call("cuMemAlloc", 130 << 30))
        rules.launch(text, [pool], block=128)
        host = ctypes.c_uint32()
        ptx.call("cuMemcpyDtoH", ctypes.addressof(host), pool + (127 << 30), 4)
        if right:
            assert host.value == 127
        else:
            assert host.value == 0xFFFFFFFF  # never written: all 128 went to the first four gigabytes
            assert soft.take_findings("global-race")
        free, _ = ptx.call("cuMemGetInfo")
        assert free == (141 - 130) << 30


def test_sizes_that_wrap(soft):
    with ptx.context():
        for size in (2**64 - 1, 2**64 - 256):
            with pytest.raises(ptx.DriverError) as error:
                ptx.call("cuMemAlloc", size)
            assert error.value.code == 2
        held = ptx.call("cuMemAlloc", 256)
        with pytest.raises(ptx.DriverError) as error:
            ptx.call("cuMemsetD32", held, 0, 2**62)
        assert error.value.code == 1


def test_memory_ends(soft):
    soft.reset(memory_bytes=1 << 20)
    with ptx.context():
        first = ptx.call("cuMemAlloc", 768 << 10)
        with pytest.raises(ptx.DriverError) as error:
            ptx.call("cuMemAlloc", 512 << 10)
        assert error.value.code == 2
        ptx.call("cuMemFree", first)
        ptx.call("cuMemAlloc", 512 << 10)


@pytest.mark.parametrize("offset", [2048, -16])
def test_outside_of_static_shared_memory(soft, offset):
    text = rules.module(f"add.s32 %r21, %r20, {offset};\nst.shared.u32 [%r21], %r2;")
    found = rules.caught(soft, "out-of-bounds", text, "st.shared", code=700)
    assert "2048 static bytes" in found.what


DYNAMIC = ".extern .shared .align 32 .b8 pool[];"


@pytest.mark.parametrize(("bytes_", "right"), [(128, True), (124, False)])
def test_dynamic_shared_memory_ends_where_the_launch_says(soft, bytes_, right):
    text = rules.module(
        "mov.u32 %r20, pool;\nshl.b32 %r21, %r2, 2;\nadd.u32 %r21, %r21, %r20;\nst.shared.u32 [%r21], %r2;",
        before=DYNAMIC,
    )
    if right:
        ptx.run(text, shared=bytes_)
    else:
        found = rules.caught(soft, "out-of-bounds", text, "st.shared", code=700, shared=bytes_)
        assert "lane 31" in found.where


def test_the_dynamic_base_has_its_declared_alignment_and_no_more(soft):
    text = rules.module("mov.u32 %r20, pool;\nst.global.u32 [%out0], %r20;", before=DYNAMIC, outputs=1)
    (got,) = ptx.run(text, outputs=[(1, np.uint32)], block=1, shared=64)
    assert got[0] % 32 == 0
    assert got[0] % 64 != 0


def test_outside_of_local_memory(soft):
    def text(offset: int) -> str:
        return rules.module(
            f"mov.u64 %rd1, frame;\nst.local.u32 [%rd1], %r2;\nld.local.u32 %r3, [%rd1+{offset}];\n"
            + ptx.put("%out0", "b32", "%r3"),
            before=".shared .align 4 .b8 none[4];",
            directives="",
            outputs=1,
        ).replace(".reg .b64 %at;", ".reg .b64 %at;\n.local .align 4 .b8 frame[16];")

    (got,) = ptx.run(text(0), outputs=[(32, np.uint32)])
    assert (got == rules.words(32)).all()  # each lane has its own
    found = rules.caught(soft, "out-of-bounds", text(16), "ld.local", outputs=[(32, np.uint32)], code=700)
    assert "a thread has 16" in found.what


def test_the_memory_of_a_peer_needs_its_access_enabled(soft):
    soft.reset(devices=2)
    text = rules.module("st.global.u32 [%in0], %r2;", inputs=1)
    with ptx.context(1):
        other = ptx.call("cuCtxGetCurrent")
        theirs = int(ptx.call("cuMemAlloc", 4))
        with ptx.context(0):
            ptx.call("cuCtxEnablePeerAccess", other, 0)
            rules.launch(text, [theirs], block=1)
            ptx.call("cuCtxDisablePeerAccess", other)
            with pytest.raises(ptx.DriverError) as error:
                rules.launch(text, [theirs], block=1)
        assert error.value.code == 700
    (found,) = soft.take_findings("peer-access")
    assert "memory of device 1" in found.what


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("write", ["st.global.u32 [%in0], 7;", "red.global.add.u32 [%in0], 7;"])
def test_what_a_kernel_writes_to_a_peer_may_get_lost(soft, write, dropped):
    soft.reset(devices=2, peer_writes_dropped=dropped)
    host = ctypes.c_uint32(0)
    with ptx.context(1):
        other = ptx.call("cuCtxGetCurrent")
        theirs = int(ptx.call("cuMemAlloc", 4))
        ptx.call("cuMemcpyHtoD", theirs, ctypes.addressof(host), 4)
        ptx.call("cuCtxSynchronize")
        with ptx.context(0):
            ptx.call("cuCtxEnablePeerAccess", other, 0)
            rules.launch(rules.module(write, inputs=1), [theirs], block=1)
        ptx.call("cuCtxSetCurrent", other)
        ptx.call("cuMemcpyDtoH", ctypes.addressof(host), theirs, 4)
    assert host.value == (0 if dropped else 7)
