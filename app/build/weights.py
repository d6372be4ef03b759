"""A snapshot's weights: which tensors are in which file, and their bytes in the snapshot's dtype.

Apart from the writer, which puts files of any kind in place.
"""

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..device.layout import SCALE_SUFFIX, STORED_BYTES, WeightDtype
from ..model.safetensors import Header, plan_header
from ..model.spec import TensorSpec
from .pieces import Piece
from .sources import Source
from .writer import sync

Shape = tuple[int, ...]
Report = Callable[[int], object]  # called with the bytes done since the last call


def stored_tensors(tensors: Sequence[TensorSpec], dtype: WeightDtype) -> Iterator[tuple[str, WeightDtype, Shape]]:
    """What a snapshot in `dtype` holds, in order. With int8 a scale follows each matrix, and vectors are fp32."""
    for tensor in tensors:
        if dtype != "I8":
            yield tensor.name, dtype, tensor.shape
        elif len(tensor.shape) == 1:
            yield tensor.name, "F32", tensor.shape
        else:
            yield tensor.name, dtype, tensor.shape
            yield tensor.name + SCALE_SUFFIX, "F32", tensor.shape[:1]


@dataclass(frozen=True, slots=True)
class Shard:
    """A weights file to write: its header, and the tensors in it with the pieces that make them."""

    header: Header
    tensors: tuple[tuple[TensorSpec, Sequence[Piece]], ...]


def plan_shards(source: Source, dtype: WeightDtype, limit: int | None, metadata: Mapping[str, str]) -> list[Shard]:
    """All tensors in one file, or in as few of at most `limit` bytes of data as their order allows.

    A tensor, with its scales, stays whole: a file may be larger by that.
    """
    parts: list[list[tuple[TensorSpec, Sequence[Piece]]]] = [[]]
    filled = 0
    for tensor, pieces in zip(source.description.tensors, source.pieces, strict=True):
        stored = stored_tensors([tensor], dtype)
        nbytes = sum(STORED_BYTES[kind] * math.prod(shape) for _, kind, shape in stored)
        if limit is not None and parts[-1] and filled + nbytes > limit:
            parts.append([])
            filled = 0
        parts[-1].append((tensor, pieces))
        filled += nbytes
    return [
        Shard(plan_header(stored_tensors([tensor for tensor, _ in part], dtype), metadata), tuple(part))
        for part in parts
    ]


def write_weights(file: Path, shard: Shard, dtype: WeightDtype, report: Report) -> str:
    """Writes the header and every tensor of `shard` in `dtype`. Returns the sha256 of the data section."""
    header = shard.header
    digest = hashlib.sha256()
    with contextlib.ExitStack() as files, open(file, "wb") as out:
        descriptors: dict[Path, int] = {}
        out.write(header.encoded)

        def put(chunk: memoryview | bytes) -> None:
            digest.update(chunk)
            out.write(chunk)

        def start(name: str) -> None:
            put(bytes(header.tensors[name].offset - out.tell()))

        for tensor, pieces in shard.tensors:
            start(tensor.name)
            scales = []
            for piece in pieces:
                if piece.file not in descriptors:
                    descriptors[piece.file] = files.enter_context(open(piece.file, "rb")).fileno()
                descriptor = descriptors[piece.file]
                if dtype == "I8" and len(tensor.shape) > 1:
                    for rows, scale in piece.quantize(descriptor):
                        put(rows.data)
                        scales.append(scale)
                        report(rows.nbytes + scale.nbytes)
                    continue
                for chunk in piece.recode(descriptor, "F32" if dtype == "I8" else dtype):
                    put(chunk.data)
                    report(chunk.nbytes)
            if scales:
                start(tensor.name + SCALE_SUFFIX)
                put(np.concatenate(scales).data)
        sync(out)
    return digest.hexdigest()
