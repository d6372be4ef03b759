"""How numbers are encoded in a source file and in a snapshot: decoding to float32, encoding to a snapshot's dtypes.

Plain floats are here; blocks of quantized numbers, as GGUF has them, are in quants.py.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..device.layout import DTYPE_BYTES, WeightDtype
from .quants import BLOCKS, decode_blocks

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]

ENCODINGS = (*DTYPE_BYTES, *BLOCKS)


def block_size(encoding: str) -> tuple[int, int]:
    """Elements and bytes of the smallest piece of an encoding: (1, 2) for F16, (32, 18) for Q4_0."""
    if encoding in BLOCKS:
        return BLOCKS[encoding]
    return 1, DTYPE_BYTES[encoding]


def decode(raw: Bytes, encoding: str) -> Float32:
    """The numbers of whole blocks: [bytes] uint8 to [elements] float32, exactly."""
    match encoding:
        case "F32":
            return raw.view("<f4")
        case "F16":
            return raw.view("<f2").astype(np.float32)
        case "BF16":
            return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        case _:
            return decode_blocks(raw, encoding)


def encode(values: Float32, dtype: WeightDtype) -> NDArray[Any]:
    """`values` in `dtype`, rounded to nearest, ties to even; BF16 is given as uint16.

    Raises OverflowError for NaN, infinities and what the dtype cannot hold.
    """
    if not np.isfinite(values).all():
        raise OverflowError("holds NaN or an infinity")
    if dtype == "F32":
        return values
    if dtype == "F16":
        with np.errstate(over="ignore"):
            halves = values.astype("<f2")
        finite = np.isfinite(halves).all()
    else:
        bits = values.view(np.uint32)
        halves = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype("<u2")
        finite = ((halves & 0x7F80) != 0x7F80).all()
    if not finite:
        raise OverflowError(f"holds {np.abs(values).max():.5g}, which is more than {dtype} can hold")
    return halves


def quantize(values: Float32) -> tuple[NDArray[np.int8], Float32]:
    """Each row of `values` [rows, columns] in int8, rounded to nearest, and its scale: the largest becomes 127.

    Raises OverflowError for NaN and infinities.
    """
    if not np.isfinite(values).all():
        raise OverflowError("holds NaN or an infinity")
    scales = np.abs(values).max(axis=1) / np.float32(127)
    divisors = np.where(scales > 0, scales, 1)[:, None]
    return np.clip(np.rint(values / divisors), -127, 127).astype(np.int8), scales
