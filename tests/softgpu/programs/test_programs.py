"""Programs in CUDA C++: right ones run without a finding in every order, and miss no line of theirs unnoticed."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.programs.compiler import compile_source

SOURCE = Path(__file__).with_name("programs.cu").read_text().splitlines()
ENTRY = re.compile(r"^ENTRY void (?:__launch_bounds__\(\d+\) )?(\w+)\(")
MARK = re.compile(r"// (needs|after) ([a-z|-]+)$")
ORDERS: dict[str, dict[str, Any]] = {
    "forward": {},
    "one block at a time": {"resident_blocks": 1, "block_order": "reverse", "warp_order": "reverse"},
    "adversarial": {"adversarial": True, "block_order": "shuffle", "warp_order": "shuffle", "seed": 3},
}


# What may be found besides: one line that is missing breaks what comes after it too.
AFTERMATH = {"aligned", "async-overwrites-read", "async-pending", "async-unsynchronised", "barrier-count"}
AFTERMATH |= {"barrier-deadlock", "global-race", "shared-race", "shared-uninitialised"}


class Case(NamedTuple):
    inputs: list[np.ndarray]
    outputs: list[Any]
    scalars: list[int]
    shape: dict[str, Any]
    expected: list[np.ndarray | list[int] | None]


def case(name: str) -> Case:
    return globals()[f"case_{name}"](np.random.default_rng(1))


def integers(rng: np.random.Generator, *shape: int, high: int = 1000) -> np.ndarray:
    return rng.integers(0, high, shape, dtype=np.int32)


def case_specialised(rng):
    x = integers(rng, 2, 7, 96)
    thread = np.arange(32, 128)
    sums = [sum(x[b, r, (thread * 7 + r) % 96] for r in range(7)) for b in range(2)]
    return Case([x], [(192, np.int32)], [7], {"grid": 2, "block": 128}, [np.concatenate(sums)])


def case_split_sum(rng):
    x = rng.integers(-9, 9, (20, 128)).astype(np.float32)
    outputs = [(6 * 128, np.float32), (128, np.float32), np.zeros(1, np.uint32)]
    return Case([x], outputs, [20], {"grid": 6, "block": 128}, [None, x.sum(0), [0]])


def case_double_buffered(rng):
    x = integers(rng, 5, 256)
    x.ravel()[1100:] = 0
    at = (4 * np.arange(64)[:, None] + 68 * np.arange(4)) % 256
    expected = (x[:, at] * np.arange(1, 5)).sum((0, 2))
    return Case([x.ravel()[:1100]], [(64, np.int32)], [5, 1100], {"block": 64}, [expected])


def case_row_sums(rng):
    x = rng.integers(-(2**31), 2**31 - 1, (3, 700), dtype=np.int32)
    return Case([x], [(3, np.int64)], [700], {"grid": 3, "block": 256}, [x.sum(1, dtype=np.int64)])


def case_histogram(rng):
    x = rng.integers(0, 256, 5000, dtype=np.uint8)
    expected = np.bincount(x, minlength=256)
    return Case([x], [np.zeros(256, np.uint32)], [5000], {"grid": 4, "block": 96}, [expected])


def case_block_histogram(rng):
    x = rng.integers(0, 256, (3, 500), dtype=np.uint8)
    counts = np.array([np.bincount(row, minlength=256) for row in x])
    outputs = [np.zeros(768, np.uint32), np.zeros(3, np.uint32)]
    return Case([x], outputs, [500], {"grid": 3, "block": 64}, [counts.ravel(), counts.max(1)])


def case_look_back(rng):
    x = rng.integers(0, 99, 7 * 32, dtype=np.uint32)
    return Case([x], [(224, np.uint32), np.zeros(7, np.uint32)], [], {"grid": 7}, [np.cumsum(x), None])


def case_online_softmax(rng):
    x = rng.normal(0, 5, (3, 300)).astype(np.float32)
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    expected = (powers / powers.sum(1, keepdims=True)).ravel()
    return Case([x], [(900, np.float32)], [300], {"grid": 3, "block": 128}, [expected])


def case_prefix_sums(rng):
    x = integers(rng, 3, 256)
    return Case([x], [(768, np.int32)], [], {"grid": 3, "block": 256}, [np.cumsum(x, 1).ravel()])


def case_bitonic_sort(rng):
    x = integers(rng, 2, 512)
    return Case([], [x], [], {"grid": 2, "block": 256}, [np.sort(x, 1)])


def case_compact(rng):
    x = integers(rng, 1000)
    kept = int(np.count_nonzero(x % 3 == 0))
    outputs = [np.full(1000, -1, np.int32), np.zeros(1, np.int32)]
    return Case([x], outputs, [1000], {"grid": 8, "block": 128}, [None, [kept]])


def case_work_queue(rng):
    x = integers(rng, 13 * 64)
    outputs = [(13 * 64, np.int32), np.zeros(1, np.uint32), np.zeros(1, np.uint32)]
    return Case([x], outputs, [13], {"grid": 4, "block": 64}, [3 * x, [0], [0]])


def case_turn(rng):
    x = integers(rng, 7, 32, 32)
    return Case([x], [(7 * 1024, np.int32)], [7], {"grid": 2, "block": 64}, [x.transpose(0, 2, 1).ravel()])


def case_count_keys(rng):
    x = integers(rng, 200, high=9)
    return Case([x], [np.zeros(9, np.int32)], [200], {"grid": 2, "block": 128}, [np.bincount(x, minlength=9)])


def run(name: str, lines: list[str]) -> list[np.ndarray]:
    given = case(name)
    text = compile_source("\n".join(lines))
    return ptx.run(text, given.inputs, given.outputs, given.scalars, entry=name, **given.shape)


def programs() -> list[str]:
    return [found[1] for line in SOURCE if (found := ENTRY.match(line))]


def source_of(name: str) -> list[str]:
    """What every program needs, and this one; its lines keep their numbers."""
    wanted, lines = True, []
    for line in SOURCE:
        if found := ENTRY.match(line):
            wanted = found[1] == name
        elif line.startswith(("#", "__device__", "// ")):
            wanted = True
        lines.append(line if wanted else "")
    return lines


def marks() -> Iterator[Any]:
    name = ""
    for number, line in enumerate(SOURCE):
        if found := ENTRY.match(line):
            name = found[1]
        if name and (found := MARK.search(line)):
            yield pytest.param(name, number, found[1], set(found[2].split("|")), id=f"{name}:{number + 1}")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", [name for name in programs() if name != "look_back"])
def test_a_right_program_runs_without_a_finding(soft, name, order):
    soft.reset(**ORDERS[order])
    got = run(name, source_of(name))
    for values, expected in zip(got, case(name).expected, strict=True):
        if expected is not None:
            np.testing.assert_allclose(values.ravel(), np.ravel(expected), rtol=1e-5 * (values.dtype.kind == "f"))
    if name == "compact":
        values, (length,) = case(name).inputs[0], got[1]
        assert sorted(got[0][:length]) == sorted(values[values % 3 == 0])


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize(("name", "number", "kind", "wanted"), list(marks()))
def test_a_line_that_orders_is_missed(soft, name, number, kind, wanted, order):
    soft.reset(block_order=order, warp_order=order, threads=1, resident_blocks=3)
    lines = source_of(name)
    if kind == "needs":
        lines[number] = ""
    else:
        lines[number - 1], lines[number] = lines[number], lines[number - 1]
    with contextlib.suppress(ptx.DriverError):  # some of the rules are faults
        run(name, lines)
    found = {rule for rule in AFTERMATH | wanted if soft.take_findings(rule)}
    assert found & wanted, f"found {found or 'nothing'}"


@pytest.mark.parametrize("name", ["split_sum", "double_buffered", "work_queue", "online_softmax"])
def test_a_seed_is_the_same_run_again(soft, name):
    """Values, findings and counters; a second host thread would bring its own order of blocks."""
    lines = [MARK.sub("", line) if "__threadfence" not in line else "" for line in source_of(name)]
    runs = []
    for _ in range(2):
        soft.reset(seed=4, threads=1, resident_blocks=3, block_order="shuffle", warp_order="shuffle")
        got = [values.tobytes() for values in run(name, lines)]
        runs.append((got, soft.take_findings("global-race"), soft.counters()))
    assert runs[0] == runs[1]


def test_a_scan_that_waits_for_blocks_to_its_left(soft):
    """It runs where they have started before, and depends on it."""
    soft.reset(resident_blocks=1)
    got, _ = run("look_back", source_of("look_back"))
    assert (got == case("look_back").expected[0]).all()
    soft.reset(resident_blocks=1, block_order="reverse")
    with pytest.raises(ptx.DriverError) as error:
        run("look_back", source_of("look_back"))
    assert error.value.code == 702
    (found,) = soft.take_findings("co-residency")
    assert found.where.startswith("look_back block (6,0,0)")
