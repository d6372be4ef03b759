"""What serverless.yml may say, as one table: its fields, their types and bounds, and their meaning.

`docs/serverless.schema.json` is made from it (for editors), `reading` checks files against it, the renderers read it
and never the file. Sizes are in GB, durations in seconds.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Generation = Literal["ampere", "ada", "hopper", "blackwell"]

Name = Annotated[str, Meta(pattern=r"^[a-z]([-a-z0-9]{0,47}[a-z0-9])?$")]  # of a service, on every platform
Image = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")]
Address = Annotated[str, Meta(pattern=r"^([0-9.]+|\[[0-9A-Fa-f:]+\])$")]
Text = Annotated[str, Meta(pattern=r"^\S+$")]
GpuType = Annotated[str, Meta(pattern=r"^\s*[^-\s]")]  # "NVIDIA L4"; RunPod refuses a leading "-"
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[int, Meta(ge=1, le=86400)]
Gigabytes = Annotated[float, Meta(gt=0, le=10000)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping in which every key is known."""


class Holds(_Section, frozen=True):
    snapshot: Annotated[Gigabytes, Meta(description="GB of weights, as `pilotlight build snapshot` prints them")]
    kv_cache: Annotated[Gigabytes, Meta(description="GB of KV cache beside them")]


class Gpu(_Section, frozen=True):
    memory: Annotated[Gigabytes | None, Meta(description="least memory in GB; either this or `holds`")] = None
    holds: Annotated[Holds | None, Meta(description="what the memory has to hold; the smallest GPU is taken")] = None
    generations: Annotated[
        tuple[Generation, ...], Meta(description="generations that will do (default: all that there are kernels for)")
    ] = ("ampere", "ada", "hopper", "blackwell")
    min_cuda: Annotated[
        str, Meta(description='oldest CUDA version of the driver, in quotes: "12.2"', pattern=r"^[0-9]+\.[0-9]+$")
    ] = "12.2"


class Host(_Section, frozen=True):
    cpu: Annotated[int, Meta(description="CPUs of a replica", ge=1, le=256)] = 4
    memory: Annotated[int, Meta(description="memory of a replica in GiB", ge=1, le=4096)] = 16


class Scaling(_Section, frozen=True):
    min: Annotated[int, Meta(description="replicas that always run; 0 scales to zero", ge=0, le=1000)] = 0
    max: Annotated[int, Meta(description="most replicas", ge=1, le=1000)] = 3
    concurrency: Annotated[
        int, Meta(description="requests in flight at one replica that the platform aims at", ge=1, le=1000)
    ] = 16
    idle: Annotated[
        int, Meta(description="seconds without a request after which a replica is stopped", ge=2, le=3600)
    ] = 300


class Health(_Section, frozen=True):
    ready: Annotated[
        Literal["/health", "/v1/health/ready"], Meta(description="path that answers 200 once requests are served")
    ] = "/health"
    live: Annotated[Literal["/v1/health/live"], Meta(description="path that answers 200 while the process works")] = (
        "/v1/health/live"
    )


class Timeouts(_Section, frozen=True):
    startup: Annotated[Seconds, Meta(description="seconds until a new replica must be ready")] = 600
    request: Annotated[Seconds, Meta(description="seconds that one request may take")] = 900
    shutdown: Annotated[Seconds, Meta(description="seconds that running requests get after SIGTERM")] = 25


class RunPod(_Section, frozen=True):
    type: Annotated[
        Literal["LOAD_BALANCER", "QUEUE"], Meta(description="HTTP straight to the workers, or jobs through a queue")
    ] = "LOAD_BALANCER"
    health: Annotated[
        Literal["/ping", "/health"], Meta(description="path that the load balancer asks; 204 is still loading there")
    ] = "/ping"
    queue_delay: Annotated[
        float, Meta(description="QUEUE: seconds that a job may wait before a worker is added", ge=0.5, le=3600)
    ] = 4.0
    flashboot: Annotated[
        Literal["OFF", "FLASHBOOT", "PRIORITY_FLASHBOOT"], Meta(description="cold starts from a kept state")
    ] = "FLASHBOOT"
    pools: Annotated[tuple[Text, ...], Meta(description="GPU pools, instead of those that `gpu` leads to")] = ()
    excluded_types: Annotated[tuple[GpuType, ...], Meta(description="names of GPU types to leave out")] = ()
    disk: Annotated[Positive | None, Meta(description="GB of container disk")] = None
    registry: Annotated[Text | None, Meta(description="id of the credential for a private image")] = None
    data_centers: Annotated[tuple[Text, ...], Meta(description="where workers may run (default: anywhere)")] = ()
    network_volumes: Annotated[tuple[Text, ...], Meta(description="ids of network volumes")] = ()


class Modal(_Section, frozen=True):
    form: Annotated[
        Literal["web_server", "server"],
        Meta(description="web_server holds requests through a cold start; server has less latency and does not"),
    ] = "web_server"
    proxy_auth: Annotated[bool, Meta(description="requests must carry Modal-Key and Modal-Secret")] = True
    gpus: Annotated[tuple[Text, ...], Meta(description="GPU types, instead of those that `gpu` leads to")] = ()
    region: Annotated[Text | None, Meta(description="where containers run (default: anywhere)")] = None
    routing_region: Annotated[Text | None, Meta(description="where requests come in (default: Modal's own)")] = None
    registry: Annotated[Text | None, Meta(description="Secret with the credentials for a private image")] = None
    volume: Annotated[Text | None, Meta(description="Volume mounted read-only at /models, for weights")] = None


class CloudRun(_Section, frozen=True):
    region: Annotated[Text, Meta(description="region with the GPU in question")] = "us-central1"
    service_account: Annotated[Text | None, Meta(description="identity of the service")] = None
    ingress: Annotated[
        Literal["all", "internal", "internal-and-cloud-load-balancing"], Meta(description="who may connect")
    ] = "all"
    zonal_redundancy: Annotated[bool, Meta(description="GPUs reserved in a second zone; needs its own quota")] = False


class Knative(_Section, frozen=True):
    namespace: Annotated[Name | None, Meta(description="namespace of the service")] = None
    node_selector: Annotated[
        dict[str, str],
        Meta(description="labels of the nodes; the cluster must allow kubernetes.podspec-nodeselector"),
    ] = {}


class Compose(_Section, frozen=True):
    address: Annotated[Address, Meta(description="address of this machine at which the port is published")] = (
        "127.0.0.1"
    )


class Description(_Section, frozen=True):
    """A deployment of Pilotlight: what runs, on what, and how it scales."""

    name: Annotated[Name, Meta(description="name of the service: lower-case letters, digits and dashes")]
    image: Annotated[Image, Meta(description="image in a registry that the platform can reach")]
    gpu: Annotated[Gpu, Meta(description="the GPU, by memory and generation")]
    port: Annotated[int, Meta(description="port of the server", ge=1024, le=65535)] = 8000
    environment: Annotated[
        dict[str, str], Meta(description="variables of the server (docs/flags.md); no secrets")
    ] = {}
    secrets: Annotated[
        dict[str, Name], Meta(description="variable -> name of the platform's secret that holds its value")
    ] = {}
    host: Annotated[Host, Meta(description="what a replica gets beside the GPU")] = Host()
    scaling: Annotated[Scaling, Meta(description="how many replicas, and when")] = Scaling()
    health: Annotated[Health, Meta(description="paths of the HTTP probes")] = Health()
    timeouts: Annotated[Timeouts, Meta(description="how long things may take")] = Timeouts()
    runpod: Annotated[RunPod, Meta(description="what only RunPod has")] = RunPod()
    modal: Annotated[Modal, Meta(description="what only Modal has")] = Modal()
    cloudrun: Annotated[CloudRun, Meta(description="what only Cloud Run has")] = CloudRun()
    knative: Annotated[Knative, Meta(description="what only Knative has")] = Knative()
    compose: Annotated[Compose, Meta(description="what only Compose has")] = Compose()


def schema() -> dict[str, Any]:
    """The JSON Schema of a file."""
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | msgspec.json.schema(Description)
    # A variable may be written as a number or a switch; it is read as the text that stands there.
    environment = made["$defs"]["Description"]["properties"]["environment"]
    environment["additionalProperties"] = {"type": ["string", "number", "boolean"]}
    return made
