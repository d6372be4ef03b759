"""Log-probabilities in the API's two shapes: chat's list of objects, and completions' parallel arrays.

Values are of the model's raw logits. JSON knows no infinity: -9999 stands for a token that cannot come, as OpenAI
has it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from ..messages import TokenLogprob
from ..text.tokenizer import Tokenizer

IMPOSSIBLE = -9999.0


def joined(arrays: Iterable[bytes]) -> orjson.Fragment:
    """One JSON array of what several hold."""
    return orjson.Fragment(b"[" + b",".join([array[1:-1] for array in arrays if array != b"[]"]) + b"]")


def chat_logprobs(content: Any) -> dict[str, Any]:
    """Chat's object, around `chat_entries` or their JSON."""
    return {"content": content, "refusal": None}


def chat_entries(tokenizer: Tokenizer, entries: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """[{token, logprob, bytes, top_logprobs}]: bytes join to the text even within a character."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": tokenizer.token_text(token),
            "logprob": max(logprob, IMPOSSIBLE),
            "bytes": list(tokenizer.token_bytes(token)),
        }

    return [
        entry(item.token, item.logprob) | {"top_logprobs": [entry(*alternative) for alternative in item.top]}
        for item in entries
    ]


class CompletionLogprobs:
    """The four arrays, one entry for each token. `text_offset` counts characters of the whole text, echo included."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.text_offset: list[int] = []
        self.token_logprobs: list[float | None] = []
        self.tokens: list[str] = []
        self.top_logprobs: list[dict[str, float] | None] = []

    def add(self, tokens: Iterable[int], entries: Iterable[TokenLogprob | None], offsets: Sequence[int]) -> None:
        """None for an entry: the first token of a prompt, which nothing predicts."""
        text_of = self._tokenizer.token_text
        for token, item, offset in zip(tokens, entries, offsets, strict=True):
            self.tokens.append(text_of(token))
            self.text_offset.append(offset)
            if item is None:
                self.token_logprobs.append(None)
                self.top_logprobs.append(None)
                continue
            logprob = max(item.logprob, IMPOSSIBLE)
            top: dict[str, float] = {}
            for other, value in item.top:
                top.setdefault(text_of(other), max(value, IMPOSSIBLE))
            top.setdefault(text_of(token), logprob)
            self.token_logprobs.append(logprob)
            self.top_logprobs.append(top)

    def as_dict(self) -> dict[str, list[Any]]:
        return {
            "text_offset": self.text_offset,
            "token_logprobs": self.token_logprobs,
            "tokens": self.tokens,
            "top_logprobs": self.top_logprobs,
        }
