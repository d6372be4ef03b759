"""The planter of wrongs: every operator finds its places, one change at a time, the same for the same seed."""

from pathlib import Path

import pytest

from .mutation import OPERATORS, blanked, candidates, draw

SOURCE = """\
#include "types.cuh"  // a + b in a comment
#define TWICE(x) (x + x)
static_assert(sizeof(int) == 4, "a < b");
extern "C" __global__ void __launch_bounds__(256, 2) entry(float* out, i64 n) {
  __shared__ float tile[64];
  int lane = threadIdx.x & 0x1f;
  i64 row = blockIdx.x * 2 + (lane >> 3) % 4;
  if (row < n && lane != 3) {
    tile[lane] += out[row] * 0.5f;
    commit_copies();
    wait_copies<STAGES - 1>();
    __syncthreads();
    out[row] = fmaxf(tile[lane], 0.0f);
  }
}
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "entry.cu").write_text(SOURCE)
    return tmp_path


def test_every_operator_has_a_place_in_a_source_that_holds_all_of_them(sources: Path) -> None:
    assert [name for name, places in candidates(sources, ["entry.cu"]).items() if not places] == []


def test_comments_strings_directives_and_promises_are_left_alone() -> None:
    text = blanked(SOURCE)
    assert len(text) == len(SOURCE)
    for word in ("comment", "TWICE", "static_assert", "256", "types.cuh"):
        assert word not in text
    assert "tile[lane] += out[row] * 0.5f;" in text


def test_a_mutant_changes_its_line_and_no_other(sources: Path) -> None:
    for mutant in draw(sources, ["entry.cu"], seed=1):
        mutant.apply(sources)
        changed = (sources / "entry.cu").read_text()
        (sources / "entry.cu").write_text(SOURCE)
        pairs = zip(SOURCE.splitlines(), changed.splitlines(), strict=True)
        different = [number for number, (before, after) in enumerate(pairs, 1) if before != after]
        assert different == [mutant.line]
        assert changed.splitlines()[mutant.line - 1].strip() == mutant.after


def test_the_first_mutants_show_every_operator_once(sources: Path) -> None:
    first = draw(sources, ["entry.cu"], seed=1)[: len(OPERATORS)]
    assert {mutant.operator for mutant in first} == set(OPERATORS)


def test_a_seed_draws_the_same_and_another_draws_otherwise(sources: Path) -> None:
    assert draw(sources, ["entry.cu"], 1) == draw(sources, ["entry.cu"], 1)
    assert draw(sources, ["entry.cu"], 1) != draw(sources, ["entry.cu"], 2)
