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

PORT = 8080
READY = "/v1/health/ready"
STARTUP = 301  # seconds until it must be ready
SHUTDOWN = {"web_server": 25, "server": 40}  # seconds that running requests get; leaving takes 5 more at most
IMAGE = "ghcr.io/someone/pilotlight@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
GPUS = ["H200"]
# Set in the container too, where Modal reads this file again.
FORM = os.environ.get("DEPLOY_FORM") or "server"
if FORM not in SHUTDOWN:
    raise SystemExit(f"DEPLOY_FORM: expected web_server or server, found {FORM}")

app = modal.App("full-2")
name = os.environ.get("DEPLOY_IMAGE") or IMAGE
if name == "Dockerfile":
    model = os.environ.get("DEPLOY_MODEL")
    image = modal.Image.from_dockerfile("Dockerfile", build_args={"MODEL": model} if model else {})
else:
    image = modal.Image.from_registry(name, secret=modal.Secret.from_name("registry"))

REPLICA: dict[str, Any] = {
    "image": image.entrypoint([]),  # Modal starts a program of its own in it, which starts the server
    "gpu": os.environ["DEPLOY_GPU"].split(",") if os.environ.get("DEPLOY_GPU") else GPUS,
    "cpu": 18.0,
    "memory": 64 * 1024,
    "env": {
        "PILOTLIGHT_DEVICE": "cuda",
        "PILOTLIGHT_STARTUP_TIMEOUT": "301",
        "PILOTLIGHT_SHUTDOWN_TIMEOUT": str(SHUTDOWN[FORM]),
        "PILOTLIGHT_MAX_NUM_SEQS": "64",
        "PILOTLIGHT_GPU_MEMORY_UTILIZATION": "0.90",
        "PILOTLIGHT_VERIFY": "true",
        "PILOTLIGHT_CHAT_TEMPLATE": 'a "$quoted" {path}: häß # 1',
        "REFERENCE": "$(PILOTLIGHT_DEVICE) ${HOME} $$ $",
        "OTHER": "",
        "SCIENTIFIC": "1e3",
        "PORT": str(PORT),
        "DEPLOY_FORM": FORM,
    },
    "secrets": [
        modal.Secret.from_name("api-key", required_keys=["PILOTLIGHT_API_KEY"]),
        modal.Secret.from_name("hugging-face", required_keys=["HF_TOKEN"]),
    ],
    "volumes": {"/models": modal.Volume.from_name("models").with_mount_options(read_only=True)},
    "min_containers": 1,
    "max_containers": 7,
    "scaledown_window": 60,
    "startup_timeout": STARTUP,
}


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
        timeout=3600,
        region="eu",
        routing_region="eu-west",
    )
    @modal.concurrent(max_inputs=64, target_inputs=48)
    class WebServer(Replica):
        @modal.web_server(PORT, startup_timeout=STARTUP, requires_proxy_auth=False)
        def serve(self) -> None:
            """Requests go to the server that `start` has started."""

else:

    @app.server(
        **REPLICA,
        port=PORT,
        target_concurrency=48,
        unauthenticated=True,
        exit_grace_period=SHUTDOWN[FORM] + 5,
        compute_region="eu",
        routing_region="eu-west",
    )
    class Server(Replica):
        """Requests go to the server that `start` has started."""
