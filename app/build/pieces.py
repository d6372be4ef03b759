"""One source tensor of a build: where it lies, and how it is read and recoded a few megabytes at a time."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..device.layout import WeightDtype
from ..errors import ModelDataError
from .encodings import block_size, decode, encode, quantize

CHUNK_ELEMENTS = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """`shape` [rows, columns] or [rows]; the rows lie one behind another from `offset` on, in `encoding`.

    `paired_heads`: llama-type GGUF files store the rows of q and k so that the two that rotate together are
    neighbours, where transformers has them half a head apart. That many heads are put back; 0: nothing to put back.
    """

    file: Path
    name: str
    encoding: str
    shape: tuple[int, ...]
    offset: int
    paired_heads: int = 0

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def recode(self, descriptor: int, dtype: WeightDtype) -> Iterator[NDArray[Any]]:
        """The tensor's rows in `dtype`, chunk by chunk, read from the open file `descriptor`.

        Raises ModelDataError, naming file and tensor, where a number does not fit `dtype` or the file ends early.
        """
        rows, columns = self.shape[0], prod(self.shape[1:])
        step = max(1, CHUNK_ELEMENTS // max(columns, 1))
        if self.paired_heads:
            head = rows // self.paired_heads
            step = max(head, step - step % head)
        elements, nbytes = block_size(self.encoding)
        for first in range(0, rows, step):
            count = min(step, rows - first) * columns
            raw = self._read(descriptor, first * columns // elements * nbytes, count // elements * nbytes)
            if self.encoding == dtype and not self.paired_heads:
                yield raw
                continue
            values = decode(raw, self.encoding)
            if self.paired_heads:
                values = _unpair(values.reshape(-1, head, columns))
            try:
                yield encode(values, dtype)
            except OverflowError as error:
                raise ModelDataError(f"{self.file}: tensor {self.name!r} {error}; choose another --dtype") from None

    def quantize(self, descriptor: int) -> Iterator[tuple[NDArray[np.int8], NDArray[np.float32]]]:
        """A matrix's rows in int8 and their scales, chunk by chunk. Raises as `recode` does."""
        for chunk in self.recode(descriptor, "F32"):
            try:
                yield quantize(chunk.view(np.float32).reshape(-1, self.shape[1]))
            except OverflowError as error:
                raise ModelDataError(f"{self.file}: tensor {self.name!r} {error}") from None

    def _read(self, descriptor: int, start: int, length: int) -> NDArray[np.uint8]:
        buffer = np.empty(length, np.uint8)
        view, done = buffer.data, 0
        while done < length:
            got = os.preadv(descriptor, [view[done:]], self.offset + start + done)
            if got == 0:
                raise ModelDataError(f"{self.file}: tensor {self.name!r} is cut: the file became shorter")
            done += got
        return buffer


def _unpair(heads: NDArray[np.float32]) -> NDArray[np.float32]:
    """[heads, head_dim, columns]: rows 0, 1, 2, 3 ... of each head become 0, 2, 4 ..., 1, 3, 5 ... ."""
    return np.concatenate([heads[:, 0::2], heads[:, 1::2]], axis=1)
