"""The engine on the CUDA device under mixes of requests that nobody would think of, seeded.

What is right is known twice: each token is what sampling.py makes of the logits that the GPU has, given the tokens
before it; and these are the logits that the numpy device has for the sequence, read in one piece. So a wrong page,
position, count, mask or record shows, whatever the order of the steps; and reading the logits must change nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight.device import sampling
from pilotlight.device.base import Batch, Float32, SampleRow
from pilotlight.device.cuda.device import CudaDevice
from pilotlight.device.random import stream_key
from pilotlight.engine.engine import Engine
from pilotlight.messages import Output, Sampling, Submit, TokenLogprob
from pilotlight.model.model import Model, Running
from tests.device.masks import pack_mask
from tests.model.harness import Runner, load
from tests.models import llama_tensors

from .bench import Bench, all_logits, config_of, read, write_snapshot

pytestmark = pytest.mark.gpu

SMALL = {"hidden_size": 72, "intermediate_size": 72, "num_hidden_layers": 1, "max_position_embeddings": 128}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 17}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
# A model, how it is kept, and the error of its logits, of their spread: twice and more of what was measured.
MODELS: dict[str, tuple[dict[str, Any], str, dict[str, Any], float]] = {
    "tied": (
        {"vocab_size": 333, "tie_word_embeddings": True, "num_attention_heads": 3, "num_key_value_heads": 3},
        "float16",
        {},
        0.005,
    ),
    "windows": (
        MISTRAL | {"vocab_size": 321, "num_attention_heads": 2, "num_key_value_heads": 1},
        "bfloat16",
        {},
        0.03,
    ),
    "biases": (
        QWEN2 | {"vocab_size": 1025, "num_attention_heads": 7, "num_key_value_heads": 1},
        "float16",
        {"kv_cache_dtype": "fp8"},
        0.12,
    ),
}
SEQS, TOKENS, PAGES, LENGTH = 4, 24, 5, 80


class Tap:
    """The model, and the logits that each token was chosen from, by sequence and position. `reads`: only then."""

    def __init__(self, model: Model, *, reads: bool) -> None:
        self.max_model_len, self.num_pages, self.lookahead = model.max_model_len, PAGES, model.lookahead
        self.prepare = model.prepare
        self.logits: dict[tuple[int, int], Float32] = {}
        self.engine: Engine
        self._model = model
        self._reads = reads

    def start(self, batch: Batch) -> "Running | _Tapped":
        owners = {sequence.admission: sequence.id for sequence in self.engine.scheduler.running}
        keys = [
            (owners[admission], position)
            for admission, position in zip(batch.admissions.tolist(), batch.sample_positions.tolist(), strict=True)
        ]
        running = self._model.start(batch)
        if not self._reads or not keys or len(batch.score_rows):  # whose logits come to lie in the same place
            return running
        if any(row.mask for row in batch.rows):
            return _Tapped(running, lambda: self._read(keys))
        self._read(keys)
        return running

    def _read(self, keys: list[tuple[int, int]]) -> None:
        device = self._model.device
        assert isinstance(device, CudaDevice)
        rows = read(device, device._slab + device._places.logits, (len(keys), self._model.spec.vocab_size))
        self.logits |= dict(zip(keys, rows, strict=True))


@dataclass
class _Tapped:
    """A step whose tokens are chosen late."""

    running: Running
    then: Callable[[], None]

    def complete(self) -> None:
        self.running.complete()
        self.then()

    def result(self) -> Any:
        return self.running.result()


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish: str | None = None

    def add(self, output: Output) -> None:
        assert self.finish is None
        self.tokens += output.tokens
        self.logprobs += output.logprobs or []
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.finish = output.finish


def requests(random: np.random.Generator, vocab: int, count: int) -> list[Submit]:
    """Prompts of all lengths around a page, many with one beginning; and of what can be asked for a third each."""
    shared = random.integers(0, vocab, LENGTH).tolist()

    def some(options: list[Any]) -> Any:
        return options[random.integers(len(options))]

    def ids(most: int) -> tuple[int, ...]:
        return tuple(random.choice(vocab, most, replace=False).tolist())

    made = []
    for number in range(count):
        length = some([1, 2, 15, 16, 17, 33, 40])
        kept = some([0, length // 2, length])
        longest = some([1, 30, 38])
        asked = {
            "temperature": some([0.3, 1.0, 2.0]),
            "top_k": some([1, 5, 50]),
            "top_p": some([0.1, 0.9]),
            "min_p": some([0.01, 1.0]),
            "presence_penalty": some([-2.0, 0.5]),
            "frequency_penalty": some([-2.0, 0.5]),
            "repetition_penalty": some([0.5, 1.3, 1e9]),
            "logit_bias": tuple(zip(ids(3), [-100.0, 1.5, 100.0], strict=True)),
            "min_tokens": some([1, longest]),
            "stop_token_ids": ids(5),
            "eos_token_ids": (*ids(5), vocab + 5),
            "allowed_tokens": pack_mask(ids(some([1, 3, 40]))).tobytes(),
            "logprobs": some([0, 1, 20]),
            "prompt_logprobs": some([0, 2, 20]),
        }
        wanted = {name: value for name, value in asked.items() if random.random() < 1 / 3}
        chosen = Sampling(**{"temperature": 0.0, "seed": number} | wanted, max_tokens=longest)
        prompt = shared[:kept] + random.integers(0, vocab, length - kept).tolist()
        made.append(Submit(number, prompt, chosen, choice_index=number, priority=some([0, 0, -1])))
    return made


def drive(model: Model, items: list[Submit], seed: int, *, reads: bool) -> tuple[dict[int, Answer], Tap, Engine]:
    """All of them, some in the middle of others; two are aborted on their way."""
    random = np.random.default_rng(seed)
    tap = Tap(model, reads=reads)
    tap.engine = engine = Engine(tap, max_num_seqs=SEQS, max_num_batched_tokens=TOKENS)
    answers = {item.id: Answer() for item in items}
    waiting = items.copy()
    steps = 0
    while waiting or engine.has_work:
        if waiting and random.random() < 0.7:
            engine.submit(waiting.pop(0))
        if steps in (9, 15):
            aborted = min(engine.scheduler.running, key=lambda sequence: sequence.order, default=None)
            if aborted:
                engine.abort([aborted.id])
                answers[aborted.id].finish = "abort"
        if steps % 5 == 0:
            engine.prepare()
        for output in engine.step():
            answers[output.id].add(output)
        engine.check_integrity()
        steps += 1
    assert isinstance(model.device, CudaDevice)
    assert not model.device._graphs._is_refused
    return answers, tap, engine


def assert_chosen(item: Submit, answer: Answer, tap: Tap) -> None:
    """Each token by sampling.py, from the logits that the GPU had."""
    key = stream_key(item.sampling.seed, item.prompt_index, item.choice_index)
    words = np.frombuffer(item.sampling.allowed_tokens, np.uint32)
    mask = (lambda: words) if len(words) else None
    for position, token in enumerate(answer.tokens):
        if (item.id, position) not in tap.logits:
            continue
        row = SampleRow(item.sampling, key, item.prompt, answer.tokens[:position], mask)
        (expected,), (logprob,) = sampling.sample(tap.logits[item.id, position][None].copy(), [row])
        assert token == expected, (item, position)
        if logprob is not None:
            given = answer.logprobs[position]
            assert [given.token, *dict(given.top)] == [logprob.token, *dict(logprob.top)]
            assert given.logprob == pytest.approx(logprob.logprob, abs=1e-4)


@pytest.fixture(params=MODELS)
def pair(request: pytest.FixtureRequest, bench: Bench, tmp_path: Path) -> tuple[Model, Model, float]:
    changes, dtype, settings, error = MODELS[request.param]
    config = config_of(**SMALL | changes)
    directory = write_snapshot(tmp_path, dtype, config, llama_tensors(config))
    sizes = {"max_num_seqs": SEQS, "max_num_batched_tokens": LENGTH, "max_model_len": LENGTH}
    return bench.load(directory, **sizes, **settings), load(directory, device="cpu", dtype="float32", **sizes), error


@pytest.mark.parametrize("seed", [11, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (7, 10))])
def test_tokens_are_those_of_the_logits_and_these_those_of_the_cpu(
    bench: Bench, pair: tuple[Model, Model, float], seed: int
) -> None:
    model, cpu, error = pair
    items = requests(np.random.default_rng(seed), model.spec.vocab_size, 8)
    found, _, engine = drive(model, items, seed, reads=False)
    again, tap, _ = drive(model, items, seed, reads=True)
    assert again == found
    assert engine.scheduler.preemptions
    for item in items:
        answer = found[item.id]
        assert_chosen(item, answer, tap)
        if not answer.tokens:
            continue
        runner = Runner(cpu)
        expected = all_logits(runner, [(runner.sequence(), item.prompt + answer.tokens)])
        spread = np.ptp(expected, axis=1)
        for position in range(len(answer.tokens)):
            at = len(item.prompt) - 1 + position
            if (item.id, position) in tap.logits:
                assert np.abs(tap.logits[item.id, position] - expected[at]).max() <= error * spread[at]
        if item.sampling.prompt_logprobs is not None:
            targets = np.array(item.prompt[1:], np.int32)
            scores = sampling.score(expected[: len(targets)], targets, item.sampling.prompt_logprobs)
            given = (answer.prompt_logprobs or [])[1:]
            assert [(entry.token, len(entry.top)) for entry in given if entry] == [
                (score.token, len(score.top)) for score in scores
            ]
            for entry, score, width in zip(given, scores, spread, strict=False):
                assert entry is not None
                assert entry.logprob == pytest.approx(score.logprob, abs=float(2 * error * width))
