"""Log-probabilities in the API's two shapes: chat's list of objects, and completions' parallel arrays.

Values are of the model's raw logits. JSON knows no infinity: -9999 stands for a token that cannot come, as OpenAI
has it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from ..messages import TokenLogprob
from ..text.tokenizer import Tokenizer

IMPOSSIBLE = -9999.0


def chat_logprobs(tokenizer: Tokenizer, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
    """{"content": [{token, logprob, bytes, top_logprobs}]}: bytes join to the text even within a character."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": tokenizer.token_text(token),
            "logprob": max(logprob, IMPOSSIBLE),
            "bytes": list(tokenizer.token_bytes(token)),
        }

    content = [
        entry(item.token, item.logprob) | {"top_logprobs": [entry(*alternative) for alternative in item.top]}
        for item in entries
    ]
    return {"content": content, "refusal": None}


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

    def extend(self, more: "CompletionLogprobs") -> None:
        self.text_offset += more.text_offset
        self.token_logprobs += more.token_logprobs
        self.tokens += more.tokens
        self.top_logprobs += more.top_logprobs

    def as_dict(self) -> dict[str, Any]:
        return {
            "text_offset": self.text_offset,
            "token_logprobs": self.token_logprobs,
            "tokens": self.tokens,
            "top_logprobs": self.top_logprobs,
        }
