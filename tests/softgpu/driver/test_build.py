"""Building the library: kept by content, whole or not at all, and a compiler's error told in its words."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.softgpu import build as builder

GOOD = '#include "number.hpp"\nextern "C" __attribute__((visibility("default"))) int number() { return kNumber; }\n'


def sources(directory: Path, number: int) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "number.hpp").write_text(f"constexpr int kNumber = {number};\n")
    (directory / "number.cpp").write_text(GOOD)
    return directory


def test_it_is_built_once_for_the_same_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = builder._make
    monkeypatch.setattr(builder, "_make", lambda *arguments: (made.append(arguments[0].name), make(*arguments)))
    first = builder.build(sources(tmp_path / "src", 1), tmp_path / "cache")
    assert len(made) == 2
    assert builder.build(sources(tmp_path / "src", 1), tmp_path / "cache") == first
    assert len(made) == 2
    second = builder.build(sources(tmp_path / "src", 2), tmp_path / "cache")  # only the header is another
    assert second != first
    assert second.exists()
    assert len(made) == 4


def test_a_compilers_error_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    source = sources(tmp_path / "src", 1)
    (source / "number.cpp").write_text("int number() { return kNowhere; }\n")
    for _ in range(2):
        with pytest.raises(builder.BuildError, match="kNowhere"):
            builder.build(source, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["build.lock"]


def test_an_undefined_function_is_the_builds_error(tmp_path: Path) -> None:
    source = sources(tmp_path / "src", 1)
    (source / "number.cpp").write_text("int nowhere(); int number() { return nowhere(); }\n")
    with pytest.raises(builder.BuildError, match="nowhere"):
        builder.build(source, tmp_path / "cache")


def test_builds_at_the_same_time_agree(tmp_path: Path) -> None:
    source, built = sources(tmp_path / "src", 1), []
    threads = [
        threading.Thread(target=lambda: built.append(builder.build(source, tmp_path / "cache"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(built)) == 1
    assert built[0].exists()


def test_the_module_prints_the_path() -> None:
    built = builder.build()
    done = subprocess.run(
        [sys.executable, "-m", "tests.softgpu.build"], capture_output=True, text=True, cwd=Path(__file__).parents[3]
    )
    assert Path(done.stdout.strip()) == built
    assert done.stderr == ""
