"""Cloud Run: a service for `gcloud run services replace`, with one GPU to a replica.

Its concurrency is both a limit and the target of its scaling; Cloud Run sets PORT itself.
"""

from typing import Any

from .gpus import CLOUD_RUN
from .reading import Deployment
from .rendering import Rendering, choose, kubernetes_variables, probe, variables
from .yaml_file import write

# What a GPU may be coupled with: CPUs, and the most GiB beside them. The first is the least in both.
_HOSTS = {"nvidia-l4": ((4, 16), (6, 24), (8, 32)), "nvidia-rtx-pro-6000": ((20, 80),)}
_PREVIEWS = ("nvidia-rtx-pro-6000",)  # refused unless the service says that it takes previews
_REGISTRIES = ("pkg.dev", "gcr.io", "docker.io")
_LONGEST_START = 1800  # seconds, of a startup probe with a GPU
_LONGEST_REQUEST = 3600
_SHUTDOWN = 10  # seconds between SIGTERM and SIGKILL
_PROBE_PERIOD = 2  # seconds


def render(deployment: Deployment) -> Rendering:
    description = deployment.description
    section, scaling, timeouts = description.cloudrun, description.scaling, description.timeouts
    if timeouts.startup > _LONGEST_START:
        raise deployment.error(
            ("timeouts", "startup"), f"Cloud Run lets a replica start for {_LONGEST_START} seconds"
        )
    if timeouts.request > _LONGEST_REQUEST:
        raise deployment.error(
            ("timeouts", "request"), f"Cloud Run lets a request run for {_LONGEST_REQUEST} seconds"
        )
    (gpu,) = choose(deployment, "Cloud Run", CLOUD_RUN)
    cpu, memory = _host(deployment, gpu.name)
    annotations = {
        "autoscaling.knative.dev/minScale": str(scaling.min),
        "autoscaling.knative.dev/maxScale": str(scaling.max),
        "run.googleapis.com/cpu-throttling": "false",  # a GPU's service needs its CPUs between requests too
        "run.googleapis.com/startup-cpu-boost": "true",
        "run.googleapis.com/gpu-zonal-redundancy-disabled": "false" if section.zonal_redundancy else "true",
    }
    service_annotations: dict[str, str] = {"run.googleapis.com/ingress": section.ingress}
    if gpu.name in _PREVIEWS:
        service_annotations["run.googleapis.com/launch-stage"] = "BETA"
    container: dict[str, Any] = {
        "image": description.image,
        "ports": [{"name": "http1", "containerPort": description.port}],
        "env": kubernetes_variables(deployment, variables(deployment, _SHUTDOWN - 1), "latest"),
        "resources": {"limits": {"cpu": str(cpu), "memory": f"{memory}Gi", "nvidia.com/gpu": "1"}},
        "startupProbe": probe(
            description.health.ready,
            periodSeconds=_PROBE_PERIOD,
            timeoutSeconds=_PROBE_PERIOD,
            failureThreshold=-(-timeouts.startup // _PROBE_PERIOD),
        ),
        "livenessProbe": probe(description.health.live, periodSeconds=10, timeoutSeconds=5, failureThreshold=3),
    }
    spec: dict[str, Any] = {"containerConcurrency": scaling.concurrency, "timeoutSeconds": timeouts.request}
    if section.service_account:
        spec["serviceAccountName"] = section.service_account
    spec |= {"nodeSelector": {"run.googleapis.com/accelerator": gpu.name}, "containers": [container]}
    service = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {
            "name": description.name,
            "labels": {"cloud.googleapis.com/location": section.region},
            "annotations": service_annotations,
        },
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": spec}},
    }
    return Rendering(write(service, "cloudrun"), _notes(deployment, gpu.name, cpu, memory))


def _host(deployment: Deployment, gpu: str) -> tuple[int, int]:
    """CPUs and GiB: as asked, or the next that Cloud Run couples with the GPU. Raises UsageError beyond those."""
    host, hosts = deployment.description.host, _HOSTS[gpu]
    for cpu, most in hosts:
        if cpu >= host.cpu and most >= host.memory:
            return cpu, max(host.memory, hosts[0][1])
    cpu, most = hosts[-1]
    raise deployment.error(("host",), f"Cloud Run couples {gpu} with {cpu} CPUs and {most} GiB at most")


def _notes(deployment: Deployment, gpu: str, cpu: int, memory: int) -> list[str]:
    host, timeouts = deployment.description.host, deployment.description.timeouts
    registry, _, rest = deployment.description.image.partition("/")
    notes = [
        "gpu.min_cuda: Cloud Run chooses its drivers itself",
        "scaling.idle: Cloud Run itself decides how long an idle replica stays",
    ]
    if rest and "." in registry and not registry.endswith(_REGISTRIES):
        notes.append(f"image: Cloud Run pulls from {registry} only through a remote repository of Artifact Registry")
    if (cpu, memory) != (host.cpu, host.memory):
        notes.append(f"host: raised to {cpu} CPUs and {memory} GiB, the next that Cloud Run couples with {gpu}")
    if timeouts.shutdown > _SHUTDOWN - 1:
        notes.append(f"timeouts.shutdown: Cloud Run ends a replica {_SHUTDOWN} seconds after SIGTERM")
    return notes
