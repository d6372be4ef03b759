"""`pilotlight build snapshot SOURCE -o DIR`: one directory that a server loads by a few large copies.

The order of work is: find everything and refuse what is wrong, then write beside, then rename. See
model/checkpoint.py for how a snapshot is read.
"""

import argparse
import hashlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast

from safetensors import safe_open

from .. import __version__
from ..command_line import Parser
from ..device.layout import WeightDtype
from ..errors import ModelDataError, UnavailableError, UsageError
from ..model.checkpoint import (
    MANIFEST,
    SHARDED_FORMAT,
    SNAPSHOT_FORMAT,
    hash_header,
    is_snapshot,
    open_checkpoint,
    read_manifest,
    weights_names,
)
from ..settings import parse_size
from ..source import expand
from .hub import NEEDS_EXTRA
from .sources import TOKENIZER, Source, open_source
from .tokenizer import is_mapped, write_mapped
from .weights import Report, Shard, plan_shards, write_weights
from .writer import check_space, replacing, write_document, write_json

_DTYPES: dict[str, WeightDtype] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8"}
_HASH_BYTES = 4 * 1024 * 1024


def command(argv: list[str]) -> int:
    """Runs `pilotlight build snapshot`. Returns the exit code; raises PilotlightError."""
    options = _parse(argv)
    output = Path(os.path.realpath(expand(options.output)))
    started = time.monotonic()
    previous = signal.signal(signal.SIGTERM, _terminated)
    try:
        built = build_snapshot(
            options.source, output, options.dtype, shard_bytes=options.shard_bytes, force=options.force, say=print
        )
    except (KeyboardInterrupt, _Terminated) as stop:
        print(f"pilotlight: interrupted; {output} is as it was", file=sys.stderr)
        return 128 + (signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, previous)
    manifest = read_manifest(output)
    size = sum(about["size"] for about in _about_files(manifest)) / 1e6
    weights = f"{size:.0f} MB of {manifest['dtype']} weights"
    if built:
        print(f"{output}: built in {time.monotonic() - started:.1f} s, {weights}")
    else:
        print(f"{output}: already built from {options.source}, {weights}")
    return 0


def build_snapshot(
    source: str,
    output: Path,
    dtype: str = "auto",
    *,
    shard_bytes: int | None = None,
    force: bool = False,
    say: Callable[[str], object] = lambda line: None,
) -> bool:
    """Makes the snapshot of `source` at `output`; False where it is there already.

    dtype: "float32", "float16", "bfloat16", "int8" (matrices, with a scale for each row; vectors are float32), or
    "auto" for the source's own (float32 for a quantized GGUF, which alone holds its numbers exactly). `shard_bytes`:
    of weights in a file at most, None for one file. `force` replaces another snapshot. `say` gets a line about the
    tokenizer. On any failure `output` stays as it was.
    """
    bar_class = _progress_bar()
    found = open_source(source)
    target = _target_dtype(found) if dtype == "auto" else _DTYPES[dtype]
    shards = plan_shards(found, target, shard_bytes, {"pilotlight_snapshot": str(SNAPSHOT_FORMAT)})
    source_bytes = sum(file.stat().st_size for file in found.files.values())
    total = source_bytes + sum(shard.header.file_size - shard.header.data_start for shard in shards)
    try:
        with bar_class(total=total, unit="B", unit_scale=True, delay=1, desc=output.name) as bar:
            manifest = _manifest(found, target, shards, bar.update)
            if _is_built(output, found, manifest, force):
                if not is_mapped(output / TOKENIZER):  # a snapshot of an earlier version
                    say(f"{output}: {write_mapped(output / TOKENIZER)}")
                return False
            check_space(output, sum(shard.header.file_size for shard in shards))
            with replacing(output) as partial:
                for shard, about in zip(shards, _about_files(manifest), strict=True):
                    file = partial / about["file"]
                    about["data_sha256"] = write_weights(file, shard, target, bar.update)
                    with safe_open(file, framework="numpy"):
                        pass  # any tool is to read the file, so the format's own library has the last word on it
                for name, content in found.documents.items():
                    write_document(partial / name, content)
                note = write_mapped(partial / TOKENIZER)
                write_json(partial / MANIFEST, manifest)
        say(f"{output}: {note}")
    except OSError as error:
        raise UnavailableError(f"{error.filename or output}: {error.strerror}; {output} is as it was") from error
    return True


class _Terminated(BaseException):
    """SIGTERM, raised so that what was begun is cleaned up."""


def _terminated(*_: object) -> NoReturn:
    raise _Terminated


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        "pilotlight build snapshot",
        "Turn a checkpoint into a snapshot: one directory that loads by a few large copies.",
    )
    parser.add_argument("source", metavar="SOURCE", help="Hugging Face directory, hub id (owner/name) or GGUF file")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="directory to make")
    parser.add_argument(
        "--dtype",
        choices=("auto", *_DTYPES),
        default="auto",
        help="dtype of the weights (default: auto, the source's own; float32 for a quantized GGUF)",
    )
    parser.add_argument(
        "--shard-bytes",
        type=_bytes,
        metavar="N",
        help="split the weights into files of at most N bytes, as 2000M or 2G, which an image can hold in layers of "
        "their own (default: one file)",
    )
    parser.add_argument("--force", action="store_true", help="replace another snapshot that stands at DIR")
    return parser.parse_args(argv)


def _bytes(text: str) -> int:
    with suppress(ValueError):
        if (number := parse_size(text)) > 0:
            return number
    raise argparse.ArgumentTypeError(f"expected a number of bytes, such as 2000M or 2G, found {text!r}")


def _progress_bar() -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        raise UnavailableError(f"`pilotlight build` {NEEDS_EXTRA}") from None
    return tqdm


def _target_dtype(source: Source) -> WeightDtype:
    """The encoding that most numbers of the source have, where it is one of ours."""
    count: Counter[str] = Counter()
    for pieces in source.pieces:
        for piece in pieces:
            count[piece.encoding] += piece.elements
    ((encoding, _),) = count.most_common(1)
    return cast(WeightDtype, encoding) if encoding in _DTYPES.values() else "F32"


def _manifest(source: Source, dtype: WeightDtype, shards: Sequence[Shard], report: Report) -> dict[str, Any]:
    """All but the hash of the data, which is known when it is written. Hashes the source's files."""
    files = [
        {"name": name, "size": file.stat().st_size, "sha256": _hash(file, report)}
        for name, file in source.files.items()
    ]
    names = {weight: name for name, weight in _DTYPES.items()}
    weights = [
        {
            "file": name,
            "size": shard.header.file_size,
            "data_start": shard.header.data_start,
            "tensors": len(shard.tensors),
            "header_sha256": hash_header(shard.header),
        }
        for name, shard in zip(weights_names(len(shards)), shards, strict=True)
    ]
    return {
        "format": SNAPSHOT_FORMAT if len(weights) == 1 else SHARDED_FORMAT,
        "pilotlight": __version__,
        "family": source.description.spec.family,
        "dtype": names[dtype],
        "source": {"location": source.location, "files": files},
        "weights": weights[0] if len(weights) == 1 else weights,
    }


def _about_files(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the manifest records of each weights file."""
    weights = manifest["weights"]
    return weights if isinstance(weights, list) else [weights]


def _is_built(output: Path, source: Source, manifest: Mapping[str, Any], force: bool) -> bool:
    """Whether `output` holds this snapshot already. Raises UsageError where something else is in the way."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return False
    if not output.is_dir() or not (output / MANIFEST).exists() or not is_snapshot(output):
        raise UsageError(f"{output}: is there and is not a snapshot; choose another directory or remove it")
    difference = _difference(output, source, manifest)
    if difference and not force:
        raise UsageError(f"{output}: holds another snapshot ({difference}); --force replaces it")
    return difference is None


def _difference(output: Path, source: Source, manifest: Mapping[str, Any]) -> str | None:
    """How the snapshot that is there differs, None where it does not. Its data is hashed too."""
    try:
        standing = read_manifest(output)
    except ModelDataError as error:
        return str(error)
    if standing.get("dtype") != manifest["dtype"]:
        return f"of {standing.get('dtype')}"
    if standing.get("format") != manifest["format"] or (
        isinstance(manifest["weights"], list) and len(standing.get("weights", ())) != len(manifest["weights"])
    ):
        return "with weights in another number of files"
    recorded = standing.get("source")
    if not isinstance(recorded, dict) or recorded.get("files") != manifest["source"]["files"]:
        return f"made from {recorded.get('location') if isinstance(recorded, dict) else 'something else'}"
    for name, content in source.documents.items():
        if not (output / name).is_file():
            return f"without {name}"
        if (output / name).read_bytes() != content:
            return f"with another {name}"
    try:
        open_checkpoint(output, source.description.tensors, verify=True)
    except ModelDataError as error:
        return str(error)
    return None


def _hash(file: Path, report: Report) -> str:
    digest = hashlib.sha256()
    with open(file, "rb") as stream:
        while block := stream.read(_HASH_BYTES):
            digest.update(block)
            report(len(block))
    return digest.hexdigest()
