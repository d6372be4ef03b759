"""scripts/gpu_check on the soft GPU, with steps that fail in every way, and without a GPU."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotlight.device.cuda.launch import Gpu
from pilotlight.model.checkpoint import open_checkpoint
from pilotlight.model.families import describe
from scripts.gpu import __main__ as check
from scripts.gpu import cards, raw, report, weights
from scripts.gpu.job import Job
from scripts.gpu.rig import Rig
from scripts.gpu.shapes import SHAPES, TINY
from scripts.gpu.steps import STEPS, hot, instructions
from scripts.gpu.steps import tests as tests_step
from tests import softgpu
from tests.softgpu.fixtures import Soft

ROOT = Path(__file__).parent.parent


def gpu_check(*arguments: str | Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The command, in the tests' own interpreter."""
    environ = os.environ | {"GPU_CHECK_PYTHON": sys.executable} | environment
    return subprocess.run([ROOT / "scripts" / "gpu_check", *arguments], env=environ, capture_output=True, text=True)


def steps_of(output: Path) -> dict[str, dict[str, Any]]:
    return {step["name"]: step for step in json.loads(output.read_text())["steps"]}


# --- the soft GPU -------------------------------------------------------------------------------------------------


def test_its_first_steps_on_the_soft_gpu(tmp_path: Path) -> None:
    output = tmp_path / "reports" / "soft.json"
    done = gpu_check("--gpu", "soft", "--output", output, "--steps", "1", "2", "6", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(output.read_text())
    assert result["card"] == "soft GPU"
    assert result["command"].startswith("scripts/gpu_check --gpu soft")
    assert [(step["step"], step["name"]) for step in result["steps"]] == [
        (1, "host"), (2, "context"), (6, "roofs"), (7, "replay"),
    ]  # fmt: skip
    steps = steps_of(output)
    assert steps["host"]["figures"]["cpus"] >= 1
    assert steps["context"]["figures"]["attributes"]["capability_major"] == 8
    assert all(value > 0 for name, value in steps["roofs"]["figures"].items())
    assert steps["replay"]["figures"]["replays"] == 3
    assert not re.search(r"GB/s|TFLOPS|tokens/s", done.stdout)  # nobody is to take them for a card's
    assert os.listdir(output.parent) == ["soft.json"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_all_of_its_steps_on_the_soft_gpu(tmp_path: Path) -> None:
    output = tmp_path / "soft.json"
    done = gpu_check("--gpu", "soft", "--output", output)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = steps_of(output)
    assert list(steps) == [step.name for step in STEPS]
    assert {step["status"] for step in steps.values()} == {"ok"}
    assert {probe["error"] for probe in steps["instructions"]["figures"]["probes"].values()} == {""}
    assert steps["ops"]["figures"]["kernels"]["embed"]["passed"] > 0
    golden = steps["golden"]["figures"]
    assert golden["same"] == golden["decided"] == golden["tokens"] > 0
    assert all(case["us"] > 0 for case in steps["hot"]["figures"]["models"]["tiny"].values())
    start = steps["starts"]["figures"]["models"]["tiny"]
    assert 0 < start["ready_ms"] / 1e3 < start["first_token_s"]
    assert {"context", "weights", "kernels"} <= {span["name"] for span in start["spans"]}
    assert list(steps["throughput"]["figures"]["pilotlight"]) == ["1", "2"]
    assert steps["throughput"]["figures"]["prepare_s"] is not None


def test_a_card_that_faults_costs_the_steps_that_use_it(tmp_path: Path) -> None:
    output = tmp_path / "soft.json"
    knobs = {"SOFTGPU_LAUNCH_ERROR": "719", "SOFTGPU_FAULT_AT_LAUNCH": "1"}
    done = gpu_check("--gpu", "soft", "--output", output, "--steps", "1", "2", "4", "6", **knobs)
    assert done.returncode == 1
    steps = steps_of(output)
    assert [step["status"] for step in steps.values()] == ["ok", "ok", "failed", "failed"]
    assert "CUDA_ERROR_LAUNCH_FAILED (719)" in steps["roofs"]["reason"]


def test_a_fabric_that_becomes_ready_is_waited_for_and_told(tmp_path: Path) -> None:
    output = tmp_path / "soft.json"
    knobs = {"SOFTGPU_INIT_ERROR": "802", "SOFTGPU_INIT_ERROR_SECONDS": "0.1"}
    assert gpu_check("--gpu", "soft", "--output", output, "--steps", "2", **knobs).returncode == 0
    assert steps_of(output)["context"]["figures"]["not_ready"] > 0


# --- what it refuses ----------------------------------------------------------------------------------------------


def test_no_gpu_is_one_line_and_no_step(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    done = gpu_check("--output", output, **softgpu.environment(devices=0))
    assert (done.returncode, done.stdout) == (69, "")
    assert re.fullmatch(r"gpu_check: the driver finds no GPU: see nvidia-smi, .*\n", done.stderr)
    assert not output.exists()


def test_no_driver_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(raw, "LIBRARY", "libcuda.so.none")
    assert check.main([]) == 69
    assert re.fullmatch(r"gpu_check: libcuda\.so\.1, .* cannot be loaded \(.*\)\n", capsys.readouterr().err)


def test_a_driver_that_does_not_answer_leaves_the_card_without_a_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "libcuda.so")  # whoever opens it waits for a writer
    monkeypatch.setattr(raw, "LIBRARY", str(tmp_path / "libcuda.so"))
    monkeypatch.setattr(check, "_FIND_SECONDS", 0.5)
    assert check.find_card() == "unknown"


def test_a_driver_that_crashes_leaves_the_card_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    assert check.find_card() == "unknown"


def test_a_card_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "LIBRARY", str(softgpu.library()))
    monkeypatch.setenv("SOFTGPU_CAPABILITY", "90")
    assert check.find_card() == "NVIDIA H200"


def test_a_process_that_no_signal_ends_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits inside the driver: what was found so far must be told all the same."""
    sent = []
    monkeypatch.setattr(os, "killpg", lambda group, sign: sent.append(sign))

    class Stuck:
        pid = 1 << 30

        def wait(self, timeout: float) -> int:
            raise subprocess.TimeoutExpired("step", timeout)

    check.end(Stuck())  # type: ignore[arg-type]
    assert sent == [signal.SIGTERM, signal.SIGKILL]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu", "soft"], "--gpu soft needs an --output"),
        (["--steps", "13"], "there is no step 13; there are 1 to 12"),
    ],
)
def test_arguments_that_make_no_sense(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        check.main(arguments)
    assert words in capsys.readouterr().err


# --- steps that fail ----------------------------------------------------------------------------------------------

GOOD = "def run(job): job.put(figure=1, parts={'a': 1}); job.put(parts={'b': 2}); job.note = 'well'"
CRASHES = "import os, signal\ndef run(job): job.put(figure=2); os.kill(os.getpid(), signal.SIGSEGV)"
HANGS = "import signal\ndef run(job): job.put(figure=3); print('waiting', flush=True); signal.pause()"
RAISES = "def run(job): job.put(figure=4); raise ValueError('no such thing')"
FINDS = "from scripts.gpu.job import Failed\ndef run(job): job.put(figure=5); raise Failed('it is wrong')"
SKIPS = "from scripts.gpu.job import Skipped\ndef run(job): raise Skipped('not here')"
LEAVES = "import sys\ndef run(job): print('a last word', file=sys.stderr); sys.exit(3)"
INTERRUPTS = (
    "import os, signal\ndef run(job): job.put(figure=6); os.kill(os.getppid(), signal.SIGINT); signal.pause()"
)
OBJECTED = """
import json, os
def run(job):
    finding = {"rule": "race", "what": "two blocks", "where": "kernel:1", "count": 1}
    open(os.environ["SOFTGPU_REPORT"], "w").write(json.dumps({"findings": [finding]}))
"""


@dataclass(frozen=True)
class FakeStep:
    number: int
    name: str
    seconds: float = 30.0
    what: str = "a test's own"

    @property
    def module(self) -> str:
        return f"fake_{self.name}"


Run = Callable[..., tuple[int, dict[str, dict[str, Any]]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """Runs these sources as the steps: the exit code, and the steps' results."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setenv("GPU_CHECK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(check, "_LEAST_SECONDS", 0.0)

    def run_all(*options: str, seconds: float = 30.0, **sources: str) -> tuple[int, dict[str, dict[str, Any]]]:
        for name, source in sources.items():
            (tmp_path / f"fake_{name}.py").write_text(source)
        steps = [FakeStep(number, name, seconds) for number, name in enumerate(sources, 1)]
        monkeypatch.setattr(check, "STEPS", steps)
        output = tmp_path / "result.json"
        code = check.main(["--gpu", "soft", "--output", str(output), *options])
        return code, steps_of(output)

    yield run_all
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_step_that_fails_is_told_and_the_others_run(run: Run) -> None:
    code, steps = run(
        crashes=CRASHES, raises=RAISES, finds=FINDS, skips=SKIPS, leaves=LEAVES, objected=OBJECTED, good=GOOD
    )
    assert code == 1
    told = {name: (step["status"], step["reason"], step["figures"].get("figure")) for name, step in steps.items()}
    assert told == {
        "crashes": ("failed", "ended by SIGSEGV", 2),
        "raises": ("failed", "ValueError: no such thing", 4),
        "finds": ("failed", "it is wrong", 5),
        "skips": ("skipped", "not here", None),
        "leaves": ("failed", "ended with code 3; a last word", None),
        "objected": ("failed", "race: two blocks at kernel:1", None),
        "good": ("ok", "well", 1),
    }
    assert steps["good"]["figures"]["parts"] == {"a": 1, "b": 2}


def test_a_step_that_hangs_is_stopped_with_what_it_found(run: Run) -> None:
    code, steps = run(seconds=1.0, hangs=HANGS, good=GOOD)
    assert code == 1
    assert steps["hangs"]["reason"] == "not done after 1 s; waiting"
    assert steps["hangs"]["figures"] == {"figure": 3}
    assert steps["good"]["status"] == "ok"


def test_without_time_a_step_is_not_begun(run: Run) -> None:
    code, steps = run("--minutes", "0", good=GOOD)
    assert code == 0
    assert (steps["good"]["status"], steps["good"]["reason"]) == ("skipped", "no time is left")


def test_an_interrupt_leaves_a_whole_report(run: Run) -> None:
    code, steps = run(good=GOOD, interrupts=INTERRUPTS, after=GOOD)
    assert code == 130
    assert list(steps) == ["good", "interrupts"]
    assert (steps["interrupts"]["reason"], steps["interrupts"]["figures"]) == ("interrupted", {"figure": 6})


# --- its parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_demo", [False, True])
def test_without_a_network_no_test_of_the_demo_model_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_demo: bool
) -> None:
    for folder in ("models", "tests/kernels", "tests/device/cuda"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("kernels/test_norm.py", "device/cuda/test_engine.py"):
        (tmp_path / "tests" / file).touch()
    if has_demo:
        (tmp_path / "models" / "demo.gguf").touch()
    commands = []

    def run(job: Job, command: list[str]) -> dict[str, Any]:
        commands.append(command)
        return {"failed": []}

    monkeypatch.setattr(tests_step, "ROOT", tmp_path)
    monkeypatch.setattr(tests_step, "_run", run)
    monkeypatch.setattr(tests_step, "_sanitize", lambda job: "")
    tests_step.run(Job(False, 60.0, "", None, False, 0, result=str(tmp_path / "result.json")))
    assert [Path(command[3]).stem for command in commands] == ["test_engine", "test_norm"]  # the most telling first
    assert [command[-2:] == ["-k", "not demo_model"] for command in commands] == [not has_demo] * 2


def test_every_probe_passes_and_can_fail(soft: Soft) -> None:
    """A bit in the middle of a word is more than any instruction may be off by."""
    rig = Rig()
    for name, probe in instructions.PROBES.items():
        given, expect = probe()
        found = instructions.run_probe(rig, name.partition("/")[0], given)
        assert expect(found) == "", name
        wrong = found.copy()
        wrong[len(wrong) // 2] ^= np.uint32(1 << 16)
        assert expect(wrong) != "", name


@pytest.mark.parametrize("snapshot", [True, False])
def test_random_weights_are_a_model(tmp_path: Path, snapshot: bool) -> None:
    directory = weights.write(tmp_path / "model", TINY, snapshot=snapshot)
    description = describe(json.loads((directory / "config.json").read_text()))
    layout = open_checkpoint(directory, description.tensors)
    assert {tensor.dtype for tensor in layout.tensors} == {"BF16"}
    assert sum(tensor.nbytes for tensor in layout.tensors) == weights.size_of(TINY)
    raw_bits = np.fromfile(weights.weights_file(directory), np.uint16)[4096:]
    values = (raw_bits.astype(np.uint32) << 16).view(np.float32)
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(
    ("card", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("", "unknown"),
    ],
)
def test_a_report_is_named_by_its_card(card: str, name: str) -> None:
    assert report.Report(card, "", "", {}).file == Path("benchmarks") / f"gpu-{name}.json"


def test_a_card_s_summary_has_its_figures() -> None:
    roofs = {"read_gb_s": 4000.0, "graph_node_us": 1.5}
    result = report.Report("NVIDIA H200", "", "", {}, [report.StepResult(6, "roofs", "ok", "", 1.0, roofs)])
    assert list(report.summary(result))[-1] == "measured: 4000 GB/s read, 1.5 us a graph node"
    result.card = report.SOFT
    assert len(list(report.summary(result))) == 1


class PaperRig:
    """Addresses without memory."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._next = 1 << 40

    def allocate(self, nbytes: int) -> int:
        self._next += nbytes + -nbytes % 256
        return self._next

    def fill(self, nbytes: int, block: np.ndarray) -> int:
        return self.allocate(nbytes)

    def upload(self, array: np.ndarray) -> int:
        return self.allocate(array.nbytes)


@pytest.mark.parametrize("name", cards.CARDS)
def test_what_is_measured_on_a_card_are_launches_that_it_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The full plan, which the soft GPU has no time for: entries, arguments and shared memory of every case."""
    monkeypatch.setattr(hot, "random_halves", lambda count, *_, **__: np.zeros(8, np.uint16))
    card = cards.CARDS[name]
    entries = {
        entry: about
        for module in json.loads((ROOT / "ptx" / "manifest.json").read_text())["modules"].values()
        for entry, about in module["entries"].items()
    }
    seen = set()
    for model in hot.MODELS:
        for case in hot.Bench(PaperRig(card.gpu), card, hot.FULL).cases(describe(SHAPES[model]).spec):  # type: ignore[arg-type]
            assert case.nbytes > 0
            assert len(case.launches) % case.each == 0
            for launch in case.launches:
                about = entries[launch.entry]
                assert len(launch.arguments) == len(about["parameters"]), launch.entry
                assert launch.shared_bytes + about["static_shared_bytes"] <= card.shared_bytes, launch.entry
                seen.add(launch.entry)
    assert {"linear_skinny8_bf16", "linear_skinny32_gated_bf16", "sample_greedy"} <= seen
    assert any(entry.startswith("attention_prefill_d128_r128") for entry in seen) or card.shared_bytes < 163 << 10
