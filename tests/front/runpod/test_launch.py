"""What is said before anything starts: no SDK, not inside RunPod, flags of the test API; and what the import does."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pilotlight.errors import UnavailableError, UsageError
from pilotlight.front.runpod.launch import NEEDS_EXTRA, Address, prepare, split_flags
from pilotlight.settings import Settings

INSIDE = {
    f"RUNPOD_WEBHOOK_{name}": "http://127.0.0.1:1/x/$ID?gpu=L4" for name in ("GET_JOB", "POST_OUTPUT", "POST_STREAM")
}
QUEUE = Settings(model="m", runpod_queue=True)


def run(code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, env={"PATH": "/bin"})


def test_flags_of_the_test_api_are_taken_out() -> None:
    assert split_flags(["--rp_serve_api", "model", "--port", "1"]) == (
        ["model", "--port", "1"],
        Address("localhost", 8001),
    )
    flags = ["m", "--rp_api_port=9", "--rp_serve_api", "--rp_api_host", "::1", "--rp_debugger"]
    assert split_flags(flags) == (["m", "--rp_debugger"], Address("::1", 9))  # settings refuse the last one


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rp_api_port", "9"], "--rp_api_host and --rp_api_port go with --rp_serve_api"),
        (["--rp_serve_api", "--rp_api_port", "x"], "argument --rp_api_port: invalid int value: 'x'"),
        (["--rp_serve_api", "--rp_api_port", "65536"], "--rp_api_port 65536: expected 0 to 65535"),
    ],
)
def test_wrong_flags_of_the_test_api_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        split_flags(flags)


def test_outside_runpod_what_is_missing_is_named() -> None:
    assert prepare(QUEUE, INSIDE, None) is None
    with pytest.raises(UsageError, match=r"^--runpod-queue: RUNPOD_WEBHOOK_POST_OUTPUT is not set, as in a worker"):
        prepare(QUEUE, INSIDE | {"RUNPOD_WEBHOOK_POST_OUTPUT": ""}, None)
    with pytest.raises(UsageError, match=r"GET_JOB and \w+_OUTPUT and \w+_STREAM are not .* add --rp_serve_api$"):
        prepare(QUEUE, {}, None)
    with pytest.raises(UsageError, match=r"^--rp_serve_api goes with --runpod-queue$"):
        prepare(Settings(model="m"), INSIDE, Address("127.0.0.1", 0))


def test_test_api_needs_no_runpod_but_an_address_that_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(*taken.getsockname())
        with pytest.raises(
            UnavailableError, match=r"\(Address already in use\); choose another --rp_api_host or --rp_"
        ):
            prepare(QUEUE, {}, address)
    listener = prepare(QUEUE, {}, address)
    assert listener
    with listener:
        assert Address(*listener.getsockname()) == address


def test_without_the_sdk_one_line_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    code = "import sys; from pilotlight import cli; cli.main(['serve', *sys.argv[1:]])"
    done = run(f"import sys; sys.modules['runpod'] = None; {code}", str(tmp_path), "--runpod-queue", "--port", "0")
    assert (done.returncode, done.stderr) == (69, f"pilotlight: {NEEDS_EXTRA}\n")
    assert NEEDS_EXTRA.endswith("pip install 'pilotlight[runpod]'")
    done = run(code, str(tmp_path), "--runpod-queue", "--port", "0")
    assert done.returncode == 2
    assert done.stderr.startswith("pilotlight: --runpod-queue: RUNPOD_WEBHOOK_GET_JOB and ")
    assert done.stderr.count("\n") == 1


def test_import_of_the_sdk_starts_no_process_and_leaves_the_logging_alone() -> None:
    code = """
import logging, os, sys, _posixsubprocess
def refuse(*arguments): raise SystemExit("a process was started")
os.fork = os.posix_spawn = _posixsubprocess.fork_exec = refuse
logging.getLogger("uvicorn").setLevel(logging.ERROR)
from pilotlight.front.runpod.queue import _import_sdk
worker = _import_sdk()
assert "runpod" in sys.modules and "cpuinfo" not in sys.modules and worker.QueueWorker
assert logging.getLogger("uvicorn").level == logging.ERROR
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_sdk_that_does_not_import_is_as_good_as_none() -> None:
    code = """
import sys
sys.modules["aiohttp"] = None
from pilotlight.errors import UnavailableError
from pilotlight.front.runpod.queue import _import_sdk
try:
    _import_sdk()
except UnavailableError as error:
    sys.exit(str(error))
"""
    done = run(code)
    assert done.stderr.startswith(f"{NEEDS_EXTRA} (")
    assert "aiohttp" in done.stderr
