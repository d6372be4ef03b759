"""What an assembler refuses does not load: each bad line stands beside a good one that differs as little as may be.

The verdicts are ptxas 12.8's; `pytest -m slow` asks it again where the wheel nvidia-cuda-nvcc-cu12 is installed.
"""

import importlib.util
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.softgpu import ptx

pytestmark = pytest.mark.usefixtures("soft")


@dataclass(frozen=True)
class Pair:
    good: str
    bad: str
    before: str = ""  # at module scope
    good_isa: tuple[str, str] = ("7.4", "sm_80")
    bad_isa: tuple[str, str] = ("7.4", "sm_80")


SHARED = ".shared .align 16 .b8 buffer[1024];"
F4, R4, R2 = "{%f1, %f2, %f3, %f4}", "{%r1, %r2, %r3, %r4}", "{%r5, %r6}"
MMA = f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {F4}, {R4}, {R2}, {F4};"

PAIRS = {
    # Widths and types of operands.
    "wider source": Pair("add.u32 %r1, %r2, %r3;", "add.u32 %r1, %r2, %rd3;"),
    "narrower destination": Pair("add.u64 %rd1, %rd2, %rd3;", "add.u64 %r1, %rd2, %rd3;"),
    "float register in integer add": Pair("add.s32 %r1, %r2, %r3;", "add.s32 %r1, %r2, %f3;"),
    "double in single add": Pair("add.f32 %f1, %f2, %f3;", "add.f32 %f1, %f2, %fd3;"),
    "predicate as a number": Pair("add.u32 %r1, %r2, %r3;", "add.u32 %r1, %r2, %p3;"),
    "number as a guard": Pair("@%p1 add.u32 %r1, %r2, %r3;", "@%r1 add.u32 %r1, %r2, %r3;"),
    "number as setp's destination": Pair("setp.eq.u32 %p1, %r1, %r2;", "setp.eq.u32 %r3, %r1, %r2;"),
    "selp without a predicate": Pair("selp.u32 %r1, %r2, %r3, %p1;", "selp.u32 %r1, %r2, %r3, %r4;"),
    "64-bit shift amount": Pair("shl.b64 %rd1, %rd2, %r3;", "shl.b64 %rd1, %rd2, %rd3;"),
    "wide product in a word": Pair("mul.wide.u32 %rd1, %r2, %r3;", "mul.wide.u32 %r1, %r2, %r3;"),
    "register as lop3's table": Pair("lop3.b32 %r1, %r2, %r3, %r4, 0x80;", "lop3.b32 %r1, %r2, %r3, %r4, %r5;"),
    "too few operands": Pair("fma.rn.f32 %f1, %f2, %f3, %f4;", "fma.rn.f32 %f1, %f2, %f3;"),
    "too many operands": Pair("add.u32 %r1, %r2, %r3;", "add.u32 %r1, %r2, %r3, %r4;"),
    "undeclared register": Pair("mov.u32 %r1, %r2;", "mov.u32 %r1, %nothing;"),
    "register past its range": Pair("mov.u32 %r1, %r63;", "mov.u32 %r1, %r64;"),
    "constant as a destination": Pair("mov.u32 %r1, 5;", "mov.u32 5, %r1;"),
    "special register written": Pair("mov.u32 %r1, %tid.x;", "mov.u32 %tid.x, %r1;"),
    "unknown special register": Pair("mov.u32 %r1, %laneid;", "mov.u32 %r1, %lanenumber;"),
    "vector in a scalar add": Pair("add.u32 %r1, %r2, %r3;", "add.u32 %r1, {%r2, %r3}, %r4;"),
    "special register outside mov": Pair("mov.u32 %r1, %tid.x;", "add.u32 %r1, %r2, %tid.x;"),
    "special register stored": Pair("st.global.u32 [%rd1], 5;", "st.global.u32 [%rd1], %tid.x;"),
    "result thrown away": Pair("atom.global.add.u32 _, [%rd1], %r1;", "add.u32 _, %r1, %r2;"),
    "integer constant in a float add": Pair("add.f32 %f1, %f2, 1.0;", "add.f32 %f1, %f2, 1;"),
    "integer constant in a half add": Pair("mov.b16 %h1, 0x3c00;", "add.f16 %h1, %h2, 0x3c00;"),
    "float constant in an integer mad": Pair("mad.lo.s32 %r1, %r2, %r3, 1;", "mad.lo.s32 %r1, %r2, %r3, 0f3F800000;"),
    # Modifiers.
    "unknown opcode": Pair("add.u32 %r1, %r2, %r3;", "plus.u32 %r1, %r2, %r3;"),
    "no type": Pair("add.u32 %r1, %r2, %r3;", "add %r1, %r2, %r3;"),
    "type of no such width": Pair("add.u32 %r1, %r2, %r3;", "add.u24 %r1, %r2, %r3;"),
    "untyped add": Pair("add.u32 %r1, %r2, %r3;", "add.b32 %r1, %r2, %r3;"),
    "typed and": Pair("and.b32 %r1, %r2, %r3;", "and.u32 %r1, %r2, %r3;"),
    "signed left shift": Pair("shl.b32 %r1, %r2, %r3;", "shl.s32 %r1, %r2, %r3;"),
    "8-bit add": Pair("add.u16 %h1, %h2, %h3;", "add.u8 %h1, %h2, %h3;"),
    "mul without a half": Pair("mul.lo.u32 %r1, %r2, %r3;", "mul.u32 %r1, %r2, %r3;"),
    "wide product of 64 bits": Pair("mul.wide.u32 %rd1, %r2, %r3;", "mul.wide.u64 %rd1, %rd2, %rd3;"),
    "rounding on an integer": Pair("add.rn.f32 %f1, %f2, %f3;", "add.rn.u32 %r1, %r2, %r3;"),
    "saturation of unsigned": Pair("add.sat.s32 %r1, %r2, %r3;", "add.sat.u32 %r1, %r2, %r3;"),
    "ftz on f64": Pair("add.ftz.f32 %f1, %f2, %f3;", "add.ftz.f64 %fd1, %fd2, %fd3;"),
    "fma without rounding": Pair("fma.rn.f32 %f1, %f2, %f3, %f4;", "fma.f32 %f1, %f2, %f3, %f4;"),
    "fma of integers": Pair("fma.rn.f32 %f1, %f2, %f3, %f4;", "fma.rn.s32 %r1, %r2, %r3, %r4;"),
    "half fma rounding to zero": Pair("fma.rn.f16 %h1, %h2, %h3, %h4;", "fma.rz.f16 %h1, %h2, %h3, %h4;"),
    "div without a form": Pair("div.rn.f32 %f1, %f2, %f3;", "div.f32 %f1, %f2, %f3;"),
    "approximate f64 division": Pair("div.rn.f64 %fd1, %fd2, %fd3;", "div.approx.f64 %fd1, %fd2, %fd3;"),
    "ex2 without .approx": Pair("ex2.approx.f32 %f1, %f2;", "ex2.f32 %f1, %f2;"),
    "rounded ex2": Pair("ex2.approx.f32 %f1, %f2;", "ex2.rn.f32 %f1, %f2;"),
    "ftz on an f16 exponential": Pair("ex2.approx.f16 %h1, %h2;", "ex2.approx.ftz.f16 %h1, %h2;"),
    "tanh with ftz": Pair("tanh.approx.f32 %f1, %f2;", "tanh.approx.ftz.f32 %f1, %f2;"),
    "modifier twice": Pair("add.ftz.f32 %f1, %f2, %f3;", "add.ftz.ftz.f32 %f1, %f2, %f3;"),
    "unordered integers": Pair("setp.lt.u32 %p1, %r1, %r2;", "setp.ltu.u32 %p1, %r1, %r2;"),
    "order of bits": Pair("setp.ne.b32 %p1, %r1, %r2;", "setp.lt.b32 %p1, %r1, %r2;"),
    "unsigned name on signed": Pair("setp.lo.u32 %p1, %r1, %r2;", "setp.lo.s32 %p1, %r1, %r2;"),
    "unknown prmt mode": Pair("prmt.b32.f4e %r1, %r2, %r3, %r4;", "prmt.b32.f5e %r1, %r2, %r3, %r4;"),
    # Conversions.
    "cvt to an integer without rounding": Pair("cvt.rni.s32.f32 %r1, %f1;", "cvt.s32.f32 %r1, %f1;"),
    "cvt to an integer with .rn": Pair("cvt.rzi.s32.f32 %r1, %f1;", "cvt.rz.s32.f32 %r1, %f1;"),
    "cvt from an integer without rounding": Pair("cvt.rn.f32.s32 %f1, %r1;", "cvt.f32.s32 %f1, %r1;"),
    "narrowing cvt without rounding": Pair("cvt.rn.f16.f32 %h1, %f1;", "cvt.f16.f32 %h1, %f1;"),
    "widening cvt with rounding": Pair("cvt.f32.f16 %f1, %h1;", "cvt.rn.f32.f16 %f1, %h1;"),
    "saturation where every value fits": Pair("cvt.sat.u8.s32 %h1, %r1;", "cvt.sat.s32.u8 %r1, %h1;"),
    "tf32 to nearest even before 7.8": Pair("cvt.rna.tf32.f32 %r1, %f1;", "cvt.rn.tf32.f32 %r1, %f1;"),
    "packed cvt of one source": Pair("cvt.rn.bf16x2.f32 %r1, %f1, %f2;", "cvt.rn.bf16x2.f32 %r1, %f1;"),
    "e4m3 without satfinite": Pair(
        "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;",
        "cvt.rn.e4m3x2.f32 %h1, %f1, %f2;",
        good_isa=("8.1", "sm_89"),
        bad_isa=("8.1", "sm_89"),
    ),
    # Warp and block instructions.
    "mma without .aligned": Pair(MMA, MMA.replace(".aligned", "")),
    "mma without .sync": Pair(MMA, MMA.replace(".sync", "")),
    "mma with A by columns": Pair(MMA, MMA.replace(".row.col", ".col.col")),
    "mma of no such shape": Pair(MMA, MMA.replace("m16n8k16", "m16n16k16")),
    "mma of mixed types": Pair(MMA, MMA.replace(".bf16.bf16", ".bf16.f16")),
    "mma with too small an A": Pair(MMA, MMA.replace(R4, R2)),
    "mma with a float A": Pair(MMA, MMA.replace(R4, F4)),
    "bf16 accumulators": Pair(MMA, MMA.replace(".f32.bf16.bf16.f32", ".bf16.bf16.bf16.bf16")),
    "ldmatrix without .aligned": Pair(
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [buffer];",
        "ldmatrix.sync.m8n8.x2.shared.b16 {%r1, %r2}, [buffer];",
        SHARED,
    ),
    "ldmatrix with a register too few": Pair(
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [buffer];",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2}, [buffer];",
        SHARED,
    ),
    "ldmatrix of three": Pair(
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [buffer];",
        "ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r1, %r2, %r3}, [buffer];",
        SHARED,
    ),
    "ldmatrix from global memory": Pair(
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%rd1];",
        "ldmatrix.sync.aligned.m8n8.x1.global.b16 {%r1}, [%rd1];",
    ),
    "shfl without .sync": Pair("shfl.sync.bfly.b32 %r1, %r2, 1, 31, -1;", "shfl.bfly.b32 %r1, %r2, 1, 31;"),
    "shfl without a mask": Pair("shfl.sync.bfly.b32 %r1, %r2, 1, 31, -1;", "shfl.sync.bfly.b32 %r1, %r2, 1, 31;"),
    "64-bit shfl": Pair("shfl.sync.idx.b32 %r1, %r2, 1, 31, -1;", "shfl.sync.idx.b64 %rd1, %rd2, 1, 31, -1;"),
    "vote without .sync": Pair("vote.sync.any.pred %p1, %p2, -1;", "vote.any.pred %p1, %p2;"),
    "ballot into a predicate": Pair("vote.sync.ballot.b32 %r1, %p2, -1;", "vote.sync.ballot.b32 %p1, %p2, -1;"),
    "redux of floats": Pair("redux.sync.add.s32 %r1, %r2, -1;", "redux.sync.add.f32 %f1, %f2, -1;"),
    "bitwise redux of unsigned": Pair("redux.sync.and.b32 %r1, %r2, -1;", "redux.sync.and.u32 %r1, %r2, -1;"),
    "barrier 16": Pair("bar.sync 15;", "bar.sync 16;"),
    "arrive without a count": Pair("bar.arrive 1, 64;", "bar.arrive 1;"),
    "barrier for half a warp": Pair("bar.sync 1, 64;", "bar.sync 1, 48;"),
    # Memory.
    "load into a narrower register": Pair("ld.global.u64 %rd1, [%rd2];", "ld.global.u64 %r1, [%rd2];"),
    "vector of three": Pair(
        "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd2];", "ld.global.v3.u32 {%r1, %r2, %r3}, [%rd2];"
    ),
    "vector of too many": Pair("ld.global.v2.u32 {%r1, %r2}, [%rd2];", "ld.global.v2.u32 {%r1, %r2, %r3}, [%rd2];"),
    "vector past 16 bytes": Pair(
        "ld.global.v2.u64 {%rd1, %rd2}, [%rd3];", "ld.global.v4.u64 {%rd1, %rd2, %rd3, %rd4}, [%rd5];"
    ),
    "store to constants": Pair("ld.const.u32 %r1, [fixed];", "st.const.u32 [fixed], %r1;", ".const .b32 fixed = 3;"),
    "store to parameters": Pair("st.global.u32 [%rd1], %r1;", "st.param.u32 [%rd1], %r1;"),
    "nc from shared memory": Pair("ld.global.nc.u32 %r1, [%rd1];", "ld.shared.nc.u32 %r1, [%rd1];"),
    "store with a load's operator": Pair("st.global.wt.u32 [%rd1], %r1;", "st.global.ca.u32 [%rd1], %r1;"),
    "acquire without a scope": Pair("ld.acquire.gpu.global.u32 %r1, [%rd1];", "ld.acquire.global.u32 %r1, [%rd1];"),
    "acquire store": Pair("st.release.gpu.global.u32 [%rd1], %r1;", "st.acquire.gpu.global.u32 [%rd1], %r1;"),
    "address without brackets": Pair("ld.global.u32 %r1, [%rd1];", "ld.global.u32 %r1, %rd1;"),
    "32-bit address of global memory": Pair("ld.shared.u32 %r1, [%r2];", "ld.global.u32 %r1, [%r2];"),
    "32-bit generic address": Pair("st.shared.u32 [%r2], %r1;", "st.u32 [%r2], %r1;"),
    "float address": Pair("ld.global.u32 %r1, [%rd1];", "ld.global.u32 %r1, [%fd1];"),
    "signed 64-bit atomic add": Pair(
        "atom.global.add.u64 %rd1, [%rd2], %rd3;", "atom.global.add.s64 %rd1, [%rd2], %rd3;"
    ),
    "atomic float maximum": Pair("atom.global.max.s32 %r1, [%rd2], %r3;", "atom.global.max.f32 %f1, [%rd2], %f3;"),
    "half atomic without .noftz": Pair(
        "atom.global.add.noftz.f16x2 %r1, [%rd2], %r3;", "atom.global.add.f16x2 %r1, [%rd2], %r3;"
    ),
    "cas of one operand": Pair("atom.global.cas.b32 %r1, [%rd2], %r3, %r4;", "atom.global.cas.b32 %r1, [%rd2], %r3;"),
    "red with a destination": Pair("red.global.add.u32 [%rd2], %r3;", "red.global.add.u32 %r1, [%rd2], %r3;"),
    "cp.async of 12 bytes": Pair(
        "cp.async.ca.shared.global [buffer], [%rd1], 8;", "cp.async.ca.shared.global [buffer], [%rd1], 12;", SHARED
    ),
    "cp.async.cg of 8 bytes": Pair(
        "cp.async.cg.shared.global [buffer], [%rd1], 16;", "cp.async.cg.shared.global [buffer], [%rd1], 8;", SHARED
    ),
    "wait for a register of groups": Pair("cp.async.wait_group 1;", "cp.async.wait_group %r1;"),
    "fence without a scope": Pair("fence.acq_rel.gpu;", "fence.acq_rel;"),
    "membar of no such level": Pair("membar.gl;", "membar.block;"),
    # Structure.
    "label of another function": Pair("bra HERE; HERE:", "bra THERE; HERE:"),
    "label twice": Pair("HERE: bra DONE; DONE:", "HERE: bra HERE; HERE:"),
    "register twice": Pair(".reg .b32 %mine;", ".reg .b32 %mine; .reg .b32 %mine;"),
    "no semicolon": Pair("mov.u32 %r1, 1; mov.u32 %r2, 2;", "mov.u32 %r1, 1 mov.u32 %r2, 2;"),
    "scope left open": Pair("{ mov.u32 %r1, 1; }", "{ mov.u32 %r1, 1;"),
    # Later than .version or .target.
    "stmatrix on sm_80": Pair(
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [buffer], {%r1};",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [buffer], {%r1};",
        SHARED,
        good_isa=("7.8", "sm_90"),
        bad_isa=("7.8", "sm_80"),
    ),
    "stmatrix in 7.4": Pair(
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [buffer], {%r1};",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [buffer], {%r1};",
        SHARED,
        good_isa=("8.0", "sm_90"),
        bad_isa=("7.4", "sm_80"),
    ),
    "bf16 to f64 on sm_80": Pair("cvt.f32.bf16 %f1, %h1;", "cvt.f64.bf16 %fd1, %h1;"),
    "bf16 to f32 in 7.0": Pair("cvt.f32.bf16 %f1, %h1;", "cvt.f32.bf16 %f1, %h1;", bad_isa=("7.0", "sm_80")),
    "fp8 on sm_80": Pair(
        "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;",
        "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;",
        good_isa=("8.1", "sm_89"),
        bad_isa=("8.1", "sm_80"),
    ),
    "fp8 in 7.4": Pair(
        "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;",
        "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;",
        good_isa=("8.1", "sm_89"),
        bad_isa=("7.8", "sm_89"),
    ),
    "bf16 add on sm_80": Pair(
        "add.rn.bf16 %h1, %h2, %h3;",
        "add.rn.bf16 %h1, %h2, %h3;",
        good_isa=("7.8", "sm_90"),
        bad_isa=("7.8", "sm_80"),
    ),
    "bf16 tanh on sm_80": Pair(
        "tanh.approx.bf16 %h1, %h2;",
        "tanh.approx.bf16 %h1, %h2;",
        good_isa=("7.8", "sm_90"),
        bad_isa=("7.8", "sm_80"),
    ),
    "bf16 ex2 on sm_80": Pair(
        "ex2.approx.ftz.bf16x2 %r1, %r2;",
        "ex2.approx.ftz.bf16x2 %r1, %r2;",
        good_isa=("7.8", "sm_90"),
        bad_isa=("7.8", "sm_80"),
    ),
    "redux on sm_75": Pair(
        "redux.sync.add.s32 %r1, %r2, -1;", "redux.sync.add.s32 %r1, %r2, -1;", bad_isa=("7.4", "sm_75")
    ),
    "cp.async on sm_75": Pair("cp.async.wait_all;", "cp.async.wait_all;", bad_isa=("7.4", "sm_75")),
    "bf16 mma on sm_75": Pair(MMA, MMA, bad_isa=("7.4", "sm_75")),
    "L2 hint in 7.2": Pair(
        "createpolicy.fractional.L2::evict_first.b64 %rd1, 1.0;",
        "createpolicy.fractional.L2::evict_first.b64 %rd1, 1.0;",
        bad_isa=("7.2", "sm_80"),
    ),
    "L1::no_allocate in 7.2": Pair(
        "ld.global.L1::no_allocate.u32 %r1, [%rd1];",
        "ld.global.L1::no_allocate.u32 %r1, [%rd1];",
        bad_isa=("7.2", "sm_80"),
    ),
    "sm_90 in 7.4": Pair("ret;", "ret;", good_isa=("7.8", "sm_90"), bad_isa=("7.4", "sm_90")),
    "no such target": Pair("ret;", "ret;", bad_isa=("7.4", "sm_81")),
    "no such version": Pair("ret;", "ret;", bad_isa=("7.9", "sm_80")),
}


def text_of(pair, which):
    version, target = getattr(pair, f"{which}_isa")
    return ptx.module(getattr(pair, which), before=pair.before, version=version, target=target)


@pytest.mark.parametrize("name", PAIRS)
def test_the_bad_line_is_refused_and_the_good_one_loads(soft, name):
    soft.reset(capability=90)
    with ptx.context():
        ptx.call("cuModuleUnload", ptx.load(text_of(PAIRS[name], "good")))
    soft.take_findings("unsupported")
    ptx.expect_refused(text_of(PAIRS[name], "bad"))


@pytest.mark.slow
def test_ptxas_agrees(tmp_path):
    wheel = importlib.util.find_spec("nvidia.cuda_nvcc")
    if wheel is None:
        pytest.skip("nvidia-cuda-nvcc-cu12 is not installed")
    assembler = Path(next(iter(wheel.submodule_search_locations))) / "bin" / "ptxas"
    wrong = []
    for name, pair in PAIRS.items():
        for which in ("good", "bad"):
            source = tmp_path / "probe.ptx"
            source.write_text(text_of(pair, which))
            command = [str(assembler), "-arch=sm_90", str(source), "-o", str(tmp_path / "probe.cubin")]
            done = subprocess.run(command, capture_output=True, text=True)
            if (done.returncode == 0) != (which == "good"):
                wrong.append(f"{name}, {which}: {done.stdout}{done.stderr}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("end", ["@%p1 ret;", "@%p1 bra past;\nret;\npast:", "mov.u32 %r1, 1;"])
def test_control_runs_past_the_end(soft, end):
    """An assembler adds an exit there; no compiler leaves it out, and here nothing is added to what was written."""
    whole = ptx.module(f"setp.eq.u32 %p1, %lane, 0;\n{end}")
    cut = whole.rstrip().removesuffix("}").rstrip().removesuffix("ret;") + "}\n"
    with ptx.context():
        ptx.call("cuModuleUnload", ptx.load(whole))
    ptx.expect_refused(cut)
