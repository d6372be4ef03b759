"""RunPod: the body of `POST /v2/serverless` (REST v2), for a load-balancing endpoint or a queue's.

The load balancer asks the health path on PORT_HEALTH: 204 is a worker that is still loading, 200 one that gets
requests. A queue's worker asks for jobs itself and needs no port.
"""

import json
from typing import Any

from ..errors import UsageError
from ..runpod_env import settings_of
from ..settings import env_name
from .gpus import RUNPOD
from .reading import Deployment
from .rendering import Rendering, choose, variables


def render(deployment: Deployment) -> Rendering:
    return Rendering(json.dumps(request_body(deployment), indent=2, ensure_ascii=False) + "\n", _notes(deployment))


def request_body(deployment: Deployment) -> dict[str, Any]:
    """A `CreateEndpointRequest`. Optional fields that the description leaves out are left to RunPod."""
    description = deployment.description
    section, scaling = description.runpod, description.scaling
    try:
        settings_of(description.environment)  # names of its vLLM worker count there
    except UsageError as error:
        raise deployment.error(("environment",), str(error)) from None
    pools = section.pools or tuple(offer.name for offer in choose(deployment, "RunPod", RUNPOD))
    gpu = {"pools": list(pools), "count": 1, "minCudaVersion": description.gpu.min_cuda}
    if section.excluded_types:
        gpu["excludedTypes"] = list(section.excluded_types)
    for name, secret in description.secrets.items():
        if secret.startswith("runpod"):
            raise deployment.error(
                ("secrets", name), f"RunPod keeps names such as {secret}, from runpod on, to itself"
            )
    env = variables(deployment)
    env |= {name: f"{{{{ RUNPOD_SECRET_{secret} }}}}" for name, secret in description.secrets.items()}
    body: dict[str, Any] = {
        "name": description.name,
        "type": section.type,
        "image": description.image,
        "gpu": gpu,
        "workers": {"min": scaling.min, "max": scaling.max, "idleTimeout": scaling.idle},
    }
    if section.type == "QUEUE":
        body["scaling"] = {"type": "QUEUE_DELAY", "queueDelay": section.queue_delay}
        body["args"] = "--runpod-queue"
    else:
        port = str(description.port)
        env |= {"PORT": port, "PORT_HEALTH": port, "HEALTH_CHECK_PATH": section.health}
        body["scaling"] = {"type": "REQUEST_COUNT", "requestCount": scaling.concurrency}
        body["ports"] = [f"{port}/http"]
    body |= {"flashboot": section.flashboot, "timeout": description.timeouts.request * 1000, "env": env}
    optional = {
        "disk": section.disk,
        "registry": section.registry,
        "dataCenterIds": list(section.data_centers),
        "networkVolumes": list(section.network_volumes),
    }
    return body | {name: value for name, value in optional.items() if value}


def _notes(deployment: Deployment) -> list[str]:
    notes = ["host: CPUs and memory come with RunPod's GPU"]
    if deployment.description.runpod.type == "QUEUE":
        notes.append("scaling.concurrency: a queue's workers are added by how long jobs wait, runpod.queue_delay")
    elif env_name("api_key") in deployment.description.secrets:
        notes.append(
            f"secrets.{env_name('api_key')}: RunPod's gateway wants RunPod's key as Authorization; "
            "send the server's as X-API-Key"
        )
    return notes
