"""Starts the server with one step of its start done in another way: scripts/measure_startup shows what it saves.

usage: python -P other_way.py WAY serve MODEL ...      any arguments of `pilotlight serve`

A way replaces one function or variable, in both processes: the engine is started through this file too. It does so
as soon as the module in question is imported, and imports nothing earlier than usual. Measure the way `nothing` too:
what it adds is this file's own cost.
"""

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


# --- the ways -----------------------------------------------------------------------------------------------------


def value(**attributes: "Any") -> "Callable[[Any], None]":
    """A change that sets a module's attributes."""
    return lambda module: module.__dict__.update(attributes)


def collect(pilotlight: "Any") -> None:
    gc.disable = lambda: None


def spawn_late(main: "Any") -> None:
    spawn = main.spawn_engine

    def spawn_engine(*arguments: "Any") -> "Any":
        from pilotlight.front import server  # noqa: F401  # with all that it imports

        return spawn(*arguments)

    main.spawn_engine = spawn_engine


def run_first(worker: "Any") -> None:
    load = worker.load

    def load_and_run(settings: "Any", timeline: "Any") -> "Any":
        engine, ready = load(settings, timeline)
        with timeline.span("first forward"):
            engine.model.warm_up()
        return engine, ready

    worker.load = load_and_run


def prepare_template(assets: "Any") -> None:
    load_text = assets.load_text

    def load_and_prepare(*arguments: "Any") -> "Any":
        text = load_text(*arguments)
        if text.template is not None:
            text.template.prepare()
        return text

    assets.load_text = load_and_prepare


def leave_out_command(config: "Any") -> None:
    """In the place of uvicorn's command line, which brings click, multiprocessing and watchers of files."""
    from types import SimpleNamespace

    from uvicorn.server import Server

    sys.modules["uvicorn.main"] = SimpleNamespace(Server=Server, main=None, run=None)  # type: ignore[assignment]


def use_uvloop(asyncio: "Any") -> None:
    import uvloop

    asyncio.run = uvloop.run
    asyncio.WriteTransport = object  # which the engine's client asserts, and uvloop's are not


def use_httptools(web: "Any") -> None:
    """Besides h11, which the module has imported by then."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    web.Connection = HttpToolsProtocol


WAYS: "dict[str, Mapping[str, Callable[[Any], None]]]" = {  # name -> module -> what is changed in it
    "nothing": {},
    "port-late": {"pilotlight.peek": value(address=lambda *_: None)},  # known once the settings are parsed
    "engine-late": {"pilotlight.front.main": spawn_late},
    "read-late": {"pilotlight.peek": value(weights=lambda *_: [])},  # when the model is loaded
    "faults": {"pilotlight.device.read_ahead": value(POPULATE_READ=3)},  # MADV_WILLNEED: no page table is filled
    "collect": {"pilotlight": collect},
    "run-first": {"pilotlight.engine.worker": run_first},
    "template": {"pilotlight.text.assets": prepare_template},
    "text-at-once": {"pilotlight.front.server": value(ACCEPT_SECONDS=0)},
    "no-uvicorn-command": {"uvicorn.config": leave_out_command},
    "uvloop": {"asyncio": use_uvloop},
    "httptools": {"pilotlight.front.web": use_httptools},
}


# --- how one is started -------------------------------------------------------------------------------------------


class Changes:
    """A finder of modules that changes some as soon as they have been executed."""

    def __init__(self, changes: "Mapping[str, Callable[[Any], None]]") -> None:
        self._changes = dict(changes)

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        change = self._changes.pop(name, None)
        if change is None:
            return None
        spec: ModuleSpec = next(filter(None, (each.find_spec(name, path, target) for each in sys.meta_path)))
        execute = spec.loader.exec_module  # type: ignore[union-attr]

        def exec_module(module: "ModuleType") -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = exec_module  # type: ignore[union-attr,method-assign]
        return spec


def run(way: str, process: str, arguments: "Sequence[str]") -> None:
    sys.meta_path.insert(0, Changes(WAYS[way]))  # type: ignore[arg-type]
    if process == "engine":
        from pilotlight.engine.__main__ import run as run_engine

        sys.exit(run_engine(int(arguments[0]), *arguments[1:]))
    from pilotlight.cli import main
    from pilotlight.front import main as front

    front.engine_command = lambda: [sys.executable, "-P", __file__, way, "engine"]
    main(["serve", *arguments])


if __name__ == "__main__":
    match sys.argv[1:]:
        case [way, ("serve" | "engine") as process, *arguments] if way in WAYS:
            run(way, process, arguments)
        case _:
            sys.exit(f"usage: python -P other_way.py WAY serve MODEL ...; WAY is one of {', '.join(WAYS)}")
