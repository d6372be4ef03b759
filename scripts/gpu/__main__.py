"""scripts/gpu_check: first contact with a GPU, step by step, each in a process of its own that may fail alone.

Only the standard library is used here, and no call of the driver is made, not even for the GPU's name: nothing that a
card does can take this process along.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import raw, report
from .job import ROOT, Job, save
from .report import SOFT, Report, StepResult
from .steps import STEPS, Step

_FIND_SECONDS = 60.0  # that the driver has to name the GPU
_LEAST_SECONDS = 5.0  # without so many left a step is not begun
_END_SECONDS = 5.0  # that a stopped step has to end by itself
_INTERRUPTED = "interrupted"
_DEMO = ROOT / "models" / "smollm2-135m-instruct"
_PACKAGES = ("numpy", "cuda-bindings", "torch", "transformers")
_VERSIONS = """
import importlib.metadata, platform, sys
print("python", platform.python_version())
for package in sys.argv[1:]:
    try:
        print(package, importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        pass
"""


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    started = time.monotonic()
    try:
        card = SOFT if options.gpu == "soft" else find_card()
    except raw.NoGpuError as why:
        print(f"gpu_check: {why}", file=sys.stderr)
        return raw.NO_GPU
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT is ignored in a shell's background
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="gpu-check-", dir=options.scratch) as scratch:
        python = os.environ.get("GPU_CHECK_PYTHON") or install()
        environment = step_environment(python, options.gpu, Path(scratch))
        if options.gpu == "real":
            build(python, environment, demo=not options.model)
        result = Report(
            card=card,
            command=shlex.join(["scripts/gpu_check", *argv]),
            date=report.today(),
            versions=versions(python, environment),
            output=options.output,
        )
        check = Check(options, python, environment, Path(scratch), started + 60 * options.minutes)
        for step in STEPS:
            if options.steps and step.number not in options.steps:
                continue
            say(f"{step.number:>2}/{len(STEPS)} {step.name}: {step.what}")
            outcome = check.run(step, result.figures())
            result.add(outcome)
            say(f"      {outcome.status} after {outcome.seconds:.1f} s {outcome.reason}".rstrip())
            if outcome.reason == _INTERRUPTED:
                break
    print("\n".join(report.summary(result)))
    print(f"written to {result.file}")
    if result.steps and result.steps[-1].reason == _INTERRUPTED:
        return 128 + signal.SIGINT
    return 1 if result.failed() else 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu_check",
        description="First contact with a GPU: what it is, whether every kernel is right on it, and how fast.",
        epilog="GPU_CHECK_PYTHON=FILE names an interpreter that has the packages of the extras `kernels` and `test` "
        "already; then nothing is installed and no network is needed. exit codes: 0; 1 where a step failed; "
        f"{raw.NO_GPU} where there is no GPU.",
        allow_abbrev=False,
    )
    parser.add_argument("--gpu", choices=["real", "soft"], default="real", help="soft: a test of this check itself")
    parser.add_argument("--output", type=Path, help="JSON to write (default: benchmarks/gpu-CARD.json)")
    parser.add_argument("--model", help="directory to answer with (default: the demo model)")
    parser.add_argument("--minutes", type=float, default=8, help="after which no step goes on (default: 8)")
    parser.add_argument("--disk", type=float, default=20, help="GB that random weights may take (default: 20)")
    parser.add_argument("--scratch", type=Path, help="directory for them (default: that of temporary files)")
    parser.add_argument("--steps", type=int, nargs="+", metavar="N", help="these alone")
    options = parser.parse_args(argv)
    if options.gpu == "soft" and not options.output:
        parser.error("--gpu soft needs an --output: its figures are nobody's performance, and have no place here")
    if unknown := set(options.steps or ()) - {step.number for step in STEPS}:
        parser.error(f"there is no step {min(unknown)}; there are 1 to {len(STEPS)}")
    return options


# --- before the first step --------------------------------------------------------------------------------------


def find_card() -> str:
    """The first GPU's name; "unknown" where the driver crashes or does not answer, of which the steps will tell.

    Raises NoGpuError.
    """
    command = [sys.executable, "-m", "scripts.gpu.raw", raw.LIBRARY]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said = process.communicate(timeout=_FIND_SECONDS)[0].strip()
    except subprocess.TimeoutExpired:
        return raw.UNKNOWN
    finally:
        end(process)
        if process.stdout:
            process.stdout.close()
    if process.returncode == raw.NO_GPU:
        raise raw.NoGpuError(said)
    return raw.UNKNOWN if process.returncode else said


def install() -> str:
    """The interpreter of the project's environment, once that has what the steps need."""
    make = '. scripts/lib.sh; install build kernels test; printf %s "$VENV/bin/python"'
    done = subprocess.run(["bash", "-euc", make], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(
            "gpu_check: the environment could not be made; without a network, carry one along and name its "
            "interpreter: GPU_CHECK_PYTHON=/path/to/python scripts/gpu_check"
        )
    return done.stdout


def build(python: str, environment: dict[str, str], *, demo: bool) -> None:
    """The kernels' images and the demo model, where they are not there. What cannot be had is a step's to say."""
    subprocess.run([python, "-m", "pilotlight", "build", "kernels"], cwd=ROOT, env=environment, stdout=sys.stderr)
    if demo and not _DEMO.is_dir() and not os.environ.get("GPU_CHECK_PYTHON"):
        subprocess.run(["bash", "-euc", ". scripts/lib.sh; build_demo_model"], cwd=ROOT, stdout=sys.stderr)


def step_environment(python: str, gpu: str, scratch: Path) -> dict[str, str]:
    """Of every process of every step: this tree is what `pilotlight` means, whatever is installed."""
    site = scratch / "site"
    site.mkdir()
    (site / "pilotlight").symlink_to(ROOT / "app")
    paths = [str(site), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    return environment | (soft_gpu(python, environment) if gpu == "soft" else {})


def soft_gpu(python: str, environment: dict[str, str]) -> dict[str, str]:
    """What makes the soft GPU the driver. Its knobs in the environment stay as they are."""
    command = [python, "-m", "tests.softgpu.build"]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit("gpu_check: the soft GPU could not be built")
    search = [str(Path(done.stdout.strip()).parent), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
    knobs = {"SOFTGPU_PTX_DIRECTORY": str(ROOT / "ptx"), "SOFTGPU_SM_COUNT": "4"}
    asked = {name: value for name, value in environment.items() if name in knobs}
    return knobs | asked | {"LD_LIBRARY_PATH": os.pathsep.join(search)}


def versions(python: str, environment: dict[str, str]) -> dict[str, str]:
    """Of the packages that the steps run with, by their own interpreter."""
    command = [python, "-c", _VERSIONS, *_PACKAGES]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    return dict(line.split() for line in done.stdout.splitlines())


# --- the steps --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """What all steps have in common."""

    options: argparse.Namespace
    python: str
    environment: dict[str, str]
    scratch: Path
    deadline: float

    def run(self, step: Step, earlier: dict[str, Any]) -> StepResult:
        """The step in a process of its own; whatever becomes of it, a result."""
        seconds = min(step.seconds, self.deadline - time.monotonic())
        if seconds < _LEAST_SECONDS:
            return StepResult(step.number, step.name, "skipped", "no time is left", 0.0, {})
        files = {kind: self.scratch / f"{step.name}.{kind}" for kind in ("job", "result", "log", "findings")}
        job = self._job(seconds, earlier, files["result"])
        save(job, files["job"])
        start = time.monotonic()
        end = self._wait(step.module, seconds, files)
        taken = round(time.monotonic() - start, 2)
        found: dict[str, Any] = report.read(files["result"]) if files["result"].exists() else {}
        status, reason = found.get("status", "failed"), found.get("reason", "")
        if end:
            status, reason = "failed", end if end == _INTERRUPTED else f"{end}; {tail(files['log'])}".rstrip("; ")
        elif job.soft and files["findings"].exists() and (findings := report.read(files["findings"])["findings"]):
            first = findings[0]
            status, reason = "failed", f"{first['rule']}: {first['what']} at {first['where']}"
        return StepResult(step.number, step.name, status, reason, taken, found.get("figures", {}))

    def _job(self, seconds: float, earlier: dict[str, Any], result: Path) -> Job:
        options = self.options
        return Job(
            soft=options.gpu == "soft",
            seconds=seconds,
            scratch=str(self.scratch),
            model=options.model or (str(_DEMO) if _DEMO.is_dir() else None),
            model_asked=options.model is not None,
            disk_bytes=int(options.disk * 1e9),
            earlier=earlier,
            result=str(result),
        )

    def _wait(self, module: str, seconds: float, files: dict[str, Path]) -> str:
        """Why the process did not end by itself and well; "" where it did."""
        command = [self.python, "-m", "scripts.gpu.run_step", module, str(files["job"])]
        environment = self.environment | {"SOFTGPU_REPORT": str(files["findings"])}
        with files["log"].open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                return f"not done after {seconds:.0f} s"
            except KeyboardInterrupt:
                return _INTERRUPTED
            finally:
                end(process)
        if not code:
            return ""
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def end(process: "subprocess.Popen[bytes]") -> None:
    """The step and whatever it has started: its session is its own.

    One that waits inside the driver for a card that hangs may not end even so. It is left behind.
    """
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(_END_SECONDS)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)


def tail(log: Path) -> str:
    """What the step said last."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:]


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # between two steps, or before them
        sys.exit(128 + signal.SIGINT)
