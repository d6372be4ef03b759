"""scripts/roofline: bytes and operations against sums made by hand, launches against those that a device makes."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight.device.cuda.launch import Gpu
from pilotlight.errors import EXIT_USAGE, UsageError
from pilotlight.model.families import describe
from scripts.gpu import cards, shapes
from scripts.gpu.paper import PaperDevice, PaperStep, Work, decode_step, paper_weights, prefill_step, step_works
from tests import softgpu
from tests.device.cuda.bench import SMS, Bench, config_of
from tests.model.harness import Runner
from tests.models import llama_config, llama_tensors, write_checkpoint
from tests.softgpu.fixtures import Soft

ROOT = Path(__file__).parent.parent
A100 = cards.find("A100")

# On an A100 the output and down projections of few tokens are split in two; a context of 300 has two splits too.
HIDDEN, INNER, HEADS, KV_HEADS, HEAD, VOCAB, LAYERS = 2048, 4096, 16, 4, 128, 1000, 2
QKV = (HEADS + 2 * KV_HEADS) * HEAD
CONFIG = llama_config(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    max_position_embeddings=4096,
)


def works(step: PaperStep, config: dict[str, Any] = CONFIG, **options: Any) -> list[Work]:
    description = describe(config)
    device = PaperDevice(A100.gpu, description.spec, "bfloat16", max_length=4096, **{"fp8_pages": False} | options)
    return step_works(description, device, step)


def totals(made: list[Work]) -> dict[str, tuple[int, int, int]]:
    """Kernel -> launches, bytes, operations."""
    return {
        name: (
            sum(len(work.launches) for work in made if work.name == name),
            sum(work.nbytes for work in made if work.name == name),
            sum(work.operations for work in made if work.name == name),
        )
        for name in dict.fromkeys(work.name for work in made)
    }


def by_hand(tokens: int, context: int) -> dict[str, tuple[int, int, int]]:
    """Of a decode step whose contexts are of two splits."""
    half = 2 * tokens  # bytes of a column of activations
    parts = 2 * 4 * tokens * HIDDEN  # what a product that is split in two leaves, fp32
    first_norm = half * HIDDEN + 2 * HIDDEN + half * HIDDEN
    fused_norm = parts + half * HIDDEN + 2 * HIDDEN + 2 * half * HIDDEN
    cache = tokens * context * 2 * KV_HEADS * HEAD * 2
    sums = tokens * HEADS * 2 * (HEAD + 2) * 4  # of two splits, each written and read
    return {
        "embed": (1, 2 * half * HIDDEN, 0),
        "attention_norm": (2, first_norm + fused_norm, 0),
        "qkv": (2, 2 * (2 * QKV * HIDDEN + half * HIDDEN + half * QKV), 2 * 2 * tokens * QKV * HIDDEN),
        "rope_and_cache": (2, 2 * (half * QKV + tokens * HEAD * 4 + half * QKV), 0),
        "attention": (4, 2 * (2 * half * HEADS * HEAD + cache + 2 * sums), 2 * 4 * tokens * context * HEADS * HEAD),
        "output": (2, 2 * (2 * HIDDEN * HIDDEN + half * HIDDEN + parts), 2 * 2 * tokens * HIDDEN * HIDDEN),
        "mlp_norm": (2, 2 * fused_norm, 0),
        "gate_up": (2, 2 * (2 * 2 * INNER * HIDDEN + half * HIDDEN + half * INNER), 2 * 4 * tokens * INNER * HIDDEN),
        "down": (2, 2 * (2 * HIDDEN * INNER + half * INNER + parts), 2 * 2 * tokens * HIDDEN * INNER),
        "norm": (1, fused_norm, 0),
        "head": (1, 2 * VOCAB * HIDDEN + half * HIDDEN + 4 * tokens * VOCAB, 2 * tokens * VOCAB * HIDDEN),
        "sample": (3, 2 * 4 * tokens * VOCAB, 0),
    }


def bytes_by_hand(tokens: int) -> int:
    return sum(nbytes for _, nbytes, _ in by_hand(tokens, 300).values())


def test_a_decode_step_by_hand() -> None:
    assert totals(works(decode_step(3, 300))) == by_hand(3, 300)
    assert bytes_by_hand(3) == 151_581_856


def test_idle_sequences_cost_all_but_a_cache() -> None:
    cache, sums, written = 300 * 2 * KV_HEADS * HEAD * 2, HEADS * 2 * (HEAD + 2) * 4, 2 * KV_HEADS * HEAD * 2
    filled = sum(work.nbytes for work in works(decode_step(3, 300, bucket=4)))
    assert filled == bytes_by_hand(4) - LAYERS * (cache + 2 * sums + written)


def test_fp8_pages_halve_the_cache_and_a_greedy_step_reads_logits_once() -> None:
    plain, fp8 = (totals(works(decode_step(2, 200), fp8_pages=fp8))["attention"][1] for fp8 in (False, True))
    assert plain - fp8 == LAYERS * 2 * 200 * 2 * KV_HEADS * HEAD
    assert totals(works(decode_step(2, 200), greedy=True))["sample"] == (2, 4 * 2 * VOCAB, 0)


@pytest.mark.parametrize("window", [None, 100, 1000])
def test_attention_of_a_chunk_counts_what_its_queries_see(window: int | None) -> None:
    tokens, before = 70, 130
    description = describe(CONFIG)
    device = PaperDevice(A100.gpu, description.spec, "bfloat16", fp8_pages=False, max_length=4096)
    x = device.embed(prefill_step(tokens, before), paper_weights(description)["embed.weight"])
    device.attention(prefill_step(tokens, before), x, 0, 0.1, window)
    seen = [
        range(max(0, position + 1 - window) if window else 0, position + 1)
        for position in range(before, before + tokens)
    ]
    distinct = set(itertools.chain.from_iterable(seen))
    work = device.works[-1]
    assert work.operations == 4 * HEADS * HEAD * sum(map(len, seen))
    assert work.nbytes == 2 * 2 * tokens * HEADS * HEAD + len(distinct) * 2 * 2 * KV_HEADS * HEAD
    assert [launch.entry for launch in work.launches] == ["attention_prefill_d128_r64_bf16"]


def test_floors_are_of_the_roof_that_is_reached_last() -> None:
    assert A100.microseconds(2_039_000, 0) == pytest.approx(1.0)
    assert A100.microseconds(0, int(312e6 * 0.85)) == pytest.approx(1.0)
    assert A100.microseconds(2_039_000, int(312e6)) == pytest.approx(1 / 0.85)


# --- what the device launches -------------------------------------------------------------------------------------


def test_it_plans_what_the_device_launches(soft: Soft, tmp_path: Path) -> None:
    """Counted by the soft GPU: a ragged prefill, and a decode step that is replayed."""
    config = config_of(intermediate_size=2048)  # of which the down projection is split
    directory = write_checkpoint(tmp_path / "model", config, llama_tensors(config))
    with Bench(soft=True) as bench:
        model = bench.load(directory)
        gpu: Gpu = model.device.gpu  # type: ignore[attr-defined]
        assert gpu.sm_count == SMS
        paper = PaperDevice(gpu, model.spec, "bfloat16", fp8_pages=False, max_length=model.max_model_len, greedy=True)
        runner = Runner(model)
        contexts = [runner.sequence() for _ in range(4)]
        chunks = [list(range(1, 2 + 9 * number)) for number in range(1, 5)]
        found = counted(lambda: model.run(runner.batch(list(zip(contexts, chunks, strict=True)))))
        starts = np.cumsum([0, *map(len, chunks)]).astype(np.int32)
        assert found == planned(paper, config, PaperStep(starts, np.diff(starts)))
        for _ in range(2):
            step = decode_step(4, 50)
            found = counted(lambda: model.run(runner.batch([(context, [7]) for context in contexts])))
        assert found == planned(paper, config, step)
        assert any(work.name == "down" and work.launches[0].grid[2] == 2 for work in paper.works)


def counted(run: Any) -> dict[str, int]:
    """Launches of each kernel."""
    before = {name: kernel["launches"] for name, kernel in softgpu.counters()["kernels"].items()}
    run()
    after = {name: kernel["launches"] for name, kernel in softgpu.counters()["kernels"].items()}
    return {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}


def planned(paper: PaperDevice, config: dict[str, Any], step: PaperStep) -> dict[str, int]:
    entries = [launch.entry for work in step_works(describe(config), paper, step) for launch in work.launches]
    return {entry: entries.count(entry) for entry in dict.fromkeys(entries)}


# --- the command --------------------------------------------------------------------------------------------------


def roofline(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, ROOT / "scripts" / "roofline", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_the_json_has_what_the_sums_say(model: Path) -> None:
    done = roofline(model, "a100", "--batch", "3", "4", "--context", "300", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    three, four = result["decode"]["3"], result["decode"]["4"]
    assert (four["launches"], four["nbytes"]) == (24, bytes_by_hand(4))
    assert four["floor_us"] == pytest.approx(bytes_by_hand(4) / 2039e3)  # every kernel is bound by memory
    assert four["step_us"] == pytest.approx([four["floor_us"] + 24 * 1.3, four["floor_us"] + 24 * 3.0])
    assert four["tokens_per_s"] == pytest.approx([4e6 / four["step_us"][1], 4e6 / four["step_us"][0]])
    assert bytes_by_hand(3) < three["nbytes"] < four["nbytes"]  # it runs as a graph of four
    assert three["tokens_per_s"][0] == pytest.approx(3e6 / three["step_us"][1])
    assert list(result["ceilings"]) == ["1", "2", "4", "8", "16", "32", "64", "128", "256"]
    weights = 2 * (2 * VOCAB * HIDDEN + HIDDEN)
    weights += LAYERS * 2 * (QKV * HIDDEN + HIDDEN * HIDDEN + 3 * INNER * HIDDEN + 2 * HIDDEN)
    assert result["start"] == {"weight_bytes": weights, "floor_s": pytest.approx(weights / 32e9)}
    assert result["card"]["source"] == "data sheet"


def test_a_table_says_that_nothing_was_measured(model: Path) -> None:
    done = roofline(model, "H200", "--kv-cache-dtype", "fp8")
    assert done.returncode == 0, done.stderr
    assert "none measured, data sheet: 4800 GB/s, 989 TFLOPS bf16" in done.stdout
    assert "K/V in fp8" in done.stdout
    assert done.stdout.count("\nsum ") == 3  # two decode steps and a prefill


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Qwen2.5-0.5B", "GTX1080"], "no GPU 'GTX1080' is known; there are A100, L4,"),
        (["no/such/model", "H200"], "by name alone there are SmolLM2-135M, Qwen2.5-0.5B"),
        (["Qwen2.5-0.5B", "none.json"], "none.json: cannot be read: No such file"),
    ],
)
def test_what_is_not_known_is_one_line(arguments: list[str], words: str) -> None:
    done = roofline(*arguments)
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert done.stderr.startswith("roofline: ")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_every_name_has_a_floor_on_every_card(name: str) -> None:
    description = shapes.find(name)
    for card in cards.CARDS.values():
        device = PaperDevice(card.gpu, description.spec, "bfloat16", fp8_pages=False, max_length=8192)
        floor = sum(
            card.microseconds(work.nbytes, work.operations)
            for work in step_works(description, device, decode_step(1, 1))
        )
        weights = 2 * sum(int(np.prod(tensor.shape)) for tensor in description.tensors)
        embedding = (
            0 if description.spec.tied_head else 2 * description.spec.vocab_size * description.spec.hidden_size
        )
        assert floor == pytest.approx((weights - embedding) / card.memory_gb_s / 1e3, rel=0.02)


# --- roofs that were measured -------------------------------------------------------------------------------------


def checked(card: str) -> dict[str, Any]:
    """What of a gpu_check is read."""
    attributes = {
        "capability_major": 9,
        "capability_minor": 0,
        "sm_count": 132,
        "l2_bytes": 1,
        "shared_bytes_per_block": 2,
    }
    roofs = {
        "read_gb_s": 4000.0, "copy_gb_s": 3900.0, "mma_bf16_tflops": 600.0, "pinned_to_device_gb_s": 50.0,
        "graph_node_us": 1.5,
    }  # fmt: skip
    steps = [{"name": "context", "figures": {"attributes": attributes}}, {"name": "roofs", "figures": roofs}]
    return {"card": card, "steps": steps}


def test_measured_roofs_take_the_place_of_the_data_sheet(tmp_path: Path) -> None:
    file = tmp_path / "gpu-h200.json"
    file.write_text(json.dumps(checked("NVIDIA H200")))
    card = cards.find(str(file))
    assert card.microseconds(4_000_000, 0) == pytest.approx(1.0)
    assert card.microseconds(0, 600_000_000) == pytest.approx(1.0)
    assert (card.node_gap_us, card.source, card.gpu.sm_count) == ((1.5, 1.5), str(file), 132)


def test_the_soft_gpu_has_no_roofs(tmp_path: Path) -> None:
    file = tmp_path / "soft.json"
    file.write_text(json.dumps(checked("soft GPU")))
    with pytest.raises(UsageError, match="is of the soft GPU, which measures nothing"):
        cards.find(str(file))
    file.write_text(json.dumps({"card": "NVIDIA H200", "steps": []}))
    with pytest.raises(UsageError, match="is no whole gpu_check"):
        cards.find(str(file))
