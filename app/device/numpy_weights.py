"""Weights for the numpy device: fp32 that lies in one piece is used where it is mapped, the rest is made fp32."""

from collections.abc import Sequence

import numpy as np

from .base import Float32
from .layout import SCALE_SUFFIX, STORED_BYTES, Layout, Placed
from .mapped import tensors_of

_PIECE_BYTES = 16 << 20  # half-precision weights are read and widened in such pieces


def loaded_bytes(layout: Layout) -> int:
    """Bytes of all tensors in fp32."""
    return sum(4 * tensor.nbytes // STORED_BYTES[tensor.dtype] for tensor in layout.tensors)


def load_weights(layout: Layout) -> dict[str, Float32]:
    """The tensors by name. Raises ModelDataError for a file that is shorter than the layout says."""
    found = {tensor.name: widened(tensor, views) for tensor, views in tensors_of(layout)}
    for name in [name for name in found if name.endswith(SCALE_SUFFIX)]:
        scales, matrix = found.pop(name), found[name.removesuffix(SCALE_SUFFIX)]
        matrix.flags.writeable = True
        matrix *= scales[:, None]
        matrix.flags.writeable = False
    return found


def widened(tensor: Placed, views: Sequence[memoryview]) -> Float32:
    """A tensor in fp32, made of its pieces; where it lies if it is fp32 in one piece already."""
    if tensor.dtype == "F32" and len(views) == 1:
        mapped = np.frombuffer(views[0], np.float32)
        if mapped.flags.aligned:
            return mapped.reshape(tensor.shape)
    values = np.empty(tensor.shape, np.float32)
    flat, position = values.reshape(-1), 0
    size = STORED_BYTES[tensor.dtype]
    for view in views:
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            count = len(piece) // size
            _widen(piece, tensor.dtype, flat[position : position + count])
            position += count
    values.flags.writeable = False
    return values


def _widen(piece: memoryview, dtype: str, out: Float32) -> None:
    if dtype == "BF16":  # the upper half of an fp32
        np.left_shift(np.frombuffer(piece, np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)
    else:
        out[:] = np.frombuffer(piece, {"F32": np.float32, "F16": np.float16, "I8": np.int8}[dtype])
