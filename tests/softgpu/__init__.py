"""The soft GPU as Python sees it: build it, load it, set its knobs, read what it found and counted.

Everything else goes through the CUDA driver API.
"""

import ctypes
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = [
    "Finding",
    "counters",
    "environment",
    "epoch",
    "expect_zero",
    "findings",
    "library",
    "load",
    "reset",
]

_epoch = 0
Knob = bool | int | float | str | Path


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the soft GPU objects to: the rule's name, what happened, where, and how often."""

    rule: str
    what: str
    where: str
    count: int


@cache
def library() -> Path:
    """The path of libcuda.so.1, built if need be; raises build.BuildError with the compiler's words.

    It stays what it was at the first call, though sources change meanwhile: one process tests one library.
    """
    from .build import build  # late, so that `python -m tests.softgpu.build` is not imported before it runs

    return build()


def environment(**knobs: Knob) -> dict[str, str]:
    """This process's environment for a child that is to find the soft GPU, set to these knobs, as its driver."""
    search = [str(library().parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SOFTGPU_")}
    settings = {f"SOFTGPU_{name.upper()}": _text(value) for name, value in knobs.items()}
    return inherited | settings | {"LD_LIBRARY_PATH": os.pathsep.join(search)}


def load() -> None:
    """Makes the soft GPU this process's libcuda.so.1; call it before anything looks for one."""
    _handle()
    # The bindings look their functions up once a process, at the driver version that is played then.
    from cuda.bindings import driver

    driver.cuDriverGetVersion()


def reset(**knobs: Knob) -> None:
    """Everything as in a fresh process, under these knobs: contexts, memory, modules, findings, counters are gone."""
    global _epoch
    _epoch += 1
    _handle().softgpu_reset("".join(f"{name}={_text(value)}\n" for name, value in knobs.items()).encode())


def epoch() -> int:
    """How many resets there were: what was made in another epoch is gone."""
    return _epoch


def findings() -> list[Finding]:
    """What was found since the last reset."""
    return [Finding(**found) for found in json.loads(_handle().softgpu_findings())]


def counters() -> dict[str, Any]:
    """What was counted since the last reset: {"driver": {...}, "calls": {function: n}, "kernels": {entry: {...}}}."""
    counted: dict[str, Any] = json.loads(_handle().softgpu_counters())
    return counted


def expect_zero(address: int, nbytes: int) -> None:
    """From now on these device bytes must be zero whenever a grid ends."""
    _handle().softgpu_expect_zero(address, nbytes)


@cache
def _handle() -> ctypes.CDLL:
    handle = ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL)
    handle.softgpu_reset.argtypes = [ctypes.c_char_p]
    handle.softgpu_reset.restype = None
    handle.softgpu_findings.restype = ctypes.c_char_p
    handle.softgpu_counters.restype = ctypes.c_char_p
    handle.softgpu_expect_zero.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    handle.softgpu_expect_zero.restype = None
    return handle


def _text(value: Knob) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
