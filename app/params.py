"""SamplingParams: how a request is sampled, under vLLM's names, checked once and here only.

`LLM` and the HTTP API both build one and turn it into a `messages.Sampling`, so that a value which one accepts
the other accepts too. A refused value names its field, which the API reports as `param`.
"""

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

import msgspec

from .errors import ModelDataError, UsageError
from .messages import GREEDY_BELOW, MAX_LOGIT_BIAS_TOKENS, MAX_STOP_TOKENS, Sampling

MAX_CHOICES = 128  # OpenAI's limit on n
MAX_STOP_STRINGS = 16  # OpenAI allows 4; each costs a comparison per token
MAX_STOP_LENGTH = 1024  # characters; each costs the front a step of preparation
MAX_TEMPERATURE = 2.0
MAX_PENALTY = 2.0
MAX_LOGIT_BIAS = 100.0
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 1e-9, 1e9  # beyond, fp32 logits overflow

# What generation_config.json may say about sampling -> the parameter it sets, as in vLLM.
_GENERATION_DEFAULTS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


class ParameterError(UsageError, ValueError):
    """A request's value was refused. `field` is its name; the message, one line, is "field: reason"."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the tokens of a request are chosen, and where it ends. Raises ParameterError for a value out of range."""

    n: int = 1  # choices for each prompt, 1 to 128
    temperature: float = 1.0  # 0 to 2; 0 is greedy
    top_p: float = 1.0  # over 0, up to 1
    top_k: int = 0  # 0, -1 or anything from the vocabulary's size up: no limit
    min_p: float = 0.0  # 0 to 1
    seed: int | None = None  # 64 bits, signed; None draws one
    stop: str | Sequence[str] | None = None  # at most 16 strings of 1 to 1024 characters
    stop_token_ids: Sequence[int] | None = None  # at most 256 different ones
    # Only these can be chosen: no EOS either, unless it is among them. None: any.
    allowed_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None: to the end of the context
    min_tokens: int = 0  # tokens before a stop token or EOS may come
    presence_penalty: float = 0.0  # -2 to 2
    frequency_penalty: float = 0.0  # -2 to 2
    repetition_penalty: float = 1.0  # over 0
    logprobs: int | None = None  # alternatives beside each token; 0: the token's own only
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None = None  # at most 1024 token ids -> -100 to 100
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _check_integer("n", self.n, 1, MAX_CHOICES)
        _check_number("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        _check_number("top_p", self.top_p, 0.0, 1.0, above=True)
        _check_integer("top_k", self.top_k, -1)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _check_integer("seed", self.seed, -(2**63), 2**63 - 1)
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 1)
        _check_integer("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError("min_tokens", f"{_shown(self.min_tokens)} is over max_tokens, {self.max_tokens}")
        _check_number("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        _check_number("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        _check_number("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
        for field in ("logprobs", "prompt_logprobs"):
            value = getattr(self, field)
            if value is not None:
                _check_integer(field, value, 0)
        for field in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            value = getattr(self, field)
            if not isinstance(value, bool):
                raise ParameterError(field, f"expected true or false, got {_shown(value)}")
        _check_stop_strings(self.stop)
        _check_items("stop_token_ids", self.stop_token_ids)
        stop_tokens = len(set(self.stop_token_ids or ()))
        if stop_tokens > MAX_STOP_TOKENS:
            raise ParameterError("stop_token_ids", f"at most {MAX_STOP_TOKENS} tokens are taken, got {stop_tokens}")
        _check_items("allowed_token_ids", self.allowed_token_ids)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ParameterError("allowed_token_ids", "it is empty, so that no token could be chosen; leave it out")
        _check_logit_bias(self.logit_bias)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` in its one form."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


def to_sampling(
    params: SamplingParams,
    *,
    room: int,
    vocab_size: int,
    max_logprobs: int,
    eos_token_ids: Sequence[int] = (),
    default_seed: int | None = None,
) -> Sampling:
    """What the engine is told, once the model is known. Raises ParameterError.

    `room` is what the context leaves for the answer (see `check_prompt`): it bounds max_tokens. `default_seed` is
    the server's own, for requests that bring none; with neither, a seed is drawn.
    """
    for field in ("logprobs", "prompt_logprobs"):
        asked = getattr(params, field)
        if asked is not None and asked > max_logprobs:
            message = f"{_shown(asked)} alternatives were asked for, at most {max_logprobs} are given"
            raise ParameterError(field, message)
    seed = params.seed if params.seed is not None else default_seed
    return Sampling(
        max_tokens=room if params.max_tokens is None else min(int(params.max_tokens), room),
        temperature=0.0 if params.temperature < GREEDY_BELOW else float(params.temperature),
        top_k=0 if params.top_k <= 0 or params.top_k >= vocab_size else int(params.top_k),
        top_p=float(params.top_p),
        min_p=float(params.min_p),
        presence_penalty=float(params.presence_penalty),
        frequency_penalty=float(params.frequency_penalty),
        repetition_penalty=float(params.repetition_penalty),
        logit_bias=_bias(tuple((params.logit_bias or {}).items()), vocab_size),
        min_tokens=min(int(params.min_tokens), room),
        stop_token_ids=_stop_tokens(tuple(params.stop_token_ids or ()), vocab_size),
        allowed_tokens=_mask(tuple(params.allowed_token_ids or ()), vocab_size),
        eos_token_ids=tuple(token for token in eos_token_ids if 0 <= token < vocab_size),
        ignore_eos=params.ignore_eos,
        logprobs=None if params.logprobs is None else int(params.logprobs),
        prompt_logprobs=None if params.prompt_logprobs is None else int(params.prompt_logprobs),
        seed=int.from_bytes(os.urandom(8), "little") if seed is None else int(seed) % 2**64,
    )


def check_prompt(prompt: Sequence[int], *, vocab_size: int, max_model_len: int) -> int:
    """How many tokens the context leaves for the answer, at least 1. Raises ParameterError (field "prompt")."""
    if not prompt:
        raise ParameterError("prompt", "it is empty; send at least one token")
    if len(prompt) >= max_model_len:
        raise ParameterError(
            "prompt",
            f"it has {len(prompt)} tokens, which leaves no room for an answer: "
            f"this model's context is {max_model_len} tokens, prompt and answer together",
        )
    if set(map(type, prompt)) != {int} or min(prompt) < 0 or max(prompt) >= vocab_size:
        for token in prompt:
            _check_token("prompt", token, vocab_size)
    return max_model_len - len(prompt)


def generation_defaults(generation: Mapping[str, Any]) -> dict[str, Any]:
    """SamplingParams' arguments that a model's generation_config.json sets. Raises ModelDataError."""
    defaults = {
        name: generation[key] for key, name in _GENERATION_DEFAULTS.items() if generation.get(key) is not None
    }
    try:
        SamplingParams(**defaults)
    except ParameterError as error:
        raise ModelDataError(f"generation_config.json sets a default out of range: {error}") from None
    return defaults


def _check_integer(field: str, value: Any, low: int, high: int | None = None) -> None:
    expected = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or value < low or (high is not None and value > high):
        raise ParameterError(field, f"expected {expected}, got {_shown(value)}")


def _check_number(field: str, value: Any, low: float, high: float, *, above: bool = False) -> None:
    """A number from low to high; `above`: low itself is out. NaN and the infinities fail every comparison."""
    expected = f"a number above {low:g}, up to {high:g}" if above else f"a number from {low:g} to {high:g}"
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or (above and value == low):
        raise ParameterError(field, f"expected {expected}, got {_shown(value)}")


def _check_stop_strings(stop: object) -> None:
    if isinstance(stop, str):
        stop = [stop]
    elif stop is None:
        return
    if not isinstance(stop, list | tuple) or not all(isinstance(item, str) for item in stop):
        raise ParameterError("stop", f"expected a string or a list of strings, got {_shown(stop)}")
    if len(stop) > MAX_STOP_STRINGS:
        raise ParameterError("stop", f"at most {MAX_STOP_STRINGS} stop strings are taken, got {len(stop)}")
    if "" in stop:
        raise ParameterError("stop", "a stop string is empty")
    longest = max(map(len, stop), default=0)
    if longest > MAX_STOP_LENGTH:
        raise ParameterError("stop", f"a stop string has {longest} characters, at most {MAX_STOP_LENGTH} are taken")


def _check_items(field: str, tokens: object) -> None:
    if tokens is None:
        return
    if not isinstance(tokens, list | tuple):
        raise ParameterError(field, f"expected a list of token ids, got {_shown(tokens)}")
    if set(map(type, tokens)) != {int} or min(tokens) < 0:
        for token in tokens:
            _check_integer(field, token, 0)


# What is made of a whole list is kept for one request: its prompts, a thousand perhaps, all ask for the same.


@lru_cache(maxsize=1)
def _bias(logit_bias: tuple[tuple[int | str, float], ...], vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases = {int(token): float(bias) for token, bias in logit_bias}
    for token in biases:
        _check_token("logit_bias", token, vocab_size)
    return tuple(biases.items())


@lru_cache(maxsize=1)
def _stop_tokens(tokens: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
    """Each once, in their order."""
    different = tuple(dict.fromkeys(map(int, tokens)))
    for token in different:
        _check_token("stop_token_ids", token, vocab_size)
    return different


@lru_cache(maxsize=1)
def _mask(tokens: tuple[int, ...], vocab_size: int) -> bytes:
    """`Sampling.allowed_tokens`. Bits and not ids, which may be most of the vocabulary for each of 128 choices."""
    if not tokens:
        return b""
    largest = max(tokens)
    _check_token("allowed_token_ids", largest, vocab_size)
    mask = bytearray((largest // 32 + 1) * 4)
    for token in tokens:
        mask[token >> 3] |= 1 << (token & 7)
    return bytes(mask)


def _check_logit_bias(logit_bias: object) -> None:
    if logit_bias is None:
        return
    if not isinstance(logit_bias, Mapping):
        raise ParameterError("logit_bias", f"expected a map of token id to bias, got {_shown(logit_bias)}")
    if len(logit_bias) > MAX_LOGIT_BIAS_TOKENS:
        raise ParameterError("logit_bias", f"at most {MAX_LOGIT_BIAS_TOKENS} tokens are taken, got {len(logit_bias)}")
    for token, bias in logit_bias.items():
        if isinstance(token, str):
            # JSON has string keys only. int() would also take " 5", "+5" and "1_0".
            if not (token.isascii() and token.isdigit() and len(token) < 10):
                raise ParameterError("logit_bias", f"a key is not a token id: {_shown(token)}")
        else:
            _check_integer("logit_bias", token, 0)
        _check_number("logit_bias", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)


def _check_token(field: str, token: object, vocab_size: int) -> None:
    if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= int(token) < vocab_size:
        raise ParameterError(field, f"{_shown(token)} is not a token id of this model (0 to {vocab_size - 1})")


def _shown(value: object) -> str:
    """repr, cut: a message must stay one readable line whatever was sent."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a number out of all bounds"
    return text if len(text) <= 60 else text[:57] + "..."
