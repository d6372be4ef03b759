"""Decode steps as graphs: what is replayed is what would be launched, and writes no more; and steps without them."""

import gc
import logging
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight.device.base import Sampled, SampleRow
from pilotlight.device.cuda import driver, graphs
from pilotlight.device.cuda.device import CudaDevice
from pilotlight.device.cuda.errors import DeviceLostError, failure
from pilotlight.device.cuda.graphs import Key, buckets
from pilotlight.device.random import stream_key
from pilotlight.messages import Sampling
from pilotlight.model.model import Model
from tests import softgpu
from tests.device.masks import pack_mask
from tests.model.harness import Context, Runner
from tests.models import llama_tensors

from .bench import Bench, config_of, last_logits, read, twin, write_snapshot

pytestmark = pytest.mark.gpu

FORMS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 0.0},
    "general": {"top_p": 0.9, "logprobs": 3, "frequency_penalty": 0.5, "logit_bias": ((4, 3.0),)},
}
_admissions = count(1 << 40)  # none of which a Runner gives


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = config_of()
    return write_snapshot(tmp_path_factory.mktemp("models"), "bfloat16", config, llama_tensors(config))


@pytest.fixture
def model(bench: Bench, snapshot: Path) -> Model:
    """With its very first step behind it, which is in no graph."""
    model = bench.load(snapshot, max_model_len=256)
    device_of(model)._graphs._is_new = False
    return model


def device_of(model: Model) -> CudaDevice:
    assert isinstance(model.device, CudaDevice)
    return model.device


def keys(model: Model) -> list[Key]:
    """Of the graphs that there are, in the order in which they were captured."""
    captured = device_of(model)._graphs._captured
    return [key for key, graph in captured.items() if graph.executable is not None]


def eagerly(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CudaDevice, "_is_replayed", lambda self, batch: False)


def prompts(runner: Runner, count: int) -> list[Context]:
    """Sequences of 12 tokens and more: the next steps go over a page's end."""
    sequences = [runner.sequence() for _ in range(count)]
    for number, sequence in enumerate(sequences):
        last_logits(runner, [(sequence, list(range(number, 2 * number + 12)))])
    return sequences


def decode(
    runner: Runner, sequences: list[Context], changes: dict[str, Any], *, steps: int = 4, masked: bool = False
) -> list[Sampled]:
    """Steps over copies of the contexts, from the token 7 on."""
    sequences = [twin(sequence) for sequence in sequences]
    parameters, admission = Sampling(**({"max_tokens": 9} | changes)), next(_admissions)
    rows = [SampleRow(parameters, stream_key(number, 0, 0), [1, 2], []) for number, _ in enumerate(sequences)]
    if masked:
        rows[0].mask = lambda: pack_mask([7, 9, 30])
    new, found = [7] * len(rows), []
    for step in range(steps):
        batch = runner.batch([(sequence, [token]) for sequence, token in zip(sequences, new, strict=True)])
        batch.rows, batch.admissions = rows, np.full(len(rows), admission)
        batch.sample_positions = np.full(len(rows), step, np.int32)
        found.append(runner.model.run(batch))
        new = found[-1].tokens
    return found


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_replay_is_what_would_be_launched(
    bench: Bench, model: Model, monkeypatch: pytest.MonkeyPatch, form: str, masked: bool
) -> None:
    """To the last bit of a log-probability, with idle rows beside three sequences; one capture for each stage."""
    runner = Runner(model)
    sequences = prompts(runner, 3)
    device_of(model)._graphs._captured.clear()
    before = softgpu.counters()["driver"] if bench.soft else {}
    replayed = decode(runner, sequences, FORMS[form], masked=masked)
    stages = ["forward", "sample"] if masked else ["step"]
    assert keys(model) == [Key(4, stage, form == "plain" and stage != "forward") for stage in stages]
    if bench.soft:
        after = softgpu.counters()["driver"]
        assert after["captures"] - before["captures"] == len(stages)
        assert after["graph_launches"] - before["graph_launches"] == 4 * len(stages)
        assert after["launches"] - before["launches"] == (form == "general")  # the histories
    with monkeypatch.context() as patch:
        eagerly(patch)
        assert decode(runner, sequences, FORMS[form], masked=masked) == replayed
    assert len({tuple(sampled.tokens) for sampled in replayed}) > 1


def test_the_very_first_decode_step_makes_no_graph(bench: Bench, snapshot: Path) -> None:
    """With lookahead it is started before the first token of all is out."""
    runner = Runner(bench.load(snapshot, max_model_len=256))
    sequences = prompts(runner, 3)
    first = decode(runner, sequences, FORMS["plain"], steps=1)
    assert keys(runner.model) == []
    assert decode(runner, sequences, FORMS["plain"], steps=1) == first
    assert keys(runner.model) == [Key(4, "step", True)]


def test_logits_of_a_replay_are_those_of_launches(
    bench: Bench, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner(model)
    sequences = prompts(runner, 5)
    replayed = last_logits(runner, [(twin(sequence), [9]) for sequence in sequences])
    assert Key(8, "forward", False) in keys(model)
    eagerly(monkeypatch)
    assert (last_logits(runner, [(twin(sequence), [9]) for sequence in sequences]) == replayed).all()


def test_a_sequence_is_the_same_in_every_bucket(bench: Bench, model: Model) -> None:
    runner = Runner(model)
    sequences = prompts(runner, 8)
    alone = decode(runner, sequences[:1], FORMS["general"], steps=2)
    for size in range(2, 9):
        among = decode(runner, sequences[:size], FORMS["general"], steps=2)
        assert [sampled.tokens[0] for sampled in among] == [sampled.tokens[0] for sampled in alone]
        assert [sampled.logprobs[0] for sampled in among] == [sampled.logprobs[0] for sampled in alone]


def test_idle_rows_write_nothing(bench: Bench, model: Model) -> None:
    """Of what outlives a step: pages, ids, counts. Five sequences in a bucket of eight write their own alone."""
    runner, device = Runner(model), device_of(model)
    sequences = [sequence for sequence in prompts(runner, 6) if sequence.length % 16]  # no page is added to
    assert len(sequences) == 5
    decode(runner, sequences, FORMS["general"], steps=1)
    places = device._sampler._places
    held = {
        "pages": (device._pages, model.num_pages * device.page_bytes(device._shape)),
        "ids": (device._sampler.ids, 4 * 8),
        "counts": (device._sampler._address + places.counts, 2 * 320 * 8),
    }
    before = {name: read(device, address, (nbytes,), np.uint8) for name, (address, nbytes) in held.items()}
    decode(runner, sequences, FORMS["general"], steps=1)
    after = {name: read(device, address, (nbytes,), np.uint8) for name, (address, nbytes) in held.items()}
    for name in held:  # the same tokens again, so even the sequences' own bytes are what they were
        assert (before[name] == after[name]).all(), name


def test_prepare_captures_what_is_missing_smallest_first(bench: Bench, model: Model) -> None:
    runner = Runner(model)
    sequences = prompts(runner, 8)
    decode(runner, sequences[:2], FORMS["general"], steps=1)
    there = keys(model)
    while model.prepare():
        pass
    assert not model.prepare()
    wanted = [Key(bucket, "step", plain) for bucket in (1, 2, 4, 8) for plain in (True, False)]
    assert keys(model) == there + [key for key in wanted if key not in there]
    captures = softgpu.counters()["driver"]["captures"] if bench.soft else 0
    for size in range(1, 9):
        for changes in FORMS.values():
            decode(runner, sequences[:size], changes, steps=1)
    if bench.soft:
        assert softgpu.counters()["driver"]["captures"] == captures


def test_a_graph_captured_without_a_batch_is_that_of_a_step(
    bench: Bench, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner(model)
    sequences = prompts(runner, 3)
    while model.prepare():
        pass
    for changes in FORMS.values():
        prepared = decode(runner, sequences, changes)
        with monkeypatch.context() as patch:
            eagerly(patch)
            assert decode(runner, sequences, changes) == prepared


@pytest.mark.parametrize(
    ("code", "name"), [(2, "OUT_OF_MEMORY"), (801, "NOT_SUPPORTED"), (901, "STREAM_CAPTURE_INVALIDATED")]
)
@pytest.mark.parametrize("call", ["begin_capture", "end_capture", "instantiate", "upload_graph"])
def test_where_the_driver_makes_no_graph_steps_are_launched(
    bench: Bench,
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
    code: int,
    name: str,
) -> None:
    """With one warning, whatever is tried after; graphs that are there are used."""
    runner = Runner(model)
    sequences = prompts(runner, 3)
    before = decode(runner, sequences, FORMS["plain"], steps=2)
    make = getattr(driver, call)

    def fail(*arguments: Any) -> Any:
        if call != "begin_capture":
            driver.destroy_graph(make(*arguments)) if call == "end_capture" else None
        raise failure(call, code, f"CUDA_ERROR_{name}", "some reason")

    there = keys(model)
    monkeypatch.setattr(driver, call, fail)
    assert decode(runner, sequences, FORMS["plain"], steps=2) == before
    general = decode(runner, sequences, FORMS["general"], steps=2)
    decode(runner, sequences, FORMS["plain"], steps=2, masked=True)
    assert not model.prepare()
    assert keys(model) == there
    (line,) = [message for message in caplog.messages if "graph" in message]
    assert line.startswith("cuda:0: no graph_step [4], its like are launched kernel by kernel: ")
    monkeypatch.undo()
    assert decode(runner, sequences, FORMS["general"], steps=2) == general
    assert keys(model) == there


def test_a_capture_that_fails_leaves_the_stream_as_it_was(
    bench: Bench, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner(model)
    sequences = prompts(runner, 2)

    def broken(*_: Any) -> Any:
        raise ValueError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(CudaDevice, "gated_linear", broken)
        with pytest.raises(ValueError, match="a bug"):
            decode(runner, sequences, FORMS["plain"], steps=1)
    device_of(model)._graphs._captured.clear()
    assert len(decode(runner, sequences, FORMS["plain"], steps=1)[0].tokens) == 2


@pytest.mark.parametrize("was_enabled", [True, False])
def test_nothing_is_collected_in_a_capture(
    bench: Bench, model: Model, monkeypatch: pytest.MonkeyPatch, was_enabled: bool
) -> None:
    """A collection comes anywhere, and what a dropped device gives back would end the capture that it came into."""
    runner = Runner(model)
    sequences = prompts(runner, 3)
    launch = driver.launch
    enabled: list[bool] = []

    def launched(*arguments: Any) -> None:
        enabled.append(gc.isenabled())
        launch(*arguments)

    monkeypatch.setattr(driver, "launch", launched)
    if not was_enabled:
        gc.disable()
    try:
        decode(runner, sequences, FORMS["plain"], steps=1)
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()
    assert keys(model) == [Key(4, "step", True)]
    assert set(enabled) == {False}


def test_a_replayed_step_is_few_calls(bench: Bench, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of sequences: what a step costs the host is what the driver takes for these, and numpy."""
    gc.collect()  # what other tests dropped makes calls of its own
    runner = Runner(model)
    sequences = prompts(runner, 8)
    calls: list[str] = []

    def counted(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            calls.append(name)
            return make(*arguments, **named)

        return call

    decode(runner, sequences, FORMS["plain"], steps=1)
    batch = runner.batch([(twin(sequence), [3]) for sequence in sequences])
    model.run(batch)
    for name in dir(driver):
        if callable(make := getattr(driver, name)) and getattr(make, "__module__", "") == driver.__name__:
            monkeypatch.setattr(driver, name, counted(name, make))
    model.run(batch)
    assert sorted(name for name in calls if not name.startswith("_")) == [
        *("copy_to_device", "copy_to_host", "launch_graph", "record_event", "record_event"),
        *("set_current", "set_current", "synchronize_event", "synchronize_event"),
    ]


def test_a_step_whose_place_is_taken_is_not_run(bench: Bench, model: Model) -> None:
    """Its metadata are another's by then."""
    runner, device = Runner(model), device_of(model)
    first = device.begin(runner.batch([(runner.sequence(), [1])]))
    second = device.begin(runner.batch([(runner.sequence(), [2])]))
    with pytest.raises(ValueError, match=r"step \d+ is run after step \d+ was begun in its place"):
        device.run(first, "forward", lambda: model.forward(first))
    with pytest.raises(ValueError, match="has no results: at most 2 steps are under way"):
        device.finish(second)


def test_a_gpu_lost_in_a_replay_is_told_with_the_replay(
    bench: Bench, model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = Runner(model)
    sequences = prompts(runner, 1)

    def lost(*_: Any) -> None:
        raise failure("cuEventSynchronize", 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal address")

    running = model.start(runner.batch([(sequences[0], [3])]))
    with monkeypatch.context() as patch:
        patch.setattr(driver, "synchronize_event", lost)
        with caplog.at_level(logging.ERROR), pytest.raises(DeviceLostError):
            running.result()
    assert "cuda:0 is lost; its last launches, the latest first: graph_step_plain [1], " in caplog.text
    running.result()


def test_buckets() -> None:
    assert [buckets(size) for size in (1, 3, 8, 9)] == [[1], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 9]]
    assert buckets(100) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100]
    largest = buckets(1024)
    assert largest[-5:] == [512, 640, 768, 896, 1024]
    assert graphs.reserved_bytes(1024) == len(largest) * 5 << 20 == 135 << 20
