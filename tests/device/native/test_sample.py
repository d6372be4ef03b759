"""Sampling and scoring against sampling.py: the same token every time, given the same logits."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight.device import native_abi as abi
from pilotlight.device import sampling
from pilotlight.device.base import Batch, SampleRow
from pilotlight.device.native_sampling import Logprobs, Sampler
from pilotlight.device.random import stream_key
from pilotlight.messages import Sampling, TokenLogprob
from tests.device.masks import pack_mask

from .conftest import opened
from .memory import buffer, copy
from .ops import Ops
from .test_linear import random

MOST = 20
_NONE = np.zeros(0, np.int32)


def row(changes: dict[str, Any], number: int, vocab: int, mask: Sequence[int] | None = None) -> SampleRow:
    """Some prompt and output that have tokens in common."""
    ids = np.random.default_rng(number)
    prompt, output = ids.integers(0, vocab, 30).tolist(), ids.integers(0, min(vocab, 50), 12).tolist()
    words = None if mask is None else pack_mask(mask)
    parameters = Sampling(**{"max_tokens": 9} | changes)
    return SampleRow(parameters, stream_key(number, 0, 0), prompt, output, None if words is None else lambda: words)


def batch(rows: list[SampleRow]) -> Batch:
    fields = {field.name: _NONE for field in dataclasses.fields(Batch)} | {
        "rows": rows,
        "score_top": 0,
        "sample_positions": np.array([len(row.output) for row in rows], np.int32),
    }
    return Batch(**fields)


def sample(ops: Ops, logits: np.ndarray, rows: list[SampleRow]) -> tuple[list[int], list[TokenLogprob | None]]:
    vocab = logits.shape[1]
    sampler = Sampler(len(rows), vocab, MOST)
    sampler.fill(batch(rows))
    count, logits = copy([len(rows)], np.int32), copy(logits)
    scratch = buffer(ops.library.sample_bytes(vocab), np.uint8)
    results = sampler.tokens.ctypes.data, *sampler.logprobs.addresses(0)
    where = count.ctypes.data, logits.ctypes.data, sampler.address, *results
    ops.run(abi.Sample(*where, scratch.ctypes.data, vocab, sampler.logprobs.most_top))
    return sampler.read(rows)


def score(ops: Ops, logits: np.ndarray, targets: Sequence[int], top: int) -> list[TokenLogprob]:
    vocab = logits.shape[1]
    found = Logprobs(len(logits), min(MOST, vocab))
    count, tops, ids = (copy(each, np.int32) for each in ([len(logits)], [top], targets))
    logits, scratch = copy(logits), buffer(ops.library.sample_bytes(vocab), np.uint8)
    where = count.ctypes.data, logits.ctypes.data, ids.ctypes.data, *found.addresses(0)
    ops.run(abi.Score(*where, tops.ctypes.data, scratch.ctypes.data, vocab, found.most_top))
    return [found.read(index, token, top) for index, token in enumerate(targets)]


CASES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "logprobs": 3},
    {"temperature": 1.0},
    {"temperature": 0.7, "logprobs": 0},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 2.0, "top_k": 1},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.5, "top_p": 0.5, "top_k": 40},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.2, "top_k": 100, "top_p": 0.95, "min_p": 0.02, "logprobs": 20},
    {"temperature": 0, "repetition_penalty": 1.7},
    {"temperature": 0.9, "repetition_penalty": 0.6, "logprobs": 5},
    {"temperature": 0.9, "frequency_penalty": 1.5, "presence_penalty": -0.7},
    {"temperature": 0, "presence_penalty": 2.0, "frequency_penalty": -2.0},
    {"temperature": 1.0, "logit_bias": ((3, 100.0), (7, -100.0), (3, -98.0))},
    {
        "temperature": 0,
        "logit_bias": ((11, 100.0),),
        "min_tokens": 20,
        "stop_token_ids": (11,),
        "eos_token_ids": (1,),
    },
    {"temperature": 0, "min_tokens": 5, "eos_token_ids": (0, 1, 2)},  # enough tokens are there
    {"temperature": 1.0, "min_tokens": 20, "eos_token_ids": (1 << 30,)},  # past the logits
    {"temperature": 1e-6},
    {"temperature": 100.0, "top_p": 0.99},
]


@pytest.mark.parametrize("vocab", [2, 33, 321, 49152])
def test_tokens_are_those_of_the_reference(ops: Ops, vocab: int) -> None:
    for spread in (1.0, 8.0):
        rows = [row(_within(case, vocab), number, vocab) for number, case in enumerate(CASES * 2)]
        rows += [
            row({"temperature": 1.0}, 90, vocab, mask=[0]),
            row({"temperature": 0.0}, 91, vocab, mask=range(vocab // 2)),
            row({"temperature": 0.5, "top_p": 0.9}, 92, vocab, mask=range(0, vocab, 2)),
        ]
        logits = spread * random(len(rows), vocab, seed=vocab)
        check(sample(ops, logits, rows), sampling.sample(logits.copy(), rows))


def test_equals_go_to_the_lowest_id_or_stay_together(ops: Ops) -> None:
    logits = np.round(2 * random(len(CASES), 500))
    rows = [row(case, number, 500) for number, case in enumerate(CASES)]
    check(sample(ops, logits, rows), sampling.sample(logits.copy(), rows))


def test_rows_that_have_no_token(ops: Ops) -> None:
    logits = random(8, 321)
    logits[1, 300] = np.nan
    logits[2, 17] = np.inf
    logits[3] = -np.inf
    logits[5, :320] = -np.inf
    rows = [row({"temperature": t, "logprobs": 2}, number, 321) for number, t in enumerate([1.0, 0, 1, 0, 1, 1, 0])]
    rows.append(row({"temperature": 1.0}, 8, 321, mask=[400]))
    tokens, logprobs = sample(ops, logits, rows)
    check((tokens, logprobs), sampling.sample(logits.copy(), rows))
    assert [token == -1 for token in tokens] == [False, True, True, True, False, False, False, True]
    assert tokens[5] == 320


def test_an_interrupted_step_leaves_no_parameters_to_the_next(ops: Ops) -> None:
    """Ctrl-C may come between any two bytecodes: here, right after a row's parameters are written."""

    class Interrupted:
        def __setitem__(self, index: int, record: abi.SampleRow) -> None:
            kept[index] = record
            raise KeyboardInterrupt

    sampler = Sampler(1, 100, MOST)
    kept: Any = sampler.parameters
    sampler.fill(batch([row({"temperature": 0}, 1, 100)]))
    plain = bytes(kept[0])
    sampler.parameters = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        sampler.fill(batch([row({"temperature": 0, "repetition_penalty": 1.7}, 2, 100)]))
    sampler.parameters = kept
    sampler.fill(batch([row({"temperature": 0}, 1, 100)]))
    assert bytes(kept[0]) == plain


def test_a_row_does_not_depend_on_threads_or_neighbours(file: Path, ops: Ops) -> None:
    logits = 4 * random(len(CASES), 5000)
    rows = [row(case, number, 5000) for number, case in enumerate(CASES)]
    whole = sample(ops, logits, rows)
    for threads in (1, 3, 4):
        assert sample(Ops(opened(threads, ops.library.level)), logits, rows) == whole
    for index in range(len(rows)):
        tokens, logprobs = sample(ops, logits[index : index + 1], rows[index : index + 1])
        assert (tokens[0], logprobs[0]) == (whole[0][index], whole[1][index])


@pytest.mark.parametrize("vocab", [2, 33, 49152])
def test_scores_are_those_of_the_reference(ops: Ops, vocab: int) -> None:
    logits = 4 * random(70, vocab)
    logits[5] = np.round(logits[5])
    targets = np.random.default_rng(1).integers(0, vocab, 70).astype(np.int32)
    for top in (0, 1, 5, MOST):
        found, expected = score(ops, logits, targets.tolist(), top), sampling.score(logits, targets, top)
        check((targets.tolist(), list(found)), (targets.tolist(), list(expected)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_score_of_an_unsound_row_is_nan(ops: Ops, value: float) -> None:
    logits = random(3, 100)
    logits[1, 70] = value
    found = score(ops, logits, [5, 6, 7], 2)
    assert [np.isnan(each.logprob) for each in found] == [False, True, False]


def _within(case: dict[str, Any], vocab: int) -> dict[str, Any]:
    """The case without ids that the vocabulary has not: the front refuses them."""
    bias = tuple(pair for pair in case.get("logit_bias", ()) if pair[0] < vocab)
    return {name: value for name, value in case.items() if name != "logit_bias"} | (
        {"logit_bias": bias} if bias else {}
    )


Answer = tuple[Sequence[int], Sequence[TokenLogprob | None]]


def check(found: Answer, expected: Answer) -> None:
    assert list(found[0]) == list(expected[0])
    for ours, theirs in zip(found[1], expected[1], strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.token == theirs.token
            assert ours.logprob == pytest.approx(theirs.logprob, abs=2e-6)
            assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
            assert [value for _, value in ours.top] == pytest.approx([value for _, value in theirs.top], abs=2e-6)
