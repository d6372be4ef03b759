"""Prefill attention over paged K/V, against softmax written out in float64 and against the numpy device.

Tolerances are in paged.py.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight.device.cuda import attention_prefill
from pilotlight.device.cuda.attention import Shape
from pilotlight.device.cuda.attention_prefill import Blocks, Tensors
from pilotlight.device.cuda.launch import Gpu, Half

from .hardships import every_hardship
from .harness import Card, from_half, to_half
from .paged import NEVER, PrefillRun, Problem, expected, hold, hold_result, random_problem

HALVES: tuple[Half, ...] = ("bfloat16", "float16")
MODELS = {  # query heads, K/V heads, head_dim; those of 8 K/V heads and more reduced to two
    "smollm2-135m": (9, 3, 64),
    "qwen2.5-0.5b": (14, 2, 64),
    "qwen2.5-1.5b": (12, 2, 128),
    "qwen2.5-7b": (28, 4, 128),
    "llama-3.1-8b": (8, 2, 128),
    "gemma-3-1b": (4, 1, 256),
    "gemma-3-4b": (8, 4, 256),
    "gemma-3-27b": (4, 2, 128),
}
HEAD_DIMS = [64, 96, 128, 256]
H200 = Gpu((9, 0), 132, 232_448)
L40S = Gpu((8, 9), 142, 101_376)


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh inputs in every run; pytest prints the seed of a test that fails."""
    seed = int(np.random.SeedSequence().entropy % 2**32)  # type: ignore[operator]
    print(f"inputs of seed {seed}")
    return np.random.default_rng(seed)


def check(gpu: Card, chunks: Problem, rng: np.random.Generator, *, rows: int = 0, **options: Any) -> None:
    hold_result(PrefillRun(gpu, chunks, rng, **options).result(rows), chunks)


# --- the right values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("model", MODELS)
def test_real_shapes(gpu: Card, rng: np.random.Generator, model: str, half: Half) -> None:
    check(gpu, random_problem(rng, MODELS[model], [(37, 37), (75, 10)], half=half), rng)


@pytest.mark.smallest
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("fp8", [False, True], ids=["half", "fp8"])
@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_form(gpu: Card, rng: np.random.Generator, head_dim: int, rows: int, fp8: bool, half: Half) -> None:
    """Groups of three, so that rows begin inside a token; two blocks and more, a prefix, tiles that end in a page."""
    chunks = random_problem(rng, (6, 2, head_dim), [(61, 49), (7, 5)], half=half, fp8=fp8, spread=2.0)
    check(gpu, chunks, rng, rows=rows)


@pytest.mark.parametrize("group", [1, 2, 5, 8, 16, 71, 130])
def test_groups(gpu: Card, rng: np.random.Generator, group: int) -> None:
    check(gpu, random_problem(rng, (group, 1, 64), [(21, 4), (1, 1)], half=HALVES[group % 2]), rng)


@pytest.mark.smallest
@pytest.mark.parametrize("rows", [64, 128])
def test_ragged_batch(gpu: Card, rng: np.random.Generator, rows: int) -> None:
    """Chunks of one token and of many, with and without a prefix, and sequences without a new token."""
    sequences = [(5, 0), (1, 1), (100, 1), (16, 16), (17, 17), (33, 31), (48, 0), (64, 3), (65, 64), (9, 0)]
    check(gpu, random_problem(rng, (6, 2, 64), sequences, half="float16", spread=3.0), rng, rows=rows)


@pytest.mark.smallest
@pytest.mark.parametrize("fp8", [False, True], ids=["half", "fp8"])
@pytest.mark.parametrize("window", [1, 15, 16, 17, 32, 40, 200])
def test_window(gpu: Card, rng: np.random.Generator, window: int, fp8: bool) -> None:
    chunks = random_problem(
        rng, (4, 2, 64), [(130, 50), (20, 20)], half="float16", fp8=fp8, window=window, spread=3.0
    )
    check(gpu, chunks, rng)


@pytest.mark.smallest
@pytest.mark.parametrize("window", [0, 1, 16, 33, 47])
@pytest.mark.parametrize("rows", [64, 128])
def test_every_seen_token_counts_once(gpu: Card, rng: np.random.Generator, rows: int, window: int) -> None:
    """With q = 0 all weights are exactly 1, so that nothing is rounded but the output: a mean, of what is seen."""
    chunks = random_problem(rng, (4, 2, 64), [(90, 70), (31, 1), (33, 33)], half="float16", window=window)
    chunks.q[...] = 0
    result = from_half(PrefillRun(gpu, chunks, rng).result(rows))
    for sequence, new in enumerate(chunks.new):
        values = from_half(chunks.values[sequence]).astype(np.float64)
        for token in range(new):
            position = chunks.lengths[sequence] - new + token
            seen = values[:, max(position - window + 1, 0) if window else 0 : position + 1]
            mean = np.repeat(seen.mean(axis=1), 2, axis=0)
            bound = 2.0**-11 * np.abs(mean) + 2.0**-20 * np.abs(seen).mean() + 2.0**-25
            assert (np.abs(result[chunks.starts[sequence] + token] - mean) <= bound).all(), (sequence, token)


@pytest.mark.smallest
@pytest.mark.parametrize("cap", [50.0, 0.25])
def test_soft_cap(gpu: Card, rng: np.random.Generator, cap: float) -> None:
    """Gemma 2 caps scores at 50; the smaller cap bends all of them."""
    chunks = random_problem(rng, (4, 2, 256), [(60, 20)], half="float16", cap=cap, window=50, spread=20.0)
    check(gpu, chunks, rng)


@pytest.mark.parametrize("sign", [1, -1])
def test_large_scores(gpu: Card, rng: np.random.Generator, sign: int) -> None:
    """Whole numbers whose scores are exact and reach far beyond what exp can take, above 0 and below."""
    chunks = random_problem(rng, (4, 2, 64), [(80, 40)], scale=32.0)
    chunks.q = to_half(rng.integers(1, 9, chunks.q.shape), chunks.half)
    chunks.keys = [to_half(sign * rng.integers(1, 9, keys.shape), chunks.half) for keys in chunks.keys]
    check(gpu, chunks, rng)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_fp8_code(gpu: Card, rng: np.random.Generator, head_dim: int, half: Half) -> None:
    """Subnormals, the largest value and both zeros, as keys and as values."""
    chunks = random_problem(rng, (2, 1, head_dim), [(34, 34)], half=half, fp8=True, key_scale=1 / 64, value_scale=0.5)
    codes = np.setdiff1d(np.arange(256), [0x7F, 0xFF]).astype(np.uint8)
    for stored in (chunks.keys[0], chunks.values[0]):
        stored[...] = np.resize(rng.permutation(codes), stored.shape)
    check(gpu, chunks, rng)


def test_as_the_numpy_device(gpu: Card, rng: np.random.Generator) -> None:
    """The reference for every device, on the same rounded q, K and V."""
    chunks = random_problem(rng, MODELS["smollm2-135m"], [(70, 70), (90, 33)], window=48)
    run = PrefillRun(gpu, chunks, rng, layers=1)
    tolerance = np.concatenate([expected(chunks, sequence)[1] for sequence in range(2)])
    hold(from_half(run.result()), run.numpy_result(), tolerance, "[token, head, element]")


@pytest.mark.slow
@pytest.mark.parametrize("fp8", [False, True], ids=["half", "fp8"])
@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_longer_prompts(gpu: Card, rng: np.random.Generator, head_dim: int, rows: int, fp8: bool) -> None:
    half = HALVES[int(rng.integers(2))]
    sequences = [(700, 300), (257, 257), (511, 40)]
    check(gpu, random_problem(rng, (4, 2, head_dim), sequences, half=half, fp8=fp8, window=290), rng, rows=rows)


# --- where it may read and write -------------------------------------------------------------------------------


@pytest.mark.smallest
@pytest.mark.parametrize("fp8", [False, True], ids=["half", "fp8"])
def test_far_end_of_a_large_pool(gpu: Card, rng: np.random.Generator, fp8: bool) -> None:
    """Pages that lie beyond 2^32 elements: at the end of a 141 GB card's pool, or of 12 GB on a real card."""
    chunks = random_problem(rng, (7, 1, 128), [(60, 20)], fp8=fp8)
    check(gpu, chunks, rng, pool=(130 if gpu.soft else 12) << 30)


@pytest.mark.smallest
def test_sequences_lie_anywhere_in_the_table(gpu: Card, rng: np.random.Generator) -> None:
    """In any order, with others' numbers between; and one without a new token beyond the table."""
    chunks = random_problem(rng, (6, 2, 64), [(100, 40), (30, 0), (17, 17)], half="float16")
    run = PrefillRun(gpu, chunks, rng)
    own = np.split(run.table, run.table_starts[1:-1])
    others = np.full(7, NEVER, np.int32)
    table = np.concatenate([others, own[2], others, own[0]])
    starts = np.array([14 + len(own[2]), len(table), 7], np.int32)
    run.addresses |= {"table": gpu.upload(table).address, "table_starts": gpu.upload(starts).address}
    hold_result(run.result(), chunks)


def test_a_block_reads_no_token_that_none_of_its_rows_sees(gpu: Card, rng: np.random.Generator) -> None:
    """A chunk's last K and V are NaN: only rows of the block that sees them may show it."""
    chunks = random_problem(rng, (1, 1, 64), [(120, 120)])
    clean = PrefillRun(gpu, chunks, rng).result(64)
    chunks.values[0][:, 64:] = 0x7FC0
    chunks.keys[0][:, 64:] = 0x7FC0
    result = PrefillRun(gpu, chunks, rng).result(64)
    np.testing.assert_array_equal(result[:64], clean[:64])
    assert np.isnan(from_half(result[64:])).all()


def test_tokens_that_no_block_has_are_left_alone(gpu: Card, rng: np.random.Generator) -> None:
    chunks = random_problem(rng, (3, 1, 64), [(9, 9), (20, 20)])
    run = PrefillRun(gpu, chunks, rng)
    blocks = run.blocks(64)
    out = run.output()
    gpu.run(run.plan(out, Blocks(64, blocks.table[blocks.table[:, 0] == 1])))
    assert (gpu.read(out)[:9].view(np.uint8) == 0xFF).all()


# --- what a result does not depend on --------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0, 37])
@pytest.mark.parametrize("head_dim", [64, 256])
def test_a_result_does_not_depend_on_chunks_batch_or_form(
    gpu: Card, rng: np.random.Generator, head_dim: int, window: int
) -> None:
    """Bit for bit: cut otherwise, beside others or alone, in blocks of 64 rows or 128."""
    chunks = random_problem(rng, (3, 1, head_dim), [(80, 80), (70, 20)], half="float16", window=window, spread=3.0)
    together = PrefillRun(gpu, chunks, rng).result(64)
    np.testing.assert_array_equal(PrefillRun(gpu, chunks, rng).result(128), together)
    parts = chunks.cut([[33, 0], [1, 19], [46, 1]])
    results = [PrefillRun(gpu, part, rng).result() for part in parts]
    first = np.concatenate([results[0], results[1][:1], results[2][:46]])
    second = np.concatenate([results[1][1:], results[2][46:]])
    np.testing.assert_array_equal(np.concatenate([first, second]), together)


@every_hardship
@pytest.mark.parametrize("fp8", [False, True], ids=["half", "fp8"])
def test_under_every_hardship(gpu: Card, rng: np.random.Generator, fp8: bool) -> None:
    sequences = [(90, 40), (3, 0), (17, 17)]
    check(gpu, random_problem(rng, (6, 2, 64), sequences, half="float16", fp8=fp8, window=50, cap=30.0), rng)


# --- launches --------------------------------------------------------------------------------------------------

LLAMA = Shape(32, 8, 128, "bfloat16", 1 << 20)
TENSORS = Tensors(out=1 << 40, q=2 << 40, pages=3 << 40, table=4 << 40, table_starts=5 << 40, blocks=6 << 40)


def split(gpu: Gpu, shape: Shape, sequences: list[tuple[int, int]]) -> Blocks:
    starts = np.concatenate([[0], np.cumsum([new for _, new in sequences])]).astype(np.int32)
    return attention_prefill.split_rows(gpu, shape, starts, np.array([length for length, _ in sequences], np.int32))


@pytest.mark.parametrize("group", [1, 3, 4, 7])
def test_every_row_of_a_batch_is_in_one_block(group: int) -> None:
    sequences = [(100, 100), (7, 0), (50, 3), (64, 64), (1000, 1)]
    shape = Shape(2 * group, 2, 64, "bfloat16", 1 << 20)
    blocks = split(H200, shape, sequences)
    owner = np.full(168 * group, -1)
    for sequence, first, end, shift in blocks.table.tolist():
        rows = np.arange(first, min(first + blocks.rows, end))
        assert (owner[rows] == -1).all()
        owner[rows] = sequence
        length, new = sequences[sequence]
        start = sum(n for _, n in sequences[:sequence])
        assert (start * group <= first, end) == (True, (start + new) * group)
        assert start + shift == length - new  # the position of the chunk's first token
    np.testing.assert_array_equal(owner, np.repeat(np.arange(5), [new * group for _, new in sequences]))


def test_the_longest_blocks_come_first() -> None:
    blocks = split(H200, LLAMA, [(300, 100), (900, 40), (64, 64)]).table
    seen = [min(first + 64, end) // 4 + shift for _, first, end, shift in blocks.tolist()]
    assert seen == sorted(seen, reverse=True)


def test_large_blocks_are_taken_where_they_fill_the_card() -> None:
    assert split(H200, LLAMA, [(1000, 1000)]).rows == 64
    assert split(H200, LLAMA, [(1100, 1100)]).rows == 128  # 35 blocks for each of 8 heads, two an SM
    # With less shared memory four warps of an SM would be all; smaller heads leave room.
    assert split(L40S, LLAMA, [(9000, 9000)]).rows == 64
    assert split(L40S, Shape(9, 3, 64, "bfloat16", 1 << 20), [(9000, 9000)]).rows == 128
    assert split(L40S, Shape(8, 4, 256, "bfloat16", 1 << 20), [(9000, 9000)]).rows == 128


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_form_fits_every_card(head_dim: int) -> None:
    for kv_heads in (1, 64):
        shape = Shape(kv_heads, kv_heads, head_dim, "bfloat16", 1 << 20)
        launch = attention_prefill.plan(shape, TENSORS, split(L40S, shape, [(9000, 9000)]), scale=1.0)
        assert launch.shared_bytes <= 99 * 1024


@pytest.mark.parametrize(
    ("options", "words"), [({"scale": 0.0}, "scale 0.0"), ({"window": -1}, "window -1"), ({"cap": -1.0}, "cap -1.0")]
)
def test_what_no_kernel_takes_is_refused(options: dict[str, float], words: str) -> None:
    blocks = split(H200, LLAMA, [(10, 10)])
    with pytest.raises(ValueError, match=words):
        attention_prefill.plan(LLAMA, TENSORS, blocks, **({"scale": 1.0} | options))  # type: ignore[arg-type]


def test_a_batch_without_new_tokens_has_no_launch() -> None:
    with pytest.raises(ValueError, match="0 blocks"):
        attention_prefill.plan(LLAMA, TENSORS, split(H200, LLAMA, [(10, 0)]), scale=1.0)


# --- what kernels/README.md states -----------------------------------------------------------------------------


@pytest.mark.smallest
@pytest.mark.parametrize("fp8", [False, True], ids=["half", "fp8"])
@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_bytes_moved(gpu: Card, rng: np.random.Generator, head_dim: int, rows: int, fp8: bool) -> None:
    """A block reads its q once, and K and V once for all its rows, every sector in full; no bank conflicts."""
    if not gpu.soft:
        pytest.skip("a card does not count")
    chunks = random_problem(rng, (6, 2, head_dim), [(100, 60), (40, 40)], fp8=fp8, window=50)
    run = PrefillRun(gpu, chunks, rng)
    blocks = run.blocks(rows)
    out = run.output()
    launch = run.plan(out, blocks)
    counted = gpu.counted(launch)[launch.entry]
    seen = 0
    for _, first, end, shift in blocks.table.tolist():
        last = (min(first + rows, end) - 1) // 3 + shift
        seen += last + 1 - max(first // 3 + shift - 50 + 1, 0)
    cache = 2 * 2 * head_dim * (1 if fp8 else 2) * seen
    q = chunks.q.nbytes
    assert counted["async_copy"]["bytes"] == cache + q
    assert counted["async_copy"]["sectors"] * 32 == cache + q
    assert counted["global_store"]["bytes"] == q
    assert counted["global_store"]["sectors"] * 32 == q
    for access in ("shared_load", "shared_store"):
        assert counted[access]["sectors"] == counted[access]["ideal"], access
    assert counted["local"]["requests"] == 0


def test_stated_forms(request: pytest.FixtureRequest) -> None:
    """The table's registers, shared memory and blocks an SM, against the manifest and what a launch asks for."""
    manifest = json.loads((request.config.getoption("ptx") / "manifest.json").read_text())
    entries = manifest["modules"]["attention_prefill"]["entries"]
    text = (Path(__file__).parents[2] / "kernels" / "README.md").read_text()
    stated = re.findall(
        r"^\| d(\d+)_r(\d+) \| (\d+) × (\d+) \| (\d+) \| (\d+) \| (\d+) KB \| (\d+), (\d+), (\d+) \| (\d+) KB \|$",
        text,
        re.MULTILINE,
    )
    assert {f"attention_prefill_d{head_dim}_r{rows}_bf16" for head_dim, rows, *_ in stated} == {
        name for name in entries if name.endswith("_bf16") and "fp8" not in name
    }
    for row in stated:
        head_dim, rows, blocks, threads, keys, registers, shared, *resident, in_flight = map(int, row)
        shape = Shape(1, 1, head_dim, "bfloat16", 1 << 20)
        launch = attention_prefill.plan(shape, TENSORS, Blocks(rows, np.zeros((1, 4), np.int32)), scale=1.0)
        forms = [
            entries[f"attention_prefill_d{head_dim}_r{rows}{form}"]
            for form in ("_bf16", "_f16", "_fp8_bf16", "_fp8_f16")
        ]
        assert launch.entry == f"attention_prefill_d{head_dim}_r{rows}_bf16"
        assert launch.block[0] == threads == forms[0]["max_threads"]
        assert launch.shared_bytes == shared * 1024
        assert {form["min_blocks"] for form in forms} == {blocks}
        assert max(usage["registers"] for form in forms for usage in form["architectures"].values()) == registers
        assert resident == [min(blocks, total // (shared + 1)) for total in (100, 164, 228)]
        assert in_flight == blocks * 4 * keys * head_dim // 1024
