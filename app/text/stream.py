"""A sequence's tokens to the text that its reader sees: detokenised, cut at stop strings, end tokens hidden.

The front streams through it and `LLM` collects through it, so that both give the same text.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..messages import FinishReason
from .detokenizer import Detokenizer
from .stops import StopMatcher
from .tokenizer import Tokenizer


class Piece(NamedTuple):
    """What some tokens add. After one with a `finish` nothing may be pushed."""

    text: str
    consumed: int  # how many of the tokens count; the rest lie behind a stop string
    finish: FinishReason | None
    stop_reason: str | int | None  # the stop string or the stop token; None for an EOS token
    offsets: list[int]  # for each token that counts: where its text begins, in characters of the whole answer


class TextStream:
    """The text of one sequence after its prompt.

    A token that ends the sequence (`stop_token` of a push: EOS, or one that the request named) counts but its text
    is not shown, except with `include_stop`. Special tokens are hidden with `skip_special_tokens`; one that is
    named by a stop string ends the text all the same. A stop string that ends within the first `min_tokens` tokens
    is none, as in vLLM.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] = (),
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
        eos_token_ids: Collection[int] = (),
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens)
        self._matcher = StopMatcher(stop, include_stop) if stop else None
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._eos_token_ids = eos_token_ids
        self._count = 0  # tokens so far
        self._length = 0  # characters of detokenised text so far, shown or not
        hidden = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        named = ((tokenizer.token_id(string), string) for string in stop)
        self._hidden_stops = {token: string for token, string in named if token in hidden}

    def push(self, tokens: Sequence[int], finish: FinishReason | None = None, stop_token: int | None = None) -> Piece:
        """The text of the next tokens; with `finish`, the last ones, of which `stop_token` is the last if given."""
        text = ""
        offsets: list[int] = []
        last = len(tokens) - 1
        for index, token in enumerate(tokens):
            offsets.append(self._length)
            self._count += 1
            armed = self._count > self._min_tokens
            if armed and token in self._hidden_stops:
                stop = self._hidden_stops[token]
                return self._end(text, "stop", stop, offsets, shown_stop=stop if self._include_stop else "")
            if index == last and stop_token is not None and not self._include_stop:
                break
            text += self._match(self._detokenizer.push(token), armed)
            if self._matcher and self._matcher.stop is not None:
                return Piece(text, len(offsets), "stop", self._matcher.stop, offsets)
        if finish is None:
            return Piece(text, len(offsets), None, None, offsets)
        return self._end(text, finish, None if stop_token in self._eos_token_ids else stop_token, offsets)

    def _match(self, text: str, armed: bool) -> str:
        self._length += len(text)
        return self._matcher.push(text, armed) if self._matcher and text else text

    def _end(
        self, text: str, finish: FinishReason, reason: str | int | None, offsets: list[int], shown_stop: str = ""
    ) -> Piece:
        """The last piece: what was held back comes out, unless a stop string is in it."""
        text += self._match(self._detokenizer.flush(), self._count > self._min_tokens)
        if self._matcher:
            if self._matcher.stop is not None:
                return Piece(text, len(offsets), "stop", self._matcher.stop, offsets)
            text += self._matcher.flush()
        return Piece(text + shown_stop, len(offsets), finish, reason, offsets)


def settled_text(
    tokenizer: Tokenizer, prompt: Sequence[int], skip_special_tokens: bool = True
) -> tuple[str, list[int]]:
    """A prompt's text for echo, and where each token's begins. The answer's `TextStream` goes on where it ends."""
    detokenizer = Detokenizer(tokenizer, (), skip_special_tokens)
    parts: list[str] = []
    offsets: list[int] = []
    length = 0
    for token in prompt:
        offsets.append(length)
        parts.append(detokenizer.push(token))
        length += len(parts[-1])
    parts.append(detokenizer.settle())
    return "".join(parts), offsets
