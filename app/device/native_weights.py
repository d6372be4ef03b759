"""Weights for the CPU library: matrices lie where the file is mapped, in the file's own dtype; vectors are fp32.

A matrix that the checkpoint has in several pieces (q, k and v of a Hugging Face directory) is put together once, and
its pieces are then no longer kept in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import native_abi as abi
from .base import Float32
from .layout import SCALE_SUFFIX, STORED_BYTES, Layout, Placed
from .mapped import forget, tensors_of
from .numpy_weights import widened

_TYPES = {"F32": abi.F32, "F16": abi.F16, "BF16": abi.BF16, "I8": abi.I8}


@dataclass(frozen=True, slots=True)
class Matrix:
    """[rows, columns] as the library takes it; the arrays are what has to stay for it."""

    record: abi.Matrix
    memory: NDArray[Any]
    scales: Float32 | None  # [rows], of int8

    @property
    def rows(self) -> int:
        return int(self.record.rows)

    @property
    def columns(self) -> int:
        return int(self.record.columns)


Weight = Matrix | Float32  # a vector is an array


def loaded_bytes(layout: Layout) -> int:
    return sum(tensor.nbytes if len(tensor.shape) > 1 else 4 * tensor.shape[0] for tensor in layout.tensors)


def load_weights(layout: Layout) -> dict[str, Weight]:
    """The tensors by name. Raises ModelDataError for a file that is shorter than the layout says."""
    vectors, matrices = {}, []
    for tensor, views in tensors_of(layout):
        if len(tensor.shape) > 1:
            matrices.append((tensor, views))
        else:
            vectors[tensor.name] = widened(tensor, views)
    scales = {tensor.name: vectors.pop(tensor.name + SCALE_SUFFIX, None) for tensor, _ in matrices}
    return vectors | {tensor.name: _matrix(tensor, views, scales[tensor.name]) for tensor, views in matrices}


def _matrix(tensor: Placed, views: Sequence[memoryview], scales: Float32 | None) -> Matrix:
    memory = np.frombuffer(views[0], np.uint8)
    if len(views) > 1 or memory.ctypes.data % STORED_BYTES[tensor.dtype]:
        memory = np.concatenate([np.frombuffer(view, np.uint8) for view in views])
        for view in views:
            forget(view)
    rows, columns = tensor.shape
    scale = None if scales is None else scales.ctypes.data
    return Matrix(abi.Matrix(memory.ctypes.data, scale, rows, columns, _TYPES[tensor.dtype]), memory, scales)
