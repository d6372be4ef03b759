"""Renderings as data: what the tests of this folder read out of each platform's own form."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from pilotlight.deploy.command import TARGETS
from pilotlight.deploy.reading import read_deployment

HERE = Path(__file__).parent
VALIDATORS = {
    target: jsonschema.Draft202012Validator(json.loads((HERE / "schemas" / f"{name}.json").read_text()))
    for target, name in {
        "runpod": "runpod", "cloudrun": "service", "knative": "service", "compose": "compose"
    }.items()
}  # fmt: skip


def render(file: Path, target: str) -> str:
    return TARGETS[target](read_deployment(file)).text


def parsed(text: str, target: str) -> Any:
    """The rendering as data, valid by its platform's schema; Modal's as a syntax tree that compiles."""
    if target == "modal":
        compile(text, "modal.py", "exec")
        return ast.parse(text)
    value = json.loads(text) if target == "runpod" else yaml.safe_load(text)
    VALIDATORS[target].validate(value)
    return value


def container(service: Any) -> Any:
    return service["spec"]["template"]["spec"]["containers"][0]


def environment(value: Any, target: str) -> dict[str, str]:
    """The plain variables; secrets are left out."""
    match target:
        case "runpod":
            return {name: text for name, text in value["env"].items() if "{{ RUNPOD_SECRET_" not in text}
        case "modal":
            return dict(decorator(value)["env"])
        case "compose":
            (service,) = value["services"].values()
            texts = service["environment"].items()
            return {name: text.replace("$$", "$") for name, text in texts if not text.startswith("${")}
        case _:
            return {entry["name"]: entry["value"] for entry in container(value)["env"] if "value" in entry}


def decorator(tree: ast.Module) -> dict[str, Any]:
    """The arguments of the class's first decorator that are literals."""
    (cls,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    call = cls.decorator_list[0]
    assert isinstance(call, ast.Call)
    return {
        keyword.arg: ast.literal_eval(keyword.value)
        for keyword in call.keywords
        if keyword.arg is not None and isinstance(keyword.value, ast.Constant | ast.Dict | ast.List)
        and not any(isinstance(node, ast.Call) for node in ast.walk(keyword.value))
    }  # fmt: skip


def keys(value: Any) -> Iterator[str]:
    """Every key, at every depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)
