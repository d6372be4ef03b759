"""kernels/embed.cu, bit for bit: the product of two halves is exact in fp32, so there is but one right result."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pilotlight.device.cuda import embed
from pilotlight.device.cuda.launch import NULL, Half, Launch

from .hardships import every_hardship
from .harness import Buffer, Card, from_half, to_half

HALVES: tuple[Half, ...] = ("bfloat16", "float16")
HIDDEN = [576, 896, 1536, 3584, 4096, 640, 1152, 2560, 3840, 5376]  # SmolLM2, Qwen2.5, Llama-3.1, Gemma 3

Array = NDArray[Any]


class Lookup:
    """A batch of tokens on the card, and the rows that must come out."""

    def __init__(
        self,
        card: Card,
        dtype: Half,
        tokens: list[int],
        hidden: int,
        *,
        vocabulary: int = 50,
        ids: list[int] | None = None,
        scale: float = 1.0,
        positions: list[int] | None = None,
    ) -> None:
        random = np.random.default_rng([len(tokens), hidden])
        self.card, self.dtype, self.tokens, self.ids = card, dtype, tokens, ids
        self.scale, self.positions = scale, positions
        self.table = to_half(random.standard_normal((vocabulary, hidden), np.float32), dtype)
        self.position_table = to_half(random.standard_normal((9, hidden), np.float32), dtype)
        self.out = card.output((len(tokens), hidden), self.table.dtype)

    def plan(self, table: Buffer) -> Launch:
        tokens = self.card.upload(np.array(self.tokens, np.int32)).address
        ids = NULL if self.ids is None else self.card.upload(np.array(self.ids, np.int32)).address
        more = NULL if self.positions is None else self.card.upload(self.position_table).address
        positions = NULL if self.positions is None else self.card.upload(np.array(self.positions, np.int32)).address
        return embed.plan(
            self.out.address, table.address, tokens, len(self.tokens), self.table.shape[1], len(self.table),
            dtype=self.dtype, ids=ids, scale=self.scale, position_table=more, positions=positions,
        )  # fmt: skip

    def check(self) -> None:
        self.card.run(self.plan(self.card.upload(self.table)))
        np.testing.assert_array_equal(self.card.read(self.out), self.expected())

    def expected(self) -> Array:
        known = [t if t >= 0 or self.ids is None else self.ids[~t] for t in self.tokens]
        rows = self.table[np.clip(known, 0, len(self.table) - 1)]
        if self.scale == 1.0 and self.positions is None:
            return rows
        wide = from_half(rows) * np.float32(self.scale)
        return to_half(
            wide if self.positions is None else wide + from_half(self.position_table[self.positions]), self.dtype
        )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_rows_of_every_model(gpu: Card, hidden: int, dtype: Half) -> None:
    Lookup(gpu, dtype, [3, 0, 49, 3], hidden).check()


@pytest.mark.smallest
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("positions", [None, [8, 1, 0, 5, 5, 2, 3, 4, 7]], ids=["", "positions"])
@pytest.mark.parametrize("scale", [1.0, 33.75])
def test_more_than_a_block(gpu: Card, scale: float, positions: list[int] | None, dtype: Half) -> None:
    """9 rows of 129 pieces of 16 bytes: a block takes 1,024 of them."""
    Lookup(gpu, dtype, [7, -1, 49, 50, 0, 2**31 - 1, 21, -(2**31), 8], 1032, scale=scale, positions=positions).check()


@pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 300])
def test_any_number_of_tokens(gpu: Card, count: int) -> None:
    Lookup(gpu, "bfloat16", [token % 50 for token in range(count)], 64).check()


@pytest.mark.smallest
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("positions", [None, [8, 1, 0, 5, 5, 2, 3, 4, 7]], ids=["", "positions"])
def test_tokens_that_the_host_does_not_know(gpu: Card, positions: list[int] | None, dtype: Half) -> None:
    """They are read where the last step left them: -1 where its logits were NaN, and whatever else it may be."""
    ids = [31, -1, 49, 50, 2**31 - 1, -(2**31), 17]
    tokens = [~6, 4, ~0, ~1, 0, ~2, ~3, ~4, ~5]
    Lookup(gpu, dtype, tokens, 1032, ids=ids, positions=positions).check()


def test_padding_rows_beside_unknown_tokens(gpu: Card) -> None:
    """As a graph's step of 8 rows has them, of which 3 are sequences; all of `ids` is one word."""
    Lookup(gpu, "bfloat16", [~0, 9, ~0, 0, 0, 0, 0, 0], 64, ids=[12], scale=33.75).check()


@pytest.mark.parametrize("dtype", HALVES)
def test_gemma_scales_by_the_root_of_its_width(gpu: Card, dtype: Half) -> None:
    # transformers 4.57, torch.tensor(hidden**0.5).to(dtype): 1152 and 5376, bf16 and fp16
    known = {"bfloat16": {1152: 34.0, 5376: 73.5}, "float16": {1152: 33.9375, 5376: 73.3125}}[dtype]
    for hidden, scale in known.items():
        Lookup(gpu, dtype, [4, 40], hidden, scale=scale).check()


@pytest.mark.smallest
def test_a_row_is_copied_as_it_is(gpu: Card) -> None:
    """NaN with its payload, infinities, -0 and subnormals too."""
    lookup = Lookup(gpu, "bfloat16", [1], 8, vocabulary=2)
    lookup.table[1] = [0x7FC1, 0xFFFF, 0x7F80, 0xFF80, 0x8000, 0x0001, 0x807F, 0x3F80]
    lookup.check()


@pytest.mark.smallest
def test_the_far_end_of_the_largest_table(gpu: Card) -> None:
    """Gemma 3 27B's, 2.8 GB, so that offsets pass 2^31 bytes."""
    rows, hidden = 262_144, 5376
    lookup = Lookup(gpu, "bfloat16", [262_143, 199_729, 0, 262_144], hidden, vocabulary=3)
    pool = gpu.pool(rows * hidden * 2)
    for token, row in ((262_143, 0), (199_729, 1), (0, 2)):
        gpu.write(pool.address + token * hidden * 2, lookup.table[row])
    launch = lookup.plan(pool)
    arguments = list(launch.arguments)
    arguments[8] = rows
    gpu.run(Launch(launch.module, launch.entry, launch.grid, launch.block, 0, tuple(arguments)))
    np.testing.assert_array_equal(gpu.read(lookup.out), lookup.table[[0, 1, 2, 0]])


@every_hardship
def test_under_every_order(gpu: Card) -> None:
    Lookup(
        gpu, "float16", [5, 49, 50, -1, 6, ~2, 8, 9, 10], 1032, ids=[-1, 3, 7], scale=33.9375, positions=[*range(9)]
    ).check()


@pytest.mark.smallest
def test_every_byte_is_moved_once_in_whole_sectors(gpu: Card) -> None:
    if not gpu.soft:
        pytest.skip("only the soft GPU counts")
    lookup = Lookup(gpu, "bfloat16", [5, 6, 7, 8], 4096, positions=[0, 1, 2, 3])
    launch = lookup.plan(gpu.upload(lookup.table))
    counted = gpu.counted(launch)[launch.entry]
    rows = 4 * 4096 * 2
    wide = [site for site in counted["sites"].values() if ".v4" in site["text"]]
    assert sum(site["bytes"] for site in wide) == 3 * rows  # the table, the positions' and the result
    assert all(site["sectors"] == site["ideal"] for site in wide)
    assert counted["global_store"]["bytes"] == rows
    assert counted["local"]["requests"] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"count": 0}, "0 tokens"),
        ({"hidden": 100}, "multiples of 8"),
        ({"position_table": 256}, "goes with positions"),
        ({"table": 8}, "table at 0x8 is not 16-byte aligned"),
    ],
)
def test_what_no_kernel_takes_is_refused(options: dict[str, int], words: str) -> None:
    arguments = {"out": 256, "table": 512, "tokens": 4, "count": 1, "hidden": 64, "vocabulary": 9} | options
    with pytest.raises(ValueError, match=words):
        embed.plan(**arguments, dtype="bfloat16")
