"""What a kernel launch is, as plain data: the ops beside this file compute it, a driver runs it.

Kept apart from any driver so that the geometry of a launch is the same arithmetic in the engine, in the kernels'
tests and in their benchmarks.
"""

from dataclasses import dataclass
from typing import Literal

Half = Literal["bfloat16", "float16"]  # what activations and weights are computed from; sums are in fp32
Dim3 = tuple[int, int, int]
NULL = 0  # an absent tensor's device address
SUFFIX: dict[Half, str] = {"bfloat16": "bf16", "float16": "f16"}  # of an entry's name


@dataclass(frozen=True, slots=True)
class Gpu:
    """The figures of a card that the geometry of a launch depends on."""

    capability: tuple[int, int]  # (8, 0)
    sm_count: int
    shared_bytes: int  # of one block, at most, once the kernel's attribute asks for it


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch. `arguments` are in the order of the entry's parameters: device addresses and integers as
    int, fp32 as float; the manifest gives each one's width."""

    module: str  # of ptx/: "norm"
    entry: str  # "norm_rms_bf16"
    grid: Dim3
    block: Dim3
    shared_bytes: int  # dynamic shared memory
    arguments: tuple[int | float, ...]


def require_aligned(**addresses: int) -> None:
    """Raises ValueError for a tensor that kernels could not read 16 bytes at a time."""
    for name, address in addresses.items():
        if address % 16 != 0:
            raise ValueError(f"{name} at {address:#x} is not 16-byte aligned")
