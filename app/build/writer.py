"""Writes a snapshot's files beside their final place, and moves them there once all are complete and on the disk."""

import contextlib
import fcntl
import glob
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import UnavailableError


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


def write_document(file: Path, content: bytes) -> None:
    file.parent.mkdir(exist_ok=True)
    with open(file, "wb") as out:
        out.write(content)
        sync(out)


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    write_document(file, json.dumps(document, indent=2).encode() + b"\n")


def sync(out: Any) -> None:
    """Has what was written on the disk before it returns."""
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
