"""What of the settings the first milliseconds need: where to listen, on which device, and which weights to read.

Apart from settings.py, which takes twice as long to import as Python takes to start: the port is open and the engine
started before the settings are parsed. What the parsed settings say counts. Address and device come out the same
there, unless the command line is refused; the weights are a guess, which only warms the page cache.
"""

import os
from collections.abc import Mapping, Sequence

ENV_PREFIX = "PILOTLIGHT_"
PLATFORM_ENV = {"port": "PORT", "health_port": "PORT_HEALTH"}  # read after their PILOTLIGHT_ name: what platforms set
RUNPOD_MARKS = ("RUNPOD_ENDPOINT_ID", "RUNPOD_POD_ID")  # either is in a container that RunPod has started
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
LARGEST_PORT = 65535
DEFAULT_DEVICE = "auto"


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def env_name(name: str) -> str:
    return ENV_PREFIX + name.upper()


def on_runpod(environ: Mapping[str, str]) -> bool:
    return any(environ.get(mark) for mark in RUNPOD_MARKS)


def from_environment(name: str, environ: Mapping[str, str]) -> str:
    """What the environment says of a setting; "" for nothing."""
    for variable in (env_name(name), PLATFORM_ENV.get(name)):
        text = environ.get(variable, "") if variable else ""
        # Kubernetes sets PILOTLIGHT_PORT=tcp://... beside a service of that name.
        if text and not (name == "port" and text.startswith("tcp://")):
            return text
    return ""


def address(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str, int] | None:
    """--host and --port; None where they are not plain."""
    port = _text("port", argv, environ, str(DEFAULT_PORT))
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= LARGEST_PORT):
        return None
    return _text("host", argv, environ, DEFAULT_HOST), int(port)


def device(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """--device, unchecked."""
    return _text("device", argv, environ, DEFAULT_DEVICE)


def weights(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The weights of the first snapshot that any argument names, or the environment."""
    other = on_runpod(environ) and environ.get("MODEL_NAME")  # wins over the image's own model (runpod_env.py)
    for argument in (*argv, other or from_environment("model", environ)):
        if argument and (files := snapshot_weights(argument.removeprefix("--model="))):
            return files
    return []


def snapshot_weights(directory: str) -> list[str]:
    """The files of a snapshot's weights; none where there is no snapshot."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [
        os.path.join(directory, name)
        for name in names
        if name.startswith("weights") and name.endswith(".safetensors")
    ]


def asks_for_help(argv: Sequence[str]) -> bool:
    return "--help" in argv or "-h" in argv


def _text(name: str, argv: Sequence[str], environ: Mapping[str, str], default: str) -> str:
    """The last flag of that name, be it empty, else the environment, else `default`."""
    spelled, found = flag(name), None
    for index, argument in enumerate(argv):
        if argument == "--":
            break
        word, is_one, value = argument.partition("=")
        if word == spelled:
            found = value if is_one else "".join(argv[index + 1 : index + 2])
    return (from_environment(name, environ) or default) if found is None else found
