"""Writes a snapshot's files beside their final place and puts them there when all are whole and on the disk."""

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..device.layout import SCALE_SUFFIX, WeightDtype
from ..errors import UnavailableError
from ..model.safetensors import Header
from ..model.spec import TensorSpec
from .sources import Source

Shape = tuple[int, ...]
Report = Callable[[int], object]  # called with the bytes done since the last call


@contextlib.contextmanager
def replacing(output: Path) -> Iterator[Path]:
    """A new directory beside `output` that takes its place when the block ends well, and is removed when it does not.

    What stood at `output` is removed after that. What killed builds have left beside it is removed first: a build
    holds a lock on its directory while it lives.
    """
    output = output.absolute()
    output.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(output)
    partial = _beside(output)
    partial.mkdir()
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # NFS, for one, locks no directory
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield partial
        os.fsync(descriptor)
        _put_in_place(partial, output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)


def check_space(output: Path, needed: int) -> None:
    """Raises UnavailableError where the disk cannot hold `needed` more bytes."""
    place = output.absolute().parent
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise UnavailableError(f"{place}: {free / 1e6:,.1f} MB are free, the snapshot needs {needed / 1e6:,.1f} MB")


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


def write_weights(file: Path, header: Header, source: Source, dtype: WeightDtype, report: Report) -> str:
    """Writes the header and every tensor of `source` in `dtype`. Returns the sha256 of the data section."""
    digest = hashlib.sha256()
    with contextlib.ExitStack() as files, open(file, "wb") as out:
        descriptors: dict[Path, int] = {}
        out.write(header.encoded)

        def put(chunk: memoryview | bytes) -> None:
            digest.update(chunk)
            out.write(chunk)

        def start(name: str) -> None:
            put(bytes(header.tensors[name].offset - out.tell()))

        for tensor, pieces in zip(source.description.tensors, source.pieces, strict=True):
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
        _sync(out)
    return digest.hexdigest()


def write_document(file: Path, content: bytes) -> None:
    file.parent.mkdir(exist_ok=True)
    with open(file, "wb") as out:
        out.write(content)
        _sync(out)


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    write_document(file, json.dumps(document, indent=2).encode() + b"\n")


def _sync(out: Any) -> None:
    out.flush()
    os.fsync(out.fileno())


def _put_in_place(partial: Path, output: Path) -> None:
    """Renames; a directory that has content is moved aside first, and back if the rename fails."""
    if output.exists() and any(output.iterdir()):
        aside = _beside(output)
        output.rename(aside)
        try:
            partial.rename(output)
        except BaseException:
            aside.rename(output)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    else:
        partial.rename(output)
    parent = os.open(output.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _beside(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial-{secrets.token_hex(4)}")


def _remove_abandoned(output: Path) -> None:
    """Only what `_beside` can have named: "out.partial-mine" is somebody's own."""
    for directory in output.parent.glob(f"{glob.escape(output.name)}.partial-{'[0-9a-f]' * 8}"):
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # gone meanwhile, or no directory
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # another build at work, or no way to tell
        finally:
            os.close(descriptor)
        shutil.rmtree(directory, ignore_errors=True)
