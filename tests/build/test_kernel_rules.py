"""The rules that every kernel keeps: what breaks one is named with its place, what only looks like it passes."""

from pathlib import Path

import pytest

from pilotlight.build.kernel_compilers import Sources, Usage, compile_to_ptx
from pilotlight.build.kernel_ptx import Entry
from pilotlight.build.kernel_rules import block_registers, check_text, check_usage
from tests.build.kernel_sources import kernel, write_sources


def breaches(tmp_path: Path, body: str, parameters: str = "const float* x, float* y, int n") -> list[str]:
    """Of a kernel with this body, whose first line is line 2."""
    sources = Sources(write_sources(tmp_path / "k", trial=kernel(body, parameters=parameters)))
    return list(check_text("trial", compile_to_ptx(sources, "trial")))


@pytest.mark.parametrize("function", ["sin", "cos"])
def test_trigonometry_is_refused(function: str, tmp_path: Path) -> None:
    assert breaches(tmp_path, f"y[0] = __{function}f(x[0]);")[0].endswith(
        f"trial uses {function}.approx.f32; the rotary table comes from the host"
    )


@pytest.mark.parametrize("call", ["atomicAdd(y, 1.0f)", "y[0] = atomicAdd(y + 1, x[0])"])
def test_float_atomic_is_refused(call: str, tmp_path: Path) -> None:
    (said,) = breaches(tmp_path, f"{call};")
    assert said.startswith("kernels/trial.cu:2: trial uses ") or "sums are in a fixed order" in said
    assert said.endswith("sums are in a fixed order")


def test_integer_atomic_passes(tmp_path: Path) -> None:
    assert breaches(tmp_path, "atomicAdd(count, n);", "int* count, int n") == []


PAGES = "const int* table, const float* pool, float* y, int stride, int n, long long page_stride"


@pytest.mark.parametrize(
    "body",
    [
        "y[0] = pool[table[n] * stride];",  # of two variables
        "y[0] = pool[table[n] * stride + threadIdx.x * 4 + 2];",
        "y[n * stride + threadIdx.x] = 1;",  # of two parameters
        "y[blockIdx.x * stride + threadIdx.x] = 1;",
        "y[0] = pool[table[n] * 2048 + threadIdx.x];",  # of a page's number and a constant
        "y[0] = pool[table[n] * 3000];",
        "y[0] = pool[(unsigned)table[n] * (unsigned)stride];",
        # through a loop, in which the pointer's offset grows
        "int at = n * stride;\nfor (int i = 0; i < n; ++i) { y[at] = i; at += table[i]; }",
        "__shared__ int held[64];\nheld[threadIdx.x] = table[threadIdx.x];\n__syncthreads();\n"
        "y[0] = pool[held[n & 63] * 4096];",
        "const int page = __shfl_sync(~0u, table[threadIdx.x], n);\ny[0] = pool[page * 4096];",
        # of a load that is guarded by a predicate of its own
        "float v;\n"
        'asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0;\\n\\t@p ld.global.f32 %0, [%1];}"'
        ' : "=f"(v) : "l"(pool + n * stride), "r"(n));\ny[0] = v;',
        "unsigned to = threadIdx.x * 16;\n"
        'asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(pool + n * stride));',
    ],
)
def test_32_bit_offset_is_refused(body: str, tmp_path: Path) -> None:
    (said, *_) = breaches(tmp_path, body, PAGES)
    assert said.startswith("kernels/trial.cu:")
    assert said.endswith("trial addresses memory by a 32-bit product; compute it in 64 bits: (long long)a * b")


@pytest.mark.parametrize(
    "body",
    [
        "y[0] = pool[(long long)table[n] * stride];",
        "y[0] = pool[table[n] * page_stride + threadIdx.x * 4];",
        "y[(long long)n * stride + threadIdx.x] = 1;",
        "y[blockIdx.x * blockDim.x + threadIdx.x] = 1;",  # bounded by the launch
        "y[threadIdx.x * 4 + 3] = pool[threadIdx.x % 8 * 64];",
        "y[table[n]] = 1;",  # no product
        "y[threadIdx.x % n] = pool[threadIdx.x / n];",  # a remainder is no larger than what is divided
        # the number of a row, scaled in 64 bits
        "const int row = blockIdx.x - blockIdx.x / (8 * n) * (8 * n);\ny[(long long)row * stride] = 1;",
        "const int row = n * stride;\nif (row < table[0]) y[0] = 1;",  # compared, not an address
        "__shared__ float held[4096];\nheld[threadIdx.x * n] = 1;\n__syncthreads();\ny[0] = held[threadIdx.x];",
        "unsigned to = threadIdx.x * n;\n"
        'asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(pool));',
    ],
)
def test_64_bit_and_bounded_offsets_pass(body: str, tmp_path: Path) -> None:
    assert breaches(tmp_path, body, PAGES) == []


# --- the arithmetic of occupancy -----------------------------------------------------------------------------


def entry(threads: int, blocks: int) -> Entry:
    return Entry("trial", (), threads, blocks, "")


@pytest.mark.parametrize(
    ("registers", "threads", "blocks"),
    [(255, 256, 1), (168, 128, 3), (128, 128, 4), (128, 256, 2), (40, 256, 6), (32, 1024, 2), (65, 96, 7)],
)
def test_registers_allow_what_the_occupancy_calculator_says(registers: int, threads: int, blocks: int) -> None:
    """Blocks an SM by registers alone, from the sheet CUDA_Occupancy_Calculator.xls for compute capability 8.0."""
    assert 65_536 // block_registers(registers, threads) == blocks


@pytest.mark.parametrize(
    ("usage", "threads", "blocks", "said"),
    [
        (Usage(128, 0, 0, 0), 256, 2, None),
        (Usage(129, 0, 0, 0), 256, 2, "129 registers a thread make 69632, over 65536"),
        (Usage(168, 0, 0, 0), 96, 4, "168 registers a thread make 86016, over 65536"),  # three warps take four's
        (Usage(32, 8, 8, 0), 256, 1, "spills 8 bytes at 32 registers"),
        (Usage(32, 0, 40, 0), 256, 1, "has 40 bytes on the stack"),
        (Usage(32, 0, 0, 0), 1024, 2, "which has room for 1536 threads and 16 blocks"),
        (Usage(24, 0, 0, 0), 32, 17, "which has room for 1536 threads and 16 blocks"),
        (Usage(32, 0, 0, 49_152), 256, 2, None),
        (Usage(32, 0, 0, 33_792), 256, 3, "104448 bytes of shared memory, over 102400"),
    ],
)
def test_promises_are_held_to_the_hardware(usage: Usage, threads: int, blocks: int, said: str | None) -> None:
    found = list(check_usage("trial", entry(threads, blocks), "sm_86", usage))
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
