"""Two devices side by side: small models of several kinds, the same steps on both, and how far they may differ.

Teacher-forced: what a step is given does not depend on what the last one chose.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pilotlight.build.snapshot import build_snapshot
from pilotlight.device.base import Batch
from pilotlight.model.model import Model
from tests.model.harness import Context, Runner
from tests.models import llama_config, llama_tensors, write_checkpoint

CASES: dict[str, dict[str, Any]] = {
    "grouped heads of 64": {},
    "heads of 128, biases, odd vocabulary": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "head_dim": None,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 321,
    },
    "tied, gelu, mlp biases": {
        "tie_word_embeddings": True,
        "hidden_act": "gelu_pytorch_tanh",
        "attention_bias": True,
        "mlp_bias": True,
    },
    "window": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24},
    "split products": {
        "hidden_size": 2048,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 64,
    },
    "split down": {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 2048},
}

OnHost = Callable[[Model, Any], np.ndarray]  # the logits that a device has given, as an array
Steps = Sequence[tuple[int, Sequence[int]]]  # sequence by number, its new tokens


def tokens_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 320, count).tolist()


def ragged_steps() -> Iterator[Steps]:
    """Ragged prompts, decode steps, a chunk behind a context, and steps that some sequences sit out: 155 rows."""
    yield [(0, tokens_of(0, 5)), (1, tokens_of(1, 40)), (2, tokens_of(2, 70))]
    for seed in range(3, 6):
        yield [(number, [token]) for number, token in enumerate(tokens_of(seed, 3))]
    yield [(1, tokens_of(6, 20)), (3, tokens_of(7, 9))]
    yield [(3, [8]), (1, [9])]


def config_of(**changes: Any) -> dict[str, Any]:
    """A small model whose heads and sizes the kernels take."""
    return llama_config(
        **{"hidden_size": 256, "num_attention_heads": 4, "head_dim": 64, "intermediate_size": 256} | changes
    )


def tensors_of(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Random weights, with the biases that the config asks for."""
    tensors = llama_tensors(config)
    random = np.random.default_rng(2)
    for name, weight in list(tensors.items()):
        if ("self_attn." in name and config.get("attention_bias")) or ("mlp." in name and config.get("mlp_bias")):
            tensors[name.replace(".weight", ".bias")] = random.standard_normal(len(weight)).astype(np.float32)
    return tensors


def write_snapshot(directory: Path, dtype: str, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    """A snapshot with its weights in `dtype`, made as a user makes it."""
    source = write_checkpoint(directory / "source", config, tensors)
    build_snapshot(str(source), directory / "snapshot", dtype)
    return directory / "snapshot"


def snapshot_of(directory: Path, case: str, dtype: str = "bfloat16") -> Path:
    config = config_of(**CASES[case])
    return write_snapshot(directory, dtype, config, tensors_of(config))


def as_array(model: Model, logits: Any) -> np.ndarray:
    """Of a device whose tensors lie in the host's memory."""
    return np.array(logits)


@dataclass
class Rows:
    """Logits of every new token of a step, [tokens, vocabulary] each."""

    ours: np.ndarray
    reference: np.ndarray

    def compare(self, error: float) -> int:
        """Asserts that they agree within `error` of the spread of a row's logits, and on the best token wherever that
        leaves no doubt; in how many rows it leaves none.
        """
        spread = self.reference.max(axis=1) - self.reference.min(axis=1)
        off = np.abs(self.ours - self.reference).max(axis=1)
        assert np.isfinite(self.ours).all()
        assert (off <= error * spread).all(), (off / spread).max()
        best = np.sort(self.reference, axis=1)
        decided = best[:, -1] - best[:, -2] > 2 * error * spread
        assert (self.ours.argmax(axis=1) == self.reference.argmax(axis=1))[decided].all()
        return int(decided.sum())


class Pair:
    """A model on both devices; each step runs on both, in pages that are handed out alike."""

    def __init__(self, ours: Model, reference: Model, on_host: OnHost = as_array) -> None:
        self.ours, self.reference = Runner(ours), Runner(reference)
        self._on_host = on_host
        self._contexts: dict[int, tuple[Context, Context]] = {}

    def step(self, steps: Steps) -> Rows:
        for number, _ in steps:
            self._contexts.setdefault(number, (self.ours.sequence(), self.reference.sequence()))
        given = [(self._contexts[number], tokens) for number, tokens in steps]
        return Rows(
            all_logits(self.ours, [(contexts[0], tokens) for contexts, tokens in given], self._on_host),
            all_logits(self.reference, [(contexts[1], tokens) for contexts, tokens in given]),
        )


def all_logits(
    runner: Runner, steps: Sequence[tuple[Context, Sequence[int]]], on_host: OnHost = as_array
) -> np.ndarray:
    """One step; the logits of all of its tokens."""
    batch = runner.batch(steps)
    count = len(batch.tokens)
    batch.sample_rows = np.arange(count, dtype=np.int32)
    batch.rows = batch.rows[:1] * count
    batch.numbers, batch.admissions = batch.numbers[:1].repeat(count), batch.admissions[:1].repeat(count)
    batch.sample_positions = np.zeros(count, np.int32)
    return logits_of(runner.model, batch, on_host)


def logits_of(model: Model, batch: Batch, on_host: OnHost = as_array) -> np.ndarray:
    """One step, its forward pass as it is before masks come; the logits of the rows that are sampled."""
    device = model.device
    step = device.begin(batch)
    hidden = device.run(step, "forward", lambda: model.forward(step))
    firsts = range(0, len(batch.rows), 64)
    parts = [device.part(hidden, first, min(64, len(batch.rows) - first)) for first in firsts]
    return np.concatenate([on_host(model, model.logits(part)) for part in parts])
