"""Step 4: instructions on their own. Layouts and roundings have exact expectations; where the manual allows an error,
its bound is held and the largest error kept; the raw words are kept in every case.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..job import Failed, Job
from ..rig import Array, Rig

Words = NDArray[np.uint32]
_LANES = np.arange(32)
_GROUP, _IN_GROUP = _LANES // 4, _LANES % 4


def run(job: Job) -> None:
    rig = Rig()
    wrong = []
    for name, probe in PROBES.items():
        given, check = probe()
        out = run_probe(rig, name.partition("/")[0], given)
        error = check(out)
        job.put(probes={name: {"error": error, "in": _hex(given), "out": _hex(out)}})
        if error:
            wrong.append(f"{name}: {error}")
    if wrong:
        raise Failed("; ".join(wrong))


def run_probe(rig: Rig, entry: str, given: Words) -> Words:
    """given: [threads, words of a thread]; as many threads' words back."""
    threads = len(given)
    words = {"mma_bf16": 4, "mma_f16": 4, "ldmatrix": 4, "ldmatrix_trans": 4, "cp_async": 4}.get(entry, 1)
    source = rig.upload(given)
    target = rig.upload(np.full((threads, words), 0xFFFFFFFF, np.uint32))
    rig.run_probe(rig.probe("instructions", entry), 1, threads, source, target)
    return rig.read(target, (threads, words), np.uint32)


def _hex(words: Words) -> list[str]:
    return [" ".join(f"{word:08x}" for word in row) for row in words]


# --- expectations: each makes a probe's input, and what finds its output wrong: "" for nothing ---------------------

Check = Callable[[Words], str]


def _same(expected: Array) -> Check:
    wanted = np.ascontiguousarray(expected).reshape(len(expected), -1).view(np.uint32)

    def check(out: Words) -> str:
        if np.array_equal(out, wanted):
            return ""
        at = tuple(int(i) for i in np.argwhere(out != wanted)[0])
        others = int((out != wanted).sum()) - 1
        return f"thread {at[0]} has {out[at]:08x}, expected {wanted[at]:08x} (and {others} more)"

    return check


def _bf16(values: Array) -> NDArray[np.uint16]:
    """To the nearest, ties to even; a NaN is 7fff, as the instruction makes it."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


def _f16(values: Array) -> NDArray[np.uint16]:
    with np.errstate(over="ignore"):
        bits = np.asarray(values, np.float32).astype(np.float16).view(np.uint16)
    return np.where(np.isnan(values), 0x7FFF, bits).astype(np.uint16)


def _mma(half: Callable[[Array], NDArray[np.uint16]], exact: bool) -> tuple[Words, Check]:
    """Fragments as in the PTX manual, "Matrix Fragments for mma.m16n8k16". Small integers have one sum in any order;
    of other numbers the products are exact, and the sum is off by what truncation at the largest term may cost."""
    random = np.random.default_rng(1)
    most, unit = (8, 1) if exact else (200, 64)  # 8 bits of a and b: both halves hold them
    a, b, c = (
        random.integers(-most, most + 1, shape).astype(np.float32) / np.float32(divisor)
        for shape, divisor in (((16, 16), unit), ((16, 8), unit), ((16, 8), 1 if exact else 97))
    )
    halves_a, halves_b = half(a).astype(np.uint32), half(b).astype(np.uint32)

    def pair(matrix: Words, row: Array, column: Array, down: int, across: int) -> Words:
        packed: Words = matrix[row, column] | matrix[row + down, column + across] << 16
        return packed

    low = 2 * _IN_GROUP
    words = [pair(halves_a, _GROUP + rows, low + columns, 0, 1) for columns in (0, 8) for rows in (0, 8)]
    words += [pair(halves_b, low + rows, _GROUP, 1, 0) for rows in (0, 8)]

    def sums(matrix: Array) -> Array:
        return np.stack([matrix[_GROUP + rows, low + columns] for rows in (0, 8) for columns in (0, 1)], axis=1)

    given = np.column_stack([np.stack(words, axis=1), sums(c).view(np.uint32)]).astype(np.uint32)
    wide: Array = a.astype(np.float64) @ b + c
    if exact:
        return given, _same(sums(wide.astype(np.float32)))
    largest = np.abs(a[:, :, None].astype(np.float64) * b[None]).max(axis=1)
    bound = 17 * 2.0**-22 * np.maximum(largest, np.maximum(np.abs(c), np.abs(wide)))

    def check(out: Words) -> str:
        worst = (np.abs(out.view(np.float32) - sums(wide)) / sums(bound)).max()
        return "" if worst <= 1 else f"a sum is off by {worst:.2f} of what may be"

    return given, check


def _matrices(transposed: bool) -> tuple[Words, Check]:
    """Register r of lane i holds two neighbours of matrix r's row i / 4, or of its column."""
    halves = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    read = halves.transpose(0, 2, 1) if transposed else halves
    expected = np.ascontiguousarray(read).view(np.uint32).reshape(4, 32).T
    return halves.reshape(32, 8).view(np.uint32), _same(expected)


def _copied() -> tuple[Words, Check]:
    given = np.arange(128, dtype=np.uint32).reshape(32, 4) * 0x01010101
    return given, _same(given)


def _exchanged() -> tuple[Words, Check]:
    given = (np.arange(32, dtype=np.uint32) * 0x9E3779B1).reshape(32, 1)
    return given, _same(given[_LANES ^ 5])


_TELLING = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 6e-8, 2.98e-8, 65504.0, 65519.9, 65520.0, 3.4e38,
     1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8 + 2**-20, 448.0, 1e-8, 3.39e38, 0.1],
    np.float32,
)  # fmt: skip


def _packed(half: Callable[[Array], NDArray[np.uint16]]) -> tuple[Words, Check]:
    random = np.random.default_rng(2).standard_normal(128 - len(_TELLING)).astype(np.float32)
    first = np.concatenate([_TELLING, random])
    second = first[::-1].copy()
    expected = half(first).astype(np.uint32) << 16 | half(second)  # the first source is the high half
    return np.column_stack([first, second]).view(np.uint32), _same(expected)


def _unfused() -> tuple[Words, Check]:
    x, y = np.random.default_rng(3).standard_normal((2, 128)).astype(np.float32)
    z = -(x * y)  # so that what a fused product keeps is all that is left
    given = np.column_stack([x, y, z, np.zeros_like(z)]).view(np.uint32)
    return given, _same(x * y + z)


def _permuted() -> tuple[Words, Check]:
    x, y = np.random.default_rng(4).integers(0, 1 << 32, (2, 128), np.uint32)
    selectors = np.random.default_rng(5).integers(0, 8, (128, 4))
    both = np.column_stack([x, y]).view(np.uint8)
    expected = np.take_along_axis(both, selectors, axis=1).astype(np.uint8).view(np.uint32)
    selector = (selectors << np.array([0, 4, 8, 12])).sum(axis=1).astype(np.uint32)
    return np.column_stack([x, y, selector, selector]), _same(expected)


def _approximation(
    values: Array, reference: Callable[[Array], Array], relative: float, absolute: float = 0.0
) -> tuple[Words, Check]:
    """The bounds are the PTX manual's."""
    values = np.asarray(values, np.float32)
    with np.errstate(all="ignore"):
        expected = reference(values.astype(np.float64))

    def check(out: Words) -> str:
        found = out.view(np.float32)[:, 0].astype(np.float64)
        finite = np.isfinite(expected)
        if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
            return "an infinity or a NaN is none, or is where none should be"
        off = np.abs(found[finite] - expected[finite])
        worst = (off / (relative * np.abs(expected[finite]) + absolute + 2.0**-126)).max()
        return "" if worst <= 1 else f"off by {worst:.2f} of the manual's bound"

    return values.reshape(-1, 1).view(np.uint32), check


def _exponents() -> Array:
    spread = np.random.default_rng(6).uniform(-120, 120, 120)
    return np.concatenate([spread, [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -200.0]])


def _positives() -> Array:
    return 2.0 ** np.random.default_rng(7).uniform(-100, 100, 128)


PROBES: dict[str, Callable[[], tuple[Words, Check]]] = {
    "mma_bf16": lambda: _mma(_bf16, exact=True),
    "mma_bf16/rounding": lambda: _mma(_bf16, exact=False),
    "mma_f16": lambda: _mma(_f16, exact=True),
    "mma_f16/rounding": lambda: _mma(_f16, exact=False),
    "ldmatrix": lambda: _matrices(transposed=False),
    "ldmatrix_trans": lambda: _matrices(transposed=True),
    "cp_async": _copied,
    "shfl_bfly": _exchanged,
    "cvt_bf16x2": lambda: _packed(_bf16),
    "cvt_f16x2": lambda: _packed(_f16),
    "mul_add": _unfused,
    "prmt": _permuted,
    "ex2": lambda: _approximation(_exponents(), np.exp2, 2.0**-22),
    "lg2": lambda: _approximation(_positives(), np.log2, 2.0**-22, 2.0**-22),
    "rcp": lambda: _approximation(_positives(), np.reciprocal, 2.0**-23),
}
