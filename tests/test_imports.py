"""Imports run one way, heavy modules load where they are used, and nothing undeclared is imported."""

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
APP = ROOT / "app"

# Who may import whom: cli -> front, llm -> text; front -> messages <- engine -> model -> device.
# A key is a folder or a top-level module of app/; its own folder goes without saying.
MAY_IMPORT = {
    "__init__": {"llm"},
    "__main__": {"cli"},
    "cli": {"__init__", "build", "deploy", "errors", "front"},
    "command_line": {"errors"},
    "errors": set(),
    "interpreter": set(),
    "settings": {"__init__", "errors", "peek", "runpod_env"},
    "peek": set(),
    "runpod_env": {"errors"},
    "messages": {"settings"},
    "ledger": {"messages"},
    "timeline": {"__init__", "messages"},
    "params": {"errors", "messages"},
    "source": {"errors", "peek", "runpod_env"},
    "llm": {"engine", "errors", "messages", "model", "params", "settings", "source", "text", "timeline"},
    "text": {"errors", "interpreter", "messages", "settings"},
    "front": {
        "__init__",
        "errors",
        "interpreter",
        "ledger",
        "messages",
        "params",
        "peek",
        "runpod_env",
        "settings",
        "source",
        "text",
        "timeline",
    },
    "engine": {"errors", "messages", "model", "device", "settings", "timeline"},
    "model": {"device", "errors", "settings", "timeline"},
    "device": {"errors", "messages", "settings", "timeline"},
    "deploy": {"__init__", "command_line", "errors", "runpod_env", "settings"},
    "build": {"__init__", "command_line", "device", "errors", "model", "settings", "source", "text"},
}
# Packages from elsewhere: where each may be imported at all.
THIRD_PARTY = {
    "cuda": {"build", "device"},
    "h11": {"front"},
    "huggingface_hub": {"build"},
    "jinja2": {"text"},
    "msgspec": {"settings", "messages", "params", "llm", "front", "engine", "model", "device", "deploy"},
    "numpy": {"engine", "model", "device", "build"},
    "orjson": {"front"},
    "runpod": {"front"},
    "safetensors": {"build"},
    "setuptools": {"build"},
    "starlette": {"front"},
    "tokenizers": {"text", "build"},
    "tqdm": {"build"},
    "uvicorn": {"front"},
    "yaml": {"deploy"},
}
# What these processes must not have loaded once they stand ready to work.
ABSENT = {
    "pilotlight": ["msgspec", "numpy", "argparse", "asyncio", "pilotlight.cli", "pilotlight.llm"],
    "pilotlight.cli": [
        "msgspec", "numpy", "argparse", "asyncio", "pilotlight.front", "pilotlight.build", "pilotlight.deploy",
    ],
    "pilotlight.front.main": [
        "numpy", "jinja2", "difflib", "argparse", "torch", "transformers",
        "pilotlight.engine", "pilotlight.model", "pilotlight.device", "pilotlight.build", "pilotlight.llm",
        "pilotlight.deploy", "yaml", "pilotlight.front.runpod", "runpod",
    ],
    "pilotlight.front.server": ["pilotlight.front.runpod", "runpod", "aiohttp", "requests"],
    "pilotlight.engine.worker": [
        "asyncio", "starlette", "uvicorn", "tokenizers", "jinja2", "difflib", "argparse", "torch", "transformers",
        "pilotlight.front", "pilotlight.text", "pilotlight.build", "pilotlight.llm", "pilotlight.deploy", "yaml",
    ],
}  # fmt: skip


def modules() -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Each file under app/ and its dotted place: app/model/families/llama.py -> ("model", "families", "llama")."""
    for path in sorted(APP.rglob("*.py")):
        yield path, path.relative_to(APP).with_suffix("").parts


def imports(path: Path, parts: tuple[str, ...]) -> Iterator[tuple[int, str, bool]]:
    """(line, what, inside): `inside` is a part of app/ by its top-level name, else `what` is a distant package."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0], False
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, (node.module or "").partition(".")[0], False
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level]
            target = (*base, *(node.module.split(".") if node.module else ()))
            names = [target[0]] if target else [alias.name for alias in node.names]
            for name in names:
                exists = (APP / name).is_dir() or (APP / f"{name}.py").exists()
                yield node.lineno, name if exists else "__init__", True


def test_imports_run_one_way() -> None:
    wrong = [
        f"app/{'/'.join(parts)}.py:{line} imports {what}"
        for path, parts in modules()
        for line, what, inside in imports(path, parts)
        if inside and what not in MAY_IMPORT[parts[0]] | ({parts[0]} if len(parts) > 1 else set())
    ]
    assert wrong == []


def test_table_of_imports_names_every_part_of_the_house() -> None:
    assert {parts[0] for _, parts in modules()} == set(MAY_IMPORT)


def test_no_permission_is_left_that_nothing_needs() -> None:
    found = {(parts[0], what) for path, parts in modules() for _, what, inside in imports(path, parts) if inside}
    unused = [(importer, what) for importer, allowed in MAY_IMPORT.items() for what in allowed]
    assert sorted(set(unused) - found) == []
    used = {(what, parts[0]) for path, parts in modules() for _, what, inside in imports(path, parts) if not inside}
    assert sorted({(what, room) for what, rooms in THIRD_PARTY.items() for room in rooms} - used) == []


def test_packages_from_elsewhere_stay_in_their_rooms() -> None:
    wrong = [
        f"app/{'/'.join(parts)}.py:{line} imports {what}"
        for path, parts in modules()
        for line, what, inside in imports(path, parts)
        if not inside and what not in sys.stdlib_module_names and parts[0] not in THIRD_PARTY.get(what, set())
    ]
    assert wrong == []


def test_one_file_of_the_devices_imports_the_cuda_bindings() -> None:
    found = {
        path.relative_to(APP).as_posix()
        for path, parts in modules()
        for _, what, _ in imports(path, parts)
        if what == "cuda"
    }
    assert {name for name in found if name.startswith("device/")} == {"device/cuda/driver.py"}


def test_packages_from_elsewhere_are_declared() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, tools = pyproject["project"], pyproject["build-system"]["requires"]
    extras = project["optional-dependencies"]
    optional = [requirement for name in ("build", "deploy", "kernels", "runpod") for requirement in extras[name]]
    declared = [*project["dependencies"], *optional, *tools]
    imported_as = {"cuda-bindings": "cuda", "pyyaml": "yaml"}
    named = [requirement.split(">")[0] for requirement in declared]
    names = {imported_as.get(name, name) for name in named}
    compilers = {name for name in names if name.startswith("nvidia-")}  # programs and libraries, not imported
    assert names - compilers == set(THIRD_PARTY)


def test_tests_import_the_installed_name() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(), str(path)))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "app"
    ]
    assert wrong == []


def loaded(module: str) -> list[str]:
    """Names in sys.modules after `module` was imported in a fresh interpreter."""
    code = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    names: list[str] = json.loads(done.stdout)
    return names


@pytest.mark.parametrize("module", ABSENT)
def test_heavy_modules_are_not_loaded(module: str) -> None:
    names = loaded(module)
    present = [name for name in ABSENT[module] if name in names]
    assert present == []


def test_importing_the_package_loads_next_to_nothing() -> None:
    assert set(loaded("pilotlight")) - set(loaded("typing, collections.abc")) == {"pilotlight"}


def test_the_port_is_opened_and_the_engine_started_before_anything_else_is_imported() -> None:
    """Python itself takes about 10 ms to start, and `typing` alone, which most modules import, another 8."""
    light = set(loaded("contextlib, gc, resource, signal, socket"))
    assert set(loaded("pilotlight.front.main")) - light == {
        "pilotlight",
        "pilotlight.errors",
        "pilotlight.front",
        "pilotlight.front.main",
        "pilotlight.front.process",
        "pilotlight.peek",
    }


def test_the_device_and_the_weights_are_begun_before_anything_else_is_imported() -> None:
    light = set(loaded("contextlib, ctypes, gc, mmap, threading"))
    assert set(loaded("pilotlight.engine.__main__")) - light == {
        "pilotlight",
        "pilotlight.device",
        "pilotlight.device.choice",
        "pilotlight.device.read_ahead",
        "pilotlight.engine",
        "pilotlight.engine.__main__",
        "pilotlight.errors",
    }
