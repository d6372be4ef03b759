"""Where each tensor's bytes lie: in the files of a checkpoint and in the device's slab.

A `Layout` is a slab plan (name, shape, dtype, offset) and a list of extents that fill it. A snapshot is the case
of one extent; a Hugging Face directory is the case of one extent for each source tensor.
"""

from pathlib import Path
from typing import Literal

import msgspec

WeightDtype = Literal["F32", "F16", "BF16", "I8"]  # safetensors' names
DTYPE_BYTES: dict[str, int] = {"F32": 4, "F16": 2, "BF16": 2}  # as checkpoints have them
STORED_BYTES: dict[str, int] = DTYPE_BYTES | {"I8": 1}  # as snapshots may
SCALE_SUFFIX = ".scale"  # tensor X of int8 is X * X.scale, of which each row of X has one number, in F32
TENSOR_ALIGNMENT = 256  # of a tensor in the slab
DATA_ALIGNMENT = 4096  # of the data section in a snapshot's file


class Extent(msgspec.Struct, frozen=True):
    """`length` bytes at `file_offset` of `file` belong at `slab_offset`."""

    file: Path
    file_offset: int
    length: int
    slab_offset: int


class Placed(msgspec.Struct, frozen=True):
    """A tensor in the slab."""

    name: str
    shape: tuple[int, ...]
    dtype: WeightDtype
    offset: int
    nbytes: int


class Layout(msgspec.Struct, frozen=True):
    tensors: tuple[Placed, ...]
    extents: tuple[Extent, ...]
    nbytes: int  # of the slab
