"""What a snapshot is made from, behind one interface: a Hugging Face directory, a hub id or a GGUF file."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelDataError, ModelNotFoundError
from ..model.checkpoint import find_sources, is_snapshot, untied
from ..model.config import CONFIG_FILE, read_config
from ..model.families import describe
from ..model.spec import Description
from ..source import expand, is_hub_id
from ..text.assets import load_text
from . import gguf_model, gguf_tokenizer, hub
from .gguf import read_gguf
from .pieces import Piece

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
# The small files that serving reads, as patterns; a snapshot takes those that are there.
DOCUMENTS = (
    CONFIG_FILE,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    CHAT_TEMPLATE,
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)


@dataclass(frozen=True, slots=True)
class Source:
    """`pieces` are aligned with the description's tensors; `files` are all that the snapshot depends on."""

    location: str
    description: Description
    pieces: list[tuple[Piece, ...]]
    documents: Mapping[str, bytes]
    files: Mapping[str, Path]


def open_source(source: str) -> Source:
    """Finds and checks everything that a snapshot of `source` needs; reads headers and small files only.

    A hub id is downloaded first. Raises ModelDataError, ModelNotFoundError or UnavailableError.
    """
    path = expand(source)
    if os.path.isdir(path):
        return _hugging_face(path, str(path))
    if os.path.isfile(path):
        return _gguf(path)
    if not is_hub_id(source):
        raise ModelNotFoundError(f"{source}: no such file or directory")
    directory, commit = hub.download(source, DOCUMENTS)
    return _hugging_face(directory, f"{source}@{commit}")


def _hugging_face(directory: Path, location: str) -> Source:
    if is_snapshot(directory):
        raise ModelDataError(f"{directory}: is a snapshot already; it is served as it is")
    given = read_config(directory)
    config = untied(directory, given)
    description = describe(config)
    pieces = [
        tuple(Piece(it.file, it.entry.name, it.entry.dtype, it.entry.shape, it.entry.offset) for it in sources)
        for sources in find_sources(directory, description.tensors)
    ]
    found = [file for pattern in DOCUMENTS for file in sorted(directory.glob(pattern)) if file.is_file()]
    names = [str(file.relative_to(directory)) for file in found]
    load_text(directory)  # a snapshot of what cannot be read could not be served
    documents = {name: _read(directory / name) for name in names}
    if config is not given:
        documents[CONFIG_FILE] = _json(config)
    files = {piece.file for sources in pieces for piece in sources} | {directory / name for name in names}
    return Source(
        location,
        description,
        pieces,
        documents=documents,
        files={str(file.relative_to(directory)): file for file in sorted(files)},
    )


def _gguf(file: Path) -> Source:
    gguf = read_gguf(file)
    config = gguf_model.config_of(gguf)
    description = describe(config)
    documents = {
        CONFIG_FILE: _json(config),
        GENERATION_CONFIG: _json(gguf_model.generation_config_of(gguf)),
        TOKENIZER: _json(gguf_tokenizer.tokenizer_of(gguf)),
        TOKENIZER_CONFIG: _json(gguf_tokenizer.tokenizer_config_of(gguf)),
    }
    templates = gguf_tokenizer.chat_templates_of(gguf)
    if list(templates) == ["default"]:
        documents[CHAT_TEMPLATE] = templates["default"].encode()
    pieces = gguf_model.find_pieces(gguf, config, description.tensors)
    return Source(str(file), description, pieces, documents, {file.name: file})


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ModelDataError(f"{file}: cannot be read: {error.strerror}") from None


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, indent=1).encode()
