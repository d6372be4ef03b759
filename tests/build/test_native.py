"""`pilotlight build native`: the library is made from the sources that stand there, once, or not at all."""

import ctypes
from pathlib import Path

import pytest

from pilotlight.build import native_compiler
from pilotlight.build.native import build_native, command, is_current
from pilotlight.device import native_library
from pilotlight.errors import KernelError, UnavailableError, UsageError

SOURCE = '#include "number.hpp"\nextern "C" __attribute__((visibility("default"))) int number() { return NUMBER; }\n'


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "cpu"
    directory.mkdir()
    (directory / "number.cpp").write_text(SOURCE)
    (directory / "number.hpp").write_text("#define NUMBER 1\n")
    return directory


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What the compiler was asked for."""
    files: list[Path] = []
    make = native_compiler.make

    def spy(target: Path, *arguments: str) -> str:
        files.append(target)
        return make(target, *arguments)

    monkeypatch.setattr(native_compiler, "make", spy)
    return files


def test_what_stands_is_not_made_again(source: Path, tmp_path: Path, made: list[Path]) -> None:
    library = tmp_path / "out" / "lib.so"
    assert not is_current(source, library)
    assert build_native(source, library)
    assert is_current(source, library)
    assert ctypes.CDLL(str(library)).number() == 1
    made.clear()
    assert not build_native(source, library)
    assert made == []
    (source / "number.hpp").write_text("#define NUMBER 2\n")
    assert not is_current(source, library)
    assert build_native(source, tmp_path / "other" / "lib.so")
    assert ctypes.CDLL(str(tmp_path / "other" / "lib.so")).number() == 2


def test_other_options_make_another_library(source: Path, tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    assert build_native(source, library, ["-DEXTRA"])
    assert not is_current(source, library)
    assert build_native(source, library)


@pytest.mark.parametrize(
    ("text", "said"),
    [("int number() { return kNowhere; }", "kNowhere"), ("int no(); int f() { return no(); }", "no")],
)
def test_a_compilers_error_is_told_and_what_stood_stays(source: Path, tmp_path: Path, text: str, said: str) -> None:
    library = tmp_path / "out" / "lib.so"
    build_native(source, library)
    before = library.read_bytes()
    (source / "number.cpp").write_text(text)
    with pytest.raises(KernelError, match=said):
        build_native(source, library)
    assert library.read_bytes() == before
    assert list(library.parent.iterdir()) == [library]


def test_without_a_compiler_the_line_says_what_to_install(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native_compiler.compiler.cache_clear()
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(native_compiler.shutil, "which", lambda name: None)
    monkeypatch.setattr(native_compiler.importlib.util, "find_spec", lambda name: None)
    try:
        with pytest.raises(UnavailableError, match=r"no C\+\+ compiler here: install g\+\+ or clang\+\+, or `pip"):
            build_native(source, tmp_path / "lib.so")
    finally:
        native_compiler.compiler.cache_clear()


def test_a_place_that_cannot_be_written_is_told_before_anything_is_compiled(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc takes no files from anyone."""
    monkeypatch.setattr(native_compiler, "make", lambda *arguments: pytest.fail("compiled"))
    with pytest.raises(UnavailableError, match=r"^/proc.*; /proc/lib\.so is as it was$"):
        build_native(source, Path("/proc/lib.so"))


def test_a_directory_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no C\+\+ sources"):
        build_native(tmp_path, tmp_path / "lib.so")


def test_the_command_says_what_it_did(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--source", str(source), "-o", str(tmp_path / "out")]
    for word in ("built", "up to date"):
        assert command(arguments) == 0
        assert capsys.readouterr().out.startswith(f"{tmp_path}/out/{native_library.library_name()}: {word}, ")
    file = tmp_path / "out" / native_library.library_name()
    whole = file.read_bytes()
    file.unlink()  # it is loaded in this process, which would die of it at its end
    file.write_bytes(whole[:-64])  # what it was made from still stands in it
    assert command(arguments) == 0
    assert ": built, " in capsys.readouterr().out
    assert file.read_bytes() == whole
    with pytest.raises(UsageError, match="build native: unrecognized arguments: --fast"):
        command(["--fast"])
