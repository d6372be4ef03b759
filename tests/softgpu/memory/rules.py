"""What the tests of memory rules share: a kernel run to its finding, and the finding held to its place."""

import ctypes
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.softgpu import Finding, ptx
from tests.softgpu.fixtures import Soft

# %tid.x is in %r2, %ctaid.x in %r0; `cells` is static shared memory.
SHARED = ".shared .align 16 .b8 cells[2048];"


def module(body: str, **shape: Any) -> str:
    """A kernel `probe` in whose body %r2 is the thread in the block and %r20 the shared address of `cells`."""
    shape.setdefault("before", SHARED)
    prologue = "mov.u32 %r2, %tid.x;\n" + ("mov.u32 %r20, cells;\n" if "cells[" in shape["before"] else "")
    return ptx.module(prologue + body, **shape)


def caught(
    soft: Soft, rule: str, text: str, statement: str, *arguments: Any, code: int | None = None, **shape: Any
) -> Finding:
    """Runs a kernel that breaks `rule` at the line that holds `statement`; returns the finding there.

    `code`: the CUresult that the launch ends with, where the rule is a fault.
    """
    if code is None:
        ptx.run(text, *arguments, **shape)
    else:
        with pytest.raises(ptx.DriverError) as error:
            ptx.run(text, *arguments, **shape)
        assert error.value.code == code
    found = soft.take_findings(rule)
    line = line_of(text, statement)
    assert found, "nothing was found"
    here = [one for one in found if re.search(rf"\bptx line {line}\b", one.where)]
    assert here, f"not at line {line}: " + "; ".join(one.where for one in found)
    assert here[0].where.startswith("probe block (")
    return here[0]


def line_of(text: str, statement: str) -> int:
    lines = [number for number, line in enumerate(text.split("\n"), 1) if statement in line]
    assert len(lines) == 1, f"{statement!r} is on lines {lines}"
    return lines[0]


def words(count: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.uint32)


def launch(text: str, values: Sequence[int], *, grid: int = 1, block: int = 32) -> None:
    """Launches `probe` in the current context with 64-bit arguments, and waits for it."""
    loaded = ptx.load(text)
    function = ptx.call("cuModuleGetFunction", loaded, b"probe")
    arguments = (tuple(values), (ctypes.c_uint64,) * len(values))
    ptx.call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, 0, arguments, 0)
    ptx.call("cuCtxSynchronize")
