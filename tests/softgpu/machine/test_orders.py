"""Orders that a card may choose: of blocks, of warps, of an mma's sums. The seed chooses here."""

import numpy as np
import pytest

from tests.softgpu import ptx

ORDERS = ["forward", "reverse", "shuffle"]


def tickets(group: str, grid: int, block: int) -> np.ndarray:
    """Which ticket each thread's group drew from one counter, in the order they ran."""
    text = ptx.module(
        f"""rem.u32 %r10, %thread, 32;
        mov.u32 %r11, 0;
        setp.ne.u32 %p1, %r10, 0;
        @%p1 bra done;
        {group}
        done:
        {ptx.put("%out0", "b32", "%r11")}""",
        inputs=1, outputs=1, before=".shared .align 4 .b32 counter;",
    )  # fmt: skip
    (got,) = ptx.run(text, [np.zeros(1, np.uint32)], [(grid * block, np.uint32)], grid=grid, block=block)
    return got[::32]


GLOBAL_TICKET = "atom.global.add.u32 %r11, [%in0], 1;"


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_one_at_a_time(soft, order):
    drawn = []
    for seed in (1, 2):
        soft.reset(block_order=order, resident_blocks=1, seed=seed)
        drawn.append(list(tickets(GLOBAL_TICKET, 16, 32)))
    rising = list(range(16))
    if order == "shuffle":
        assert sorted(drawn[0]) == sorted(drawn[1]) == rising
        assert drawn[0] != drawn[1]
    else:
        assert drawn == [rising if order == "forward" else rising[::-1]] * 2


@pytest.mark.parametrize("order", ORDERS)
def test_warps_of_a_block(soft, order):
    drawn = []
    for seed in (1, 2):
        soft.reset(warp_order=order, seed=seed)
        drawn.append(list(tickets(GLOBAL_TICKET, 1, 512)))
    rising = list(range(16))
    if order == "shuffle":
        assert drawn[0] != drawn[1]
        assert sorted(drawn[0]) == sorted(drawn[1]) == rising
    else:
        assert drawn == [rising if order == "forward" else rising[::-1]] * 2


def test_warps_take_turns_in_a_long_stretch(soft):
    """No barrier parts them, and yet none runs to its end first."""
    text = ptx.module(
        f"""mov.u32 %r10, 0;
        again:
        atom.global.add.u32 %r11, [%in0], 1;
        add.u32 %r10, %r10, 1;
        setp.lt.u32 %p1, %r10, 1000;
        @%p1 bra again;
        {ptx.put("%out0", "b32", "%r11")}""",
        inputs=1, outputs=1,
    )  # fmt: skip
    (got,) = ptx.run(text, [np.zeros(1, np.uint32)], [(128, np.uint32)], block=128)
    last = got.reshape(4, 32).max(axis=1)
    assert last.min() > 3 * 32 * 1000


def products(soft, a: np.ndarray, b: np.ndarray, c: np.ndarray, **knobs) -> np.ndarray:
    """D of m16n8k16 with row 0 of A, column 0 of B (bf16 bits, 16 of each) and C[0, 0]; everything else is zero."""
    soft.reset(**knobs)
    text = ptx.module(
        f"""mov.u32 %r10, 0; mov.u32 %r11, 0; mov.u32 %r12, 0; mov.u32 %r13, 0; mov.u32 %r14, 0; mov.u32 %r15, 0;
        mov.f32 %f1, 0f00000000; mov.f32 %f2, 0f00000000;
        setp.ge.u32 %p1, %lane, 4;
        @%p1 bra skip;
        {ptx.fetch("%r10", "%in0", "b32")}
        {ptx.fetch("%r14", "%in1", "b32")}
        ld.global.b32 %r15, [%at+16];
        mad.wide.u32 %at, %lane, 4, %in0;
        ld.global.b32 %r12, [%at+16];
        setp.eq.u32 %p2, %lane, 0;
        @%p2 ld.global.f32 %f1, [%in2];
        skip:
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
          {{%f3, %f4, %f5, %f6}}, {{%r10, %r11, %r12, %r13}}, {{%r14, %r15}}, {{%f1, %f2, %f2, %f2}};
        {ptx.put("%out0", "f32", "%f3")}""",
        inputs=3, outputs=1,
    )  # fmt: skip
    (got,) = ptx.run(text, [a, b, c], [(32, np.float32)])
    return got[0]


def bf16(values) -> np.ndarray:
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def test_mma_sums_differ_by_seed_within_what_cards_do(soft):
    random = np.random.default_rng(5)
    varied = 0
    for _ in range(4):
        a, b = (random.standard_normal((2, 16)).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
        c = np.array([0.1], np.float32)
        terms = np.array([c[0], *(a.astype(np.float64) * b)])
        # Two groups: up to 17 terms are truncated a bit below fp32's last place of the largest, their sum at its own.
        largest = max(np.abs(terms).max(), np.abs(terms).sum())
        bound = 2 * (17 / 2 + 1) * 2.0 ** np.ceil(np.log2(largest)) * 2.0**-23
        got = [products(soft, bf16(a), bf16(b), c, seed=seed) for seed in range(12)]
        assert all(abs(float(value) - terms.sum()) <= bound for value in got)
        varied += len(set(got)) > 1
        assert products(soft, bf16(a), bf16(b), c, jitter=False) == np.float32(terms.sum())
    assert varied


def test_mma_truncates_where_a_sum_would_round(soft):
    """1 + 15 * 2^-25 rounds to 1 + 4 * 2^-23; a tensor core loses what lies below its bits."""
    a = [1.0] + [2.0**-13] * 15
    b = [1.0] + [2.0**-12] * 15
    for seed in range(6):
        got = products(soft, bf16(a), bf16(b), np.zeros(1, np.float32), seed=seed)
        assert 1.0 <= got < 1 + 15 * 2.0**-25
    assert products(soft, bf16(a), bf16(b), np.zeros(1, np.float32), jitter=False) == np.float32(1 + 15 * 2.0**-25)
