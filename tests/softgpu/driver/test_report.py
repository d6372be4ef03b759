"""The report of a run: written when a process ends or a fault does, and printed."""

import json
import subprocess
import sys
from pathlib import Path

from tests import softgpu
from tests.softgpu.fixtures import Soft

from . import calls
from .calls import ROOT, child, ok, start

RUN = """
start()
store, = functions(KERNELS, "store")
out = words(64)
for _ in range(3):
    launch(store, out, 1, block=(64, 1, 1))
read(out)
code("cuMemAllocManaged", 64, 1)
print("null")
"""


def printed(file: Path) -> str:
    command = [sys.executable, "-m", "tests.softgpu.report", str(file)]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_a_process_leaves_its_report(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    child(RUN, report=file)
    run = json.loads(file.read_text())
    kernel = run["counters"]["kernels"]["store"]
    assert run["fault"] == 0
    assert (kernel["launches"], kernel["blocks"], kernel["warps"]) == (3, 3, 6)
    assert kernel["global_store"] == {"requests": 6, "bytes": 768, "sectors": 24, "ideal": 24}
    text = printed(file)
    lines = text.splitlines()
    assert lines[0] == "findings: 1"
    assert "unsupported: cuMemAllocManaged" in lines[1]
    assert "launches: 3 by call, 0 by 0 graph replays" in text
    assert "calls: cuLaunchKernel 3," in text
    head = next(line.split() for line in lines if line.startswith("kernel"))
    row = next(line.split() for line in lines if line.startswith("store  "))
    assert row[:5] == ["store", "3", "0", "3", str(sum(kernel["instructions"].values()))]
    assert "sectors/store" in head
    assert "4.00" in row  # sectors of a warp that stores adjacent words
    assert any(line.split()[:2] == ["st.global", "6"] for line in lines)


def test_a_fault_leaves_a_report_before_the_process_ends(soft: Soft, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    soft.reset(report=file, launch_error=719, fault_at_launch=1)
    start()
    (store,) = calls.functions(calls.KERNELS, "store")
    calls.launch(store, calls.words(1), 1)
    assert calls.code("cuCtxSynchronize") == 719
    assert json.loads(file.read_text())["fault"] == 719
    assert "died of error 719" in printed(file)


def test_a_reset_leaves_one_too(soft: Soft, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    soft.reset(report=file)
    start()
    ok("cuMemAlloc", 64)
    soft.reset()
    assert json.loads(file.read_text())["counters"]["driver"]["allocations"] == 1


# Three waits of three kinds, a line after each; then more work that nobody waits for.
KILLED = """
import sys
from tests.softgpu.driver.calls import *
start()
add, = functions(KERNELS, "add")
out = words(1)
event = ok("cuEventCreate", 2)

def synchronize():
    ok("cuEventSynchronize", event)

def query():
    while code("cuEventQuery", event):
        pass

for wait in (synchronize, query, lambda: ok("cuCtxSynchronize")):
    launch(add, out, 1)
    ok("cuEventRecord", event, 0)
    wait()
    print("waited", flush=True)
    sys.stdin.readline()
ok("cuMemAlloc", 64)
print("more", flush=True)
sys.stdin.readline()
"""


def test_a_killed_process_leaves_what_it_had_waited_for(tmp_path: Path) -> None:
    """A whole report at every moment, under the process's own number."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        cwd=ROOT,
        env=softgpu.environment(report=tmp_path / "run-%p.json", report_at_waits=True),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    file = tmp_path / f"run-{process.pid}.json"
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        launches = []
        for line in process.stdout:
            counters = json.loads(file.read_text())["counters"]
            launches.append(counters["kernels"]["add"]["launches"])
            if line == "more\n":
                break
            process.stdin.write("\n")
            process.stdin.flush()
        allocations = counters["calls"]["cuMemAlloc"]
    finally:
        process.kill()
        process.communicate()
    assert launches == [1, 2, 3, 3]
    assert allocations == 1  # the second was waited for by nobody
    assert json.loads(file.read_text())["counters"] == counters
