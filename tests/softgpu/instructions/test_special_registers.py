"""Special registers: where a thread is, how large the launch is, which lanes are below it."""

import numpy as np
import pytest

from tests.softgpu import ptx

pytestmark = pytest.mark.usefixtures("soft")


def read(registers, grid, block, shared=0, before=""):
    """Each thread's values, at its linear number in the grid."""
    lines = ["mov.u32 %r2, %tid.x;", "mov.u32 %r3, %tid.y;", "mov.u32 %r4, %tid.z;"]
    lines += ["mov.u32 %r5, %ntid.x;", "mov.u32 %r6, %ntid.y;", "mov.u32 %r7, %ntid.z;"]
    lines += ["mad.lo.u32 %r8, %r4, %r6, %r3;", "mad.lo.u32 %r8, %r8, %r5, %r2;"]
    lines += ["mul.lo.u32 %r9, %r5, %r6;", "mul.lo.u32 %r9, %r9, %r7;"]
    lines += ["mov.u32 %r2, %ctaid.x;", "mov.u32 %r3, %ctaid.y;", "mov.u32 %r4, %ctaid.z;"]
    lines += ["mov.u32 %r5, %nctaid.x;", "mov.u32 %r6, %nctaid.y;"]
    lines += ["mad.lo.u32 %r10, %r4, %r6, %r3;", "mad.lo.u32 %r10, %r10, %r5, %r2;"]
    lines += ["mad.lo.u32 %r11, %r10, %r9, %r8;"]
    for i, register in enumerate(registers):
        lines += [f"mov.u32 %r12, {register};", ptx.put("%out0", "b32", "%r12", len(registers), "%r11", i)]
    threads = int(np.prod(grid) * np.prod(block))
    text = ptx.module("\n".join(lines), outputs=1, before=before)
    (got,) = ptx.run(text, [], [((threads, len(registers)), np.uint32)], grid=grid, block=block, shared=shared)
    return dict(zip(registers, got.T.astype(np.int64), strict=True))


def test_positions_in_three_dimensions():
    grid, block = (3, 2, 4), (5, 3, 4)
    names = [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    got = read(names, grid, block)
    z, y, x, tz, ty, tx = np.indices((*grid[::-1], *block[::-1])).reshape(6, -1)
    for axis, position, thread, blocks, threads in zip("xyz", (x, y, z), (tx, ty, tz), grid, block, strict=True):
        np.testing.assert_array_equal(got[f"%ctaid.{axis}"], position)
        np.testing.assert_array_equal(got[f"%tid.{axis}"], thread)
        assert np.all(got[f"%nctaid.{axis}"] == blocks)
        assert np.all(got[f"%ntid.{axis}"] == threads)


def test_lanes_and_warps_count_threads_x_first():
    """60 threads: a whole warp and a partial one."""
    got = read(
        ["%laneid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge"],
        (2, 1, 1),
        (5, 3, 4),
    )
    lane = np.tile(np.arange(60) % 32, 2)
    np.testing.assert_array_equal(got["%laneid"], lane)
    bit = 1 << lane
    np.testing.assert_array_equal(got["%lanemask_eq"], bit)
    np.testing.assert_array_equal(got["%lanemask_lt"], bit - 1)
    np.testing.assert_array_equal(got["%lanemask_le"], 2 * bit - 1)
    np.testing.assert_array_equal(got["%lanemask_gt"], 0xFFFFFFFF ^ (2 * bit - 1))
    np.testing.assert_array_equal(got["%lanemask_ge"], 0xFFFFFFFF ^ (bit - 1))


def test_warp_and_multiprocessor_numbers_are_in_range(soft):
    soft.reset(sm_count=3)
    got = read(["%warpid", "%nwarpid", "%smid", "%nsmid", "WARP_SZ"], (8, 1, 1), (96, 1, 1))
    assert np.all(got["%warpid"] < got["%nwarpid"])
    assert np.all(got["%smid"] < got["%nsmid"])
    assert np.all(got["WARP_SZ"] == 32)


def test_shared_memory_sizes():
    before = ".shared .align 16 .b8 fixed[256]; .extern .shared .align 16 .b8 dynamic[];"
    got = read(["%dynamic_smem_size"], (1, 1, 1), (32, 1, 1), shared=1024, before=before)
    assert np.all(got["%dynamic_smem_size"] == 1024)


def test_clocks_do_not_run_backwards():
    body = f"""
        mov.u64 %rd1, %clock64;
        mov.u64 %rd2, %globaltimer;
        mov.u32 %r10, 0;
        AGAIN:
        add.u32 %r10, %r10, 1;
        setp.lt.u32 %p1, %r10, 50;
        @%p1 bra AGAIN;
        mov.u64 %rd3, %clock64;
        mov.u64 %rd4, %globaltimer;
        setp.gt.u64 %p2, %rd3, %rd1;
        setp.ge.u64 %p3, %rd4, %rd2;
        and.pred %p2, %p2, %p3;
        selp.u32 %r11, 1, 0, %p2;
        {ptx.put("%out0", "b32", "%r11")}"""
    (got,) = ptx.run(ptx.module(body, outputs=1), [], [(32, np.uint32)])
    assert np.all(got == 1)
