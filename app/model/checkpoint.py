"""From a directory on disk to a `Layout`: where each tensor's bytes lie and where they belong in the slab.

Two kinds of directory are opened: a snapshot of ours (manifest.json and weights.safetensors, one extent, or a few
shards of it) and a Hugging Face checkpoint as it lies on the hub (one extent for each source tensor). Only headers
are read here.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path, PurePosixPath
from typing import Any, cast

import msgspec

from ..device.layout import (
    DATA_ALIGNMENT,
    DTYPE_BYTES,
    SCALE_SUFFIX,
    STORED_BYTES,
    TENSOR_ALIGNMENT,
    Extent,
    Layout,
    Placed,
    WeightDtype,
)
from ..errors import ModelDataError
from .config import read_json
from .safetensors import FILLER_PREFIX, Header, TensorEntry, read_header
from .spec import TensorSpec

MANIFEST = "manifest.json"
SNAPSHOT_WEIGHTS = "weights.safetensors"
SNAPSHOT_FORMAT = 1
SHARDED_FORMAT = 2  # the weights in several files: a list in the manifest, which earlier versions do not know
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_REBUILD = "build it again with `pilotlight build snapshot`"
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
# Tensors that some tools save and nobody needs: the head of a tied model, tables that are computed.
_HARMLESS = (_HEAD, "rotary_emb.inv_freq", "rope_freqs.weight")
_HASH_BYTES = 8 * 1024 * 1024

_log = logging.getLogger(__name__)


class SourceTensor(msgspec.Struct, frozen=True):
    """A tensor of a Hugging Face checkpoint in its file."""

    file: Path
    entry: TensorEntry


def weights_names(count: int) -> list[str]:
    """A snapshot's weights files, in the order of the slab."""
    if count == 1:
        return [SNAPSHOT_WEIGHTS]
    return [f"weights-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def is_snapshot(directory: Path) -> bool:
    """Whether `directory` is a snapshot, whole or not. Other projects too have a file called manifest.json."""
    if (directory / SNAPSHOT_WEIGHTS).exists():
        return True
    try:
        return "pilotlight" in read_json(directory / MANIFEST)
    except ModelDataError:
        return False


def open_checkpoint(directory: Path, tensors: Sequence[TensorSpec], *, verify: bool = False) -> Layout:
    """The layout of a snapshot, or of a Hugging Face checkpoint, that holds exactly what `tensors` describe.

    With `verify` a snapshot's data is hashed too (a Hugging Face checkpoint carries no hash). Raises ModelDataError
    naming file and tensor.
    """
    if is_snapshot(directory):
        return _open_snapshot(directory, tensors, verify)
    if verify:
        _log.warning("%s: is no snapshot and carries no hashes: --verify has nothing to compare", directory)
    return _place(tensors, find_sources(directory, tensors))


def untied(directory: Path, config: dict[str, Any]) -> dict[str, Any]:
    """`config`, without its tie where a Hugging Face checkpoint has a head that differs from its embedding.

    Then the head counts, as in transformers, and a warning says so.
    """
    if config.get("tie_word_embeddings") is not True or is_snapshot(directory):
        return config
    try:
        files, headers = _headers(directory)
        embedding, head = (_source(directory, name, files, headers) for name in (_EMBEDDING, _HEAD))
    except ModelDataError:
        return config  # there is no head, or what is wrong is told when the model's tensors are looked for
    if _is_same(embedding, head):
        return config
    _log.warning(
        "%s: config.json ties %r to the embedding, but its values differ: it is used, and nothing is tied "
        "(tie_word_embeddings should be false)",
        head.file,
        _HEAD,
    )
    return config | {"tie_word_embeddings": False}


def find_sources(directory: Path, tensors: Sequence[TensorSpec]) -> list[tuple[SourceTensor, ...]]:
    """For each tensor its sources in a Hugging Face checkpoint, shapes checked. Raises ModelDataError."""
    files, headers = _headers(directory)
    found = []
    for tensor in tensors:
        sources = tuple(_source(directory, name, files, headers) for name in tensor.sources)
        check_shapes(tensor, [(source.file, source.entry.name, source.entry.shape) for source in sources])
        found.append(sources)
    wanted = {name for tensor in tensors for name in tensor.sources}
    report_ignored(directory, files, wanted)
    return found


def read_index(directory: Path) -> dict[str, Path]:
    """Which file holds each tensor, as the index of a sharded checkpoint says. Raises ModelDataError."""
    index = directory / INDEX_FILE
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelDataError(f"{index}: has no weight_map")
    files = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard or shard.startswith("/") or ".." in PurePosixPath(shard).parts:
            raise ModelDataError(f"{index}: tensor {name!r} lies in {shard!r}, which is no file of the directory")
        files[name] = directory / shard
    return files


def check_shapes(tensor: TensorSpec, sources: Sequence[tuple[Path, str, tuple[int, ...]]]) -> None:
    """Whether the sources (file, name, shape), stacked along their rows, make `tensor`. Raises ModelDataError."""
    for file, name, shape in sources:
        if len(shape) != len(tensor.shape) or shape[1:] != tensor.shape[1:]:
            rows = tensor.shape[0] if len(sources) == 1 else "rows"
            expected = ", ".join(str(size) for size in (rows, *tensor.shape[1:]))
            raise ModelDataError(
                f"{file}: tensor {name!r} has shape {list(shape)}, config.json asks for [{expected}]"
            )
    rows = sum(shape[0] for _, _, shape in sources)
    if rows != tensor.shape[0]:
        file = sources[0][0]
        shown = ", ".join(f"{name!r} has {shape[0]}" for _, name, shape in sources)
        raise ModelDataError(f"{file}: {shown} rows, config.json asks for {tensor.shape[0]}")


def report_ignored(where: Path, names: Iterable[str], wanted: Set[str]) -> None:
    """Logs which of a checkpoint's tensors nobody reads.

    One that is of a kind of layer that is read (a bias, a scale, a layer too many) may matter: it is a warning.
    """
    stems = {_pattern(name.rpartition(".")[0]) for name in wanted}
    ignored = [name for name in names if name not in wanted and not name.endswith(_HARMLESS)]
    telling = [name for name in ignored if any(stem in stems for stem in _stems(_pattern(name)))]
    for level, group in ((logging.WARNING, telling), (logging.DEBUG, sorted(set(ignored) - set(telling)))):
        if group:
            more = f" and {len(group) - 3} more" if len(group) > 3 else ""
            shown = ", ".join(map(repr, group[:3]))
            _log.log(level, "%s: tensors that config.json does not ask for are ignored: %s%s", where, shown, more)


# --- Hugging Face checkpoints ---------------------------------------------------------------------------------


def _headers(directory: Path) -> tuple[dict[str, Path], dict[Path, Header]]:
    """Which file holds each tensor, and the headers of those files. With an index nothing else is looked at."""
    index = directory / INDEX_FILE
    if index.exists():
        files = read_index(directory)
        headers = {}
        for file in dict.fromkeys(files.values()):
            if not os.path.exists(file):  # where pathlib raises for a name too long
                raise ModelDataError(f"{file}: the shard is missing, but {INDEX_FILE} names it")
            headers[file] = read_header(file)
        return files, headers
    single = directory / SINGLE_FILE
    if not single.exists():
        raise ModelDataError(f"{directory}: has neither {SINGLE_FILE} nor {INDEX_FILE}{_other_weights(directory)}")
    header = read_header(single)
    return dict.fromkeys(header.tensors, single), {single: header}


def _source(directory: Path, name: str, files: Mapping[str, Path], headers: Mapping[Path, Header]) -> SourceTensor:
    file = files.get(name)
    if file is None:
        where = INDEX_FILE if (directory / INDEX_FILE).exists() else SINGLE_FILE
        hint = "; the model is not tied (tie_word_embeddings)" if name == _HEAD else ""
        raise ModelDataError(f"{directory / where}: tensor {name!r} is missing, config.json asks for it{hint}")
    entry = headers[file].tensors.get(name)
    if entry is None:
        raise ModelDataError(f"{file}: tensor {name!r} is missing, but {INDEX_FILE} says that it is in this shard")
    if entry.dtype not in DTYPE_BYTES:
        raise ModelDataError(
            f"{file}: tensor {name!r} is of dtype {entry.dtype}, expected one of {', '.join(DTYPE_BYTES)}"
        )
    return SourceTensor(file, entry)


def _is_same(first: SourceTensor, second: SourceTensor) -> bool:
    if (first.entry.dtype, first.entry.shape) != (second.entry.dtype, second.entry.shape):
        return False
    with open(first.file, "rb") as one, open(second.file, "rb") as other:
        one.seek(first.entry.offset)
        other.seek(second.entry.offset)
        left = first.entry.nbytes
        while left > 0:
            count = min(left, _HASH_BYTES)
            if one.read(count) != other.read(count):
                return False
            left -= count
    return True


def _place(tensors: Sequence[TensorSpec], found: Iterable[tuple[SourceTensor, ...]]) -> Layout:
    placed, extents = [], []
    position = 0
    for tensor, sources in zip(tensors, found, strict=True):
        position += -position % TENSOR_ALIGNMENT
        start, first = position, sources[0]
        for source in sources:
            if source.entry.dtype != first.entry.dtype:
                raise ModelDataError(
                    f"{source.file}: tensor {source.entry.name!r} is of dtype {source.entry.dtype}, but "
                    f"{first.entry.name!r}, with which it is fused, of {first.entry.dtype}; build a snapshot of one "
                    "dtype with `pilotlight build snapshot`"
                )
            extents.append(Extent(source.file, source.entry.offset, source.entry.nbytes, position))
            position += source.entry.nbytes
        dtype = cast(WeightDtype, first.entry.dtype)
        placed.append(Placed(tensor.name, tensor.shape, dtype, start, position - start))
    return Layout(tuple(placed), tuple(extents), position)


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _stems(name: str) -> Iterator[str]:
    """ "a.q_proj.lora_A.weight" -> "a.q_proj.lora_A", "a.q_proj", "a"."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _other_weights(directory: Path) -> str:
    """A hint for what lies there instead."""
    for pattern, hint in (
        ("pytorch_model*.bin", "PyTorch files are not read, convert them to safetensors"),
        ("*.gguf", "turn the GGUF file into a snapshot with `pilotlight build snapshot FILE -o DIR`"),
        ("adapter_model.safetensors", "this is an adapter, not a model"),
    ):
        if any(directory.glob(pattern)):
            return f"; {hint}"
    return ""


# --- snapshots ------------------------------------------------------------------------------------------------


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a snapshot, its format version checked. Raises ModelDataError."""
    file = directory / MANIFEST
    if not file.exists():
        raise ModelDataError(f"{directory}: has {SNAPSHOT_WEIGHTS} but no {MANIFEST}; {_REBUILD}")
    manifest = read_json(file)
    version = manifest.get("format")
    if version not in (SNAPSHOT_FORMAT, SHARDED_FORMAT):
        formats = f"{SNAPSHOT_FORMAT} and {SHARDED_FORMAT}"
        raise ModelDataError(f"{file}: snapshot format {version!r}, this version reads {formats}; {_REBUILD}")
    return manifest


def hash_data(file: Path, start: int) -> str:
    """sha256 of a file from byte `start` to its end."""
    import hashlib

    digest = hashlib.sha256()
    with open(file, "rb") as stream:
        stream.seek(start)
        while block := stream.read(_HASH_BYTES):
            digest.update(block)
    return digest.hexdigest()


def hash_header(header: Header) -> str:
    """sha256 of what precedes the data."""
    import hashlib

    return hashlib.sha256(header.encoded).hexdigest()


def _open_snapshot(directory: Path, tensors: Sequence[TensorSpec], verify: bool) -> Layout:
    recorded = read_manifest(directory).get("weights")
    shards = recorded if isinstance(recorded, list) else [recorded]
    if not shards or not all(isinstance(shard, dict) for shard in shards):
        raise ModelDataError(f"{directory / MANIFEST}: says nothing about the weights; {_REBUILD}")
    found: dict[str, _Stored] = {}
    extents = []
    end = 0
    for name, shard in zip(weights_names(len(shards)), shards, strict=True):
        file = directory / name
        header = _read_recorded(file, shard, verify)
        start = end + -end % TENSOR_ALIGNMENT
        for entry in header.tensors.values():
            if entry.name.startswith(FILLER_PREFIX):
                continue
            if entry.name in found:
                raise ModelDataError(
                    f"{file}: tensor {entry.name!r} is in {found[entry.name].file.name} too; {_REBUILD}"
                )
            found[entry.name] = _Stored(file, entry, start + entry.offset - header.data_start)
        end = start + header.file_size - header.data_start
        extents.append(Extent(file, header.data_start, end - start, start))
    return Layout(_snapshot_table(directory / weights_names(len(shards))[0], found, tensors), tuple(extents), end)


class _Stored(msgspec.Struct, frozen=True):
    """A tensor of a snapshot, and where it belongs in the slab."""

    file: Path
    entry: TensorEntry
    slab_offset: int


def _read_recorded(file: Path, recorded: Mapping[str, Any], verify: bool) -> Header:
    """The header of a snapshot's weights file, which must be the one that the manifest records."""
    if not file.exists():
        raise ModelDataError(f"{file}: the snapshot's weights are missing; {_REBUILD}")
    header = read_header(file)
    if hash_header(header) != recorded.get("header_sha256"):
        if _lost_layout(header):
            raise ModelDataError(
                f"{file}: was saved again by another tool and lost the layout that loading needs; {_REBUILD}"
            )
        raise ModelDataError(f"{file}: its header is not the one that {MANIFEST} records; {_REBUILD}")
    if header.file_size != recorded.get("size"):
        raise ModelDataError(f"{file}: has {header.file_size} bytes, {MANIFEST} records {recorded.get('size')}")
    if verify and hash_data(file, header.data_start) != recorded.get("data_sha256"):
        raise ModelDataError(f"{file}: its data differs from what {MANIFEST} records (sha256); {_REBUILD}")
    return header


def _lost_layout(header: Header) -> bool:
    if header.data_start % DATA_ALIGNMENT:
        return True
    return any(
        (entry.offset - header.data_start) % TENSOR_ALIGNMENT
        for entry in header.tensors.values()
        if not entry.name.startswith(FILLER_PREFIX)
    )


def _snapshot_table(first: Path, found: Mapping[str, _Stored], tensors: Sequence[TensorSpec]) -> tuple[Placed, ...]:
    """The tensors in the order of `tensors`, then scales of int8; they are all that may be there.

    first: of the weights files, to say where a tensor is missing.
    """
    placed, wanted = [], list(tensors)
    for tensor in wanted:  # which grows by the scales
        stored = found.get(tensor.name)
        if stored is None:
            raise ModelDataError(f"{first}: tensor {tensor.name!r} is missing, config.json asks for it; {_REBUILD}")
        file, entry = stored.file, stored.entry
        if entry.shape != tensor.shape:
            raise ModelDataError(
                f"{file}: tensor {tensor.name!r} has shape {list(entry.shape)}, config.json asks for "
                f"{list(tensor.shape)}; {_REBUILD}"
            )
        is_scale = tensor.name.endswith(SCALE_SUFFIX)
        is_vector = len(tensor.shape) == 1
        if (
            entry.dtype not in STORED_BYTES
            or (is_scale and entry.dtype != "F32")
            or (is_vector and entry.dtype == "I8")
        ):
            raise ModelDataError(f"{file}: tensor {tensor.name!r} is of dtype {entry.dtype}; {_REBUILD}")
        if entry.dtype == "I8":
            wanted.append(TensorSpec(tensor.name + SCALE_SUFFIX, tensor.shape[:1], ()))
        dtype = cast(WeightDtype, entry.dtype)
        placed.append(Placed(tensor.name, entry.shape, dtype, stored.slab_offset, entry.nbytes))
    names = {tensor.name for tensor in wanted}
    for name, stored in found.items():
        if name not in names:
            raise ModelDataError(
                f"{stored.file}: tensor {name!r} is there, config.json does not ask for it; {_REBUILD}"
            )
    return tuple(placed)
