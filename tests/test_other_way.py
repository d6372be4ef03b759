"""Each way of scripts/startup/other_way.py does what it says, and else starts the server as it is started."""

import gc
import json
import mmap
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pilotlight.build.snapshot import build_snapshot
from pilotlight.device import read_ahead
from pilotlight.front import server
from scripts.startup import other_way
from scripts.startup.start import Side, Start, measure
from tests.models import write_chain

SCRIPT = Path(other_way.__file__)
Named = tuple[str, str]  # a span: process and name
Times = tuple[float, float]
Starter = Callable[[str], Start]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Starter:
    """A way -> a start of it, to its first token."""
    folder = tmp_path_factory.mktemp("ways")
    write_chain(folder / "chain", range(97, 123), loop=True)
    build_snapshot(str(folder / "chain"), folder / "snapshot", "bfloat16")

    def start_way(way: str) -> Start:
        words = (way, "serve", str(folder / "snapshot"), "--port", "{port}", "--served-model-name", "m")
        command = (sys.executable, "-P", str(SCRIPT), *words)
        side = Side(way, command, live="/v1/health/live", startup="/startup", model_name="m", prompt="abc")
        return measure(side, "queued", folder / "log")

    return start_way


@pytest.fixture(scope="module")
def unchanged(start: Starter) -> dict[Named, Times]:
    return spans(start("nothing"))


def spans(start: Start) -> dict[Named, Times]:
    """What the server says of its start."""
    assert start.ledger is not None
    return {(span["process"], span["name"]): (span["start"], span["end"]) for span in start.ledger["spans"]}


def is_engine_late(found: dict[Named, Times]) -> bool:
    (begun, started), (first, last) = found["front", "start engine"], found["front", "imports"]
    return started - begun > last - first


def is_read_late(found: dict[Named, Times]) -> bool:
    return ("engine", "wait for weights") not in found and (
        found["engine", "weights"][0] >= found["engine", "config"][1]
    )


def is_run_first(found: dict[Named, Times]) -> bool:
    return ("engine", "first forward") in found


SHOWN = {"engine-late": is_engine_late, "read-late": is_read_late, "run-first": is_run_first}


@pytest.mark.parametrize("way", SHOWN)
def test_what_a_way_changes_is_in_the_ledger(way: str, unchanged: dict[Named, Times], start: Starter) -> None:
    found = spans(start(way))
    assert {name: shows(found) for name, shows in SHOWN.items()} == {name: name == way for name in SHOWN}
    assert not any(shows(unchanged) for shows in SHOWN.values())


def test_a_late_port_opens_behind_the_settings(start: Starter) -> None:
    late = start("port-late")
    assert late.marks["port_open"] > spans(late)["front", "settings"][0]
    assert change("port-late", "pilotlight.peek", SimpleNamespace()).address([], {}) is None


def change(way: str, module: str, namespace: Any) -> Any:
    """`namespace`, in the module's place, once the way has changed it."""
    other_way.WAYS[way][module](namespace)
    return namespace


def test_faults_and_a_text_at_once_are_one_number_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for way, module, name, expected in (
        ("faults", read_ahead, "POPULATE_READ", mmap.MADV_WILLNEED),
        ("text-at-once", server, "ACCEPT_SECONDS", 0),
    ):
        before = getattr(module, name)
        monkeypatch.setattr(module, name, before)  # so that it is put back
        assert before != expected
        assert getattr(change(way, module.__name__, module), name) == expected


def test_garbage_is_collected_while_python_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "disable", gc.disable)
    change("collect", "pilotlight", SimpleNamespace())
    gc.disable()
    assert gc.isenabled()


def test_a_template_is_prepared_with_the_text() -> None:
    prepared: list[str] = []
    text = SimpleNamespace(template=SimpleNamespace(prepare=lambda: prepared.append("template")))
    assets = change("template", "pilotlight.text.assets", SimpleNamespace(load_text=lambda *_: text))
    assert (assets.load_text("directory", None), prepared) == (text, ["template"])
    text.template = None
    assert assets.load_text("directory", None).template is None


def test_the_event_loop_is_the_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", SimpleNamespace(run="uvloop's"))  # type: ignore[arg-type]
    assert change("uvloop", "asyncio", SimpleNamespace(run="its own")).run == "uvloop's"


IMPORTS = """
import json, sys
from scripts.startup.other_way import WAYS, Changes
sys.meta_path.insert(0, Changes(WAYS[sys.argv[1]]))
from pilotlight.front import server, web
base = web.WebServer.__mro__[1].__module__
print(json.dumps([server.Connection.__name__, "click" in sys.modules, base]))
"""


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("nothing", ["Connection", True, "uvicorn.server"]),
        ("no-uvicorn-command", ["Connection", False, "uvicorn.server"]),
        ("httptools", ["HttpToolsProtocol", True, "uvicorn.server"]),
    ],
)
def test_what_the_web_stack_is_made_of(way: str, expected: list[Any], tmp_path: Path) -> None:
    (tmp_path / "httptools.py").write_text("")  # which is no dependency
    root = SCRIPT.parents[2]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, way],
        cwd=root,
        env={"PYTHONPATH": f"{root}:{tmp_path}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


@pytest.mark.parametrize("words", [[], ["nothing"], ["backwards", "serve", "model"], ["nothing", "build"]], ids=str)
def test_what_is_no_way_is_refused_in_one_line(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-P", SCRIPT, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.endswith(f"WAY is one of {', '.join(other_way.WAYS)}\n")
