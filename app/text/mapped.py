"""A vocabulary that is mapped and not loaded: tokenizer.safetensors, for the kinds of BPE that it can hold.

Everything around the model stays the library's own and is exact by that: added tokens, normaliser, pre-tokeniser
and decoder run in a `Tokenizer` of the library without a vocabulary, the frame, which takes a millisecond to make.
Only the model's step, a word to ids, is ours.
"""

import logging
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelDataError
from .library import import_library
from .long_texts import LongTexts
from .mapped_file import (
    ADDED,
    ADDED_ONLY,
    BY_SPELLING,
    FRAME,
    JOINS,
    MERGED,
    NAME,
    OFFSETS,
    PAIRS,
    SPECIAL,
    SPELLINGS,
    InvalidTablesError,
    Tables,
    read_tables,
)
from .merging import Merger

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

# The frame's model knows one token that no text contains: every word is one unknown token, which keeps its text.
FRAME_MODEL = {"type": "Unigram", "unk_id": 0, "vocab": [["", 0.0]], "byte_fallback": False}
_WORD = 0  # the id that such a word has; the frame's added tokens count from 1
# Characters from which on a text goes to the library, in a process of its own: it is faster there, and here it would
# hold Python's lock too often.
LONG_TEXT = 65_536

_log = logging.getLogger(__name__)


def open_mapped(tokenizer_json: Path) -> "MappedVocabulary | None":
    """The vocabulary of the file beside `tokenizer_json`; None where there is none or, with a warning, none to trust.

    Raises nothing: tokenizer.json holds all that the file does.
    """
    file = tokenizer_json.with_name(NAME)
    if not file.is_file():
        return None
    try:
        return MappedVocabulary(read_tables(file, tokenizer_json), tokenizer_json)
    except InvalidTablesError as error:
        _log.warning(
            "%s: %s; %s is read instead, which takes longer. `pilotlight build snapshot` makes both anew",
            file, error, tokenizer_json.name,
        )  # fmt: skip
        return None


class MappedVocabulary:
    def __init__(self, tables: Tables, tokenizer_json: Path) -> None:
        """Raises InvalidTablesError where the library does not take the frame, or not as it did at the build."""
        arrays = tables.arrays
        self._file = tokenizer_json
        self._notes = tables.notes
        self._spellings = arrays[SPELLINGS]
        self._offsets = arrays[OFFSETS]
        self._by_spelling = arrays[BY_SPELLING]
        self._added_only = frozenset(arrays[ADDED_ONLY])
        self._added = list(arrays[ADDED])
        self.size = tables.size
        self.special_ids = frozenset(arrays[SPECIAL])
        self._merger = Merger(arrays[PAIRS], arrays[MERGED], arrays[JOINS], self._symbols)
        self._long_texts = LongTexts(tokenizer_json)
        text, ids = self._notes.probe
        try:
            self._frame: Library = import_library().from_str(str(arrays[FRAME], "utf-8"))
            self._decoder = self._frame.decoder
            found = self._encode(text)
        except Exception as error:  # the library raises nothing narrower
            raise InvalidTablesError(f"is not for this version of tokenizers ({str(error)[:80]})") from None
        if found != ids:
            raise InvalidTablesError("is not for this version of tokenizers: a text has other ids than at the build")

    @property
    def decoder(self) -> Mapping[str, Any] | None:
        return self._notes.decoder

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) >= LONG_TEXT and (ids := self._long_texts.encode(text, add_special_tokens)) is not None:
            return ids
        try:
            ids = self._encode(text)
        except IndexError:
            raise ModelDataError(f"{self._file.with_name(NAME)}: contradicts itself; build it anew") from None
        return [*self._notes.prefix, *ids, *self._notes.suffix] if add_special_tokens else ids

    def decode(self, ids: Sequence[int]) -> str:
        spellings = [spelling for spelling in map(self.spelling, ids) if spelling is not None]
        return self._decoder.decode(spellings) if self._decoder else " ".join(spellings)

    def spelling(self, token: int) -> str | None:
        return str(self._spelling(token), "utf-8", "replace") or None

    def token_id(self, spelling: str) -> int | None:
        alias = self._notes.aliases.get(spelling)
        if alias is not None:
            return alias
        try:
            wanted = spelling.encode()
        except UnicodeEncodeError:  # half a surrogate pair
            return None
        at = bisect_left(self._by_spelling, wanted, key=self._spelling)
        if at == len(self._by_spelling) or self._spelling(self._by_spelling[at]) != wanted:
            return None
        return self._by_spelling[at]

    def make_special(self, spellings: Collection[str]) -> None:
        from tokenizers import AddedToken

        added = {token.content for token in self._frame.get_added_tokens_decoder().values()}
        for name in dict.fromkeys(spellings):
            token = None if name in added else self.token_id(name)
            if token is not None:
                self._frame.add_special_tokens([AddedToken(name, special=True, normalized=False)])
                self._added.append(token)
                self.special_ids |= {token}
                self._long_texts.special.append(name)

    def _encode(self, text: str) -> list[int]:
        """Python's lock is free while the library works."""
        encoding = self._frame.encode_batch([text], add_special_tokens=False)[0]
        whole, encode, added = self._notes.whole, self._merger.encode, self._added
        ids: list[int] = []
        for word, kind in zip(encoding.tokens, encoding.ids, strict=True):
            if kind != _WORD:
                ids.append(added[kind - 1])
            elif word in whole:
                ids.append(whole[word])
            else:
                ids += encode(word)
        return ids

    def _spelling(self, token: int) -> bytes:
        if token >= self.size:
            return b""
        return bytes(self._spellings[self._offsets[token] : self._offsets[token + 1]])

    def _symbols(self, letter: str) -> tuple[int, ...]:
        """A character's ids before any merge."""
        token = self.token_id(letter)
        if token is not None and token not in self._added_only:
            return (token,)
        if not self._notes.fallback:
            return ()
        found = (self.token_id(f"<0x{byte:02X}>") for byte in letter.encode())
        return tuple(token for token in found if token is not None)
