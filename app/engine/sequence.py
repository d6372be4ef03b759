"""One sequence: its tokens, what of them is computed, and the rules by which it ends.

Apart from the scheduler, which decides when a sequence runs; what a new token means for it is decided here.
"""

from array import array
from collections.abc import Callable

import numpy as np

from ..device.base import MaskWords, SampleRow
from ..device.random import stream_key
from ..messages import FinishReason, Output, Sampling, Submit, TokenLogprob
from ..settings import PAGE_SIZE


class Sequence:
    """A choice of a prompt on its way through the engine.

        tokens   | prompt ................ | output ....... | coming |
        K/V      | computed ................................ |  new   |
        pages    |  full, published  |  |  |   |  |  |

    `computed` tokens have their K/V in `pages`, or will have once the steps under way are done; at least one has not,
    and the last one's logits give the next token. `coming` tokens are chosen by those steps and not known yet. A
    preempted sequence keeps its tokens, but for those, and starts again with computed = 0. Prompt and output stay
    apart, since penalties, min_tokens and the random stream count output only.
    """

    __slots__ = (
        "admission",
        "cached_tokens",
        "coming",
        "computed",
        "id",
        "limit",
        "number",
        "order",
        "output",
        "pages",
        "prompt_length",
        "published",
        "row",
        "scores",
        "stop_ids",
        "tokens",
        "twin",
    )

    def __init__(self, submit: Submit, arrival: int, max_len: int) -> None:
        """`max_len` bounds prompt and output together."""
        sampling = submit.sampling
        self.id = submit.id
        self.order = (submit.priority, arrival)  # the lower runs first
        self.prompt_length = len(submit.prompt)
        self.limit = min(self.prompt_length + sampling.max_tokens, max_len)  # tokens at which it ends
        self.stop_ids = frozenset(sampling.stop_token_ids + (() if sampling.ignore_eos else sampling.eos_token_ids))
        self.tokens = array("i", submit.prompt)
        self.output: list[int] = []
        key = stream_key(sampling.seed, submit.prompt_index, submit.choice_index)
        self.row = SampleRow(sampling, key, submit.prompt, self.output, _mask_of(sampling))
        self.computed = 0
        self.coming = 0
        self.pages: list[int] = []
        self.published = 0  # of `pages`, those whose content is known to the pool
        self.number = -1  # its own while it runs, below max_num_seqs
        self.admission = 0  # the scheduler's count of them when it got its number
        self.twin: tuple[Sequence, int] | None = None  # who computes how many of our first tokens; see Scheduler
        self.cached_tokens: int | None = None  # of the prompt, found in the pool when it first ran
        # Of the prompt, where asked for, until they are sent. Nothing comes before the first token.
        self.scores: list[TokenLogprob | None] | None = None if sampling.prompt_logprobs is None else [None]

    @property
    def uncomputed(self) -> int:
        return len(self.tokens) + self.coming - self.computed

    @property
    def is_complete(self) -> bool:
        """Whether the tokens that are coming are its last, whatever they are."""
        return len(self.tokens) + self.coming >= self.limit

    def block(self, index: int) -> bytes:
        """The tokens of page `index`, as the pool knows them. The page must be full."""
        return self.tokens[index * PAGE_SIZE : (index + 1) * PAGE_SIZE].tobytes()

    def add_scores(self, scores: list[TokenLogprob]) -> None:
        """Log-probabilities of the prompt's next tokens; the step may have given more alternatives than asked for."""
        if self.scores is not None:
            top = self.row.sampling.prompt_logprobs
            self.scores += [TokenLogprob(score.token, score.logprob, score.top[:top]) for score in scores]

    def accept(self, token: int, logprob: TokenLogprob | None) -> Output:
        """Takes the next token, -1 where the device could choose none. Returns what is sent of it."""
        if token < 0:
            message = "no token can be chosen: the model's logits are NaN or infinite, or every token is banned"
            return Output(self.id, finish="error", error=message)
        is_first = not self.output
        self.coming -= 1
        self.output.append(token)
        self.tokens.append(token)
        finish: FinishReason | None = None
        if token in self.stop_ids:
            finish = "stop"
        elif len(self.tokens) >= self.limit:
            finish = "length"
        output = Output(
            self.id,
            [token],
            finish,
            stop_token=token if finish == "stop" else None,
            logprobs=None if logprob is None else [logprob],
        )
        if is_first:
            output.cached_tokens = self.cached_tokens or 0
            output.prompt_logprobs, self.scores = self.scores, None
        return output


def _mask_of(sampling: Sampling) -> Callable[[], MaskWords] | None:
    """The tokens that may come, the same in every step; None where any may."""
    if not sampling.allowed_tokens:
        return None
    words = np.frombuffer(sampling.allowed_tokens, np.uint32)
    return lambda: words
