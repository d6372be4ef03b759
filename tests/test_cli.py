"""The command: it names its subcommands, hands over, and fails in one line with the code of the failure's kind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pilotlight
from pilotlight import cli, errors

ROOT = Path(__file__).parent.parent


def run(*arguments: str, module: str = "pilotlight", **environ: str) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PILOTLIGHT_")}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, env=inherited | environ, capture_output=True, text=True
    )


@pytest.mark.parametrize("module", ["pilotlight", "app"])
def test_version_is_the_package_s(module: str) -> None:
    done = run("--version", module=module)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"pilotlight {pilotlight.__version__}\n", "")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], ["build", "--help"]])
def test_help_names_every_subcommand(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "serve MODEL" in out
    assert "build snapshot SOURCE" in out
    assert "build native" in out
    assert "build kernels" in out


def test_no_command_shows_the_usage() -> None:
    done = run()
    assert done.returncode == errors.EXIT_USAGE
    assert done.stderr.startswith("pilotlight: no command was given\nusage: pilotlight COMMAND")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sreve", "models/mine"], "unknown command 'sreve'; did you mean serve?"),
        (["xyzzy"], "unknown command 'xyzzy'"),
        (["build"], "build: expected snapshot, native or kernels"),
        (["build", "house"], "build: expected snapshot, native or kernels, found 'house'"),
    ],
)
def test_unknown_command_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == errors.EXIT_USAGE
    assert capsys.readouterr().err.startswith(f"pilotlight: {said}\nusage: pilotlight COMMAND")


def test_interrupt_before_a_command_runs_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(arguments: list[str]) -> Callable[[], int]:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_command", interrupt)
    with pytest.raises(SystemExit) as caught:
        cli.main(["build", "snapshot"])
    assert caught.value.code == 130


# Tells itself to stop while msgspec imports datetime: its C code goes on after an exception there, without datetime.
_STOPS_ITSELF = """
import os, sys
told = []
def hook(event, arguments):
    if event == "import" and arguments[0] == "_datetime" and not told:
        told.append(True)
        os.kill(os.getpid(), {number})
for name in ("datetime", "_datetime"):
    sys.modules.pop(name, None)
sys.addaudithook(hook)
from pilotlight.cli import main
main({arguments})
"""


@pytest.mark.parametrize(
    ("arguments", "number", "code"),
    [
        (["build", "snapshot", "x", "-o", "y"], signal.SIGINT, 130),
        (["deploy", "render", "x"], signal.SIGINT, 130),
        (["serve", "x", "--port", "0"], signal.SIGINT, 0),
        (["serve", "x", "--port", "0"], signal.SIGTERM, 0),
        (["serve", "--help"], signal.SIGINT, 0),
    ],
)
def test_a_signal_inside_an_import_of_c_code_ends_it(arguments: list[str], number: int, code: int) -> None:
    script = _STOPS_ITSELF.format(number=int(number), arguments=arguments)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_an_ignored_interrupt_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a shell starts what runs in the background."""

    def command(arguments: list[str]) -> Callable[[], int]:
        signal.raise_signal(signal.SIGINT)
        return lambda: 0

    monkeypatch.setattr(cli, "_command", command)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as caught:
            cli.main(["--version"])
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught.value.code == 0


@pytest.mark.parametrize("command", [["serve"], ["build", "snapshot"], ["build", "kernels"]])
def test_subcommand_helps(command: list[str]) -> None:
    done = run(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: pilotlight {' '.join(command)}")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["serve"], errors.EXIT_USAGE, "no model was named"),
        (["serve", "m", "--prot", "1"], errors.EXIT_USAGE, "did you mean --port?"),
        (["serve", "m", "--tensor-parallel-size", "2"], errors.EXIT_USAGE, "this version runs on one device"),
        (["serve", "./no/such/dir"], errors.EXIT_NO_INPUT, "no/such/dir"),
        (["build", "snapshot", "./no/such/dir", "-o", "x"], errors.EXIT_NO_INPUT, "no/such/dir"),
        (["build", "kernels", "--source", "./no/such/dir", "-o", "x"], errors.EXIT_USAGE, "has no kernels"),
    ],
)
def test_expected_failure_is_one_line_and_a_code(arguments: list[str], code: int, said: str) -> None:
    done = run(*arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stderr.startswith("pilotlight: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_every_error_has_a_code_of_its_own() -> None:
    kinds = errors.PilotlightError.__subclasses__()
    codes = [kind.exit_code for kind in kinds if kind.__module__ == errors.__name__]
    assert len(set(codes)) == len(codes) == 6
    assert 0 not in codes
    assert 1 not in codes


def test_the_package_lists_its_public_names_before_they_are_imported() -> None:
    code = "import pilotlight, sys; assert 'pilotlight.llm' not in sys.modules; print(*dir(pilotlight))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"LLM", "SamplingParams", "__version__"} <= set(shown)
