"""What is in the image and what is not: its layers and their sizes, its settings, how its command is read."""

import json
import re
from typing import Any

from .containers import IMAGE, MODEL, PODMAN, attempt, inside, inspect, run, say

# The layers with files in them, lowest first, as the Dockerfile makes them.
LAYERS = (
    "base",
    "bytecode of the standard library",
    "wheels",
    "CUDA kernels",
    "CPU kernels",
    *(f"weights {number}" for number in range(1, 9)),
    "code",
)
EMPTY = 10_000  # bytes; a layer without files has some of its own
LIMIT_MB = 150  # above the base, without the weights
# The stand-in base has bytecode; python:3.11-slim-bookworm has none, so there the layer holds this.
BYTECODE = """
import pathlib, sysconfig
skipped = {"dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests", "tkinter"}
files = pathlib.Path(sysconfig.get_path("stdlib")).rglob("*.pyc")
print(sum(file.stat().st_size for file in files if not skipped & set(file.parts)))
"""
# Every cubin that the manifest names, by its hash; a wrong one or none is an error.
CUBINS = """
import hashlib, json
from pilotlight.device.cuda.images import MANIFEST, directory
cubins = [
    (directory() / architecture / f"{name}.cubin", cubin["sha256"])
    for name, module in json.loads((directory() / MANIFEST).read_bytes())["modules"].items()
    for architecture, cubin in module["cubins"].items()
]
assert all(hashlib.sha256(file.read_bytes()).hexdigest() == expected for file, expected in cubins)
print(len(cubins))
"""
PROGRAMS = ("cc", "gcc", "c++", "ld", "make", "nvcc", "ptxas", "zig")
PACKAGES = ("gguf", "huggingface_hub", "nvidia", "setuptools", "torch", "tqdm", "cuda/core", "cuda/bindings/runtime*")
ENVIRONMENT = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "PILOTLIGHT_MODEL": "/model",
    "PILOTLIGHT_SERVED_MODEL_NAME": MODEL,
}


def check() -> dict[str, Any]:
    """The sizes, for the record."""
    _check_settings()
    _check_absent()
    _check_commands()
    assert int(inside("python", "-c", CUBINS)) > 0
    # Python says where each module's code comes from; nothing may be compiled at a start.
    loaded = inside("sh", "-c", "PYTHONVERBOSE=1 pilotlight serve --help 2>&1")
    assert "pilotlight/cli" in loaded
    assert not re.findall(r"^# code object from .*\.py'?$", loaded, re.MULTILINE)
    return _sizes()


def _check_settings() -> None:
    config = inspect()["Config"]
    environment = dict(line.split("=", 1) for line in config["Env"])
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["/venv/bin/entrypoint"]
    assert environment.items() >= ENVIRONMENT.items()
    labels = {
        name.rpartition(".")[2]: value for name, value in config["Labels"].items() if ".opencontainers." in name
    }
    assert {"title", "description", "licenses", "version", "revision"} <= set(labels), labels
    assert inside("pilotlight", "--version") == f"pilotlight {labels['version']}"


def _check_absent() -> None:
    """One look at the image for all: each line is one thing too many."""
    script = (
        f"for name in {' '.join(PROGRAMS)}; do command -v $name; done;"
        f"cd /venv/lib/python3*/site-packages && ls -d {' '.join(PACKAGES)} /src /layer /layers 2>/dev/null;"
        "find / -xdev -name 'libcuda.so*' -o -xdev -name 'libnvidia-*' 2>/dev/null;"
        "find /venv -name '*.pyx' -o -name tests;"
        "find / -xdev -path '*/.cache/pip' 2>/dev/null;"
        "cat /etc/pip.conf 2>/dev/null;"
        "true"
    )
    found = inside("sh", "-c", script)
    assert not found, f"in the image, and should not be:\n{found}"


def _check_commands() -> None:
    """Flags alone, `serve`, and a platform's own command."""
    usage = inside("serve", "--help")
    assert usage.startswith("usage: pilotlight serve")
    assert inside("--help") == usage
    assert inside("python", "-c", "print(6 * 7)") == "42"
    assert inside("sh", "-c", "echo $0") == "sh"
    assert inside("pilotlight", "--version") == inside("python", "-m", "app", "--version")
    assert inside("pip", "--version") == inside("python", "-m", "pip", "--version")
    assert attempt("no-such-command").returncode == 127


def _sizes() -> dict[str, Any]:
    by_name = _layers(IMAGE)
    by_name["bytecode of the standard library"] = int(inside("python", "-c", BYTECODE))
    above = sum(size for name, size in by_name.items() if name != "base" and not name.startswith("weights"))
    for name, size in by_name.items():
        if size > EMPTY:
            say(f"layer: {size / 1e6:7.1f} MB  {name}")
    say(f"above the base, without the weights: {above / 1e6:.1f} MB")
    assert above <= LIMIT_MB * 1e6
    return {
        "base": "a stand-in for python:3.11-slim-bookworm, made of Debian's packages",
        "layers_mb": {name: round(size / 1e6, 1) for name, size in by_name.items() if size > EMPTY},
        "above_base_without_weights_mb": round(above / 1e6, 1),
    }


def weight_layers(image: str) -> list[int]:
    """The bytes of each."""
    return [size for name, size in _layers(image).items() if name.startswith("weights")]


def _layers(image: str) -> dict[str, int]:
    """The bytes of each layer that may hold files."""
    history = json.loads(run([*PODMAN, "history", "--format", "json", image], quiet=True))
    base, *steps = reversed(history)
    sizes = [step["size"] for step in steps if re.search(r"(COPY|compileall)", step["CreatedBy"])]
    return dict(zip(LAYERS, [base["size"], *sizes], strict=True))
