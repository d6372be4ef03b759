"""Text to token ids and back, and what single tokens look like.

Behind this one class stands a vocabulary: the `tokenizers` library's, or the mapped one of a snapshot. Nothing else
in the project knows which.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from .decoding import Scheme, WholeScheme, read_scheme
from .library import LibraryVocabulary
from .mapped import MappedVocabulary, open_mapped

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

_ID_LIMIT = 2**32  # what the library takes for an id


class Vocabulary(Protocol):
    """What a tokenizer stands on. Ids are 0 to _ID_LIMIT - 1; special tokens are no different in `decode`."""

    @property
    def size(self) -> int: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    @property
    def decoder(self) -> Mapping[str, Any] | None:
        """tokenizer.json's entry."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def spelling(self, token: int) -> str | None: ...

    def token_id(self, spelling: str) -> int | None: ...

    def make_special(self, spellings: Collection[str]) -> None:
        """Makes those that are tokens special, and ignores the others."""


class Tokenizer:
    """A vocabulary. Ids may have gaps: an id without a token decodes to nothing, as in the library.

    `special_tokens` are the tokens that have a name ("bos_token" -> "<s>"), as chat templates see them.
    """

    def __init__(self, vocabulary: "Library | Vocabulary", special_tokens: Mapping[str, str] | None = None) -> None:
        """`vocabulary` may also be the library's own `Tokenizer`."""
        self._vocabulary: Vocabulary = (
            vocabulary
            if isinstance(vocabulary, LibraryVocabulary | MappedVocabulary)
            else LibraryVocabulary(cast("Library", vocabulary))
        )
        self.special_tokens = dict(special_tokens or {})
        # Named tokens are special even where tokenizer.json lists them as plain vocabulary, as in transformers.
        self._vocabulary.make_special(self.special_tokens.values())
        self.special_ids = self._vocabulary.special_ids
        self.scheme: Scheme = read_scheme(self._vocabulary.decoder)
        self.elements = _Elements(self)

    @classmethod
    def from_file(cls, file: Path, special_tokens: Mapping[str, str] | None = None) -> "Tokenizer":
        """From a tokenizer.json, or the mapped form that a snapshot's build made of it. Raises ModelDataError."""
        return cls(open_mapped(file) or LibraryVocabulary.from_file(file), special_tokens)

    @property
    def size(self) -> int:
        """One more than the largest id. May be slow at first use: the library lists its vocabulary."""
        return self._vocabulary.size

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens.get("eos_token")

    @cached_property
    def bos_token_id(self) -> int | None:
        return self.token_id(self.bos_token)

    @cached_property
    def eos_token_id(self) -> int | None:
        return self.token_id(self.eos_token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`; Python's lock is free most of the time. Special tokens in it become their ids.

        With `add_special_tokens` the tokenizer adds its own, most often BOS; a text that begins with BOS gets no
        second one. A rendered chat template is encoded without: it spells out all that it wants.
        """
        ids = self._vocabulary.encode(text, add_special_tokens)
        if add_special_tokens and self._adds_bos and ids[1:2] == [self.bos_token_id]:
            return ids[1:]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        hidden: Collection[int] = self.special_ids if skip_special_tokens else ()
        shown = [token for token in ids if 0 <= token < _ID_LIMIT and token not in hidden]
        return self._vocabulary.decode(shown) if shown else ""

    def spelling(self, token: int) -> str | None:
        """The vocabulary's own spelling ("\u0120Paris", "\u2581Paris", "<0xE4>"); None where the id has no token."""
        return self._vocabulary.spelling(token) if 0 <= token < _ID_LIMIT else None

    def token_id(self, spelling: str | None) -> int | None:
        return None if spelling is None else self._vocabulary.token_id(spelling)

    def token_bytes(self, token: int) -> bytes:
        """What the token adds in the middle of a text, raw: a character may be spread over several tokens."""
        element = self.elements[token]
        if isinstance(element, int):
            return bytes([element])
        return element if isinstance(element, bytes) else element.encode()

    def token_text(self, token: int) -> str:
        r"""`token_bytes` as text; where it is not UTF-8, OpenAI's spelling of it: `bytes:\xf0\x9f`."""
        raw = self.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    @cached_property
    def _adds_bos(self) -> bool:
        return self._vocabulary.encode("", True)[:1] == [self.bos_token_id]


class _Elements(dict[int, str | bytes | int]):
    """Token id -> what the scheme makes of it in the middle of a text; b"" for an id without a token.

    Filled as tokens come up: a whole vocabulary would cost a start 0.2 s.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> str | bytes | int:
        spelling = self._tokenizer.spelling(token)
        scheme = self._tokenizer.scheme
        element: str | bytes | int
        if spelling is None:
            element = b""
        elif isinstance(scheme, WholeScheme):
            element = self._tokenizer.decode([token], skip_special_tokens=False)
        else:
            element = scheme.element(spelling)
        self[token] = element
        return element
