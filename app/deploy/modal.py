"""Modal: a Python file for `modal deploy`, in which a class starts the server and waits until it is ready.

Modal itself only looks whether the port is bound, so the class asks over HTTP before it lets requests in; meanwhile
Modal holds them (form web_server) or turns them away (form server).
"""

import json
from collections.abc import Iterable
from textwrap import indent
from typing import Any

from .gpus import MODAL
from .reading import Deployment
from .rendering import Rendering, choose, variables

# Seconds that Modal gives a container to stop, less what the server takes to leave after its last request.
_LONGEST_EXIT = {"web_server": 25, "server": 3595}
_LEAVING = 5

_HEAD = '''\
"""Pilotlight on Modal. Made by `pilotlight deploy render --target modal`: change the description and render again."""

import subprocess
import time
import urllib.error
import urllib.request

import modal

PORT = {port}
READY = f"http://127.0.0.1:{{PORT}}{ready}"
STARTUP = {startup}  # seconds until it must be ready
IMAGE = {image}

app = modal.App({name})
# Modal starts a program of its own in the image, which starts the server.
image = modal.Image.from_registry(IMAGE).entrypoint([])
'''

_CLASS = """

{decorators}
class Pilotlight:
    @modal.enter()
    def start(self) -> None:
        self.server = subprocess.Popen(["pilotlight", "serve"])
        deadline = time.monotonic() + STARTUP
        while not is_ready():
            if self.server.poll() is not None:
                raise RuntimeError(f"pilotlight serve left with {{self.server.returncode}}; its log says why")
            if time.monotonic() > deadline:
                raise TimeoutError(f"pilotlight serve was not ready within {{STARTUP}} seconds")
            time.sleep(0.05)
{entry}
    @modal.exit()
    def stop(self) -> None:
        self.server.terminate()
        self.server.wait()


def is_ready() -> bool:
    try:
        with urllib.request.urlopen(READY, timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
"""

_WEB_SERVER = '''
    @modal.web_server(PORT, startup_timeout=STARTUP, requires_proxy_auth={proxy_auth})
    def serve(self) -> None:
        """Requests go to the server that `start` has started."""
'''


def render(deployment: Deployment) -> Rendering:
    description = deployment.description
    section, timeouts = description.modal, description.timeouts
    head = _HEAD.format(
        port=description.port,
        ready=description.health.ready,
        startup=timeouts.startup,
        name=_literal(description.name),
        image=_literal(description.image),
    )
    entry = ""
    if section.form == "web_server":
        entry = _WEB_SERVER.format(proxy_auth=section.proxy_auth)
    return Rendering(head + _CLASS.format(decorators=_decorators(deployment), entry=entry), _notes(deployment))


def _decorators(deployment: Deployment) -> str:
    description = deployment.description
    section, scaling, timeouts = description.modal, description.scaling, description.timeouts
    gpus = section.gpus or tuple(offer.name for offer in choose(deployment, "Modal", MODAL))
    environment = variables(deployment, _LONGEST_EXIT[section.form]) | {"PORT": str(description.port)}
    arguments: dict[str, str] = {
        "image": "image",
        "gpu": _literal(gpus[0] if len(gpus) == 1 else list(gpus)),
        "cpu": f"{description.host.cpu}.0",
        "memory": f"{description.host.memory} * 1024",
        "env": _literal(environment),
    }
    if description.secrets:
        named = (
            f"modal.Secret.from_name({_literal(secret)}, required_keys=[{_literal(variable)}])"
            for variable, secret in description.secrets.items()
        )
        arguments["secrets"] = _block("[", named, "]")
    if section.volume:
        arguments["volumes"] = f'{{"/models": modal.Volume.from_name({_literal(section.volume)}).read_only()}}'
    arguments |= {
        "min_containers": str(scaling.min),
        "max_containers": str(scaling.max),
        "scaledown_window": str(scaling.idle),
        "startup_timeout": "STARTUP",
    }
    if section.form == "server":
        arguments |= {
            "port": "PORT",
            "target_concurrency": str(scaling.concurrency),
            "unauthenticated": str(not section.proxy_auth),
            "exit_grace_period": str(min(timeouts.shutdown, _LONGEST_EXIT[section.form]) + _LEAVING),
        }
        if section.region:
            arguments["compute_region"] = _literal(section.region)
        return _call("@app.server", arguments)
    arguments["timeout"] = str(timeouts.request)
    if section.region:
        arguments["region"] = _literal(section.region)
    concurrent = f"max_inputs={deployment.settings.max_num_seqs}, target_inputs={scaling.concurrency}"
    return f"{_call('@app.cls', arguments)}\n@modal.concurrent({concurrent})"


def _call(name: str, arguments: dict[str, str]) -> str:
    return name + _block("(", (f"{key}={value}" for key, value in arguments.items()), ")")


def _block(start: str, items: Iterable[str], end: str) -> str:
    return f"{start}\n" + "".join(indent(item, "    ") + ",\n" for item in items) + end


def _literal(value: Any) -> str:
    """As Python source: JSON's text and lists are Python's too, but for a formatter's choice of quotes."""
    if isinstance(value, str) and '"' in value and "'" not in value:
        return repr(value)
    if isinstance(value, dict):
        return _block("{", (f"{_literal(key)}: {_literal(text)}" for key, text in value.items()), "}")
    return json.dumps(value, ensure_ascii=False)


def _notes(deployment: Deployment) -> list[str]:
    description = deployment.description
    form, longest = description.modal.form, _LONGEST_EXIT[description.modal.form]
    notes = ["gpu.min_cuda: Modal chooses its drivers itself"]
    if description.timeouts.shutdown > longest:
        notes.append(f"timeouts.shutdown: Modal gives a {form} {longest} seconds to stop")
    if form == "server":
        notes.append("timeouts.request: Modal sets no limit to the requests of a server")
    return notes
