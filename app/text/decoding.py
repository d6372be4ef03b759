"""What one token adds to the text, read off tokenizer.json's `decoder` component.

Apart from the detokeniser because log-probabilities ask for single tokens where a stream asks for sequences. Three
schemes cover every decoder: tokens are bytes (GPT-2's alphabet), tokens are pieces of text with single bytes among
them (SentencePiece), or neither holds and only the whole sequence can be decoded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class ElementMap:
    """A decoder step that rewrites every element by itself: `Replace`, or `Metaspace` (the first apart)."""

    old: str
    new: str
    new_in_first: str

    def __call__(self, element: str, first: bool) -> str:
        return element.replace(self.old, self.new_in_first if first else self.new)


@dataclass(frozen=True)
class ByteScheme:
    """The text is the UTF-8 of all tokens' bytes, with one U+FFFD for each maximal ill-formed part."""

    def element(self, spelling: str) -> bytes:
        """A token's bytes. A spelling with a letter outside the alphabet (an added token's) stands for itself."""
        try:
            return bytes(map(_LETTER_TO_BYTE.__getitem__, spelling))
        except KeyError:
            return spelling.encode()


@dataclass(frozen=True)
class PieceScheme:
    """The text is the tokens' pieces joined; a run of byte tokens counts as one piece, its UTF-8.

    A run that is not valid UTF-8 is as many U+FFFD as it has bytes. `before` maps tokens, `after` pieces and runs;
    the whole text loses one `strip` at its start.
    """

    before: tuple[ElementMap, ...] = ()
    byte_fallback: bool = False
    after: tuple[ElementMap, ...] = ()
    strip: str = ""

    def element(self, spelling: str, first: bool = False) -> str | int:
        """A token's text, or its byte where it is a byte token. `first`: no element stands before it."""
        for step in self.before:
            spelling = step(spelling, first)
        if self.byte_fallback and (found := _BYTE_TOKEN.fullmatch(spelling)):
            return int(found[1], 16)
        return self.finish(spelling, first)

    def run(self, data: bytes, first: bool) -> str:
        """The text of a whole run of byte tokens."""
        try:
            return self.finish(data.decode(), first)
        except UnicodeDecodeError:
            return self.finish("\ufffd", first) + self.finish("\ufffd", False) * (len(data) - 1)

    def finish(self, element: str, first: bool) -> str:
        for step in self.after:
            element = step(element, first)
        return element


@dataclass(frozen=True)
class WholeScheme:
    """Only the tokenizer's decode of the whole sequence is known to be right (no decoder, or one of another kind)."""


Scheme = ByteScheme | PieceScheme | WholeScheme


def read_scheme(decoder: Mapping[str, Any] | None) -> Scheme:
    """The scheme of a tokenizer.json's `decoder` (None where it has none).

    The semantics are huggingface/tokenizers' (`src/decoders/`, `src/pre_tokenizers/{byte_level,metaspace}.rs`).
    """
    steps = _flatten(decoder) if decoder else []
    kinds = [step["type"] for step in steps]
    if kinds and kinds[0] == "ByteLevel" and set(kinds[1:]) <= {"Fuse"}:
        return ByteScheme()
    return _read_pieces(steps) if steps else WholeScheme()


def incomplete_suffix(data: bytes) -> bytes:
    """The bytes at the end, 3 at most, that begin a character of UTF-8 and do not end it."""
    for start in range(max(0, len(data) - 3), len(data)):
        if data[start] >= 0xC0:
            tail = data[start:]
            try:
                tail.decode()
            except UnicodeDecodeError as error:
                if error.reason == "unexpected end of data":
                    return tail[error.start :]
    return b""


def _read_pieces(steps: Sequence[Mapping[str, Any]]) -> Scheme:
    before: list[ElementMap] = []
    after: list[ElementMap] = []
    byte_fallback = fused = False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old and not fused:
                (after if byte_fallback else before).append(ElementMap(old, new, new))
            case {"type": "Metaspace", "replacement": str(old)} if not fused:
                prepends = step.get("add_prefix_space", True) and step.get("prepend_scheme") != "never"
                (after if byte_fallback else before).append(ElementMap(old, " ", "" if prepends else " "))
            case {"type": "ByteFallback"} if not byte_fallback and not fused:
                byte_fallback = True
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": str(strip), "start": 1, "stop": 0} if fused and step is steps[-1]:
                return PieceScheme(tuple(before), byte_fallback, tuple(after), strip)
            case _:
                return WholeScheme()
    return PieceScheme(tuple(before), byte_fallback, tuple(after))


def _flatten(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    return [inner for part in step["decoders"] for inner in _flatten(part)]


def _letter_to_byte() -> dict[str, int]:
    """GPT-2's byte alphabet: printable latin-1 stands for itself, every other byte for a letter from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_LETTER_TO_BYTE = _letter_to_byte()
