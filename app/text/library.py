"""A vocabulary that the `tokenizers` library holds: any tokenizer.json, at the price of reading it whole."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelDataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library


def import_library() -> "type[Library]":
    """The library's class, without its thread pool: here each text is encoded in its caller's thread."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer as Library

    return Library


class LibraryVocabulary:
    def __init__(self, library: "Library") -> None:
        self.library = library
        library.no_truncation()
        library.no_padding()

    @classmethod
    def from_file(cls, file: Path) -> "LibraryVocabulary":
        """Reads a tokenizer.json; Python's lock is held all the while. Raises ModelDataError."""
        try:
            return cls(import_library().from_file(str(file)))
        except Exception as error:  # the library raises nothing narrower
            raise ModelDataError(f"{file}: is not a tokenizer.json ({str(error)[:200]})") from None

    @cached_property
    def size(self) -> int:
        return max(self.library.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def special_ids(self) -> frozenset[int]:
        added = self.library.get_added_tokens_decoder()
        return frozenset(token for token, properties in added.items() if properties.special)

    @property
    def decoder(self) -> Mapping[str, Any] | None:
        decoder = self.library.decoder
        return json.loads(decoder.__getstate__()) if decoder else None

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # encode() keeps Python's lock; the batch call with one text does not.
        ids: list[int] = self.library.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.library.decode(ids, skip_special_tokens=False)

    def spelling(self, token: int) -> str | None:
        return self.library.id_to_token(token)

    def token_id(self, spelling: str) -> int | None:
        return self.library.token_to_id(spelling)

    def make_special(self, spellings: Collection[str]) -> None:
        from tokenizers import AddedToken

        added = {token.content for token in self.library.get_added_tokens_decoder().values()}
        plain = [name for name in spellings if name not in added and self.library.token_to_id(name) is not None]
        self.library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in plain])
