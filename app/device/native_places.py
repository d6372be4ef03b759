"""Where everything that a step reads and writes lies in one slab: a fixed place for each, sized by the largest step.

Apart from the device because the size is asked for before anything is allocated. Each op writes to a place that it
does not read (but for norm's residual), so that no op has to know of the others:

    embed -> residual     norm -> normed     linear -> linear     rope_and_cache -> q     attention -> attended
    gated_linear -> gated     wanted -> rows, residual_rows     logits -> logits
"""

import mmap
from collections.abc import Mapping
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ..errors import UnavailableError
from .base import AttentionShape, StepShape

_ALIGNMENT = 64
_FLOAT, _INT = 4, 4  # bytes


class Places:
    """Byte offsets by name, and `nbytes` of them all."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        rounded = [size + -size % _ALIGNMENT for size in sizes.values()]
        self.offsets = dict(zip(sizes, accumulate([0, *rounded]), strict=False))
        self.nbytes = sum(rounded)


def plan_places(shape: AttentionShape, step: StepShape, scratch: Mapping[str, int]) -> Places:
    """The places of the largest step that `step` allows. `scratch`: what the library's ops take beside, by name."""
    tokens, seqs = step.num_tokens, step.num_seqs
    q_size = shape.num_heads * shape.head_dim
    qkv_size = q_size + 2 * shape.num_kv_heads * shape.head_dim
    floats = {
        "residual": tokens * step.hidden_size,
        "normed": tokens * step.hidden_size,
        "linear": tokens * max(qkv_size, step.hidden_size),
        "q": tokens * q_size,
        "attended": tokens * q_size,
        "gated": tokens * step.intermediate_size,
        "rows": tokens * step.hidden_size,
        "residual_rows": tokens * step.hidden_size,
        "logits": step.num_logits * step.vocab_size,
    }
    integers = {
        "counts": 4,  # T, S, rows wanted, rows sampled
        "tokens": tokens,
        "positions": tokens,
        "slots": tokens,
        "starts": seqs + 1,
        "lengths": seqs,
        "pages": seqs * -(-step.max_length // shape.page_size),
        "page_starts": seqs + 1,
        "wanted": tokens,
        "targets": tokens,
        "top": 1,
    }
    return Places(
        {name: count * _FLOAT for name, count in floats.items()}
        | {name: count * _INT for name, count in integers.items()}
        | dict(scratch)
    )


class Slab:
    """Memory for `Places`. It takes none of the machine's before it is written."""

    def __init__(self, places: Places) -> None:
        self._memory = memory = anonymous(places.nbytes)
        base = memory.ctypes.data
        self.addresses = {name: base + offset for name, offset in places.offsets.items()}
        ends = [*places.offsets.values(), places.nbytes][1:]
        self._words = {
            name: memory[start:end].view(np.int32)
            for (name, start), end in zip(places.offsets.items(), ends, strict=True)
        }

    def put(self, name: str, values: NDArray[np.int32]) -> None:
        self._words[name][: len(values)] = values


def anonymous(nbytes: int) -> NDArray[np.uint8]:
    """Zeros at a page's boundary, which take no memory before they are written.

    Raises UnavailableError where the system promises no more (vm.overcommit_memory, ulimit -v).
    """
    try:
        mapping = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise UnavailableError(
            f"{nbytes / 1e6:,.0f} MB for K/V and activations: {error.strerror}; a smaller --kv-cache-memory-bytes or "
            "--max-model-len takes less"
        ) from None
    return np.frombuffer(mapping, np.uint8)
