"""From logits to tokens: the reference sampler, a pure function of (logits, parameters, key, position).

Apart from the device because it is the definition that every device is held to. For each row, in this order:

 1. log-probabilities, where asked for, of the raw logits
 2. logit bias is added
 3. repetition penalty over prompt and output: a logit above zero is divided by it, another is multiplied
    (transformers' RepetitionPenaltyLogitsProcessor)
 4. frequency penalty x count + presence penalty is subtracted, over the output alone (OpenAI's formula)
 5. EOS and stop ids are banned while there are fewer than min_tokens; what a mask does not allow, always
 6. temperature below 1e-5: the largest logit, the lowest id of equals. Else the logits are divided by it, and
 7. top-k, then top-p of what top-k left, then min-p
 8. the draw, among what is left: argmax of (logit - largest) / temperature - log(e), where e is the token's
    exponential of `random` (the Gumbel-max trick: log(1/e) is a Gumbel variate)

1 to 6 are vLLM's order, where a ban and a penalty may change places since both leave -inf alone; 7 is transformers'.

Each filter is a threshold on the logit, so equals stay or go together, whatever their order in memory: top-k keeps
every token as likely as the k-th; top-p the smallest set of most likely tokens whose mass reaches top_p, with every
equal of its last; min-p each token at least min_p times as likely as the likeliest.

Logits are fp32. Masses are fp32 weights summed in double. The race of step 8 is run in double throughout, so
that two devices with the same logits disagree only where two scores come within 1e-14 of each other.
"""

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ..messages import GREEDY_BELOW, Sampling, TokenLogprob
from .base import Float32, Int32, MaskWords, SampleRow
from .random import bits_of, bits_of_all, exponentials

Ids = NDArray[np.intp]

_LARGEST = float(np.finfo(np.float32).max)
_NEAR = 6.0  # nats below the likeliest token, within which a token contends in any draw
_NUCLEUS_DEPTHS = (4.0, 10.0, math.inf)  # nats below the likeliest token, tried in turn as bounds of a nucleus


def sample(logits: Float32, rows: Sequence[SampleRow]) -> tuple[list[int], list[TokenLogprob | None]]:
    """One token for each row of logits [R, vocab], which are overwritten, and its log-probability where asked for.

    A row that holds a NaN or +inf, or that has no token left, gives token -1 and no log-probability.
    """
    best = logits.argmax(axis=1)  # a NaN counts as the largest
    sound = np.isfinite(logits[np.arange(len(rows)), best])
    tokens: list[int] = np.where(sound, best, -1).tolist()
    logprobs: list[TokenLogprob | None] = [None] * len(rows)
    with np.errstate(over="ignore"):
        for index, row in enumerate(rows):
            if tokens[index] >= 0 and not is_plain_greedy(row):
                tokens[index], logprobs[index] = _sample_row(logits[index], tokens[index], row)
    return tokens, logprobs


def score(logits: Float32, targets: Int32, top: int) -> list[TokenLogprob]:
    """Log-probability of targets[q] under the softmax of logits[q], with the `top` likeliest tokens.

    Best first, the lowest id first of equals. A row with a NaN or +inf gives NaN.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return [_logprob(values, target, top) for values, target in zip(logits, targets.tolist(), strict=True)]


def is_plain_greedy(row: SampleRow) -> bool:
    """Whether the row's token is the largest raw logit and nothing else is wanted of it."""
    sampling = row.sampling
    return (
        sampling.temperature < GREEDY_BELOW
        and sampling.logprobs is None
        and sampling.repetition_penalty == 1
        and not sampling.frequency_penalty
        and not sampling.presence_penalty
        and not sampling.logit_bias
        and len(row.output) >= sampling.min_tokens
        and row.mask is None
    )


def _sample_row(values: Float32, best: int, row: SampleRow) -> tuple[int, TokenLogprob | None]:
    """`best` is the index of the largest of `values`."""
    sampling = row.sampling
    raw = values.copy() if sampling.logprobs is not None else values
    if _adjust(values, row):
        best = int(values.argmax())
        if not math.isfinite(values[best]):
            return -1, None
    token = best if sampling.temperature < GREEDY_BELOW else _draw(values, best, row)
    return token, None if sampling.logprobs is None else _logprob(raw, token, sampling.logprobs)


def _adjust(values: Float32, row: SampleRow) -> bool:
    """Bias, penalties and bans, in place; whether there were any. Touches the tokens concerned alone."""
    sampling = row.sampling
    adjusted = False
    if sampling.logit_bias:
        biased, bias = zip(*sampling.logit_bias, strict=True)
        np.add.at(values, np.array(biased), np.array(bias, np.float32))
        adjusted = True
    if sampling.repetition_penalty != 1:
        seen = np.unique(np.fromiter(chain(row.prompt, row.output), np.intp))
        picked = values[seen].astype(np.float64)
        factor = sampling.repetition_penalty
        scaled = np.clip(np.where(picked > 0, picked / factor, picked * factor), -_LARGEST, _LARGEST)
        values[seen] = np.where(np.isinf(picked), picked, scaled)
        adjusted = True
    if row.output and (sampling.frequency_penalty or sampling.presence_penalty):
        seen, counts = np.unique(np.array(row.output), return_counts=True)
        values[seen] -= (sampling.frequency_penalty * counts + sampling.presence_penalty).astype(np.float32)
        adjusted = True
    if len(row.output) < sampling.min_tokens:
        # An EOS id comes from the model's files and may lie past its logits; the other ids are checked at the door.
        banned = [token for token in sampling.eos_token_ids + sampling.stop_token_ids if token < len(values)]
        values[banned] = -np.inf
        adjusted = True
    if row.mask is not None:
        values[~unpack_mask(row.mask(), len(values))] = -np.inf
        adjusted = True
    return adjusted


def unpack_mask(words: MaskWords, vocab: int) -> NDArray[np.bool_]:
    """Which of the vocabulary's tokens the mask allows: [vocab]."""
    allowed = np.zeros(vocab, np.bool_)
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little", count=min(vocab, 32 * len(words)))
    allowed[: len(bits)] = bits
    return allowed


def _draw(values: Float32, best: int, row: SampleRow) -> int:
    """Steps 6 to 8: one token of `values` at the row's temperature, filtered; `best` is a likeliest token."""
    sampling = row.sampling
    position = len(row.output)
    least = threshold(values, values[best], sampling)
    if least is None:
        return _race_of_all(values, best, sampling.temperature, row.key, position)
    kept = np.flatnonzero(values >= least)
    return _race(values, kept, bits_of(row.key, position, kept), values[best], sampling.temperature)


def threshold(values: Float32, largest: np.float32, sampling: Sampling) -> np.float32 | None:
    """The least of `values` that top-k, top-p and min-p keep, `largest` being their maximum; None: all are kept."""
    least = None
    kept = values
    if 0 < sampling.top_k < len(values):
        least = np.partition(values, len(values) - sampling.top_k)[-sampling.top_k]
        kept = values[values >= least]
    if sampling.top_p < 1:
        least = _nucleus(kept, largest, sampling.temperature, sampling.top_p)
    if sampling.min_p > 0:
        bound = largest + np.float32(sampling.temperature * math.log(sampling.min_p))
        least = bound if least is None else max(least, bound)
    return least


def _nucleus(values: Float32, largest: np.float32, temperature: float, top_p: float) -> np.float32:
    """The least logit of the smallest set of likeliest tokens whose mass reaches `top_p` of all `values`."""
    depths = (largest - values) / np.float32(temperature)
    wanted = top_p * np.exp(-depths).sum(dtype=np.float64)
    for depth in _NUCLEUS_DEPTHS:
        # What has to be sorted is a few hundred tokens as a rule, not the vocabulary.
        heavy = np.sort(values[depths <= depth])[::-1]
        mass = np.cumsum(np.exp((heavy - largest) / np.float32(temperature)), dtype=np.float64)
        if mass[-1] >= wanted:
            break
    last: np.float32 = heavy[min(int(np.searchsorted(mass, wanted)), len(heavy) - 1)]
    return last


def _race(values: Float32, ids: Ids, bits: NDArray[np.uint64], largest: np.float32, temperature: float) -> int:
    """Step 8 among `ids`, ascending, with their `bits`: the lowest id of equals."""
    likelihoods = (values[ids].astype(np.float64) - float(largest)) / temperature
    return int(ids[(likelihoods - np.log(exponentials(bits))).argmax()])


def _race_of_all(values: Float32, best: int, temperature: float, key: int, position: int) -> int:
    """`_race` of the whole vocabulary, without logarithms for tokens that cannot win.

    The likeliest token scores -log(e_best). One that is more than `gap` below it scores less than -gap - log(e), so
    it wins only with e < e_best * exp(-gap); and since u < e, comparing integers leaves a few hundred contenders.
    """
    bits = bits_of_all(key, position, len(values))
    largest = values[best]
    cut = largest - np.float32(_NEAR * temperature)
    gap = (float(largest) - float(cut)) / temperature
    bound = float(exponentials(bits[best : best + 1])[0]) * math.exp(-gap)
    limit = min(int(bound * 1.001 * 2**64) + 4096, 2**64 - 1)  # a little more than exact, to be above any rounding
    contenders = np.flatnonzero((values >= cut) | (bits <= np.uint64(limit)))
    return _race(values, contenders, bits[contenders], largest, temperature)


def _logprob(values: Float32, token: int, top: int) -> TokenLogprob:
    """Of `token` and of the `top` likeliest under the softmax of `values`."""
    largest = values.max()
    normalizer = float(largest) + math.log(np.exp(values - largest).sum(dtype=np.float64))
    alternatives = [(int(index), float(values[index]) - normalizer) for index in _largest(values, top)]
    return TokenLogprob(token, float(values[token]) - normalizer, tuple(alternatives))


def _largest(values: Float32, count: int) -> Ids:
    """Indices of the `count` largest, best first, the lowest index first of equals."""
    count = min(count, len(values))
    if count == 0:
        return np.empty(0, np.intp)
    least = np.partition(values, len(values) - count)[-count]
    above = np.flatnonzero(values > least)
    equal = np.flatnonzero(values == least)[: count - len(above)]
    ids = np.concatenate((above, equal))
    return ids[np.argsort(-values[ids], kind="stable")]
