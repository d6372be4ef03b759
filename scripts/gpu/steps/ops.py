"""Step 5: every kernel's smallest tests on this card, a process for each kernel: which of them can be trusted."""

import re
import subprocess
import sys
import time

from ..job import ROOT, Failed, Job

_KERNEL_SECONDS = 40.0  # of its tests: one that hangs leaves time for the others
_SOFT = ("embed",)  # the soft GPU's own tests run them all


def run(job: Job) -> None:
    kernels = sorted(path.stem for path in (ROOT / "kernels").glob("*.cu"))
    failed = []
    for kernel in _SOFT if job.soft else kernels:
        result = _pytest(job, kernel)
        job.put(kernels={kernel: result})
        if result["failed"]:
            failed.append(kernel)
    if failed:
        raise Failed(f"the tests of {', '.join(failed)} fail")


def _pytest(job: Job, kernel: str) -> dict[str, object]:
    tests = [f"tests/kernels/test_{kernel}.py", "-m", "smallest", "--tb=short", "--gpu", job.gpu_option]
    start = time.perf_counter()
    command, limit = [sys.executable, "-m", "pytest", *tests], max(min(_KERNEL_SECONDS, job.seconds_left() - 2), 1)
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
        output, ended = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        output, ended = (error.stdout or b"").decode(errors="replace"), None
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    if ended != 0 and not failed:
        failed = ["not done in time" if ended is None else f"pytest ended with {ended}"]
    passed = re.search(r"(\d+) passed", output)
    return {
        "passed": int(passed[1]) if passed else 0,
        "failed": failed,
        "seconds": round(time.perf_counter() - start, 1),
        "output": output[-3000:] if failed else "",
    }
