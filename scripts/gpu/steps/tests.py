"""Step 12: the tests that run on a card, file by file, and compute-sanitizer on a few, in what time is left."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ..job import ROOT, Failed, Job

_FOLDERS = ("tests/device/cuda", "tests/kernels")  # the kernels' smallest tests have been run before
_SOFT = ("tests/kernels/test_gate.py",)
_LEAST_SECONDS = 6.0  # without so many left a file is not begun
_SANITIZED = "tests/kernels/test_norm.py"


def run(job: Job) -> None:
    files = (
        _SOFT if job.soft else sorted(str(path) for name in _FOLDERS for path in Path(ROOT, name).glob("test_*.py"))
    )
    # Tests of the demo model download it; a machine that has a network has it by now, and its answers were step 8's.
    offline = [] if any(Path(ROOT, "models").glob("*.gguf")) else ["-k", "not demo_model"]
    failed, left = [], []
    for file in files:
        if job.seconds_left() < _LEAST_SECONDS:
            left.append(Path(file).stem)
            continue
        marks = "gpu and smallest" if job.soft else "gpu"
        options = ["-m", marks, "--tb=line", "--gpu", job.gpu_option, *offline]
        result = _run(job, [sys.executable, "-m", "pytest", file, *options])
        job.put(files={Path(file).stem: result})
        failed += result["failed"]
    job.put(sanitizer=_sanitize(job))
    if failed:
        raise Failed(f"{len(failed)} tests fail: {failed[0]}")
    if left:
        job.note = f"no time was left for {', '.join(left)}"


def _sanitize(job: Job) -> Any:
    program = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    if job.soft or program is None:
        return "compute-sanitizer is not there" if program is None else "not on the soft GPU"
    if job.seconds_left() < 4 * _LEAST_SECONDS:
        return "no time was left"
    tests = [sys.executable, "-m", "pytest", _SANITIZED, "-m", "smallest", "--gpu", job.gpu_option]
    return _run(job, [program, "--tool", "memcheck", "--error-exitcode", "9", *tests])


def _run(job: Job, command: list[str]) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=max(job.seconds_left() - 2, 1)
        )
        output, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        output, code = (error.stdout or b"").decode(errors="replace"), None
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    if code not in (0, 5, None) and not failed:  # 5: nothing was selected; None: it was cut, which is no failure
        failed = [f"{command[-1]} ended with {code}"]
    passed, skipped = (re.search(rf"(\d+) {word}", output) for word in ("passed", "skipped"))
    return {
        "passed": int(passed[1]) if passed else 0,
        "skipped": int(skipped[1]) if skipped else 0,
        "failed": failed,
        "cut": code is None,
        "seconds": round(time.perf_counter() - start, 1),
        "output": output[-3000:] if failed else "",
    }
