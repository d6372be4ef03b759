"""What a renderer gives: the platform's own text, and what of the description the platform has no place for."""

from dataclasses import dataclass, field
from typing import Any

from ..settings import env_name
from .gpus import Offer, needed_gb, smallest
from .reading import Deployment


@dataclass(slots=True)
class Rendering:
    text: str
    notes: list[str] = field(default_factory=list)  # for people, on stderr


def variables(deployment: Deployment, shutdown: int | None = None) -> dict[str, str]:
    """The container's variables but for the port, which each platform hands over in its own way.

    The device is named, so that a replica without a working GPU stops with the reason instead of serving from the
    CPU. `shutdown`: seconds between SIGTERM and SIGKILL, where the platform and not the description says so.
    """
    timeouts = deployment.description.timeouts
    seconds = timeouts.shutdown if shutdown is None else min(timeouts.shutdown, shutdown)
    return {
        env_name("device"): "cuda",
        env_name("startup_timeout"): str(timeouts.startup),
        env_name("shutdown_timeout"): str(seconds),
    } | deployment.description.environment


def choose(deployment: Deployment, platform: str, offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """The platform's smallest GPUs that will do. Raises UsageError where none does."""
    gpu, utilization = deployment.description.gpu, deployment.settings.gpu_memory_utilization
    if found := smallest(offers, gpu, utilization):
        return found
    needed = f"{needed_gb(gpu, utilization):.4g} GB on {' or '.join(gpu.generations)}"
    has = ", ".join(f"{offer.name} ({offer.memory} GB, {' and '.join(offer.generations)})" for offer in offers)
    raise deployment.error(("gpu",), f"needs {needed}; {platform} has {has}")


def literal(values: dict[str, str]) -> dict[str, str]:
    """For a platform that expands references in what it is given, where two dollar signs stand for one."""
    return {name: value.replace("$", "$$") for name, value in values.items()}


def probe(path: str, **values: int) -> dict[str, Any]:
    """An HTTP probe in Kubernetes' form: one that only connects would succeed as soon as the port is bound."""
    return {"httpGet": {"path": path}, **values}


def kubernetes_variables(deployment: Deployment, values: dict[str, str], key: str | None) -> list[dict[str, Any]]:
    """`env` of a container. A secret is read under `key`, or under the variable's own name."""
    plain: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in values.items()]
    return plain + [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key or name}}}
        for name, secret in deployment.description.secrets.items()
    ]
