"""What crosses the line between the front (process 1) and the engine (process 2), typed.

The engine knows token ids and sampling parameters; the front knows text. A message is one msgpack map or
array behind a 4-byte little-endian length. The front sends `Start` first and then `Submit`, `Abort` and
`Shutdown`; the engine sends `Ready` (or `Fatal`) first and then one `StepDone` per engine step, and `Spans` whenever
its start has got further.
A closed socket means that the other side is gone.
"""

import struct
from collections.abc import Iterator
from typing import Literal

import msgspec

from .settings import Settings

FinishReason = Literal["stop", "length", "abort", "error"]

GREEDY_BELOW = 1e-5  # a lower temperature is greedy, as in vLLM: dividing by it would overflow
# What a device keeps for a sequence's bias and bans is sized by these.
MAX_LOGIT_BIAS_TOKENS = 1024
MAX_STOP_TOKENS = 256
MAX_EOS_TOKENS = 64  # a model's: real ones name a handful
# Larger than any prompt that a context window admits, small enough that a corrupt length cannot eat the memory.
MAX_FRAME = 256 * 1024 * 1024
_LENGTH = struct.Struct("<I")


class Sampling(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How one sequence is sampled; every field is valid by construction (the front has checked the ranges)."""

    max_tokens: int
    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0  # generated tokens only
    frequency_penalty: float = 0.0  # generated tokens only
    repetition_penalty: float = 1.0  # prompt and generated tokens, as in transformers
    logit_bias: tuple[tuple[int, float], ...] = ()  # at most MAX_LOGIT_BIAS_TOKENS
    min_tokens: int = 0  # no stop id and no EOS before that many tokens
    stop_token_ids: tuple[int, ...] = ()  # at most MAX_STOP_TOKENS
    allowed_tokens: bytes = b""  # bit t % 8 of byte t / 8 allows token t, in words of 4 bytes; empty: all are allowed
    eos_token_ids: tuple[int, ...] = ()  # at most MAX_EOS_TOKENS
    ignore_eos: bool = False
    logprobs: int | None = None  # that many alternatives beside the chosen token; 0: the chosen token alone
    prompt_logprobs: int | None = None
    seed: int = 0  # 64 bits, always set: an unseeded request gets a drawn one


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One token's log-probability under the model's raw logits (before penalties, bias and temperature)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # best first


class Output(msgspec.Struct, array_like=True):
    """What one engine step adds to one sequence.

    An EOS or stop token is part of `tokens` (it was sampled, and usage counts it) and named by `stop_token`.
    """

    id: int
    tokens: list[int] = []
    finish: FinishReason | None = None
    stop_token: int | None = None
    logprobs: list[TokenLogprob] | None = None  # one for each of `tokens`, where asked for
    prompt_logprobs: list[TokenLogprob | None] | None = None  # with the first token; None for the first position
    cached_tokens: int = 0  # with the first token: prompt tokens whose K/V was reused
    error: str | None = None  # with finish "error"


class Stats(msgspec.Struct, array_like=True, gc=False):
    """The engine's gauges and counters after a step; counters only grow."""

    running: int = 0
    waiting: int = 0
    pages_total: int = 0
    pages_used: int = 0  # held by running sequences
    pages_cached: int = 0  # free, content kept for prefix reuse
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    steps: int = 0
    step_seconds: float = 0.0  # time spent inside steps, in total


class Span(msgspec.Struct, array_like=True, gc=False):
    """One bar of the start's waterfall. Times are CLOCK_MONOTONIC seconds, one clock for both processes."""

    process: Literal["front", "engine"]
    name: str
    start: float
    end: float | None  # None: it runs
    bytes: int = 0
    thread: str = "main"  # of the process: spans of one thread do not overlap
    after: str = ""  # the span, of whichever process, that this one waits for beside the one before in its thread


# --- front -> engine ---------------------------------------------------------------------------------------


class Start(msgspec.Struct, tag="start", frozen=True):
    settings: Settings


class Submit(msgspec.Struct, tag="submit", frozen=True):
    """One sequence: a choice of a prompt of a request. `id` is unique for the life of the engine."""

    id: int
    prompt: list[int]
    sampling: Sampling
    prompt_index: int = 0  # which prompt of the request, and which of its n choices: part of the random key
    choice_index: int = 0
    priority: int = 0  # lower runs first; equal: first come, first served


class Abort(msgspec.Struct, tag="abort", frozen=True):
    """Forget these sequences. An unknown id is no error (it may have finished meanwhile); no output follows."""

    ids: list[int]


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True):
    """Leave now; whatever runs is dropped. (Draining is the front's business: it stops submitting and waits.)"""


# --- engine -> front ---------------------------------------------------------------------------------------


class Ready(msgspec.Struct, tag="ready", frozen=True):
    max_model_len: int
    vocab_size: int  # the model's: logits columns, the bound on token ids
    pages: int
    page_size: int
    device: str
    dtype: str
    spans: list[Span]


class Spans(msgspec.Struct, tag="spans", frozen=True):
    """All that the engine's start consists of so far; sent whenever there is something new up to the first token."""

    spans: list[Span]


class StepDone(msgspec.Struct, tag="step", frozen=True):
    outputs: list[Output]
    stats: Stats


class Fatal(msgspec.Struct, tag="fatal", frozen=True):
    """The engine cannot go on and is about to exit with `exit_code`. `message` is one line for a person."""

    message: str
    exit_code: int


ToEngine = Start | Submit | Abort | Shutdown
ToFront = Ready | Spans | StepDone | Fatal

_encoder = msgspec.msgpack.Encoder()
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_to_front = msgspec.msgpack.Decoder(ToFront).decode


def encode(message: ToEngine | ToFront) -> bytes:
    """One frame: length and body."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a byte stream into frame bodies, whatever the sizes in which it arrives."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields each body that `data` completes. Raises ValueError for a length beyond MAX_FRAME."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes is over the limit of {MAX_FRAME}")
            end = start + _LENGTH.size + length
            if end > len(self._buffer):
                break
            yield bytes(self._buffer[start + _LENGTH.size : end])
            start = end
        del self._buffer[:start]
