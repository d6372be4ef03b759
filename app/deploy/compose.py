"""Compose: one replica on this machine's GPU, for `docker compose up`; `gpus` is known to Compose 2.30 and later."""

from typing import Any

from .reading import Deployment
from .rendering import Rendering, literal, variables
from .yaml_file import write

# By a socket alone: an HTTP client would go through a proxy that the environment names, and its import every second
# would slow the start that is waited for.
_PROBE = (
    "import socket; line = socket.create_connection(('127.0.0.1', {port}), 4); "
    r"line.sendall(b'GET {path} HTTP/1.0\r\n\r\n'); raise SystemExit(b' 200 ' not in line.recv(64))"
)


def render(deployment: Deployment) -> Rendering:
    description = deployment.description
    port, timeouts = description.port, description.timeouts
    environment = literal(variables(deployment)) | {"PORT": str(port)}
    # Taken from the shell or from .env when Compose runs: there is no store of secrets to name.
    environment |= {
        name: f"${{{name}:?set {name} to the value of {secret}}}" for name, secret in description.secrets.items()
    }
    service: dict[str, Any] = {
        "image": description.image,
        "ports": [f"{description.compose.address}:{port}:{port}"],
        "environment": environment,
        "gpus": "all",
        "healthcheck": {
            "test": ["CMD", "python", "-S", "-c", _PROBE.format(port=port, path=description.health.ready)],
            "interval": "10s",
            "timeout": "5s",
            "start_period": f"{timeouts.startup}s",
            "start_interval": "1s",
        },
        "read_only": True,
        "tmpfs": ["/tmp"],  # noqa: S108 - the container's own
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "stop_grace_period": f"{timeouts.shutdown + 5}s",
        "restart": "unless-stopped",
    }
    notes = [
        "gpu: Compose takes this machine's; the server says at its start if it will not do",
        "scaling: Compose runs one replica, always",
        "host, timeouts.request: Compose sets no such limits here",
    ]
    project = {"name": description.name, "services": {description.name: service}}
    return Rendering(write(project, "compose"), notes)
