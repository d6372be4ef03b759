"""The schemas that renderings are held to refuse what the platforms would: each of these wrongs is seen."""

import copy
from typing import Any

import pytest

from tests.deploy.renderings import HERE, SCHEMAS, VALIDATORS, parsed, render

SPEC = "spec.template.spec"
CONTAINER = f"{SPEC}.containers.0"
SCALING = "spec.template.metadata.annotations"
MISSING = object()

WRONGS: dict[str, list[tuple[str, Any]]] = {
    "cloudrun": [
        ("kind", "Deployment"),
        ("apiVersion", "run.googleapis.com/v2"),
        ("metadata.name", "Upper"),
        ("metadata.annotations/run.googleapis.com/ingress", "public"),
        ("metadata.annotations/run.googleapis.com/ingres", "all"),
        (f"{SCALING}/run.googleapis.com/cpu-throttling", "true"),  # a GPU's service is billed by instance
        (f"{SCALING}/run.googleapis.com/cpu-throttling", MISSING),
        (f"{SCALING}/run.googleapis.com/gpu-zonal-redundancy-disabled", True),  # annotations are text
        (f"{SCALING}/autoscaling.knative.dev/minScale", 0),
        (f"{SCALING}/autoscaling.knative.dev/min-scale", "0"),  # Knative's spelling
        (f"{SCALING}/serving.knative.dev/progress-deadline", "600s"),
        (f"{SPEC}.containerConcurrency", 1001),
        (f"{SPEC}.timeoutSeconds", 3601),
        (f"{SPEC}.nodeSelector", MISSING),
        (f"{SPEC}.nodeSelector/run.googleapis.com/accelerator", "nvidia-h100"),
        (f"{SPEC}.nodeSelector/run.googleapis.com/accelerator", "nvidia-rtx-pro-6000"),  # wants 20 CPUs
        (f"{CONTAINER}.resources.limits.cpu", "2"),
        (f"{CONTAINER}.resources.limits.memory", "8Gi"),
        (f"{CONTAINER}.resources.limits/nvidia.com/gpu", MISSING),
        (f"{CONTAINER}.resources.limits/nvidia.com/gpu", "2"),
        (f"{CONTAINER}.startupProbe", MISSING),  # Cloud Run's own only connects
        (f"{CONTAINER}.startupProbe.httpGet", MISSING),
        (f"{CONTAINER}.startupProbe.tcpSocket", {"port": 8000}),
        (f"{CONTAINER}.startupProbe.periodSeconds", 241),
        (f"{CONTAINER}.startupProbe.failureThreshold", 0),
        (f"{CONTAINER}.securityContext", {"runAsNonRoot": True}),
        (f"{CONTAINER}.env.0.name", "PORT"),
        (f"{CONTAINER}.env.0.value", 1),
    ],
    "knative": [
        ("kind", "Deployment"),
        ("spec.traffic", []),
        (f"{SCALING}/autoscaling.knative.dev/min-scale", -1),
        (f"{SCALING}/autoscaling.knative.dev/minScale", "0"),  # Cloud Run's spelling
        (f"{SCALING}/autoscaling.knative.dev/metric", "cpu"),  # only with the HPA
        (f"{SCALING}/autoscaling.knative.dev/target-utilization-percentage", "101"),
        (f"{SCALING}/autoscaling.knative.dev/scale-to-zero-pod-retention-period", "3601s"),
        (f"{SCALING}/serving.knative.dev/progress-deadline", "600"),  # no unit
        (f"{SCALING}/serving.knative.dev/progress-deadline", "1.5s"),
        (f"{SCALING}/run.googleapis.com/cpu-throttling", "false"),
        (f"{SPEC}.containerConcurrency", -1),
        (f"{SPEC}.restartPolicy", "Never"),
        (f"{CONTAINER}.resources.limits/nvidia.com/gpu", 1),
        (f"{CONTAINER}.readinessProbe", MISSING),  # Knative's own only connects
        (f"{CONTAINER}.readinessProbe.httpGet", MISSING),
        (f"{CONTAINER}.readinessProbe.failureThreshold", 3),  # refused without a period
        (f"{CONTAINER}.readinessProbe.timeoutSeconds", 1),
        (f"{CONTAINER}.readinessProbe.successThreshold", MISSING),
        (f"{CONTAINER}.ports", [{"containerPort": 8000}, {"containerPort": 8001}]),
        (f"{CONTAINER}.ports.0.containerPort", "8000"),
        (f"{CONTAINER}.env.0.name", "K_REVISION"),
        (f"{CONTAINER}.securityContext.privileged", True),
    ],
    "compose": [
        ("services.small.gpus", MISSING),
        ("services.small.gpus", "one"),
        ("services.small.gpu", "all"),
        ("services.small.ports.0", "8000"),  # published on every address
        ("services.small.environment.PORT", 8000),
        ("services.small.environment.OTHER", "a $price"),  # Compose would look it up
        ("services.small.healthcheck.test", "curl localhost"),  # no curl in the image
        ("services.small.healthcheck.interval", 10),
        ("services.small.read_only", False),
        ("services.small.cap_drop", MISSING),
        ("services.small.stop_grace_period", "25"),
        ("version", "3"),
    ],
    "runpod": [
        ("type", "POD"),
        ("scaling.type", "CONCURRENCY"),
        ("workers.min", -1),
        ("gpu.pools", []),
        ("ports.0", 8000),
        ("image", MISSING),
        ("flashboot", True),
    ],
}  # fmt: skip


def changed(value: Any, path: str, new: Any) -> Any:
    """A copy with what stands at `path` set anew or taken out; what follows a slash is one key, dots and all."""
    dots, _, last = path.partition("/")
    keys = dots.split(".") + ([last] if last else [])
    made = copy.deepcopy(value)
    inner = made
    for key in keys[:-1]:
        inner = inner[int(key)] if isinstance(inner, list) else inner[key]
    key: Any = int(keys[-1]) if isinstance(inner, list) else keys[-1]
    if new is MISSING:
        del inner[key]
    else:
        inner[key] = new
    return made


@pytest.mark.parametrize(
    ("target", "path", "new"),
    [(target, *wrong) for target, wrongs in WRONGS.items() for wrong in wrongs],
    ids=[
        f"{target} {path}={'none' if new is MISSING else new}"
        for target, wrongs in WRONGS.items()
        for path, new in wrongs
    ],
)
def test_schema_refuses(target: str, path: str, new: Any) -> None:
    value = parsed(render(HERE / "small.yml", target), target)
    assert list(VALIDATORS[target].iter_errors(changed(value, path, new))) != []


@pytest.mark.parametrize("target", VALIDATORS)
def test_schemas_are_schemas(target: str) -> None:
    VALIDATORS[target].check_schema(SCHEMAS[f"{target}.json"])
