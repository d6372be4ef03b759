"""Renderings as data: what the tests of this folder read out of each platform's own form."""

import json
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jsonschema
import yaml
from referencing import Registry

from pilotlight.deploy.command import TARGETS
from pilotlight.deploy.reading import read_deployment

HERE = Path(__file__).parent
SCHEMAS = {file.name: json.loads(file.read_text()) for file in (HERE / "schemas").iterdir()}
_REGISTRY: Registry[Any] = Registry().with_contents(SCHEMAS.items())
VALIDATORS = {
    target: jsonschema.Draft202012Validator(SCHEMAS[f"{target}.json"], registry=_REGISTRY)
    for target in ("runpod", "cloudrun", "knative", "compose")
}


def render(file: Path, target: str) -> str:
    return TARGETS[target](read_deployment(file)).text


def parsed(text: str, target: str) -> Any:
    """The rendering as data, valid by its platform's schema; of Modal's, what it hands to Modal."""
    if target == "modal":
        return run_modal_file(text).modal.handed
    value = json.loads(text) if target == "runpod" else yaml.safe_load(text)
    VALIDATORS[target].validate(value)
    return value


class Modal(types.ModuleType):
    """Stands in for the package: decorates nothing, and keeps what was `handed` to it, by the name of the call."""

    def __init__(self) -> None:
        super().__init__("modal")
        self.handed: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return _Call(self.handed, name)


class _Call:
    def __init__(self, handed: dict[str, Any], name: str) -> None:
        self._handed, self._name = handed, name

    def __getattr__(self, name: str) -> Any:
        return _Call(self._handed, f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if arguments and isinstance(arguments[0], type | types.FunctionType):
            return arguments[0]
        self._handed[self._name] = named | dict(enumerate(arguments))
        return self


def run_modal_file(text: str, **environ: str) -> types.ModuleType:
    """The file as a module, run by a shell that says `environ` about the deployment and nothing else."""
    module = types.ModuleType("deployed")
    said = {name: value for name, value in os.environ.items() if not name.startswith("DEPLOY_")} | environ
    with mock.patch.dict(sys.modules, {"modal": Modal()}), mock.patch.dict(os.environ, said, clear=True):
        exec(compile(text, "modal.py", "exec"), module.__dict__)
    return module


def container(service: Any) -> Any:
    return service["spec"]["template"]["spec"]["containers"][0]


def environment(value: Any, target: str) -> dict[str, str]:
    """The plain variables; secrets are left out."""
    match target:
        case "runpod":
            return {name: text for name, text in value["env"].items() if "{{ RUNPOD_SECRET_" not in text}
        case "modal":
            told = dict(replica(value)["env"])
            assert told.pop("DEPLOY_FORM") in ("web_server", "server")
            return told
        case "compose":
            (service,) = value["services"].values()
            told = service["environment"]
            return expanded({name: text for name, text in told.items() if not text.startswith("${")})
        case _:
            plain = {entry["name"]: entry["value"] for entry in container(value)["env"] if "value" in entry}
            return expanded(plain) if target == "knative" else plain


def expanded(told: dict[str, str]) -> dict[str, str]:
    """As Kubernetes and Compose read a variable's text: a reference is put in, `$$` is one dollar sign."""
    assert not any(re.search(r"(?<!\$)(\$\$)*\$([^$]|$)", text) for text in told.values()), "a reference"
    return {name: text.replace("$$", "$") for name, text in told.items()}


def replica(handed: dict[str, Any]) -> dict[str, Any]:
    """The class's arguments, in whichever form."""
    (arguments,) = (handed[name] for name in ("App.cls", "App.server") if name in handed)
    return dict(arguments)


def keys(value: Any) -> Iterator[str]:
    """Every key, at every depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)
