"""Modal: a Python file for `modal deploy`, whose class starts the server and waits until it is ready.

Modal itself only looks whether the port is bound, so the class asks over HTTP before it lets requests in; meanwhile
Modal holds them (form web_server) or turns them away (form server). scripts/modal_app.py is the example's rendering.

No memory snapshots: one that Modal takes of the CPU is taken where there is no GPU, and the server, told to use one,
stops there; one of the GPU has the weights in it and saves none of the bytes that a start has to move.
"""

import json
from collections.abc import Iterable, Iterator
from string import Template
from textwrap import indent
from typing import Any

from ..settings import env_name
from .gpus import MODAL
from .reading import Deployment
from .rendering import Rendering, choose, variables

# Seconds that Modal gives a container to stop, less what the server takes to leave after its last request.
_LONGEST_EXIT = {"web_server": 25, "server": 3595}
_LONGEST_ANSWER = 150  # seconds until the first byte of an answer, in the form web_server

_FILE = Template('''\
"""Pilotlight on Modal. Made by `pilotlight deploy render --target modal`: change the description and render again.

Three things are taken from the shell that `modal deploy` runs in, where they are set:
DEPLOY_IMAGE  the image's name, or Dockerfile: the one in this folder is built (with DEPLOY_MODEL as its MODEL)
DEPLOY_GPU    a GPU type, or several with commas between: L4, A100-80GB, H100
DEPLOY_FORM   web_server, which holds requests while a container starts, or server, which is quicker and does not
"""

import http.client
import os
import subprocess
import time
from typing import Any

import modal

PORT = $port
READY = "$ready"
STARTUP = $startup  # seconds until it must be ready
SHUTDOWN = $shutdown  # seconds that running requests get; leaving takes 5 more at most
IMAGE = $image
GPUS = $gpus
# Set in the container too, where Modal reads this file again.
FORM = os.environ.get("DEPLOY_FORM") or $form
if FORM not in SHUTDOWN:
    raise SystemExit(f"DEPLOY_FORM: expected web_server or server, found {FORM}")

app = modal.App($name)
name = os.environ.get("DEPLOY_IMAGE") or IMAGE
if name == "Dockerfile":
    model = os.environ.get("DEPLOY_MODEL")
    image = modal.Image.from_dockerfile("Dockerfile", build_args={"MODEL": model} if model else {})
else:
    image = modal.Image.from_registry(name$registry)

REPLICA: dict[str, Any] = {
    "image": image.entrypoint([]),  # Modal starts a program of its own in it, which starts the server
    "gpu": os.environ["DEPLOY_GPU"].split(",") if os.environ.get("DEPLOY_GPU") else GPUS,
$replica}


class Replica:
    @modal.enter()
    def start(self) -> None:
        self.server = subprocess.Popen(["pilotlight", "serve"])
        deadline = time.monotonic() + STARTUP
        while not is_ready():
            if self.server.poll() is not None:
                raise RuntimeError(f"pilotlight serve left with {self.server.returncode}; its log says why")
            if time.monotonic() > deadline:
                raise TimeoutError(f"pilotlight serve was not ready within {STARTUP} seconds")
            time.sleep(0.05)

    @modal.exit()
    def stop(self) -> None:
        self.server.terminate()
        self.server.wait()


def is_ready() -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=5)  # through no proxy, whatever env says
    try:
        connection.request("GET", READY)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if FORM == "web_server":

    @app.cls(
        **REPLICA,
$cls    )
    @modal.concurrent($concurrent)
    class WebServer(Replica):
        @modal.web_server(PORT, startup_timeout=STARTUP, requires_proxy_auth=$proxy_auth)
        def serve(self) -> None:
            """Requests go to the server that `start` has started."""

else:

    @app.server(
        **REPLICA,
$server    )
    class Server(Replica):
        """Requests go to the server that `start` has started."""
''')


def render(deployment: Deployment) -> Rendering:
    description = deployment.description
    section, scaling, timeouts = description.modal, description.scaling, description.timeouts
    shutdown = {form: min(timeouts.shutdown, longest) for form, longest in _LONGEST_EXIT.items()}
    cls = {"timeout": str(timeouts.request)}
    server = {
        "port": "PORT",
        "target_concurrency": str(scaling.concurrency),
        "unauthenticated": str(not section.proxy_auth),
        "exit_grace_period": "SHUTDOWN[FORM] + 5",
    }
    if section.region:
        cls["region"] = server["compute_region"] = _literal(section.region)
    if section.routing_region:
        cls["routing_region"] = server["routing_region"] = _literal(section.routing_region)
    text = _FILE.substitute(
        port=description.port,
        ready=description.health.ready,
        startup=timeouts.startup,
        shutdown=_literal(shutdown),
        image=_literal(description.image),
        gpus=_literal(section.gpus or [offer.name for offer in choose(deployment, "Modal", MODAL)]),
        form=_literal(section.form),
        name=_literal(description.name),
        registry=f", secret=modal.Secret.from_name({_literal(section.registry)})" if section.registry else "",
        replica=_lines(_replica(deployment), 1),
        cls=_lines((f"{key}={value}" for key, value in cls.items()), 2),
        concurrent=f"max_inputs={deployment.settings.max_num_seqs}, target_inputs={scaling.concurrency}",
        proxy_auth=section.proxy_auth,
        server=_lines((f"{key}={value}" for key, value in server.items()), 2),
    )
    return Rendering(text, _notes(deployment))


def _replica(deployment: Deployment) -> Iterator[str]:
    """What both forms hand to Modal, as items of a dict in Python's source."""
    description = deployment.description
    host, scaling = description.host, description.scaling
    environment = {name: _literal(value) for name, value in variables(deployment).items()} | {
        env_name("shutdown_timeout"): "str(SHUTDOWN[FORM])",
        "PORT": "str(PORT)",
        "DEPLOY_FORM": "FORM",
    }
    yield f'"cpu": {host.cpu}.0'
    yield f'"memory": {host.memory} * 1024'
    yield f'"env": {_block("{", (f"{_literal(name)}: {value}" for name, value in environment.items()), "}")}'
    if description.secrets:
        named = (
            f"modal.Secret.from_name({_literal(secret)}, required_keys=[{_literal(variable)}])"
            for variable, secret in description.secrets.items()
        )
        yield f'"secrets": {_block("[", named, "]")}'
    if volume := description.modal.volume:
        mounted = f"modal.Volume.from_name({_literal(volume)}).with_mount_options(read_only=True)"
        yield f'"volumes": {{"/models": {mounted}}}'
    yield f'"min_containers": {scaling.min}'
    yield f'"max_containers": {scaling.max}'
    yield f'"scaledown_window": {scaling.idle}'
    yield '"startup_timeout": STARTUP'


def _lines(items: Iterable[str], depth: int) -> str:
    return "".join(indent(item, "    " * depth) + ",\n" for item in items)


def _block(start: str, items: Iterable[str], end: str) -> str:
    return f"{start}\n{_lines(items, 1)}{end}"


def _literal(value: Any) -> str:
    """As Python source: JSON's text, lists and mappings of text are Python's too, but for a formatter's quotes."""
    if isinstance(value, str) and '"' in value and "'" not in value:
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def _notes(deployment: Deployment) -> list[str]:
    description = deployment.description
    form, longest = description.modal.form, _LONGEST_EXIT[description.modal.form]
    notes = ["gpu.min_cuda: Modal chooses its drivers itself"]
    if description.timeouts.shutdown > longest:
        notes.append(f"timeouts.shutdown: Modal gives a {form} {longest} seconds to stop")
    if form == "server":
        notes.append("timeouts.request: Modal sets no limit to the requests of a server")
    elif description.timeouts.startup > _LONGEST_ANSWER:
        notes.append(
            f"timeouts.startup: after {_LONGEST_ANSWER} seconds without an answer, a cold start included, Modal "
            "redirects (303) to where the answer will be; clients must follow"
        )
    return notes
