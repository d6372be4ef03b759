"""The wheel: it holds all of app/ and ptx/, and serves from a fresh environment with no source tree in sight."""

import email
import http.client
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import pilotlight
from tests.distributions import PYPROJECT, runtime
from tests.models import write_chain
from tests.tokenizers import byte_tokenizer

ROOT = Path(__file__).parent.parent
APP = ROOT / "app"
CPU = ROOT / "kernels" / "cpu"
PTX = ROOT / "ptx"
CUBIN, LIBRARY = b"cubin", b"library"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing of an earlier build slips in."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(APP, source / "app", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(CPU, source / "kernels" / "cpu", ignore=shutil.ignore_patterns("*.so"))
    (source / "kernels" / "cpu" / "libpilotlight_cpu.mine.so").write_bytes(LIBRARY)  # as in an image's build
    shutil.copytree(PTX, source / "ptx", ignore=shutil.ignore_patterns("sm_*"))
    (source / "ptx" / "sm_80").mkdir()
    (source / "ptx" / "sm_80" / "norm.cubin").write_bytes(CUBIN)  # as in an image's build
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and, linked from here, what it needs at run time: no extra, no pip."""
    path = tmp_path_factory.mktemp("environment")
    venv.create(path, with_pip=False, symlinks=True)
    (site,) = path.glob("lib/python3*/site-packages")
    for distribution in runtime().values():
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(distribution.locate_file(name))
    pip = [sys.executable, "-m", "pip", "--python", str(path / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    return path


def run(environment: Path, *command: str) -> str:
    return subprocess.run(
        [environment / "bin" / command[0], *command[1:]], cwd=environment, capture_output=True, text=True, check=True
    ).stdout


def test_wheel_holds_the_whole_of_app_and_the_kernels(wheel: Path) -> None:
    ours = {
        "pilotlight/" + path.relative_to(APP).as_posix()
        for path in APP.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    ours |= {f"pilotlight/ptx/{path.name}" for path in PTX.iterdir() if path.is_file()}
    ours |= {f"pilotlight/cpu/{path.name}" for path in CPU.iterdir() if path.suffix != ".so"}
    ours |= {"pilotlight/ptx/sm_80/norm.cubin", "pilotlight/cpu/libpilotlight_cpu.mine.so"}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == ours


def test_a_wheel_with_the_library_is_of_this_platform(wheel: Path) -> None:
    """It loads on one architecture alone."""
    assert wheel.stem.endswith(f"-py3-none-linux_{platform.machine()}")


def test_package_list_names_every_package() -> None:
    found = [".".join(("pilotlight", *path.parent.relative_to(APP).parts)) for path in APP.rglob("__init__.py")]
    assert sorted(PYPROJECT["tool"]["setuptools"]["packages"]) == sorted([*found, "pilotlight.cpu", "pilotlight.ptx"])


def test_version_is_one(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Version"] == pilotlight.__version__ == PYPROJECT["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(pilotlight.__version__)}\]", changelog, re.MULTILINE)


def test_installed_package_is_not_the_tree(environment: Path) -> None:
    where = run(environment, "python", "-c", "import pilotlight; print(pilotlight.__file__)").strip()
    assert Path(where).is_relative_to(environment)
    assert run(environment, "pilotlight", "--version") == f"pilotlight {pilotlight.__version__}\n"
    assert run(environment, "python", "-m", "pilotlight", "--version") == f"pilotlight {pilotlight.__version__}\n"


def test_installed_package_finds_its_kernels(environment: Path) -> None:
    code = "from pilotlight.device.cuda.images import directory; print(directory())"
    where = Path(run(environment, "python", "-c", code).strip())
    assert where.is_relative_to(environment)
    assert (where / "manifest.json").read_bytes() == (PTX / "manifest.json").read_bytes()
    assert (where / "sm_80" / "norm.cubin").read_bytes() == CUBIN


def test_installed_package_builds_its_cpu_library(environment: Path) -> None:
    found = run(
        environment, "python", "-c", "from pilotlight.device.native_library import find; print(find())"
    ).strip()
    assert Path(found).is_relative_to(environment)
    assert (Path(found).parent / "abi.h").read_bytes() == (CPU / "abi.h").read_bytes()


@pytest.fixture
def server(environment: Path, tmp_path: Path) -> Iterator[str]:
    """The address of the installed server, serving a model that says "The quick"; it must leave with 0."""
    vocabulary = byte_tokenizer()
    end = vocabulary.id("<|im_end|>")
    model = write_chain(tmp_path / "model", [*vocabulary.bytes("The quick"), end], vocabulary, eos=end)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PILOTLIGHT_", "PYTHON"))}
    flags = ["--served-model-name", "quick", "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(
        [environment / "bin" / "pilotlight", "serve", model, *flags],
        cwd=tmp_path,
        env=inherited,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr as log:
        try:
            found = (re.search(r"listening at http://(\S+),", line) for line in log)
            address = next((match[1] for match in found if match), None)
            assert address is not None, f"the server left with {process.wait()}"
            yield address
            process.terminate()
            assert process.wait(timeout=30) == 0, log.read()
        finally:
            process.kill()
            process.wait()


def test_wheel_serves_without_the_tree(server: str) -> None:
    connection = http.client.HTTPConnection(server, timeout=60)
    body = {"model": "quick", "messages": [{"role": "user", "content": "Begin."}], "temperature": 0}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    assert response.status == 200, answer
    assert answer["choices"][0]["message"]["content"] == "The quick"
    assert answer["choices"][0]["finish_reason"] == "stop"
