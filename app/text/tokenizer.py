"""Text to token ids and back, and what single tokens look like.

The `tokenizers` library is behind this one class: nothing else in the project touches it, so that a vocabulary in
a form of our own can take its place.
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ModelDataError
from .decoding import Scheme, WholeScheme, read_scheme

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

_ID_LIMIT = 2**32  # what the library takes for an id


class Tokenizer:
    """A vocabulary. Ids may have gaps: an id without a token decodes to nothing, as in the library.

    `special_tokens` are the tokens that have a name ("bos_token" -> "<s>"), as chat templates see them.
    """

    def __init__(self, library: "Library", special_tokens: Mapping[str, str] | None = None) -> None:
        self._library = library
        library.no_truncation()
        library.no_padding()
        self.special_tokens = dict(special_tokens or {})
        self._make_special(self.special_tokens.values())
        self.special_ids = frozenset(
            token for token, added in library.get_added_tokens_decoder().items() if added.special
        )
        self.scheme: Scheme = read_scheme(json.loads(library.decoder.__getstate__()) if library.decoder else None)
        self.elements = _Elements(self)

    @classmethod
    def from_file(cls, file: Path, special_tokens: Mapping[str, str] | None = None) -> "Tokenizer":
        """Reads a tokenizer.json. Raises ModelDataError."""
        # The library's thread pool would serve one text at a time here; without it, encoding stays in its thread.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from tokenizers import Tokenizer as Library

        try:
            library = Library.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise ModelDataError(f"{file}: is not a tokenizer.json ({str(error)[:200]})") from None
        return cls(library, special_tokens)

    @cached_property
    def size(self) -> int:
        """One more than the largest id. Slow at first use: it lists the vocabulary."""
        return max(self._library.get_vocab(with_added_tokens=True).values(), default=-1) + 1

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
        """The ids of `text`; Python's lock is free meanwhile. Special tokens spelled out in it become their ids.

        With `add_special_tokens` the tokenizer adds its own, most often BOS; a text that begins with BOS gets no
        second one. A rendered chat template is encoded without: it spells out all that it wants.
        """
        # encode() keeps the lock; the batch call with one text does not.
        ids = self._library.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        if add_special_tokens and self._adds_bos and ids[1:2] == [self.bos_token_id]:
            return ids[1:]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        hidden: Collection[int] = self.special_ids if skip_special_tokens else ()
        shown = [token for token in ids if 0 <= token < _ID_LIMIT and token not in hidden]
        return self._library.decode(shown, skip_special_tokens=False) if shown else ""

    def spelling(self, token: int) -> str | None:
        """The vocabulary's own spelling ("\u0120Paris", "\u2581Paris", "<0xE4>"); None where the id has no token."""
        return self._library.id_to_token(token) if 0 <= token < _ID_LIMIT else None

    def token_id(self, spelling: str | None) -> int | None:
        return None if spelling is None else self._library.token_to_id(spelling)

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
        return self._library.encode("").ids[:1] == [self.bos_token_id]

    def _make_special(self, spellings: Collection[str]) -> None:
        """Named tokens are special even where tokenizer.json lists them as plain vocabulary, as in transformers."""
        from tokenizers import AddedToken

        added = {token.content for token in self._library.get_added_tokens_decoder().values()}
        plain = [name for name in spellings if name not in added and self._library.token_to_id(name) is not None]
        self._library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in plain])


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
