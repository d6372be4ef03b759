"""Decode attention over paged K/V, against softmax written out in float64 and against the numpy device.

Tolerances are in paged.py.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight.build import kernel_ptx
from pilotlight.build.kernel_compilers import assemble
from pilotlight.build.sass import EntryReport, read_cubin
from pilotlight.device.cuda import attention
from pilotlight.device.cuda.attention import Shape, Tensors
from pilotlight.device.cuda.launch import Gpu, Half, Launch
from pilotlight.errors import UnavailableError

from .hardships import every_hardship
from .harness import Card, from_half, to_half
from .paged import NEVER, DecodeRun, Problem, expected, hold, hold_result, random_problem

HALVES: tuple[Half, ...] = ("bfloat16", "float16")
MODELS = {  # query heads, K/V heads, head_dim
    "smollm2-135m": (9, 3, 64),
    "qwen2.5-0.5b": (14, 2, 64),
    "qwen2.5-1.5b": (12, 2, 128),
    "qwen2.5-7b": (28, 4, 128),
    "llama-3.1-8b": (32, 8, 128),
    "gemma-3-1b": (4, 1, 256),
    "gemma-3-4b": (8, 4, 256),
    "gemma-3-12b": (16, 8, 256),
    "gemma-3-27b": (32, 16, 128),
}
GROUPS = [1, 2, 5, 8, 9, 16, 17, 33]
EDGES = [1, 15, 16, 17, 255, 256, 257, 513, 1000]


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh inputs in every run; pytest prints the seed of a test that fails."""
    seed = int(np.random.SeedSequence().entropy % 2**32)  # type: ignore[operator]
    print(f"inputs of seed {seed}")
    return np.random.default_rng(seed)


def check(gpu: Card, problem: Problem, rng: np.random.Generator, **options: Any) -> None:
    hold_result(DecodeRun(gpu, problem, rng, **options).result(), problem)


# --- the right values ------------------------------------------------------------------------------------------


@pytest.mark.smallest
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("model", MODELS)
def test_real_shapes(gpu: Card, rng: np.random.Generator, model: str, half: Half) -> None:
    check(gpu, random_problem(rng, MODELS[model], [37, 290], half=half), rng)


@pytest.mark.smallest
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("model", ["smollm2-135m", "qwen2.5-1.5b", "gemma-3-1b"])
def test_fp8_pages(gpu: Card, rng: np.random.Generator, model: str, half: Half) -> None:
    check(gpu, random_problem(rng, MODELS[model], [37, 290], half=half, fp8=True), rng)


@pytest.mark.smallest
@pytest.mark.parametrize("fp8", [False, True], ids=["half", "fp8"])
@pytest.mark.parametrize("head_dim", attention.HEAD_DIMS)
@pytest.mark.parametrize("group", GROUPS)
def test_groups(gpu: Card, rng: np.random.Generator, group: int, head_dim: int, fp8: bool) -> None:
    half = HALVES[GROUPS.index(group) % 2]  # both of each form
    check(gpu, random_problem(rng, (2 * group, 2, head_dim), [1 + int(rng.integers(60))], half=half, fp8=fp8), rng)


@pytest.mark.smallest
@pytest.mark.parametrize("half", HALVES)
def test_ragged_batch(gpu: Card, rng: np.random.Generator, half: Half) -> None:
    lengths = [0, *EDGES, 0, 300, 0]
    check(
        gpu, random_problem(rng, (6, 2, 64), [int(x) for x in rng.permutation(lengths)], half=half, spread=3.0), rng
    )


@pytest.mark.smallest
@pytest.mark.parametrize("sequences", [127, 129, 300])
def test_more_sequences_than_threads(gpu: Card, rng: np.random.Generator, sequences: int) -> None:
    """Some of which have no split or several, so that where each one's begin in the work list is not its number."""
    lengths = rng.choice([0, 1, 20, 257, 520], sequences, p=[0.2, 0.35, 0.35, 0.05, 0.05])
    check(gpu, random_problem(rng, (2, 1, 64), lengths.tolist()), rng)


@pytest.mark.smallest
@pytest.mark.parametrize("fp8", [False, True], ids=["half", "fp8"])
@pytest.mark.parametrize("window", [0, 1, 16, 200, 255, 256, 257, 300, 511, 513])
def test_every_seen_token_counts_once(gpu: Card, rng: np.random.Generator, window: int, fp8: bool) -> None:
    """With q = 0 all weights are exactly 1, so that nothing is rounded but the output: a mean, of what is seen."""
    problem = random_problem(rng, (4, 2, 64), [*EDGES, 511, 512, 700], half="float16", fp8=fp8, window=window)
    problem.q[...] = 0
    result = DecodeRun(gpu, problem, rng).result()
    for sequence in range(len(problem.lengths)):
        values = problem.decoded(sequence)[1][:, problem.seen_from(sequence) :]
        mean = np.repeat(values.mean(axis=1), 2, axis=0)
        bound = 2.0**-11 * np.abs(mean) + 2.0**-20 * np.abs(values).mean() + 2.0**-25
        assert (np.abs(result[sequence] - mean) <= bound).all(), f"length {problem.lengths[sequence]}"


@pytest.mark.smallest
@pytest.mark.parametrize("window", [1, 17, 256, 300])
def test_window(gpu: Card, rng: np.random.Generator, window: int) -> None:
    check(gpu, random_problem(rng, (8, 4, 64), EDGES, half="float16", window=window, spread=3.0), rng)


@pytest.mark.smallest
@pytest.mark.parametrize("cap", [50.0, 0.25])
def test_soft_cap(gpu: Card, rng: np.random.Generator, cap: float) -> None:
    """Gemma 2 caps scores at 50; the smaller cap bends all of them."""
    problem = random_problem(rng, (8, 4, 256), [100, 300], half="float16", cap=cap, window=280, spread=20.0)
    check(gpu, problem, rng)


@pytest.mark.smallest
def test_large_scores(gpu: Card, rng: np.random.Generator) -> None:
    """Whole numbers whose scores are exact and reach far beyond what exp can take."""
    problem = random_problem(rng, (4, 2, 64), [700], scale=32.0)
    problem.q = to_half(rng.integers(-8, 9, problem.q.shape), problem.half)
    problem.keys = [to_half(rng.integers(-8, 9, keys.shape), problem.half) for keys in problem.keys]
    check(gpu, problem, rng)


@pytest.mark.smallest
def test_scores_all_far_below_zero(gpu: Card, rng: np.random.Generator) -> None:
    problem = random_problem(rng, (4, 2, 64), [300], scale=16.0)
    problem.q = to_half(np.full(problem.q.shape, 8.0), problem.half)
    problem.keys = [to_half(-rng.integers(1, 3, keys.shape), problem.half) for keys in problem.keys]
    check(gpu, problem, rng)


@pytest.mark.smallest
@pytest.mark.parametrize("code", [0x01, 0x07, 0x08, 0x7E, 0x81, 0xFE, 0x00, 0x80])
@pytest.mark.parametrize("half", HALVES)
def test_fp8_extremes(gpu: Card, rng: np.random.Generator, half: Half, code: int) -> None:
    """Subnormals, the largest value and both zeros, as keys and as values."""
    problem = random_problem(rng, (2, 1, 64), [20], half=half, fp8=True, key_scale=1.0 / 64, value_scale=1.0)
    for stored in (problem.keys[0], problem.values[0]):
        stored[:, 3:9] = code
    check(gpu, problem, rng)


def test_as_the_numpy_device(gpu: Card, rng: np.random.Generator) -> None:
    """The reference for every device, on the same rounded q, K and V."""
    problem = random_problem(rng, MODELS["smollm2-135m"], [1, 40, 300], window=256)
    run = DecodeRun(gpu, problem, rng, layers=1)
    ours, theirs = from_half(run.result()), run.numpy_result()
    for sequence in range(3):
        tolerance = expected(problem, sequence)[1]
        hold(ours[sequence : sequence + 1], theirs[sequence : sequence + 1], tolerance, f"sequence {sequence}")


# --- where it may read and write -------------------------------------------------------------------------------


@pytest.mark.smallest
@pytest.mark.parametrize("fp8", [False, True], ids=["half", "fp8"])
def test_far_end_of_a_large_pool(gpu: Card, rng: np.random.Generator, fp8: bool) -> None:
    """Pages that lie beyond 2^32 elements: at the end of a 141 GB card's pool, or of 12 GB on a real card."""
    problem = random_problem(rng, (7, 1, 128), [300], fp8=fp8)
    check(gpu, problem, rng, pool=(130 if gpu.soft else 12) << 30)


@pytest.mark.smallest
def test_rows_and_page_numbers_far_beyond_the_first(gpu: Card, rng: np.random.Generator) -> None:
    """Of a batch of padding rows only the last is a sequence: its q and out begin 2^31 elements in, its page numbers
    end where an int32 of them does."""
    if not gpu.soft:
        pytest.skip("17 GB for one row")
    heads, head_dim, rows = 1024, 256, 8193
    problem = random_problem(rng, (heads, 1, head_dim), [20])
    run = DecodeRun(gpu, problem, rng)
    lengths, table_starts = np.zeros((2, rows), np.int32)
    lengths[-1], table_starts[-1] = 20, 2**31 - 3
    row_bytes = 2 * heads * head_dim
    q, out, table = (gpu.pool(nbytes).address for nbytes in (rows * row_bytes, rows * row_bytes, 4 * (2**31 - 1)))
    gpu.write(q + (rows - 1) * row_bytes, problem.q)
    gpu.write(table + 4 * (2**31 - 3), run.table)
    tensors = replace(
        run.tensors, out=out, q=q, table=table,
        table_starts=gpu.upload(table_starts).address, lengths=gpu.upload(lengths).address,
    )  # fmt: skip
    gpu.run(*attention.decode(gpu.gpu, run.shape, tensors, sequences=rows, max_length=20, scale=problem.scale))
    result = gpu.read_bytes(out + (rows - 1) * row_bytes, row_bytes).view(np.uint16).reshape(1, heads, head_dim)
    hold_result(result, problem)


@pytest.mark.smallest
def test_sequences_lie_anywhere_in_the_table(gpu: Card, rng: np.random.Generator) -> None:
    """In any order, with others' numbers between, two on the same pages; and a row of length 0 beyond the table."""
    problem = random_problem(rng, (4, 2, 64), [600, 0, 17, 1, 0, 300])
    problem.keys[2], problem.values[2] = problem.keys[5][:, :17], problem.values[5][:, :17]
    run = DecodeRun(gpu, problem, rng)
    own = np.split(run.table, run.table_starts[1:-1])
    others = np.full(7, NEVER, np.int32)
    table = np.concatenate([others, own[5], others, own[0], others, own[3]])
    starts = np.array([14 + len(own[5]), 2**31 - 1, 7, len(table) - 1, len(table), 7], np.int32)
    run.tensors = replace(
        run.tensors, table=gpu.upload(table).address, table_starts=gpu.upload(starts).address
    )  # fmt: skip
    hold_result(run.result(), problem)


@pytest.mark.smallest
def test_a_batch_of_padding_rows_alone(gpu: Card, rng: np.random.Generator) -> None:
    check(gpu, random_problem(rng, (2, 1, 64), [0, 0]), rng)


@pytest.mark.smallest
def test_context_of_many_units_a_split(gpu: Card, rng: np.random.Generator) -> None:
    """Beyond 64 units a split has several of them."""
    problem = random_problem(rng, (2, 1, 64), [64 * 256 + 1, 40_000, 64 * 256], half="float16", spread=3.0)
    check(gpu, problem, rng)


# --- what a result does not depend on --------------------------------------------------------------------------


@pytest.mark.smallest
def test_a_result_does_not_depend_on_the_batch(gpu: Card, rng: np.random.Generator) -> None:
    """Bit for bit: beside others, alone, under a larger largest length, and whatever the card's number of SMs."""
    problem = random_problem(rng, (4, 2, 64), [600, 33, 1, 256])
    run = DecodeRun(gpu, problem, rng)
    together = run.result()
    for sequence in range(4):
        alone = replace(
            problem,
            new=[1],
            q=problem.q[sequence : sequence + 1],
            keys=[problem.keys[sequence]],
            values=[problem.values[sequence]],
        )
        assert (DecodeRun(gpu, alone, rng).result()[0] == together[sequence]).all()
    for sms in (1, 3, 132):
        card = Gpu((8, 0), sms, 166_912)
        assert (run.result(card=card, max_length=8192) == together).all()


@every_hardship
@pytest.mark.parametrize("fp8", [False, True], ids=["half", "fp8"])
def test_under_every_hardship(gpu: Card, rng: np.random.Generator, fp8: bool) -> None:
    problem = random_problem(rng, (10, 2, 64), [300, 0, 17, 513], half="float16", fp8=fp8, window=500, cap=30.0)
    check(gpu, problem, rng)


# --- launches --------------------------------------------------------------------------------------------------

H200 = Gpu((9, 0), 132, 232_448)


def plan(shape: Shape, sequences: int, max_length: int, window: int = 0) -> tuple[Launch, ...]:
    tensors = Tensors(
        out=1 << 40, q=2 << 40, pages=3 << 40, table=4 << 40, table_starts=5 << 40, lengths=6 << 40, workspace=7 << 40
    )
    return attention.decode(
        H200, shape, tensors, sequences=sequences, max_length=max_length, scale=0.125, window=window,
    )  # fmt: skip


def test_a_grid_is_what_the_card_holds_at_most() -> None:
    llama = Shape(32, 8, 128, "bfloat16", 1 << 20)
    first, second = plan(llama, 256, 131_072)
    assert first.grid == (132 * 4, 1, 1)
    assert second.grid == (256 * 32, 1, 1)
    assert plan(llama, 1, 600)[0].grid == (3 * 8, 1, 1)


def test_a_short_context_needs_no_second_launch() -> None:
    llama = Shape(32, 8, 128, "bfloat16", 1 << 20)
    assert len(plan(llama, 64, 256)) == 1
    assert attention.workspace_bytes(llama, 64, 256) == 0
    assert len(plan(llama, 64, 131_072, window=1)) == 1
    assert len(plan(llama, 64, 257)) == 2


@pytest.mark.parametrize("window", [0, 1, 2, 255, 256, 257, 258, 512, 513, 514, 4096])
def test_max_splits_is_the_most_that_a_length_has(window: int) -> None:
    for limit in (1, 255, 256, 257, 1000, 5000):
        most = 0
        for length in range(1, limit + 1):
            seen_from = max(length - window, 0) if window else 0
            most = max(most, -(-length // 256) - seen_from // 256)
        assert attention.max_splits(limit, window) == most


def test_a_workspace_stays_bounded_with_the_context() -> None:
    llama = Shape(32, 8, 128, "bfloat16", 1 << 20)
    assert attention.workspace_bytes(llama, 256, 1 << 20) == 256 * 32 * 64 * (128 + 2) * 4


def test_what_no_kernel_serves_is_refused() -> None:
    with pytest.raises(ValueError, match="head_dim 80"):
        Shape(32, 8, 80, "bfloat16", 1 << 20)
    with pytest.raises(ValueError, match="evenly"):
        Shape(32, 5, 64, "bfloat16", 1 << 20)


@pytest.mark.parametrize(("fp8", "page_stride"), [(False, 4), (False, 1 << 20 | 2), (True, 8), (True, 1 << 20 | 8)])
def test_pages_that_are_not_aligned_are_refused(fp8: bool, page_stride: int) -> None:
    with pytest.raises(ValueError, match="16-byte aligned"):
        Shape(32, 8, 128, "bfloat16", page_stride, fp8)


@pytest.mark.parametrize("name", ["out", "q", "pages", "workspace"])
def test_tensors_that_are_not_aligned_are_refused(name: str) -> None:
    tensors = Tensors(out=256, q=512, pages=768, table=1024, table_starts=1280, lengths=1536, workspace=1792)
    llama = Shape(32, 8, 128, "bfloat16", 1 << 20)
    with pytest.raises(ValueError, match=f"{name} at .* is not 16-byte aligned"):
        attention.decode(
            H200, llama, replace(tensors, **{name: getattr(tensors, name) + 8}),
            sequences=1, max_length=16, scale=1.0,
        )  # fmt: skip


@pytest.mark.parametrize(("sequences", "max_length", "window"), [(0, 16, 0), (1, 0, 0), (1, 16, -1)])
def test_an_empty_batch_is_refused(sequences: int, max_length: int, window: int) -> None:
    with pytest.raises(ValueError, match=f"{sequences} sequences"):
        plan(Shape(32, 8, 128, "bfloat16", 1 << 20), sequences, max_length, window)


# --- what kernels/README.md states -----------------------------------------------------------------------------


@pytest.mark.smallest
@pytest.mark.parametrize("fp8", [False, True], ids=["half", "fp8"])
@pytest.mark.parametrize("model", [(9, 3, 64), (14, 2, 128), (4, 1, 256), (32, 2, 128), (16, 2, 96)], ids=str)
def test_bytes_moved(gpu: Card, rng: np.random.Generator, model: tuple[int, int, int], fp8: bool) -> None:
    """K and V are read once, q by the four warps of a block, in whole sectors; no local memory."""
    if not gpu.soft:
        pytest.skip("a card does not count")
    problem = random_problem(rng, model, [300, 37, 0, 513], fp8=fp8, window=400)
    heads, kv_heads, head_dim = model
    run = DecodeRun(gpu, problem, rng)
    out = run.output()
    launches = run.launches(out)
    counters = gpu.counted(*launches)
    first, second = (counters[launch.entry] for launch in launches)
    spans = [(length, problem.seen_from(sequence)) for sequence, length in enumerate(problem.lengths)]
    splits = [-(-length // 256) - start // 256 for length, start in spans]
    several = sum(count for count in splits if count > 1)

    cache = 2 * kv_heads * head_dim * (1 if fp8 else 2) * sum(length - start for length, start in spans)
    queries = 4 * heads * head_dim * 2 * sum(splits)
    streamed = [site for site in first["sites"].values() if "no_allocate" in site["text"]]
    assert sum(site["bytes"] for site in streamed) == cache + queries
    halved = 2 if fp8 and head_dim != 96 else 1  # q's 32 bytes a lane come in two loads
    assert sum(site["sectors"] for site in streamed) * 32 == cache + queries * halved
    passes = kv_heads * -(-(heads // kv_heads) // run.shape.rows)
    numbers = [site["bytes"] for site in first["sites"].values() if "ld.global.nc.s32" in site["text"]]
    assert sum(numbers) == 4 * passes * sum(-(-length // 16) - start // 16 for length, start in spans)
    partial = several * heads * (head_dim + 2) * 4
    assert first["global_store"]["bytes"] == partial + heads * head_dim * 2 * sum(count == 1 for count in splits)
    assert second["global_store"]["bytes"] == heads * head_dim * 2 * sum(count > 1 for count in splits)
    assert partial <= second["global_load"]["bytes"] < partial + 1024 * heads * len(splits)
    for counted in (first, second):
        assert counted["local"]["requests"] == 0
        assert counted["shared_load"]["sectors"] == counted["shared_load"]["ideal"]
    conflicts = first["shared_store"]["sectors"] - first["shared_store"]["ideal"]
    assert (conflicts > 0) == (head_dim == 96)


@pytest.fixture(scope="module")
def ptx(request: pytest.FixtureRequest) -> Path:
    return Path(request.config.getoption("ptx"))


@pytest.fixture(scope="module")
def machine_code(ptx: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, EntryReport]:
    """By entry, for the card with the least registers to spare."""
    file = tmp_path_factory.mktemp("sm_90") / "attention_decode.cubin"
    try:
        file.write_bytes(assemble("sm_90", "attention_decode", (ptx / "attention_decode.ptx").read_text()).image)
        return {report.entry: report for report in read_cubin("attention_decode", "sm_90", file)}
    except UnavailableError as error:
        pytest.skip(str(error))


def stated() -> dict[str, list[tuple[int, int]]]:
    """Form -> its figures, each of half-precision and of fp8 pages: registers, blocks, KB in flight, issue slots."""
    text = (Path(__file__).parents[2] / "kernels" / "README.md").read_text()
    rows = re.findall(r"^\| (d\d+_h\d+) \| (.*) \|$", text, re.MULTILINE)
    return {
        form: [(int(half), int(fp8)) for half, fp8 in (cell.split(" / ") for cell in cells.split(" | "))]
        for form, cells in rows
    }


def test_stated_occupancy(ptx: Path) -> None:
    entries: dict[str, Any] = json.loads((ptx / "manifest.json").read_text())["modules"]["attention_decode"][
        "entries"
    ]
    figures = stated()
    forms = {re.sub(r"attention_decode_(d\d+_h\d+).*", r"\1", name) for name in entries if "_decode_" in name}
    assert set(figures) == forms
    for form, (registers, blocks, _, _) in figures.items():
        head_dim, rows = (int(number) for number in re.findall(r"\d+", form))
        for fp8, pages in enumerate(("", "_fp8")):
            both = [entries[f"attention_decode_{form}{pages}_{half}"] for half in ("bf16", "f16")]
            used = [usage["registers"] for entry in both for usage in entry["architectures"].values()]
            assert registers[fp8] == max(used), form
            assert {entry["min_blocks"] for entry in both} == {blocks[fp8]}
            shape = Shape(rows * 2, 2, head_dim, "bfloat16", 1 << 20, bool(fp8))
            assert attention.blocks_per_sm(shape) == blocks[fp8]
            # What a launch asks for leaves room for as many blocks on the card with the least shared memory.
            launch = plan(shape, 256, 4096)[0]
            assert launch.entry == f"attention_decode_{form}{pages}_bf16"
            static = max(entry["static_shared_bytes"] for entry in both)
            assert blocks[fp8] * (launch.shared_bytes + static + 1024) <= 100 * 1024
            assert launch.shared_bytes + static <= 48 * 1024  # no attribute need be set


def test_stated_loads(machine_code: dict[str, EntryReport]) -> None:
    """An inner loop's loads are one step's K and V, of which half are in flight; its instructions are issue slots."""
    for form, (_, blocks, in_flight, slots) in stated().items():
        for fp8, pages in enumerate(("", "_fp8")):
            (loop,) = [
                loop for loop in machine_code[f"attention_decode_{form}{pages}_bf16"].inner_loops if loop.mix.tensor
            ]
            widths = dict(loop.mix.global_loads)
            widths[4] -= 1  # the page number
            step = 32 * sum(width * count for width, count in widths.items())
            assert blocks[fp8] * 4 * step == 2 * 1024 * in_flight[fp8], form
            assert abs(loop.mix.instructions * 1024 / step - slots[fp8]) <= 2, form
            assert loop.mix.local_loads == loop.mix.local_stores == loop.mix.opcodes.get("BAR", 0) == 0
            if form != "d96_h8" and form != "d96_h16":
                assert not widths[4]
                assert not widths.get(8) or (fp8 and form.startswith("d64"))


def test_splits_are_on_their_way_together(ptx: Path) -> None:
    """Eight of them, however many there are: no product stands between their loads."""
    entries = kernel_ptx.entries((ptx / "attention_decode.ptx").read_text())
    bodies = {entry.name: entry.body for entry in entries if "combine" in entry.name}
    assert bodies
    for name, body in bodies.items():
        stretches = re.split(r"\n\tfma\.", body.partition("bar.sync")[2])
        loads = {stretch.count("ld.global.v2.f32") for stretch in stretches}
        assert loads == {0, 8}, name


def test_no_loop_waits_for_memory_and_for_other_lanes(machine_code: dict[str, EntryReport]) -> None:
    """But that over K and V: what is found out about a batch takes as long for many sequences as for a few."""
    for entry, report in machine_code.items():
        for loop in report.inner_loops:
            assert loop.mix.tensor or not (loop.mix.global_loads and "SHFL" in loop.mix.opcodes), entry
