"""Tokens become text as they come: the pieces, joined, are the decoded whole, wherever the sequence is split.

Each of the three decoding schemes has its own stream; all are O(1) a token. No text is given out that a later token
could still change.
"""

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from .decoding import ByteScheme, PieceScheme, incomplete_suffix
from .tokenizer import Tokenizer

_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of tokens that follow a prompt: `decode(prompt + tokens)` without the prompt's settled text.

    Settled is all but a last character that the prompt's tokens leave incomplete; the answer may complete it. So a
    character that is split between prompt and answer is whole in the answer, the answer keeps the space before its
    first word, and no other text of the prompt ever shows. (What the prompt has settled, the answer cannot unsettle:
    a run of byte tokens that both share is judged from the incomplete character on.)
    Special tokens are hidden with `skip_special_tokens`, ids without a token always.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), skip_special_tokens: bool = True) -> None:
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        visible = (token for token in reversed(prompt) if token not in self._hidden)
        self._stream: _Stream
        match tokenizer.scheme:
            case ByteScheme():
                self._stream = _ByteStream(tokenizer, visible)
            case PieceScheme() as scheme:
                self._stream = _PieceStream(tokenizer, scheme, visible)
            case _:
                self._stream = _WholeStream(tokenizer, visible)

    def push(self, token: int) -> str:
        """The text that is certain now and was not before."""
        return "" if token in self._hidden else self._stream.push(token)

    def flush(self) -> str:
        """The rest; nothing may be pushed afterwards. A character left incomplete is U+FFFD."""
        return self._stream.flush()

    def settle(self) -> str:
        """As `flush`, but without a last incomplete character: the pushes and this are the settled text."""
        return self._stream.settle()


class _Stream(Protocol):
    """A detokeniser of visible tokens. Made with the prompt's visible tokens, the last one first."""

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...

    def settle(self) -> str: ...


class _ByteStream:
    def __init__(self, tokenizer: Tokenizer, prompt: Iterable[int]) -> None:
        self._elements = tokenizer.elements
        # Python's "replace" and the library's lossy decode both put one U+FFFD for a maximal ill-formed part.
        self._decoder = _new_utf8_decoder("replace")
        self._decode = self._decoder.decode
        tail = b""
        for token in prompt:
            tail = tokenizer.token_bytes(token) + tail
            if len(tail) >= 3:
                break
        self._decode(incomplete_suffix(tail))

    def push(self, token: int) -> str:
        return self._decode(self._elements[token])  # type: ignore[arg-type]  # bytes in this scheme

    def flush(self) -> str:
        return self._decode(b"", True)

    def settle(self) -> str:
        # Python holds the first two bytes of a surrogate back too, which no third byte makes a character.
        held, _ = self._decoder.getstate()
        return held[: len(held) - len(incomplete_suffix(held))].decode(errors="replace")


class _PieceStream:
    """Holds a run of byte tokens back until it ends: its last byte decides whether the others are text at all."""

    def __init__(self, tokenizer: Tokenizer, scheme: PieceScheme, prompt: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._elements = tokenizer.elements
        self._scheme = scheme
        self._begun = False  # whether an element stands before the next one
        self._run = bytearray()
        self._run_is_first = False
        tail = b""
        for token in prompt:
            element = self._elements[token]
            if element == b"":
                continue
            self._begun = True
            if not isinstance(element, int):
                break
            tail = bytes([element]) + tail
            if len(tail) == 3:  # what is incomplete has 3 bytes at most
                break
        self._run += incomplete_suffix(tail)
        self._strip = "" if self._begun else scheme.strip  # what to cut from the start of the text to come

    def push(self, token: int) -> str:
        element = self._elements[token] if self._begun else self._first_element(token)
        if isinstance(element, int):
            self._run.append(element)
            return ""
        if isinstance(element, bytes):  # an id without a token
            return ""
        text = self._end_run() + element if self._run else element
        return self._without_strip(text) if self._strip else text

    def flush(self) -> str:
        return self._without_strip(self._end_run())

    def settle(self) -> str:
        del self._run[len(self._run) - len(incomplete_suffix(bytes(self._run))) :]
        return self.flush()

    def _first_element(self, token: int) -> str | bytes | int:
        spelling = self._tokenizer.spelling(token)
        if spelling is None:
            return b""
        element = self._scheme.element(spelling, first=True)
        self._begun = True
        self._run_is_first = isinstance(element, int)
        return element

    def _end_run(self) -> str:
        if not self._run:
            return ""
        text = self._scheme.run(bytes(self._run), self._run_is_first)
        self._run.clear()
        self._run_is_first = False
        return text

    def _without_strip(self, text: str) -> str:
        if text:
            text, self._strip = text.removeprefix(self._strip), ""
        return text


class _WholeStream:
    """Gives everything out at the end: of an unknown decoder it is not known what later tokens may change."""

    def __init__(self, tokenizer: Tokenizer, prompt: Iterable[int]) -> None:
        self._decode = tokenizer.decode
        self._prompt = list(prompt)[::-1]
        self._tokens: list[int] = []

    def push(self, token: int) -> str:
        self._tokens.append(token)
        return ""

    def flush(self) -> str:
        before = self._decode(self._prompt, skip_special_tokens=False)
        whole = self._decode(self._prompt + self._tokens, skip_special_tokens=False)
        if whole.startswith(before):
            return whole[len(before) :]
        return self._decode(self._tokens, skip_special_tokens=False)

    def settle(self) -> str:
        return self.flush()
