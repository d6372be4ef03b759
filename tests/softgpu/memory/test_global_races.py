"""Global memory within one launch: what one thread has written and another may rely on."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.memory import rules

ORDERS = ["forward", "reverse"]

# Threads of block 0 and of the others part at a branch; every form runs in both block orders.
FIRST = "setp.eq.u32 %p0, %r0, 0;"


@pytest.mark.parametrize("order", ORDERS)
def test_two_blocks_write_one_word(soft, order):
    soft.reset(block_order=order)
    text = rules.module("st.global.u32 [%out0], %r0;", outputs=1)
    found = rules.caught(soft, "global-race", text, "st.global", outputs=[(1, np.uint32)], grid=2, block=1)
    assert "written in this launch by probe block (" in found.what
    assert "fence" in found.what
    assert found.where.startswith(f"probe block ({0 if order == 'reverse' else 1},0,0)")
    soft.reset(block_order=order)
    ptx.run(rules.module(ptx.put("%out0", "b32", "%r0"), outputs=1), outputs=[(2, np.uint32)], grid=2, block=1)


@pytest.mark.parametrize("order", ORDERS)
def test_a_block_reads_what_another_writes(soft, order):
    soft.reset(block_order=order)
    text = rules.module(f"{FIRST}\n@%p0 st.global.u32 [%out0], 7;\n@!%p0 ld.global.u32 %r10, [%out0];", outputs=1)
    found = rules.caught(soft, "global-race", text, "ld.global", outputs=[rules.words(1)], grid=2, block=1)
    assert "block (1,0,0)" in found.where
    assert "probe block (0,0,0) warp 0 lane 0" in found.what
    assert "st.global.u32 [%out0], 7" in found.what


@pytest.mark.parametrize("order", ORDERS)
def test_neighbouring_bytes_do_not_race(soft, order):
    """Block 0 reads the even bytes of a line, block 1 writes the odd ones."""
    soft.reset(block_order=order)
    body = f"""{FIRST}
        shl.b32 %r10, %r2, 1;
        cvt.u64.u32 %rd1, %r10;
        add.u64 %at, %out0, %rd1;
        @%p0 ld.global.u8 %r11, [%at];
        @!%p0 st.global.u8 [%at+{{odd}}], %r2;"""
    text = rules.module(body.format(odd=1), outputs=1)
    ptx.run(text, outputs=[rules.words(16)], grid=2, block=32)
    soft.check()
    text = rules.module(body.format(odd=0), outputs=1)
    rules.caught(soft, "global-race", text, "ld.global", outputs=[rules.words(16)], grid=2, block=32)


@pytest.mark.parametrize("kind", ["u16", "u32", "v4.u32"])
def test_a_thread_updates_its_own_elements(soft, kind):
    registers = "{%r10, %r11, %r12, %r13}" if kind == "v4.u32" else "%r10"
    width = {"u16": 2, "u32": 4, "v4.u32": 16}[kind]
    at = f"mad.wide.u32 %at, %thread, {width}, %out0;"
    body = f"{at}\nld.global.{kind} {registers}, [%at];\nadd.u32 %r10, %r10, 1;\nst.global.{kind} [%at], {registers};"
    ptx.run(rules.module(body, outputs=1), outputs=[rules.words(1024)], grid=2, block=64)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("cached", [True, False])
def test_the_read_only_path_and_a_write_in_the_same_launch(soft, order, cached):
    """Even by the very thread that reads: .nc asks for data that the launch leaves alone."""
    soft.reset(block_order=order)
    load = "ld.global.nc.u32" if cached else "ld.global.u32"
    body = f"mad.wide.u32 %at, %thread, 4, %out0;\n{load} %r10, [%at];\nst.global.u32 [%at], %r10;"
    text = rules.module(body, outputs=1)
    if not cached:
        ptx.run(text, outputs=[rules.words(64)], grid=2)
        return
    found = rules.caught(soft, "nc-written", text, load, outputs=[rules.words(64)], grid=2)
    assert "st.global.u32 [%at], %r10" in found.what


def test_the_read_only_path_after_the_write(soft):
    body = "mad.wide.u32 %at, %thread, 4, %out0;\nst.global.u32 [%at], %r2;\nld.global.nc.u32 %r10, [%at];"
    rules.caught(soft, "nc-written", rules.module(body, outputs=1), "ld.global.nc", outputs=[rules.words(32)])


def exchange(between: str, block: int, partner: int) -> str:
    """Each thread writes its word and reads that of thread `t ^ partner` of its block."""
    return rules.module(
        f"""{ptx.put("%out0", "b32", "%r2")}
        {between}
        xor.b32 %r11, %r2, {partner};
        {ptx.fetch("%r12", "%out0", "u32", index="%r11")}
        {ptx.put("%out1", "b32", "%r12")}""",
        outputs=2,
    )


@pytest.mark.parametrize(
    ("between", "block", "partner", "right"),
    [
        ("", 32, 1, False),
        ("bar.warp.sync 0xffffffff;", 32, 1, True),
        ("shfl.sync.idx.b32 %r13, %r2, 0, 31, 0xffffffff;", 32, 1, False),
        ("membar.gl;", 32, 1, False),
        ("bar.warp.sync 0xffffffff;", 64, 32, False),
        ("bar.sync 0;", 64, 32, True),
        ("bar.sync 0;", 48, 8, True),
    ],
)
def test_threads_of_a_block_need_a_barrier(soft, between, block, partner, right):
    text = exchange(between, block, partner)
    outputs = [rules.words(64), (block, np.uint32)]
    if not right:
        found = rules.caught(soft, "global-race", text, "ld.global.u32 %r12", outputs=outputs, block=block)
        assert "no barrier or warp sync between" in found.what
        return
    _, got = ptx.run(text, outputs=outputs, block=block)
    assert (got == (rules.words(block) ^ partner)).all()


@pytest.mark.parametrize("right", [True, False])
def test_a_write_over_what_another_warp_has_read(soft, right):
    body = f"""
        xor.b32 %r11, %r2, 32;
        {ptx.fetch("%r12", "%out0", "u32", index="%r11")}
        {"bar.sync 0;" if right else ""}
        {ptx.put("%out0", "b32", "%r12")}"""
    text = rules.module(body, outputs=1)
    if right:
        ptx.run(text, outputs=[rules.words(64)], block=64)
    else:
        rules.caught(soft, "global-race", text, "st.global", outputs=[rules.words(64)], block=64)


@pytest.mark.parametrize("value", ["%r2", "5"])
def test_lanes_of_one_store_meet(soft, value):
    text = rules.module(f"st.global.u32 [%out0], {value};", outputs=1)
    if value == "5":
        ptx.run(text, outputs=[rules.words(1)])
        return
    found = rules.caught(soft, "global-race", text, "st.global", outputs=[rules.words(1)])
    assert "two lanes of one store" in found.what


def last_block(
    *,
    publish: str = "membar.gl;",
    atomic: str = "atom.global.add.u32",
    observe: str = "membar.gl;",
    before: str = "",
    after: str = "bar.sync 0;",
) -> str:
    """Threads write parts; thread 0 counts the block; the block that comes last sums what all have written.

    out0: parts [blocks, 64], out1: the counter, out2: [64] sums over the blocks.
    """
    return rules.module(
        f"""{ptx.put("%out0", "b32", "%thread")}
        {before}
        bar.sync 0;
        mov.u32 %r10, 0;
        setp.ne.u32 %p1, %r2, 0;
        @%p1 bra counted;
        {publish}
        {atomic} %r10, [%out1], 1;
        {observe}
        mov.u32 %r12, %nctaid.x;
        sub.u32 %r12, %r12, 1;
        setp.eq.u32 %p2, %r10, %r12;
        selp.u32 %r10, 1, 0, %p2;
        st.shared.u32 [%r20], %r10;
        counted:
        {after}
        ld.shared.u32 %r10, [%r20];
        setp.eq.u32 %p3, %r10, 0;
        @%p3 bra done;
        mov.u32 %r14, 0;
        mov.u32 %r15, %r2;
        mov.u32 %r13, %nctaid.x;
        sum:
        {ptx.fetch("%r16", "%out0", "u32", index="%r15")}
        add.u32 %r14, %r14, %r16;
        add.u32 %r15, %r15, 64;
        sub.u32 %r13, %r13, 1;
        setp.ne.u32 %p4, %r13, 0;
        @%p4 bra sum;
        {ptx.put("%out2", "b32", "%r14", index="%r2")}
        done:""",
        outputs=3,
    )


def run_last_block(text: str) -> np.ndarray:
    outputs = [(4 * 64, np.uint32), np.zeros(1, np.uint32), (64, np.uint32)]
    return ptx.run(text, outputs=outputs, grid=4, block=64)[2]


SUMS = rules.words(256).reshape(4, 64).sum(0)
RIGHT = {
    "fences around the atomic": {},
    "fence.acq_rel": {"publish": "fence.acq_rel.gpu;", "observe": "fence.sc.gpu;"},
    "every thread fences before the barrier": {"publish": "", "before": "membar.gl;"},
    "acquire and release": {"publish": "", "atomic": "atom.acq_rel.gpu.global.add.u32", "observe": ""},
    "a release and a fence": {"publish": "", "atomic": "atom.release.gpu.global.add.u32"},
    "system scope": {"publish": "membar.sys;", "observe": "membar.sys;"},
}
WRONG = {
    "no fence before": {"publish": ""},
    "no fence after": {"observe": ""},
    "no fences": {"publish": "", "observe": ""},
    "fences of the block only": {"publish": "membar.cta;", "observe": "membar.cta;"},
    "only acquire": {"publish": "", "atomic": "atom.acquire.gpu.global.add.u32", "observe": ""},
    "only release": {"publish": "", "atomic": "atom.release.gpu.global.add.u32", "observe": ""},
    "an atomic of the block only": {"atomic": "atom.relaxed.cta.global.add.u32"},
}


@pytest.mark.parametrize("adversarial", [False, True])
@pytest.mark.parametrize("order", [*ORDERS, "shuffle"])
@pytest.mark.parametrize("form", RIGHT)
def test_the_last_block_sums_right(soft, form, order, adversarial):
    soft.reset(block_order=order, adversarial=adversarial)
    assert (run_last_block(last_block(**RIGHT[form])) == SUMS).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("form", WRONG)
def test_the_last_block_without_its_fences(soft, form, order):
    soft.reset(block_order=order)
    text = last_block(**WRONG[form])
    run_last_block(text)
    found = [one for one in soft.take_findings("global-race") if "ld.global.u32 %r16" in one.where]
    assert found
    assert "st.global.b32" in found[0].what


@pytest.mark.parametrize("missing", [None, 0, 1, 2, 3])
def test_a_chain_of_blocks(soft, missing):
    """Block 0 hands to 1 and that to 2, which reads what 0 has written: fences carry what they have seen."""
    soft.reset(threads=1, resident_blocks=1)  # one after the other, so that nobody has to wait
    fences = ["" if i == missing else "membar.gl;" for i in range(4)]
    body = f"""{FIRST}
        setp.eq.u32 %p1, %r0, 1;
        @!%p0 bra second;
        st.global.u32 [%out0], 5;
        {fences[0]}
        red.global.add.u32 [%out1], 1;
        bra.uni done;
        second:
        @!%p1 bra third;
        atom.global.add.u32 %r10, [%out1], 1;
        {fences[1]}
        red.global.add.u32 [%out1+4], 1;
        bra.uni done;
        third:
        atom.global.add.u32 %r10, [%out1+4], 1;
        {fences[2]}
        ld.global.u32 %r11, [%out0];
        {fences[3]}
        done:"""
    text = rules.module(body, outputs=2)
    outputs = [np.zeros(1, np.uint32), np.zeros(2, np.uint32)]
    if missing in (None, 3):
        ptx.run(text, outputs=outputs, grid=3, block=1)
    else:
        rules.caught(soft, "global-race", text, "ld.global", outputs=outputs, grid=3, block=1)


@pytest.mark.parametrize("right", [True, False])
def test_warps_of_a_block_hand_over_by_a_flag(soft, right):
    fence = "membar.gl;" if right else ""
    body = f"""
        setp.eq.u32 %p0, %r2, 0;
        setp.eq.u32 %p1, %r2, 32;
        @%p0 st.global.u32 [%out0], 5;
        {fence}
        @%p0 st.volatile.global.u32 [%out1], 1;
        @!%p1 bra done;
        wait:
        ld.volatile.global.u32 %r10, [%out1];
        setp.eq.u32 %p2, %r10, 0;
        @%p2 bra wait;
        {fence}
        ld.global.u32 %r11, [%out0];
        done:"""
    text = rules.module(body, outputs=2)
    outputs = [np.zeros(1, np.uint32), np.zeros(1, np.uint32)]
    if right:
        ptx.run(text, outputs=outputs, block=64)
    else:
        rules.caught(soft, "global-race", text, "ld.global", outputs=outputs, block=64)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("right", [True, False])
def test_a_counter_that_a_block_resets_while_others_count(soft, right, order):
    """The first of them to count is the one that reset it: its own atomic must not hide the store from the others."""
    soft.reset(block_order=order)
    reset = "@%p0 st.global.u32 [%out0], 0;"
    body = f"{FIRST}\n{'' if right else reset}\nred.global.add.u32 [%out0], 1;"
    text = rules.module(body, outputs=1)
    if right:
        (got,) = ptx.run(text, outputs=[np.zeros(1, np.uint32)], grid=3, block=1)
        assert got[0] == 3
        return
    ptx.run(text, outputs=[np.zeros(1, np.uint32)], grid=3, block=1)
    found = soft.take_findings("global-race")
    assert found
    assert any("st.global" in one.what + one.where and "red.global" in one.what + one.where for one in found)


@pytest.mark.parametrize(("publish", "observe"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_missing_fence_computes_wrong_numbers(soft, publish, observe):
    """Block 0 hands a word over by a flag and waits for the answer; block 1 has the word's line in its cache."""
    soft.reset(adversarial=True, threads=1, resident_blocks=2, block_order="reverse")
    fence = "membar.gl;"
    body = f"""{FIRST}
        @%p0 bra writer;
        ld.global.u32 %r10, [%out0+4];
        wait:
        ld.volatile.global.u32 %r11, [%out1];
        setp.eq.u32 %p1, %r11, 0;
        @%p1 bra wait;
        {fence if observe else ""}
        ld.global.u32 %r12, [%out0];
        st.global.u32 [%out2], %r12;
        st.volatile.global.u32 [%out1+4], 1;
        bra.uni done;
        writer:
        st.global.u32 [%out0], 5;
        {fence if publish else ""}
        st.volatile.global.u32 [%out1], 1;
        answer:
        ld.volatile.global.u32 %r11, [%out1+4];
        setp.eq.u32 %p1, %r11, 0;
        @%p1 bra answer;
        done:"""
    text = rules.module(body, outputs=3)
    outputs = [np.zeros(2, np.uint32), np.zeros(2, np.uint32), (1, np.uint32)]
    if publish and observe:
        assert ptx.run(text, outputs=outputs, grid=2, block=1)[2][0] == 5
        return
    assert ptx.run(text, outputs=outputs, grid=2, block=1)[2][0] == 0
    (found,) = soft.take_findings("global-race")
    assert "ld.global.u32 %r12" in found.where
