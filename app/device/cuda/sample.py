"""Launches of kernels/sample.cu, and the records by which it knows what each row asks for.

Apart from the kernels because the engine packs a row when it joins the batch: from step to step nothing of its record
changes but the position. What the card keeps from step to step are the counts of the rows with penalties.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...messages import GREEDY_BELOW, Sampling, TokenLogprob
from ..base import Float32, Int32, SampleRow
from .launch import NULL, Launch, require_aligned

MOST_LOGPROBS = 100  # alternatives beside a token's own
MOST_VOCAB = 1 << 18  # sums of so many masses fit into 64 bits
IDLE, GREEDY, DRAW, SCORE = range(4)  # kinds of rows

# The kernels' structs Row, Change and History.
ROW = np.dtype(
    {
        "names": [
            *("key", "temperature", "inverse_temperature", "top_p"),
            *("repetition", "inverse_repetition", "frequency", "presence", "scale", "min_p"),
            *("kind", "position", "min_tokens", "top_k", "logprobs", "target", "first_change", "changes", "bans"),
            *("mask", "history", "slot"),
        ],
        "formats": ["<u8"] + ["<f8"] * 7 + ["<f4"] * 2 + ["<i4"] * 12,
        "itemsize": 120,
    }
)
CHANGE = np.dtype([("token", "<i4"), ("addend", "<f4")])
HISTORY = np.dtype([("first", "<i8"), ("row", "<i8"), ("prompt", "<i4"), ("generated", "<i4")])

Rows = NDArray[np.void]  # of ROW
Changes = NDArray[np.void]  # of CHANGE

_SLICE = 4096  # logits of a block
_THREADS, _FINISH_THREADS, _GREEDY_THREADS = 256, 512, 128
_GREEDY_ROWS = _GREEDY_THREADS // 32
_PART_BYTES = 40
_TALLIES_BYTES = 2 * (1024 + 1) * 4
_LISTS_BYTES = 2 * 4096 * 8


@dataclass(frozen=True, slots=True)
class Tensors:
    """Device addresses. What is not named in any record may be absent.

    logits: fp32 [rows, stride]. rows: ROW [rows]. tokens: int32 [rows], -1 where no logit is sound. workspace: of
    `workspace_bytes` for `workspace_rows`, 256-aligned; zero before its first use, and nobody else's.
    ids: int32, the next step's input: a token goes to its record's slot. values, others: fp32 and int32
    [rows, 1 + most_logprobs], a token's own log-probability first.
    changes: CHANGE, of all rows. masks: uint32 [., vocab / 32 rounded up], where bit t % 32 of word t / 32 allows
    token t. counts: uint16 [., count_stride(vocab)], written by `history`.
    """

    logits: int
    rows: int
    tokens: int
    workspace: int
    workspace_rows: int
    ids: int = NULL
    values: int = NULL
    others: int = NULL
    changes: int = NULL
    masks: int = NULL
    counts: int = NULL


def plan(
    tensors: Tensors, *, rows: int, vocab: int, stride: int, most_logprobs: int = 20, greedy: bool = False
) -> tuple[Launch, ...]:
    """The token of each row, and what its record asks for beside it.

    stride: elements from one row of logits to the next. most_logprobs: alternatives in any record. greedy: `is_plain`
    of all records, which takes one launch less. Nothing else depends on the records, so that a graph holds the
    launches. Raises ValueError for what no kernel takes.
    """
    if not 0 <= most_logprobs <= MOST_LOGPROBS:
        raise ValueError(f"{most_logprobs} alternatives to a token: at most {MOST_LOGPROBS}")
    if rows > tensors.workspace_rows:
        raise ValueError(f"sample of {rows} rows in a workspace for {tensors.workspace_rows}")
    if not 0 < rows < 1 << 16 or not 0 < vocab <= MOST_VOCAB or stride < vocab:
        raise ValueError(f"sample of {rows} rows of {vocab} logits, {stride} apart: at most {MOST_VOCAB} logits")
    require_aligned(workspace=tensors.workspace, rows=tensors.rows)
    slices = -(-vocab // _SLICE)
    parts = tensors.workspace + tensors.workspace_rows * _TALLIES_BYTES
    lists = parts + tensors.workspace_rows * slices * _PART_BYTES
    tables = (tensors.rows, tensors.changes, tensors.masks, tensors.counts)
    logits = (tensors.logits, stride, vocab)
    scan = _launch("scan", (slices, rows), _THREADS, (parts, tensors.workspace, *logits, *tables))
    if greedy:
        taken = (tensors.tokens, tensors.ids, parts, slices, vocab, tensors.rows, rows, tensors.counts)
        return scan, _launch("greedy", (-(-rows // _GREEDY_ROWS), 1), _GREEDY_THREADS, taken)
    results = (tensors.tokens, tensors.ids, tensors.values, tensors.others, 1 + most_logprobs)
    return (
        scan,
        _launch("gather", (slices, rows), _THREADS, (parts, tensors.workspace, lists, *logits, *tables)),
        _launch(
            "finish",
            (rows, 1),
            _FINISH_THREADS,
            (*results, tensors.workspace, parts, slices, lists, *logits, *tables),
        ),
    )


def history(counts: int, histories: int, tokens: int, *, sequences: int, vocab: int) -> Launch:
    """Writes the counts of sequences that join the batch, or come back to it, from their tokens so far.

    histories: HISTORY [sequences]; tokens: int32, of all of them. While a sequence stays, the kernels above count its
    tokens, so that nothing is uploaded again.
    """
    if not 0 < sequences < 1 << 16 or not 0 < vocab <= MOST_VOCAB:
        raise ValueError(f"histories of {sequences} sequences over {vocab} tokens")
    return _launch("history", (-(-vocab // _SLICE), sequences), _THREADS, (counts, vocab, histories, tokens))


def workspace_bytes(rows: int, vocab: int) -> int:
    """What `plan` needs for up to that many rows."""
    return rows * (_TALLIES_BYTES + -(-vocab // _SLICE) * _PART_BYTES + _LISTS_BYTES)


def count_stride(vocab: int) -> int:
    """Elements from one row of counts to the next."""
    return -(-vocab // 64) * 64


# --- what a row asks for -------------------------------------------------------------------------------------------


def record(
    row: SampleRow, vocab: int, *, first_change: int = 0, mask: int = -1, history: int = -1, slot: int = -1
) -> NDArray[np.void]:
    """A row's record: [] of ROW.

    first_change: where in the list of changes `changes` of this row stand. mask: of the masks, where a grammar has
    one. history: of the counts, where `needs_history`. slot: of `ids`.
    """
    sampling = row.sampling
    greedy = sampling.temperature < GREEDY_BELOW
    temperature = 1.0 if greedy else sampling.temperature
    bias, bans = _changes(sampling, vocab)
    packed = np.zeros((), ROW)
    packed["key"] = row.key
    packed["temperature"], packed["inverse_temperature"] = temperature, 1.0 / temperature
    packed["top_p"] = sampling.top_p
    packed["repetition"], packed["inverse_repetition"] = (
        sampling.repetition_penalty,
        1.0 / sampling.repetition_penalty,
    )
    packed["frequency"] = sampling.frequency_penalty
    packed["presence"] = sampling.presence_penalty
    with np.errstate(over="ignore"):
        packed["scale"] = math.log2(math.e) / temperature
        packed["min_p"] = np.float32(temperature * math.log(sampling.min_p)) if sampling.min_p > 0 else -np.inf
    packed["kind"] = GREEDY if greedy else DRAW
    packed["position"] = len(row.output)
    packed["min_tokens"] = sampling.min_tokens
    packed["top_k"] = sampling.top_k if sampling.top_k < vocab else 0
    packed["logprobs"] = _alternatives(sampling.logprobs, vocab)
    packed["first_change"], packed["changes"], packed["bans"] = first_change, len(bias), len(bans)
    packed["mask"], packed["history"], packed["slot"] = mask, history, slot
    return packed


def score_record(target: int, top: int, vocab: int) -> NDArray[np.void]:
    """The record of a row that gives the log-probability of `target`, and `top` alternatives, instead of a token."""
    packed = np.zeros((), ROW)
    packed["kind"], packed["target"], packed["logprobs"] = SCORE, target, _alternatives(top, vocab)
    packed["top_p"], packed["slot"], packed["mask"], packed["history"] = 1.0, -1, -1, -1
    return packed


def score_records(targets: Int32, top: int, vocab: int) -> Rows:
    """`score_record` of each target: ROW [.]."""
    packed = np.full(len(targets), score_record(0, top, vocab))
    packed["target"] = targets
    return packed


def changes(sampling: Sampling, vocab: int) -> Changes:
    """Bias and bans of a row: CHANGE [.]. They stay the same for as long as the sequence lives."""
    listed = [pair for part in _changes(sampling, vocab) for pair in part]
    return np.array(listed, CHANGE)


def needs_history(sampling: Sampling) -> bool:
    return bool(sampling.repetition_penalty != 1 or sampling.frequency_penalty or sampling.presence_penalty)


def is_plain(rows: Rows) -> bool:
    """Whether `plan(greedy=True)` does for these records."""
    return bool(((rows["kind"] == IDLE) | ((rows["kind"] == GREEDY) & (rows["logprobs"] < 0))).all())


def pack_histories(sequences: Sequence[tuple[SampleRow, int]]) -> tuple[NDArray[np.void], Int32]:
    """HISTORY and tokens of sequences, each with its row of the counts."""
    packed = np.zeros(len(sequences), HISTORY)
    tokens: list[Int32] = []
    first = 0
    for entry, (row, number) in zip(packed, sequences, strict=True):
        entry["first"], entry["row"] = first, number
        entry["prompt"], entry["generated"] = len(row.prompt), len(row.output)
        tokens += [np.asarray(row.prompt, np.int32), np.asarray(row.output, np.int32)]
        first += len(row.prompt) + len(row.output)
    return packed, np.concatenate(tokens)


def _changes(sampling: Sampling, vocab: int) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Bias, then bans, each ascending by token; a token's several additions stay in their order."""
    bans = {token for token in sampling.eos_token_ids + sampling.stop_token_ids if token < vocab}
    bias = sorted(sampling.logit_bias, key=lambda pair: pair[0])
    return bias, [(token, -math.inf) for token in sorted(bans)] if sampling.min_tokens else []


def _alternatives(wanted: int | None, vocab: int) -> int:
    if wanted is None:
        return -1
    if wanted > MOST_LOGPROBS:
        raise ValueError(f"{wanted} alternatives to a token: at most {MOST_LOGPROBS}")
    return min(wanted, vocab)


# --- what comes back -----------------------------------------------------------------------------------------------


def read_logprobs(rows: Rows, tokens: Int32, values: Float32, others: Int32) -> list[TokenLogprob | None]:
    """A log-probability for each row that asked for it and has a token, or is a score."""
    read: list[TokenLogprob | None] = [None] * len(rows)
    wanted = rows["logprobs"]
    scored = rows["kind"] == SCORE
    for index in np.flatnonzero((wanted >= 0) & (scored | ((rows["kind"] != IDLE) & (tokens >= 0)))).tolist():
        token, *alternatives = others[index, : 1 + wanted[index]].tolist()
        logprob, *logprobs = values[index, : 1 + wanted[index]].tolist()
        pairs = () if math.isnan(logprob) else tuple(zip(alternatives, logprobs, strict=True))
        read[index] = TokenLogprob(token, logprob, pairs)
    return read


def _launch(name: str, grid: tuple[int, int], threads: int, arguments: tuple[int | float, ...]) -> Launch:
    return Launch("sample", f"sample_{name}", (*grid, 1), (threads, 1, 1), 0, arguments)
