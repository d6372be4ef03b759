"""Text files are UTF-8 whatever the locale: no call leaves the encoding to it."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# app/device reads /proc and /sys, which are ASCII.
FOLDERS = ("app/build", "app/deploy", "app/front", "app/text", "scripts")
OTHER_TYPES = (".pyc", ".ptx", ".js", ".css", ".html")


def python_files() -> Iterator[Path]:
    yield from sorted((ROOT / "app").glob("*.py"))
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix == ".py" or (
                file.is_file() and file.suffix not in OTHER_TYPES and b"python" in file.read_bytes()[:30]
            ):
                yield file


def leaves_encoding_open(call: ast.Call) -> bool:
    """Whether a call reads or writes text in the locale's encoding."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if any(keyword.arg == "encoding" for keyword in call.keywords):
        return False
    if name in ("read_text", "write_text"):
        return True
    if name != "open":
        return False
    is_method = isinstance(call.func, ast.Attribute)  # Path.open(mode); those of archives and the like take names
    modes = [arg.value if isinstance(arg, ast.Constant) else arg for arg in call.args[0 if is_method else 1 :][:1]]
    return not modes or modes[0] in ("r", "w", "a", "x", "r+", "w+", "a+")


def test_every_text_file_names_its_encoding() -> None:
    checked = 0
    found = []
    for file in python_files():
        checked += 1
        calls = (node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
        found += [f"{file.relative_to(ROOT)}:{call.lineno}" for call in calls if leaves_encoding_open(call)]
    assert checked > 150
    assert found == []


@pytest.mark.parametrize("call", ["Path(f).read_text()", "open(f)", 'file.open("a")', 'f.write_text("b")'])
def test_what_leaves_the_encoding_open_is_seen(call: str) -> None:
    assert leaves_encoding_open(ast.parse(call, mode="eval").body)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "call", ['open(f, "rb")', 'f.read_text(encoding="utf-8")', "os.open(f, 0)", "f.read_bytes()"]
)
def test_what_names_it_or_reads_bytes_is_not(call: str) -> None:
    assert not leaves_encoding_open(ast.parse(call, mode="eval").body)  # type: ignore[arg-type]


def test_the_page_is_the_same_in_a_locale_without_utf8() -> None:
    """As where LANG names a locale of another encoding; C stands for it, without Python's own way out."""
    script = "from pilotlight.front.page.document import document; print(document().headers['etag'])"
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    tags = [
        subprocess.run(
            [sys.executable, "-c", script], env=os.environ | environment, check=True, capture_output=True, text=True
        ).stdout
        for environment in ({}, ascii_only)
    ]
    assert tags[0] == tags[1] != ""
