"""tokenizer.safetensors from a tokenizer.json: the form that a server maps instead of loading (text/mapped_file.py).

A BPE model whose every character has a token, has bytes that have tokens, or adds nothing can be mapped; its
normaliser, pre-tokeniser, decoder and post-processor may be anything, as they stay the library's. Every other
tokenizer stays with the library, and so does one that, mapped, gives other ids than the library does.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Library
from tokenizers import models
from tokenizers.pre_tokenizers import ByteLevel

from ..text import mapped_file
from ..text.library import LibraryVocabulary
from ..text.mapped import FRAME_MODEL, MappedVocabulary
from ..text.mapped_file import InvalidTablesError, read_tables
from .writer import write_document

_LETTERS = frozenset(ByteLevel.alphabet())
# GPT-2's letters of the bytes that no UTF-8 text has: 0xC0, 0xC1, 0xF5 to 0xFF.
_LETTERS_OF_NO_TEXT = frozenset("ÀÁõö÷øùúûüýþÿ")
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_PROBE = "Hello wörld, 你好 😀 12345\n\n\tx  == y"
_TRIALS = (
    "",
    "a",
    " a  b ",
    _PROBE,
    "x" * 300,
    "한국어 " * 9,
    "\u200d\ufeff\0",
    "e\u0301\r\n\r\n  ",
    " \u2581<0xE4>",
)
_TRIAL_TOKENS = 20_000  # of the vocabulary, whose texts are tried


class UnmappableError(Exception):
    """The tokenizer stays with the library. The message says why."""


def write_mapped(tokenizer_json: Path) -> str:
    """Writes the mapped form beside `tokenizer_json`, whole or not at all. Returns a line that says which.

    Raises ModelDataError for what is no tokenizer.json.
    """
    file = tokenizer_json.with_name(mapped_file.NAME)
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        library = LibraryVocabulary.from_file(tokenizer_json).library
        try:
            content = map_tokenizer(tokenizer_json, library)
        except (LookupError, TypeError, ValueError) as error:  # the library takes it all the same
            raise UnmappableError(f"its form is not known ({error!r:.80})") from None
        write_document(partial, content)
        _check(partial, tokenizer_json, library)
        os.replace(partial, file)
    except UnmappableError as error:
        file.unlink(missing_ok=True)
        return f"{tokenizer_json.name}: {error}; a server loads it whole"
    finally:
        partial.unlink(missing_ok=True)
    return f"{file.name}: {library.get_vocab_size()} tokens, {file.stat().st_size / 1e6:.1f} MB"


def is_mapped(tokenizer_json: Path) -> bool:
    """Whether a mapped form that can be used lies beside it."""
    with suppress(InvalidTablesError):
        read_tables(tokenizer_json.with_name(mapped_file.NAME), tokenizer_json)
        return True
    return False


def map_tokenizer(tokenizer_json: Path, library: Library) -> bytes:
    """The file's content. Raises UnmappableError."""
    content = tokenizer_json.read_bytes()
    document = json.loads(content)
    if not isinstance(library.model, models.BPE):
        raise UnmappableError(f"its model is {type(library.model).__name__}, not BPE")
    model = document["model"]
    vocabulary: dict[str, int] = model["vocab"]
    fallback = _check_model(model, vocabulary, document.get("pre_tokenizer"))
    pairs, merged, results = _merges(model["merges"], vocabulary, fallback)
    added = dict(sorted(library.get_added_tokens_decoder().items()))
    added_only = [token for token, properties in added.items() if properties.content not in vocabulary]
    special = [token for token, properties in added.items() if properties.special]
    spellings, by_spelling, aliases = _spellings(library)
    prefix, suffix = _around(library)
    probe = _PROBE + (added[special[0]].content if special else "")
    arrays: dict[str, NDArray[Any]] = {
        mapped_file.SPELLINGS: np.frombuffer(b"".join(spellings), np.uint8),
        mapped_file.OFFSETS: np.cumsum([0, *map(len, spellings)]).astype(np.uint32),
        mapped_file.BY_SPELLING: np.array(by_spelling, np.uint32),
        mapped_file.PAIRS: pairs,
        mapped_file.MERGED: merged,
        mapped_file.JOINS: _joins(results),
        mapped_file.ADDED: np.array(list(added), np.uint32),
        mapped_file.ADDED_ONLY: np.array(added_only, np.uint32),
        mapped_file.SPECIAL: np.array(special, np.uint32),
        mapped_file.FRAME: np.frombuffer(_frame(document, added.values()), np.uint8),
    }
    notes = {
        "origin_bytes": len(content),
        "origin_sha256": hashlib.sha256(content).hexdigest(),
        "fallback": fallback,
        "prefix": prefix,
        "suffix": suffix,
        "decoder": json.loads(library.decoder.__getstate__()) if library.decoder else None,
        "aliases": aliases,
        "whole": _whole_words(library.model, vocabulary) if model.get("ignore_merges") else {},
        "probe": [probe, library.encode(probe, add_special_tokens=False).ids],
    }
    return _encode_file(arrays, notes)


def _check_model(model: Mapping[str, Any], vocabulary: Mapping[str, int], pre_tokenizer: Any) -> bool:
    """Whether unknown characters become bytes; else they add nothing, or there are none. Raises UnmappableError."""
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise UnmappableError(f"its BPE has a {name}")
    if model.get("byte_fallback"):
        found = sum(name in vocabulary for name in _BYTES)
        if found == len(_BYTES):
            return True
        if found:
            raise UnmappableError(f"its BPE falls back to bytes, of which {len(_BYTES) - found} have no token")
    if model.get("unk_token") is not None and not (
        _ends_in_byte_level(pre_tokenizer) and vocabulary.keys() >= _LETTERS - _LETTERS_OF_NO_TEXT
    ):
        raise UnmappableError("its BPE has a token for unknown characters")
    return False


def _ends_in_byte_level(pre_tokenizer: Any) -> bool:
    match pre_tokenizer:
        case {"type": "ByteLevel"}:
            return True
        case {"type": "Sequence", "pretokenizers": [*_, last]}:
            return _ends_in_byte_level(last)
    return False


def _merges(
    listed: Sequence[str | Sequence[str]], vocabulary: Mapping[str, int], fallback: bool
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], set[str]]:
    """The arrays PAIRS and MERGED, and the merged tokens."""
    split = [merge.split(" ") if isinstance(merge, str) else merge for merge in listed]
    split = [merge for merge in split if merge[0] != "#version:"]  # the first line of older files
    ranks = {(left, right): rank for rank, (left, right) in enumerate(split)}  # of a pair that comes twice: the last
    if fallback and not set(_BYTES).isdisjoint(token for pair in ranks for token in pair):
        raise UnmappableError("its BPE merges bytes of unknown characters")
    table = sorted(
        (vocabulary[left] << 32 | vocabulary[right], rank << 32 | vocabulary[left + right])
        for (left, right), rank in ranks.items()
    )
    columns = np.array(table, np.uint64).reshape(-1, 2).T
    return columns[0].copy(), columns[1].copy(), {left + right for left, right in ranks}


def _spellings(library: Library) -> tuple[list[bytes], list[int], dict[str, int]]:
    """Every id's spelling, the ids that a search by spelling finds, and the other names of tokens."""
    ids = library.get_vocab(with_added_tokens=True)
    size = max(ids.values(), default=-1) + 1
    if size > 2 * len(ids) + 65_536:
        raise UnmappableError(f"its {len(ids)} tokens have ids up to {size - 1}")
    spelled = [library.id_to_token(token) for token in range(size)]
    if "" in ids:
        raise UnmappableError("it has an empty token")
    found = {name: token for name, token in ids.items() if spelled[token] == name}
    aliases = {name: token for name, token in ids.items() if spelled[token] != name}
    by_spelling = [token for _, token in sorted((name.encode(), token) for name, token in found.items())]
    return [(name or "").encode() for name in spelled], by_spelling, aliases


def _joins(results: Iterable[str]) -> NDArray[np.uint64]:
    pairs = {pair for result in results for pair in pairwise(result)}
    return np.array(sorted(ord(left) << 32 | ord(right) for left, right in pairs), np.uint64)


def _whole_words(model: models.BPE, vocabulary: Mapping[str, int]) -> dict[str, int]:
    """With `ignore_merges` a word that is a token becomes it at once: the tokens that merges alone would not give."""
    model.ignore_merges = False
    try:
        return {
            name: token for name, token in vocabulary.items() if [it.id for it in model.tokenize(name)] != [token]
        }
    finally:
        model.ignore_merges = True


def _around(library: Library) -> tuple[list[int], list[int]]:
    """What the post-processor puts before and after every text."""

    def pairs() -> Iterator[tuple[list[int], list[int]]]:
        for text in _TRIALS:
            plain = library.encode(text, add_special_tokens=False).ids
            yield plain, library.encode(text, add_special_tokens=True).ids

    plain, dressed = next(pairs())
    for before in range(len(dressed) - len(plain) + 1):
        prefix, suffix = dressed[:before], dressed[before + len(plain) :]
        if all(dressed == prefix + plain + suffix for plain, dressed in pairs()):
            return prefix, suffix
    raise UnmappableError("its post-processor does more than to put tokens around a text")


def _frame(document: Mapping[str, Any], added: Iterable[Any]) -> bytes:
    flags = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    tokens = [
        {"id": number, **{flag: getattr(token, flag) for flag in flags}} for number, token in enumerate(added, 1)
    ]
    parts = {name: document.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")}
    frame = {"version": "1.0", "added_tokens": tokens, **parts, "post_processor": None, "model": FRAME_MODEL}
    return json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode()


def _encode_file(arrays: Mapping[str, NDArray[Any]], notes: Mapping[str, Any]) -> bytes:
    table: dict[str, Any] = {}
    data = b""
    # The widest first, so that each begins at a multiple of its elements' size.
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].itemsize):
        dtype, _ = mapped_file.DTYPES[name]
        table[name] = {"dtype": dtype, "shape": [array.size], "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.astype(array.dtype.newbyteorder("<")).tobytes()
    notes = {"format": mapped_file.FORMAT, **notes}
    metadata = {mapped_file.NOTES: json.dumps(notes), mapped_file.CHECKSUM: mapped_file.checksum(table, notes, data)}
    header = json.dumps({"__metadata__": metadata, **table}).encode()
    header += b" " * (-len(header) % 64)
    return len(header).to_bytes(8, "little") + header + data


def _check(file: Path, tokenizer_json: Path, library: Library) -> None:
    """Whether the mapped form does as the library does. Raises UnmappableError."""
    try:
        mapped = MappedVocabulary(read_tables(file, tokenizer_json), tokenizer_json)
    except InvalidTablesError as error:
        raise UnmappableError(f"its mapped form {error}") from None
    reference = LibraryVocabulary(library)
    if any(mapped.spelling(token) != library.id_to_token(token) for token in range(mapped.size + 1)):
        raise UnmappableError("its tokens are spelled otherwise when mapped")
    names = library.get_vocab(with_added_tokens=True)
    tried = list(names)[:: max(1, len(names) // _TRIAL_TOKENS)]
    if any(mapped.token_id(name) != names[name] for name in tried):
        raise UnmappableError("its tokens cannot be found by their spelling")
    for text in _trial_texts(library, mapped.size):
        expected = reference.encode(text, True)
        if mapped.encode(text, True) != expected or mapped.decode(expected) != reference.decode(expected):
            raise UnmappableError(f"it encodes {text[:40]!r} otherwise when mapped")


def _trial_texts(library: Library, size: int) -> Iterator[str]:
    """The trials, every added token in a text, and the vocabulary's own texts, run together."""
    yield from _TRIALS
    yield from (f"a {token.content}  b" for token in library.get_added_tokens_decoder().values())
    step = max(1, size // _TRIAL_TOKENS)
    ids = range(0, size, step)
    for start in range(0, len(ids), 256):
        yield library.decode(ids[start : start + 256], skip_special_tokens=False)
