"""What the two processes have imported when the first token is out, and that the second request imports nothing more.

Every module between exec and the first token is paid by whoever wakes a server that was scaled to zero: Python takes
0.1 to 3 ms for each. A new one is either needed for the first token, and then joins the lists here, or is imported
where it is used.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pilotlight.build.snapshot import build_snapshot
from tests.front.servers import ServerProcess, eventually, stream
from tests.models import write_chain

# Each process writes its modules' names into a file when it gets SIGUSR1; `{run}` is what it does else.
_TELLS = """
import os, signal, sys
def tell(*_):
    with open({file!r} + ".part", "w") as part:
        part.write("\\n".join(sys.modules))
    os.rename({file!r} + ".part", {file!r})
signal.signal(signal.SIGUSR1, tell)
{run}
"""
_ENGINE = "from pilotlight.engine.__main__ import run; sys.exit(run(int(sys.argv[1]), *sys.argv[2:]))"

# Packages from elsewhere, whole.
PACKAGES = {
    "front": {
        "anyio",
        "click",
        "h11",
        "idna",
        "msgspec",
        "orjson",
        "starlette",
        "tokenizers",
        "typing_extensions",
        "uvicorn",
    },
    "engine": {"msgspec", "numpy", "typing_extensions"},
}
OPTIONAL = {"multipart", "python_multipart", "sniffio", "watchfiles"}  # which those import where they are installed
# Of the standard library and of ours: what a first token has no use for, however it may come in.
ABSENT = {
    "front": {
        "numpy", "jinja2", "markupsafe", "difflib", "runpod", "yaml", "cuda.bindings", "unittest", "pydoc",
        "pilotlight.engine", "pilotlight.model", "pilotlight.device", "pilotlight.build", "pilotlight.llm",
        "pilotlight.deploy", "pilotlight.front.runpod", "pilotlight.text.sandbox",
    },
    "engine": {
        "argparse", "asyncio", "concurrent", "difflib", "email", "gettext", "http", "jinja2", "multiprocessing",
        "ssl", "subprocess", "tempfile", "tokenizers", "unittest", "cuda.bindings", "pydoc", "yaml",
        "pilotlight.front", "pilotlight.text", "pilotlight.build", "pilotlight.llm", "pilotlight.deploy",
        "pilotlight.device.cuda.driver", "pilotlight.device.cuda.early", "pilotlight.device.numpy_device",
    },
}  # fmt: skip
# The whole number of modules, the standard library's private ones and the namesakes of site and encodings included.
MOST = {"front": 410, "engine": 330}
WHY = (
    "imported before the first token, for which it may not be needed: import it where it is used, or say here that "
    "it is (see this file's beginning)"
)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_chain(folder / "chain", tuple(range(97, 123)), loop=True)
    build_snapshot(str(folder / "chain"), folder / "snapshot", "bfloat16")
    return folder / "snapshot"


class Watched:
    """A server that tells what its processes have imported."""

    def __init__(self, snapshot: Path, folder: Path, rest: float) -> None:
        """rest: seconds without a request, before something is prepared that none has asked for."""
        self._files = {"front": folder / "front", "engine": folder / "engine"}
        engine = _TELLS.format(file=str(self._files["engine"]), run=_ENGINE)
        run = (
            "from pilotlight import cli\nfrom pilotlight.front import main, server\n"
            f"server.REST_SECONDS = {rest}\n"
            f"main.engine_command = lambda: [sys.executable, '-c', {engine!r}]\n"
            "cli.main(['serve', *sys.argv[1:]])"
        )
        self.server = ServerProcess(
            snapshot,
            "--device",
            "cpu",
            command=[sys.executable, "-c", _TELLS.format(file=str(self._files["front"]), run=run)],
        )

    def modules(self, process: str) -> set[str]:
        file = self._files[process]
        file.unlink(missing_ok=True)
        os.kill(self.server.process.pid if process == "front" else self.server.engine_pid(), signal.SIGUSR1)
        eventually(file.exists)
        return set(file.read_text().split("\n"))


@pytest.fixture(params=[0.1])
def watched(snapshot: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    made = Watched(snapshot, tmp_path, request.param)
    with made.server:
        yield made


BODIES = {
    "completions": ("/v1/completions", {"model": "m", "prompt": "abc", "max_tokens": 3, "temperature": 0}),
    "chat": (
        "/v1/chat/completions",
        {"model": "m", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 3, "temperature": 0},
    ),
}


def tops(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize("watched", [600], indirect=True)
def test_what_is_imported_at_the_first_token(watched: Watched) -> None:
    path, body = BODIES["completions"]
    with (
        httpx.Client(base_url=watched.server.listening(), timeout=30) as client,
        client.stream("POST", path, json=body | {"stream": True}) as response,
    ):
        first = next(line for line in response.iter_lines() if line.startswith("data: "))
        found = {process: watched.modules(process) for process in PACKAGES}
    assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == "d"
    for process, modules in found.items():
        inside = {name for name in modules if name.partition(".")[0] == "pilotlight"}
        foreign = tops(modules) - set(sys.stdlib_module_names) - {"pilotlight", "__main__", "__mp_main__"}
        foreign = {name for name in foreign if not name.startswith(("_", "sitecustomize", "usercustomize"))}
        foreign -= from_pth_files() | OPTIONAL
        assert foreign <= PACKAGES[process], WHY
        assert {name for name in ABSENT[process] if name in modules} == set(), WHY
        assert inside, "it is the installed package that is looked at"
        assert len(modules) <= MOST[process], WHY


def from_pth_files() -> set[str]:
    """What this environment's site imports into every interpreter (an editable install, a redirector)."""
    bare = subprocess.run([sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True)
    return tops(set(bare.stdout.split()))


@pytest.mark.parametrize("kind", BODIES)
def test_the_second_request_imports_nothing(watched: Watched, kind: str) -> None:
    """What the first one left out has been imported meanwhile, while nobody waited: the chat template's part too."""
    path, body = BODIES[kind]
    with watched.server.client() as client:
        stream(client, path, body)
        eventually(lambda: "pilotlight.text.sandbox" in watched.modules("front"))
        first = {process: settled(watched, process) for process in PACKAGES}
        stream(client, path, body)
        second = {process: watched.modules(process) for process in PACKAGES}
    assert second == first


def settled(watched: Watched, process: str) -> set[str]:
    """Once nothing more comes in."""
    seen: list[set[str]] = []

    def is_stable() -> bool:
        seen.append(watched.modules(process))
        return len(seen) > 5 and all(modules == seen[-1] for modules in seen[-5:])

    eventually(is_stable)
    return seen[-1]
