"""Knative Serving: a Service that scales on requests in flight, to zero where it may.

The readiness probe has no period on purpose: Knative then asks many times a second until the first success, which is
what a cold start waits for.
"""

from typing import Any

from .reading import Deployment
from .rendering import Rendering, kubernetes_variables, literal, probe, variables
from .yaml_file import write

_USUAL_LONGEST_REQUEST = 600  # seconds, max-revision-timeout-seconds of a cluster that says nothing else


def render(deployment: Deployment) -> Rendering:
    description = deployment.description
    section, scaling, timeouts = description.knative, description.scaling, description.timeouts
    annotations = {
        "autoscaling.knative.dev/class": "kpa.autoscaling.knative.dev",
        "autoscaling.knative.dev/metric": "concurrency",
        "autoscaling.knative.dev/target": str(scaling.concurrency),
        "autoscaling.knative.dev/target-utilization-percentage": "100",
        "autoscaling.knative.dev/min-scale": str(scaling.min),
        "autoscaling.knative.dev/max-scale": str(scaling.max),
        "autoscaling.knative.dev/scale-to-zero-pod-retention-period": f"{scaling.idle}s",
        "serving.knative.dev/progress-deadline": f"{timeouts.startup}s",
    }
    container: dict[str, Any] = {
        "image": description.image,
        "ports": [{"containerPort": description.port}],
        "env": kubernetes_variables(deployment, literal(variables(deployment)), None),
        "resources": {
            "requests": {"cpu": str(description.host.cpu), "memory": f"{description.host.memory}Gi"},
            "limits": {"nvidia.com/gpu": "1"},
        },
        "readinessProbe": probe(description.health.ready, successThreshold=1),
        "livenessProbe": probe(description.health.live, periodSeconds=10, timeoutSeconds=5, failureThreshold=3),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - the container's own
    }
    spec: dict[str, Any] = {
        # More than the target may wait here while a replica is added, up to what one runs at once.
        "containerConcurrency": deployment.settings.max_num_seqs,
        "timeoutSeconds": timeouts.request,
        "responseStartTimeoutSeconds": timeouts.request,
    }
    if section.node_selector:
        spec["nodeSelector"] = dict(section.node_selector)
    spec |= {"containers": [container], "volumes": [{"name": "tmp", "emptyDir": {}}]}
    metadata = {"name": description.name} | ({"namespace": section.namespace} if section.namespace else {})
    service = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": spec}},
    }
    return Rendering(write(service, "knative"), _notes(deployment))


def _notes(deployment: Deployment) -> list[str]:
    description = deployment.description
    notes = [
        "gpu.min_cuda: the node's driver is whatever it is; the server says at its start if it is too old",
        "timeouts.shutdown: Knative ends a replica timeouts.request seconds after SIGTERM",
    ]
    if not description.knative.node_selector:
        notes.append("gpu: any GPU node will be taken; name nodes that hold the model under knative.node_selector")
    if description.timeouts.request > _USUAL_LONGEST_REQUEST:
        notes.append(
            "timeouts.request: the cluster's max-revision-timeout-seconds must allow it "
            f"({_USUAL_LONGEST_REQUEST} unless set)"
        )
    return notes
