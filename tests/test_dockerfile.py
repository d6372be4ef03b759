"""The Dockerfile, as far as no build is needed: hadolint, whether its stages have enough.

scripts/test_image builds and runs it; tests/deploy/test_modal.py finds what Modal's builder would refuse.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pilotlight

ROOT = Path(__file__).parent.parent
DOCKERFILE = ROOT / "Dockerfile"
TEXT = DOCKERFILE.read_text()
STAGES = {found[1]: found[0] for found in re.finditer(r"^FROM .* AS (\w+)\n(?:(?!^FROM ).*\n)*", TEXT, re.MULTILINE)}


def test_hadolint_has_no_objection() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


def test_the_labels_version_is_the_packages() -> None:
    assert f'org.opencontainers.image.version="{pilotlight.__version__}"' in TEXT


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ([], "pilotlight serve"),
        (["--port", "9000", "a b"], "pilotlight serve --port 9000 a\\ b"),
        (["serve", "--port", "9000"], "pilotlight serve --port 9000"),
        (["build", "native"], "pilotlight build native"),
        (["deploy", "render"], "pilotlight deploy render"),
        (["other", "serve", ""], "other serve ''"),
    ],
)
def test_what_the_image_runs(arguments: list[str], command: str, tmp_path: Path) -> None:
    for name in ("pilotlight", "other"):
        (tmp_path / name).write_text('#!/bin/bash\nprintf "%s" "${0##*/}"; printf " %q" "$@"\n')
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [ROOT / "scripts" / "image" / "entrypoint", *arguments], env=environment, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == (command, "")


@pytest.mark.parametrize("stage", [name for name, text in STAGES.items() if "-m app build" in text])
def test_a_stage_has_the_modules_that_it_runs(stage: str, tmp_path: Path) -> None:
    """Each takes only the files that it reads, so that a change elsewhere does not run it again."""
    for line in re.findall(r"^COPY (app/.*)$", STAGES[stage], re.MULTILINE):
        *sources, target = line.split()
        for path in (path for source in sources for path in ROOT.glob(source)):
            if path.is_dir():
                shutil.copytree(path, tmp_path / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                (tmp_path / target).mkdir(parents=True, exist_ok=True)
                shutil.copy(path, tmp_path / target)
    commands = re.findall(r"-m app (build \w+)", STAGES[stage])
    assert commands
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "app", *command.split(), "--help"], cwd=tmp_path, capture_output=True, text=True
        )
        assert (done.stderr, done.returncode) == ("", 0)
        assert f"usage: pilotlight {command}" in done.stdout
