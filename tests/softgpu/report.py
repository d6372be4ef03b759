"""Prints a run of the soft GPU: `python -m tests.softgpu.report FILE.json`, what the knob `report` had written.

Findings first, then what the driver did, then a row a kernel. `sectors/request` is of the kernel's global accesses
(32-byte sectors; 4 carry a warp's 32 adjacent words), `conflicts` the shared-memory wavefronts beyond the fewest.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_COLUMNS = (
    "kernel", "launches", "replays", "blocks", "warp instr.", "lanes", "loaded", "stored",
    "sectors/load", "sectors/store", "async", "shared", "conflicts", "atomics", "local",
)  # fmt: skip


def report(run: dict[str, Any]) -> str:
    """What to read of a run, as lines."""
    counters = run["counters"]
    parts = [*_findings(run), "", *_driver(counters["driver"]), _calls(counters["calls"])]
    if counters["kernels"]:
        parts += ["", *_table(_COLUMNS, (_row(name, kernel) for name, kernel in sorted(counters["kernels"].items())))]
        for name, kernel in sorted(counters["kernels"].items()):
            parts += ["", f"{name}: warp instructions by kind", *_kinds(kernel["instructions"])]
    return "\n".join(parts)


def _findings(run: dict[str, Any]) -> Iterator[str]:
    yield f"findings: {len(run['findings']) or 'none'}"
    for found in run["findings"]:
        times = f" ({found['count']} times)" if found["count"] > 1 else ""
        yield f"  {found['rule']}{times}: {found['what']}"
        if found["where"]:
            yield f"      {found['where']}"
    if run["fault"]:
        yield f"the context died of error {run['fault']}"


def _driver(driver: dict[str, int]) -> Iterator[str]:
    yield (
        f"launches: {driver['launches']} by call, {driver['graph_kernel_nodes']} by"
        f" {driver['graph_launches']} graph replays ({driver['captures']} captures,"
        f" {driver['instantiations']} executable graphs)"
    )
    yield (
        f"copies: {_bytes(driver['h2d_bytes'])} to the device, {_bytes(driver['d2h_bytes'])} back,"
        f" {_bytes(driver['d2d_bytes'])} within; {driver['memsets']} fills; without holding the host up"
        f" {_bytes(driver['h2d_async_bytes'])} and {_bytes(driver['d2h_async_bytes'])}"
    )
    yield f"allocations: {driver['allocations']}, synchronizations: {driver['synchronizations']}"


def _calls(calls: dict[str, int]) -> str:
    often = sorted(calls.items(), key=lambda pair: (-pair[1], pair[0]))
    return "calls: " + ", ".join(f"{name} {count}" for name, count in often if name != "cuGetProcAddress")


def _row(name: str, kernel: dict[str, Any]) -> tuple[str, ...]:
    instructions = sum(kernel["instructions"].values())
    shared = [kernel["shared_load"], kernel["shared_store"]]
    return (
        name,
        str(kernel["launches"]),
        str(kernel["replays"]),
        str(kernel["blocks"]),
        str(instructions),
        _ratio(kernel["lane_instructions"], instructions),
        _bytes(kernel["global_load"]["bytes"]),
        _bytes(kernel["global_store"]["bytes"]),
        _ratio(kernel["global_load"]["sectors"], kernel["global_load"]["requests"]),
        _ratio(kernel["global_store"]["sectors"], kernel["global_store"]["requests"]),
        _bytes(kernel["async_copy"]["bytes"]),
        _bytes(sum(access["bytes"] for access in shared)),
        str(sum(access["sectors"] - access["ideal"] for access in shared)),
        str(kernel["atomics"]["requests"]),
        _bytes(kernel["local"]["bytes"]),
    )


def _kinds(instructions: dict[str, int]) -> Iterator[str]:
    total = sum(instructions.values())
    for opcode, count in sorted(instructions.items(), key=lambda pair: (-pair[1], pair[0])):
        yield f"  {opcode:<28} {count:>12} {100 * count / total:5.1f} %"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    cells = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        name, *rest = row
        yield "  ".join([name.ljust(widths[0]), *(c.rjust(w) for c, w in zip(rest, widths[1:], strict=True))])


def _ratio(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "-"


def _bytes(count: int) -> str:
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.softgpu.report", description="Prints a run of the soft GPU."
    )
    parser.add_argument("file", type=Path, help="what the knob `report` had written")
    print(report(json.loads(parser.parse_args().file.read_text())))


if __name__ == "__main__":
    main()
