"""What a request is checked against before it starts: its length, cheaply, and the context."""

from typing import Any

import pytest

from pilotlight.front.errors import ApiError
from pilotlight.front.service import context_of, encode
from pilotlight.messages import Ready


class CountingTokenizer:
    """One token per `width` characters; remembers how much text it was given."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.encoded = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.encoded += len(text)
        return [0] * (-(-len(text) // self.width) + add_special_tokens)


def encoded(tokenizer: Any, text: str, limit: int) -> list[int]:
    return encode(tokenizer, text, limit, add_special_tokens=True, field="prompt")


def test_G12_a_text_far_too_long_is_refused_for_the_price_of_a_short_one() -> None:
    tokenizer = CountingTokenizer(width=4)
    with pytest.raises(ApiError, match="20000000 characters are more than") as raised:
        encoded(tokenizer, "x" * 20_000_000, 256)
    assert (raised.value.status, raised.value.param, raised.value.code) == (400, "prompt", "context_length_exceeded")
    assert tokenizer.encoded <= 16 * 256


@pytest.mark.parametrize(("width", "length"), [(1, 100), (4, 1000), (1, 8192), (50, 10_000)])
def test_a_text_that_may_fit_is_encoded_whole(width: int, length: int) -> None:
    """Even one of 50 characters per token, which would look far too long."""
    tokenizer = CountingTokenizer(width)
    assert len(encoded(tokenizer, "x" * length, 256)) == -(-length // width) + 1


@pytest.mark.parametrize(("pages", "context"), [(100, 256), (4, 64)])
def test_the_context_is_what_the_pool_holds_at_most(pages: int, context: int) -> None:
    ready = Ready(max_model_len=256, vocab_size=320, pages=pages, page_size=16, device="", dtype="", spans=[])
    assert context_of(ready) == context
