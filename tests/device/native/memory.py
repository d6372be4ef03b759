"""Memory for ops under test: aligned as the library asks, and fenced, so that a write beside it is found.

Under a sanitizer (SANITIZED is set) there is no fence: each buffer is an allocation of exactly its size, and a read
beside it is found too.
"""

import ctypes
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

_LIBC = ctypes.CDLL(None)
_ALIGNMENT = 64
_FENCE = 0 if os.environ.get("SANITIZED") else 64  # bytes on either side
_POISON = 0xA5  # what a buffer holds before it is written: as fp32, -2.87e-16

_fences: list[np.ndarray] = []


def buffer(shape: int | Sequence[int], dtype: Any = np.float32) -> np.ndarray:
    """Uninitialized, but never zero."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    whole = _FENCE + nbytes + _FENCE
    address = ctypes.c_void_p()
    assert _LIBC.posix_memalign(ctypes.byref(address), _ALIGNMENT, ctypes.c_size_t(max(whole, 1))) == 0
    memory = (ctypes.c_uint8 * max(whole, 1)).from_address(address.value or 0)
    weakref.finalize(memory, _LIBC.free, ctypes.c_void_p(address.value)).atexit = False
    raw = np.frombuffer(memory, np.uint8)
    raw[:] = _POISON
    if _FENCE:
        _fences.append(raw[:_FENCE])
        _fences.append(raw[_FENCE + nbytes :])
    return raw[_FENCE : _FENCE + nbytes].view(dtype).reshape(shape)


def copy(values: Any, dtype: Any = None) -> np.ndarray:
    """`values` in a buffer."""
    values = np.asarray(values, dtype)
    out = buffer(values.shape, values.dtype)
    out[...] = values
    return out


def check_fences() -> None:
    """Nothing was written beside any buffer that was made since the last check."""
    broken = [fence for fence in _fences if (fence != _POISON).any()]
    _fences.clear()
    assert not broken
