"""Registers that some lane reads before it has written them, and compilers' harmless ones."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.memory import rules

HALF = "setp.lt.u32 %p1, %lane, 16;"


def kernel(body):
    return ptx.module(f"{body}\n{ptx.put('%out0', 'b32', '%r20')}", outputs=1)


BAD = {
    "never written": "add.u32 %r20, %r40, 1;  // here",
    "under a guard": f"{HALF}\n@%p1 mov.u32 %r40, 1;\nadd.u32 %r20, %r40, 1;  // here",
    "in one branch": f"{HALF}\n@!%p1 bra skip;\nmov.u32 %r40, 1;\nskip:\nadd.u32 %r20, %r40, 1;  // here",
    "through a mov": "mov.u32 %r41, %r40;\nadd.u32 %r20, %r41, 1;  // here",
    "as a predicate": "selp.b32 %r21, 1, 2, %p7;\nadd.u32 %r20, %r21, 0;  // here",
    "as a guard": "mov.u32 %r20, 0;\n@%p7 mov.u32 %r20, 1;  // here",
    "picked by selp": f"{HALF}\nselp.b32 %r41, %r40, 1, %p1;\nadd.u32 %r20, %r41, 1;  // here",
    "both halves of a pair": "mov.b64 %rd9, {%r40, %r41};\ncvt.u32.u64 %r20, %rd9;  // here",
}
GOOD = {
    "written by both branches": f"""{HALF}
        @!%p1 bra other;
        mov.u32 %r40, 1;
        bra.uni met;
        other:
        mov.u32 %r40, 2;
        met:
        add.u32 %r20, %r40, 1;""",
    "written and read under one guard": f"""{HALF}
        mov.u32 %r20, 0;
        @%p1 mov.u32 %r40, 1;
        @%p1 add.u32 %r20, %r40, 1;""",
    "moved and never used": "mov.u32 %r41, %r40;\nmov.u32 %r20, 1;",
    "not picked by selp": f"{HALF}\n@%p1 mov.u32 %r40, 1;\nselp.b32 %r41, %r40, 1, %p1;\nadd.u32 %r20, %r41, 1;",
    "the unread half of a pair": "mov.u32 %r41, 3;\nmov.b64 %rd9, {%r41, %r40};\ncvt.u32.u64 %r20, %rd9;",
    "written in a loop's first round": """mov.u32 %r41, 0;
        again:
        setp.eq.u32 %p1, %r41, 0;
        @%p1 mov.u32 %r40, 5;
        add.u32 %r20, %r40, 1;
        add.u32 %r41, %r41, 1;
        setp.lt.u32 %p2, %r41, 3;
        @%p2 bra again;""",
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_read_before_written(soft, body):
    found = rules.caught(soft, "uninitialised-register", kernel(body), "// here", (), [(32, np.uint32)])
    assert "not written" in found.what


@pytest.mark.parametrize("body", GOOD.values(), ids=GOOD)
def test_written_in_every_lane_that_reads(soft, body):
    ptx.run(kernel(body), outputs=[(32, np.uint32)])


def test_the_lane_is_named(soft):
    body = "setp.ne.u32 %p1, %lane, 9;\n@%p1 mov.u32 %r40, 1;\nadd.u32 %r20, %r40, 1;  // here"
    found = rules.caught(soft, "uninitialised-register", kernel(body), "// here", (), [(32, np.uint32)])
    assert " lane 9," in found.where
