"""The report on machine code: known counts of a kernel made for it, and loops in small flow graphs."""

from pathlib import Path

import pytest

from pilotlight.build.kernel_compilers import Sources, assemble, compile_to_ptx
from pilotlight.build.kernels import build_kernels
from pilotlight.build.sass import EntryReport, read_cubin, report
from pilotlight.build.sass_loops import Instruction, inner_loops
from pilotlight.errors import UnavailableError
from tests.build.kernel_sources import COPY, INDEXED, kernel, write_sources

# An inner loop with eight mma, four of ldmatrix and four cp.async of 16 bytes within an outer one; accesses of every
# width beside it.
TRIAL = r"""
typedef unsigned u32;
__device__ void mma(float (&d)[4], const u32 (&a)[4], u32 b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%8}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}
extern "C" __global__ __launch_bounds__(128) void trial(const uint4* x, uint4* y, int n, int m, const char* bytes,
                                                       const short* shorts, const uint2* pairs, float* single) {
  __shared__ __align__(16) char held[8192];
  const u32 at = (u32)__cvta_generic_to_shared(held) + threadIdx.x * 16;
  float d[8][4] = {};
#pragma unroll 1
  for (int j = 0; j < m; ++j) {
    single[j] = j;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
      u32 a[4][4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at + k * 2048), "l"(x + k) : "memory");
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
            : "=r"(a[k][0]), "=r"(a[k][1]), "=r"(a[k][2]), "=r"(a[k][3]) : "r"(at + k * 2048) : "memory");
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) mma(d[k], a[k % 4], a[0][k % 4]);
    }
  }
  uint4 four = x[threadIdx.x];
  const uint2 two = pairs[threadIdx.x];
  four.x += (u32)bytes[threadIdx.x] + (u32)shorts[threadIdx.x] + two.x + two.y;
#pragma unroll
  for (int k = 0; k < 8; ++k) four.y += __float_as_uint(d[k][0] + d[k][1] + d[k][2] + d[k][3]);
  y[threadIdx.x] = four;
}
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = write_sources(tmp_path_factory.mktemp("sass") / "k", trial=TRIAL, copy=COPY)
    build_kernels(source, source.parent / "ptx")
    return source.parent / "ptx"


@pytest.mark.parametrize("architecture", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_trial_has_the_counts_it_was_written_with(architecture: str, images: Path) -> None:
    (found,) = report(images, ["trial"], [architecture])
    assert (found.module, found.entry, found.architecture) == ("trial", "trial", architecture)
    assert found.mix.tensor == 8
    assert found.mix.matrix_loads == 4
    assert found.mix.async_copies == {16: 4}
    assert found.mix.global_loads == {16: 1, 8: 1, 2: 1, 1: 1}
    assert found.mix.global_stores == {16: 1, 4: 1}
    assert (found.mix.local_loads, found.mix.local_stores, found.stack_bytes) == (0, 0, 0)
    assert found.static_shared_bytes >= 8192
    (loop,) = found.inner_loops
    assert (loop.mix.tensor, loop.mix.matrix_loads, loop.mix.async_copies) == (8, 4, {16: 4})
    assert (loop.mix.global_loads, loop.mix.global_stores) == ({}, {})
    assert 16 < loop.mix.instructions < found.mix.instructions
    assert found.tensor_share == loop.mix.tensor_share == 8 / loop.mix.instructions
    assert 0.2 < found.tensor_share < 0.5  # 16 of the slots are as written; addresses and the loop are few more


def test_kernel_without_tensor_cores_has_no_share(images: Path) -> None:
    (found,) = report(images, ["copy"], ["sm_90"])
    assert found.inner_loops == ()
    assert found.tensor_share == 0
    assert found.mix.global_loads == {4: 1}
    assert found.mix.global_stores == {4: 1}


def test_report_is_of_all_or_of_what_is_named(images: Path) -> None:
    def names(entries: list[EntryReport]) -> list[tuple[str, str]]:
        return [(entry.module, entry.architecture) for entry in entries]

    architectures = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
    assert names(report(images)) == [(module, of) for module in ("copy", "trial") for of in architectures]
    assert names(report(images, architectures=["sm_100"])) == [("copy", "sm_100"), ("trial", "sm_100")]
    with pytest.raises(UnavailableError, match="no cubin other; scripts/build_kernels makes them"):
        report(images, ["other"])
    with pytest.raises(UnavailableError, match="no cubin trial sm_70; "):
        report(images, ["trial"], ["sm_80", "sm_70"])


def test_local_memory_is_seen(tmp_path: Path) -> None:
    """The build refuses such a kernel, so it is assembled past it."""
    sources = Sources(write_sources(tmp_path / "k", trial=kernel(INDEXED)))
    cubin = assemble("sm_90", "trial", compile_to_ptx(sources, "trial"))
    (tmp_path / "trial.cubin").write_bytes(cubin.image)
    (found,) = read_cubin("trial", "sm_90", tmp_path / "trial.cubin")
    assert found.stack_bytes == cubin.usage["trial"].stack_bytes == 40
    assert found.registers == cubin.usage["trial"].registers
    assert found.mix.local_loads >= 1
    assert found.mix.local_stores >= 3  # nine floats, up to four at a time


# --- loops ---------------------------------------------------------------------------------------------------


def code(*lines: str) -> list[Instruction]:
    """ "@P0 BRA 2" is a branch to instruction 2; a target may follow further operands, as in "BSSY B0,7"."""
    found = []
    for line in lines:
        predicate = line.split()[0] if line.startswith("@") else ""
        opcode, _, operands = line.removeprefix(predicate).strip().partition(" ")
        if opcode.startswith(("BRA", "BSSY")):
            *before, target = operands.split(",")
            operands = ",".join([*before, hex(int(target) * 16)])
        instruction = {"opcode": opcode, "operands": operands}
        found.append(instruction | {"predicate": predicate} if predicate else instruction)
    return found


@pytest.mark.parametrize(
    ("lines", "loops"),
    [
        (["MOV", "EXIT", "BRA 2", "NOP"], []),  # the trap behind every kernel
        (["MOV", "FFMA", "@P0 BRA 1", "EXIT"], [[1, 2]]),
        (["MOV", "FFMA", "BRA UP0,1", "EXIT"], [[1, 2]]),  # by a uniform predicate
        (["@P0 BRA 0", "EXIT"], [[0]]),  # waits for something
        (["MOV", "BRA 4", "FFMA", "MOV", "@P0 BRA 2", "EXIT"], [[2, 3, 4]]),  # entered at its condition
        (["MOV", "IADD", "FFMA", "@P0 BRA 2", "@P1 BRA 1", "EXIT"], [[2, 3]]),  # nested
        (["FFMA", "@P0 BRA 0", "IADD", "@P1 BRA 0", "EXIT"], [[0, 1, 2, 3]]),  # two ways back to one head
        (["FFMA", "@P0 BRA 0", "FMUL", "@P0 BRA 2", "EXIT"], [[0, 1], [2, 3]]),
        # a rare path behind the exit comes back from there, and is no loop
        (["MOV", "@P0 BRA 4", "FFMA", "EXIT", "MUFU", "BRA 2"], []),
        # a rare path of a loop is a part of it, what stands between is not
        (["FFMA", "@P0 BRA 5", "IADD", "@P1 BRA 0", "EXIT", "MUFU", "BRA 2"], [[0, 1, 2, 3, 5, 6]]),
        # lanes that diverge in a loop and meet again
        (["FFMA", "BSSY B0,5", "@P0 BRA 4", "FMUL", "BSYNC B0", "@P1 BRA 0", "EXIT"], [[0, 1, 2, 3, 4, 5]]),
        # the meeting place is where BSSY says, not behind BSYNC
        (["BSSY B0,3", "@P0 BRA 5", "BSYNC B0", "MOV", "EXIT", "FMUL", "BSYNC B0"], []),
    ],
)
def test_inner_loops(lines: list[str], loops: list[list[int]]) -> None:
    assert inner_loops(code(*lines)) == loops
