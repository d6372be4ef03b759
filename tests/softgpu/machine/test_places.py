"""A finding says where: kernel, block, warp, lane, the line of the PTX with its text, and the source line of .loc."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.memory import rules


def test_source_lines_come_from_loc(soft):
    text = rules.module(
        """.loc 1 41 7
        setp.eq.u32 %p1, %lane, 3;
        .loc 2 99 3, function_name info, inlined_at 1 57 9
        @%p1 ld.global.u32   %r10,
           [%rd9+4];  // here
        add.u32 %r10, %r10, 1;""",
        before='.file 1 "kernels/norm.cu"\n.file 2 "kernels/include/types.cuh"',
    ).replace("@%p1 ld", "mov.u64 %rd9, 0;\n@%p1 ld")
    text += ".section .debug_str\n{\ninfo:\n.b8 102,0\n}\n"
    with pytest.raises(ptx.DriverError) as error:
        ptx.run(text, grid=(3, 2, 2), block=64)
    assert error.value.code == 700
    (found,) = soft.take_findings("out-of-bounds")
    line = text.split("\n").index(next(line for line in text.split("\n") if "@%p1 ld" in line)) + 1
    assert found.where.startswith("probe block (0,0,0) warp 0 lane 3, ")
    assert found.where.endswith(f"ptx line {line} (kernels/include/types.cuh:99): @%p1 ld.global.u32 %r10, [%rd9+4];")
    soft.take_findings("uninitialised-register")


def test_instructions_are_counted_by_kind_and_lane(soft):
    text = ptx.module(
        f"""setp.lt.u32 %p1, %lane, 8;
        mov.u32 %r10, 0;
        @!%p1 bra skip;
        mul.lo.u32 %r10, %lane, 3;
        mul.lo.u32 %r10, %r10, 3;
        skip:
        @%p1 popc.b32 %r11, %r10;
        {ptx.put("%out0", "b32", "%r10")}""",
        outputs=1,
    )
    ptx.run(text, outputs=[(192, np.uint32)], grid=3, block=64)
    counted = soft.counters()["kernels"]["probe"]
    assert counted["launches"] == 1
    assert counted["blocks"] == 3
    assert counted["warps"] == 6
    assert counted["instructions"]["mul.lo"] == 12
    assert counted["instructions"]["popc"] == 6
    assert counted["instructions"]["bra"] == 6
    assert counted["instructions"]["st.global"] == 6
    everything = sum(counted["instructions"].values())
    # 8 of 32 lanes in two multiplications and a count, 24 in the branch.
    assert counted["lane_instructions"] == 32 * everything - 6 * (3 * 24 + 8)
