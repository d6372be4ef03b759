"""What accesses cost: sectors of global requests, wavefronts of shared ones, by kernel and by site."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.memory import rules


def site(soft, text: str, statement: str) -> dict:
    """The counts at the line that holds `statement`."""
    return soft.counters()["kernels"]["probe"]["sites"][str(rules.line_of(text, statement))]


# lane -> byte offset, bytes a lane, sectors, fewest sectors
GLOBAL = {
    "words in order": ("shl.b32 %r10, %lane, 2;", 4, 4, 4),
    "words in reverse": ("sub.u32 %r10, 31, %lane;\nshl.b32 %r10, %r10, 2;", 4, 4, 4),
    "words from 16 bytes past a sector": ("shl.b32 %r10, %lane, 2;\nadd.u32 %r10, %r10, 16;", 4, 5, 4),
    "one word for all": ("mov.u32 %r10, 0;", 4, 1, 1),
    "a word a sector": ("shl.b32 %r10, %lane, 5;", 4, 32, 4),
    "bytes": ("mov.u32 %r10, %lane;", 1, 1, 1),
    "halves": ("shl.b32 %r10, %lane, 1;", 2, 2, 2),
    "16 bytes in order": ("shl.b32 %r10, %lane, 4;", 16, 16, 16),
    "8 rows of 4 lanes": (
        "and.b32 %r10, %lane, 3;\nshl.b32 %r10, %r10, 4;\nshr.u32 %r11, %lane, 2;\nmad.lo.u32 %r10, %r11, 256, %r10;",
        16,
        16,
        16,
    ),
}
LOADS = {1: "u8 %r12", 2: "u16 %h1", 4: "u32 %r12", 8: "v2.u32 {%r12, %r13}", 16: "v4.u32 {%r12, %r13, %r14, %r15}"}


@pytest.mark.parametrize(
    ("pattern", "store"),
    [(name, False) for name in GLOBAL] + [(name, True) for name in GLOBAL if name != "one word for all"],
)
def test_sectors(soft, pattern, store):
    offset, width, sectors, ideal = GLOBAL[pattern]
    kind, registers = LOADS[width].split(" ", 1)
    access = f"st.global.{kind} [%at], {registers};" if store else f"ld.global.{kind} {registers}, [%at];"
    values = "".join(f"mov.u32 %r{i}, 0;\n" for i in range(12, 16)) + "cvt.u16.u32 %h1, %r12;\n"
    text = rules.module(f"{values}{offset}\ncvt.u64.u32 %rd1, %r10;\nadd.u64 %at, %out0, %rd1;\n{access}", outputs=1)
    ptx.run(text, outputs=[rules.words(1024)], grid=3)
    expected = {"requests": 3, "bytes": 96 * width, "sectors": 3 * sectors, "ideal": 3 * ideal}
    if store:  # each block in its own words would be another pattern; here they race and the figures stand
        assert soft.take_findings("global-race")
    kind_of_access = "global_store" if store else "global_load"
    assert soft.counters()["kernels"]["probe"][kind_of_access] == expected
    found = site(soft, text, access)
    assert {name: found[name] for name in expected} == expected
    assert found["text"] == access


# lane -> byte offset, bytes a lane, wavefronts, fewest
SHARED = {
    "words in order": ("shl.b32 %r10, %lane, 2;", 4, 1, 1),
    "one word for all": ("mov.u32 %r10, 0;", 4, 1, 1),
    "two words of one bank": ("and.b32 %r10, %lane, 1;\nshl.b32 %r10, %r10, 7;", 4, 2, 1),
    "every second word": ("shl.b32 %r10, %lane, 3;", 4, 2, 1),
    "a column of 128-byte rows": ("and.b32 %r10, %lane, 15;\nshl.b32 %r10, %r10, 7;", 4, 16, 1),
    "halves": ("shl.b32 %r10, %lane, 1;", 2, 1, 1),
    "8 bytes in order": ("shl.b32 %r10, %lane, 3;", 8, 2, 2),
    "16 bytes in order": ("shl.b32 %r10, %lane, 4;", 16, 4, 4),
    "16 bytes, every second": ("and.b32 %r10, %lane, 15;\nshl.b32 %r10, %r10, 5;", 16, 8, 4),
    "16 bytes for all": ("mov.u32 %r10, 0;", 16, 4, 4),
}
FILL = """
    mad.lo.u32 %r21, %lane, 64, %r20;
    mov.u32 %r11, 0;
    st.shared.v4.u32 [%r21], {%r11, %r11, %r11, %r11};
    st.shared.v4.u32 [%r21+16], {%r11, %r11, %r11, %r11};
    st.shared.v4.u32 [%r21+32], {%r11, %r11, %r11, %r11};
    st.shared.v4.u32 [%r21+48], {%r11, %r11, %r11, %r11};
    bar.sync 0;
"""


@pytest.mark.parametrize("pattern", SHARED)
def test_wavefronts(soft, pattern):
    offset, width, wavefronts, ideal = SHARED[pattern]
    kind, registers = LOADS[width].split(" ", 1)
    access = f"ld.shared.{kind} {registers}, [%r22];"
    text = rules.module(f"{FILL}{offset}\nadd.u32 %r22, %r20, %r10;\n{access}")
    ptx.run(text)
    expected = {"requests": 1, "bytes": 32 * width, "sectors": wavefronts, "ideal": ideal}
    assert soft.counters()["kernels"]["probe"]["shared_load"] == expected


@pytest.mark.parametrize(
    ("address", "wavefronts"),
    [
        ("shl.b32 %r10, %lane, 4;", 4),  # rows of 16 bytes, one after the other
        ("and.b32 %r10, %lane, 7;\nshl.b32 %r10, %r10, 7;", 32),  # 8 rows 128 bytes apart, four times
        # The same rows, each chunk exclusive-or'd with its row.
        ("and.b32 %r10, %lane, 7;\nshl.b32 %r11, %r10, 4;\nshl.b32 %r10, %r10, 7;\nadd.u32 %r10, %r10, %r11;", 4),
    ],
)
def test_wavefronts_of_matrix_loads(soft, address, wavefronts):
    access = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r12, %r13, %r14, %r15}, [%r22];"
    text = rules.module(f"{FILL}{address}\nadd.u32 %r22, %r20, %r10;\n{access}")
    ptx.run(text)
    expected = {"requests": 1, "bytes": 512, "sectors": wavefronts, "ideal": 4}
    found = site(soft, text, "ldmatrix")
    assert {name: found[name] for name in expected} == expected


def test_asynchronous_copies_count_their_sources(soft):
    body = """
        mad.lo.u32 %r21, %lane, 16, %r20;
        mad.wide.u32 %at, %lane, 16, %in0;
        cp.async.cg.shared.global [%r21], [%at], 16;
        cp.async.wait_all;"""
    ptx.run(rules.module(body, inputs=1), [rules.words(128)])
    counted = soft.counters()["kernels"]["probe"]["async_copy"]
    assert counted == {"requests": 1, "bytes": 512, "sectors": 16, "ideal": 16}


def test_only_lanes_that_take_part_count(soft):
    body = "setp.lt.u32 %p1, %lane, 9;\nmad.wide.u32 %at, %lane, 4, %in0;\n@%p1 ld.global.u32 %r10, [%at];"
    ptx.run(rules.module(body, inputs=1), [rules.words(32)])
    counted = soft.counters()["kernels"]["probe"]["global_load"]
    assert counted == {"requests": 1, "bytes": 36, "sectors": 2, "ideal": 2}


def test_atomics(soft):
    ptx.run(rules.module("red.global.add.u32 [%out0], 1;", outputs=1), outputs=[np.zeros(1, np.uint32)])
    counted = soft.counters()["kernels"]["probe"]["atomics"]
    assert counted == {"requests": 1, "bytes": 128, "sectors": 1, "ideal": 1}


def test_checks_off_find_nothing_and_count_the_same(soft):
    text = rules.module("st.global.u32 [%out0], %r2;\nld.shared.u32 %r10, [%r20];", outputs=1)
    soft.reset(checks=False)
    ptx.run(text, outputs=[rules.words(1)], grid=2)
    off = soft.counters()["kernels"]["probe"]
    soft.reset()
    ptx.run(text, outputs=[rules.words(1)], grid=2)
    assert soft.counters()["kernels"]["probe"] == off
    assert soft.take_findings("global-race")
    assert soft.take_findings("shared-uninitialised")
