"""Compose: one replica on this machine's GPU, for `docker compose up`."""

from typing import Any

from .reading import Deployment
from .rendering import Rendering, variables
from .yaml_file import write

# Any answer but a 2xx raises, and leaves with 1.
_PROBE = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}{path}', timeout=4)"


def render(deployment: Deployment) -> Rendering:
    description = deployment.description
    port, timeouts = description.port, description.timeouts
    environment = {name: value.replace("$", "$$") for name, value in variables(deployment).items()}
    environment["PORT"] = str(port)
    # Taken from the shell or from .env when Compose runs: there is no store of secrets to name.
    environment |= {
        name: f"${{{name}:?set {name} to the value of {secret}}}" for name, secret in description.secrets.items()
    }
    gpu = {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    service: dict[str, Any] = {
        "image": description.image,
        "ports": [f"{description.compose.address}:{port}:{port}"],
        "environment": environment,
        "deploy": {"resources": {"reservations": {"devices": [gpu]}}},
        "healthcheck": {
            "test": ["CMD", "python", "-c", _PROBE.format(port=port, path=description.health.ready)],
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
    notes = ["scaling: Compose runs one replica, always", "host, timeouts.request: Compose sets no such limits here"]
    project = {"name": description.name, "services": {description.name: service}}
    return Rendering(write(project, "compose"), notes)
