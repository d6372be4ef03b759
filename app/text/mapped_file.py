"""tokenizer.safetensors: a BPE vocabulary as sorted arrays in one file, mapped and ready in a few milliseconds.

`pilotlight build snapshot` makes it of the tokenizer.json beside it (build/tokenizer.py). Apart from what is done
with the arrays (mapped.py, merging.py), so that all doubt about a file ends here: what `read_tables` returns is
whole, was not altered since it was written, and was made of the tokenizer.json that lies beside it.

    SPELLINGS     u8   tokens' spellings in UTF-8, one after the other in the order of their ids
    OFFSETS       u32  where each id's spelling begins, and where the last ends; ids without a token are empty
    BY_SPELLING   u32  ids in the order of their spellings, for a binary search
    PAIRS         u64  left id << 32 | right id of every merge, sorted
    MERGED        u64  rank << 32 | id of what each of PAIRS becomes
    JOINS         u64  left character << 32 | right character of all neighbours in merged tokens, sorted
    ADDED         u32  ids of the added tokens, in the order of FRAME's
    ADDED_ONLY    u32  those of ADDED that are no tokens of the model, sorted
    SPECIAL       u32  those of ADDED that are special, sorted
    FRAME         u8   the tokenizer.json without its vocabulary

The checksum is over the arrays, their table and the notes.
"""

import json
import mmap
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import calcsize
from typing import Any, Final, Literal

NAME: Final = "tokenizer.safetensors"
NOTES, CHECKSUM = "pilotlight_tokenizer", "crc32"  # the keys of the file's metadata; the notes are JSON
FORMAT: Final = 1
SPELLINGS, OFFSETS, BY_SPELLING = "spellings", "offsets", "by_spelling"
PAIRS, MERGED, JOINS = "pairs", "merged", "joins"
ADDED, ADDED_ONLY, SPECIAL, FRAME = "added", "added_only", "special", "frame"
# safetensors' word for an element, and memoryview's
DTYPES: Final[Mapping[str, tuple[str, Literal["B", "I", "Q"]]]] = {
    **dict.fromkeys((SPELLINGS, FRAME), ("U8", "B")),
    **dict.fromkeys((OFFSETS, BY_SPELLING, ADDED, ADDED_ONLY, SPECIAL), ("U32", "I")),
    **dict.fromkeys((PAIRS, MERGED, JOINS), ("U64", "Q")),
}
_MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit


class InvalidTablesError(Exception):
    """The file cannot be used. The message is what its reader says after the file's name."""


@dataclass(frozen=True, slots=True)
class Notes:
    """What the file says beside its arrays.

    `prefix` and `suffix` are put around every text that special tokens are added to. `aliases` are the tokens that
    BY_SPELLING does not find; `whole` those that a word becomes at once, whatever its merges say. `probe` is a text
    and its ids by the library.
    """

    fallback: bool  # a character without a token becomes its bytes' tokens; else it adds nothing
    prefix: Sequence[int]
    suffix: Sequence[int]
    decoder: Mapping[str, Any] | None
    aliases: Mapping[str, int]
    whole: Mapping[str, int]
    probe: tuple[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Tables:
    arrays: Mapping[str, "memoryview[int]"]  # by the names above; indexing gives bytes or numbers
    notes: Notes

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return len(self.arrays[OFFSETS]) - 1


def read_tables(file: Path, made_of: Path) -> Tables:
    """Maps `file`, which must have been made of the tokenizer.json `made_of`. Raises InvalidTablesError."""
    try:
        with open(file, "rb") as stream:
            size = stream.seek(0, 2)
            if size < 8:
                raise InvalidTablesError("is cut")
            data = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        start = 8 + int.from_bytes(data[:8], "little")
        if start > min(size, _MAX_HEADER_BYTES):
            raise InvalidTablesError("is cut, or no safetensors file")
        return _read(bytes(data[8:start]), data[start:], file, made_of)
    except OSError as error:
        raise InvalidTablesError(f"cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidTablesError(f"is misshapen ({str(error)[:80]})") from None


def _read(header: bytes, data: "memoryview[int]", file: Path, made_of: Path) -> Tables:
    table = json.loads(header)
    metadata = table.pop("__metadata__")
    notes = json.loads(metadata[NOTES])
    if notes["format"] != FORMAT:
        raise InvalidTablesError(f"has format {notes['format']}, this version reads {FORMAT}")
    if sys.byteorder != "little":
        raise InvalidTablesError("is for little-endian machines")
    if table.keys() != DTYPES.keys():
        raise InvalidTablesError(f"has arrays {', '.join(table)}; expected {', '.join(DTYPES)}")
    if metadata[CHECKSUM] != checksum(table, notes, data):
        raise InvalidTablesError("is damaged: its checksum is another")
    arrays = {name: _array(name, table[name], data) for name in DTYPES}
    offsets = arrays[OFFSETS]
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(arrays[SPELLINGS]):
        raise InvalidTablesError("is misshapen: its spellings do not fit their offsets")
    if len(arrays[PAIRS]) != len(arrays[MERGED]):
        raise InvalidTablesError("is misshapen: its merges have no results, or too many")
    _check_origin(notes, file, made_of)
    text, ids = notes["probe"]
    return Tables(
        arrays,
        Notes(
            fallback=bool(notes["fallback"]),
            prefix=_ids(notes["prefix"]),
            suffix=_ids(notes["suffix"]),
            decoder=None if notes["decoder"] is None else dict(notes["decoder"]),
            aliases=dict(zip(notes["aliases"], _ids(notes["aliases"].values()), strict=True)),
            whole=dict(zip(notes["whole"], _ids(notes["whole"].values()), strict=True)),
            probe=(str(text), _ids(ids)),
        ),
    )


def _ids(values: Iterable[Any]) -> list[int]:
    ids = list(values)
    if not all(type(token) is int and 0 <= token < 2**32 for token in ids):
        raise ValueError("expected token ids")
    return ids


def checksum(table: Mapping[str, Any], notes: Mapping[str, Any], data: "bytes | memoryview[int]") -> str:
    """Of everything in a file, whatever the spacing of its JSON."""
    texts = json.dumps([table, notes], sort_keys=True).encode()
    return f"{zlib.crc32(data, zlib.crc32(texts)):08x}"


def _array(name: str, entry: Mapping[str, Any], data: "memoryview[int]") -> "memoryview[int]":
    dtype, format_ = DTYPES[name]
    begin, end = entry["data_offsets"]
    (count,) = entry["shape"]
    array = data[begin:end]
    if entry["dtype"] != dtype or begin < 0 or not len(array) == end - begin == count * calcsize(format_):
        raise InvalidTablesError(f"is misshapen: {name} is not a whole array of {dtype}")
    return array.cast(format_)


def _check_origin(notes: Mapping[str, Any], file: Path, made_of: Path) -> None:
    """Whether it was made of the tokenizer.json that is there now.

    A tokenizer.json that has stood there for longer needs no reading, which would take longer than all else here.
    What counts is the time of the inode's last change, which no copy takes along and nobody sets.
    """
    origin = made_of.stat()
    same = origin.st_size == notes["origin_bytes"]
    if same and origin.st_ctime_ns > file.stat().st_ctime_ns:
        same = hash_file(made_of) == notes["origin_sha256"]
    if not same:
        raise InvalidTablesError(f"was not made of this {made_of.name}")


def hash_file(file: Path) -> str:
    import hashlib

    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
