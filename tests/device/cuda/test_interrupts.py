"""Ctrl-C wherever the device talks to the driver: what was under way is lost, and nothing of it is seen later."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilotlight.device.cuda import driver
from pilotlight.engine.engine import Engine
from pilotlight.messages import Output, Sampling, Submit
from pilotlight.model.model import Model
from tests.models import llama_tensors

from .bench import Bench, config_of, write_snapshot

pytestmark = pytest.mark.gpu

# What keeps something on the GPU from one launch to the next: lists of the likeliest tokens, counts, masks.
ASKED = (
    Sampling(max_tokens=3, temperature=1.0, top_p=0.9, logprobs=3, seed=3, repetition_penalty=1.3, prompt_logprobs=2),
    Sampling(max_tokens=2, temperature=1.0, top_k=20, seed=4, allowed_tokens=b"\xff" * 8),
)
CALLS = sorted(
    name
    for name, value in vars(driver).items()
    if getattr(value, "__module__", None) == driver.__name__ and hasattr(value, "__code__") and name[0] != "_"
)


def open_model(bench: Bench, directory: Path) -> Model:
    config = config_of(
        hidden_size=64, intermediate_size=64, num_attention_heads=1, num_key_value_heads=1, num_hidden_layers=1
    )
    return bench.load(
        write_snapshot(directory, "bfloat16", config, llama_tensors(config)), max_num_seqs=2, max_model_len=64
    )


def answers(model: Model) -> list[Output]:
    engine = Engine(model, max_num_seqs=2, max_num_batched_tokens=16)
    for number, sampling in enumerate(ASKED):
        engine.submit(Submit(number, list(range(3, 8 - number)), sampling))
    given = []
    while engine.has_work:
        given += engine.step()
    return given


def kinds(model: Model, last: str = "") -> dict[str, None]:
    """Those of a run's calls, in order: a name, and whether it is captured. Behind the first of kind `last` comes an
    interrupt."""
    made: dict[str, None] = {}
    is_captured = False

    def tapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def tap(*arguments: Any) -> Any:
            nonlocal is_captured
            result = call(*arguments)
            is_captured = name == "begin_capture" or (is_captured and name != "end_capture")
            kind = f"{name} {arguments[-1]}" if name == "launch" else name
            kind += ", captured" if is_captured else ""
            made[kind] = None
            if kind == last:
                raise KeyboardInterrupt
            return result

        return tap

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(driver, name, tapped(name, getattr(driver, name)))
        answers(model)
    return made


def test_answers_after_an_interrupt_are_those_of_a_device_that_never_had_one(bench: Bench, tmp_path: Path) -> None:
    """Behind the first call of each kind; graphs are made anew each time, so that captures are interrupted too."""
    model = open_model(bench, tmp_path)
    graphs = model.device._graphs._captured  # type: ignore[attr-defined]
    expected = answers(model)
    graphs.clear()
    found = kinds(model)
    assert {"begin_capture, captured", "end_capture", "launch sample_gather", "copy_to_host"} < found.keys()
    for kind in found:
        graphs.clear()
        with pytest.raises(KeyboardInterrupt):
            kinds(model, kind)
        assert answers(model) == expected, kind
