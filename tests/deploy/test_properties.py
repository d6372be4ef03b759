"""Any valid description renders, validly, for every platform; and what the example and the schema say is true."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotlight.deploy import gpus
from pilotlight.deploy.command import TARGETS
from pilotlight.deploy.description import Description, Gpu, Holds, schema
from pilotlight.deploy.reading import read_deployment
from pilotlight.deploy.yaml_file import read
from tests.deploy.renderings import container, environment, keys, parsed, render, replica

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "serverless.yml"

names = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
printed = st.text(st.characters(categories=("L", "N", "P", "S"), include_characters=" "), max_size=12)
images = st.from_regex(r"[a-z0-9]{1,5}(/[a-z0-9._-]{1,5}){0,2}(:[a-z0-9]{1,5})?", fullmatch=True)
words = st.from_regex(r"[A-Za-z0-9_.:-]{1,12}", fullmatch=True)
gpu_types = words.filter(lambda word: not word.startswith("-"))
variables = st.from_regex(r"X_[A-Z0-9_]{0,8}X", fullmatch=True)  # none that looks like a secret or is the server's
scalars = printed | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
gigabytes = st.floats(0.125, 9, width=32) | st.integers(1, 9)
some = st.lists(words, max_size=3)


VALIDATOR = jsonschema.Draft202012Validator(schema())


def section(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping in which each field may be left out."""
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def descriptions(draw: st.DrawFn) -> dict[str, Any]:
    """What any platform can do: a GPU of at most 24 GB, a start and requests within Cloud Run's limits."""
    size = draw(
        st.fixed_dictionaries({"memory": st.floats(1, 24)})
        | st.fixed_dictionaries({"holds": st.fixed_dictionaries({"snapshot": gigabytes, "kv_cache": gigabytes})})
    )
    top = st.fixed_dictionaries(
        {"name": names, "image": images},
        optional={
            "port": st.integers(1024, 65535),
            "environment": st.dictionaries(variables, scalars, max_size=4),
            "secrets": st.dictionaries(st.from_regex(r"Y_[A-Z]{1,8}", fullmatch=True), names, max_size=3),
            "host": section(cpu=st.integers(1, 8), memory=st.integers(1, 32)),
            "scaling": section(min=st.integers(0, 3), max=st.integers(3, 1000), concurrency=st.integers(1, 32),
                               idle=st.integers(2, 3600)),
            "health": section(ready=st.sampled_from(["/health", "/v1/health/ready"])),
            "timeouts": section(startup=st.integers(1, 1800), request=st.integers(1, 3600),
                                shutdown=st.integers(1, 86400)),
            "runpod": section(
                type=st.sampled_from(["LOAD_BALANCER", "QUEUE"]), health=st.sampled_from(["/ping", "/health"]),
                queue_delay=st.floats(0.5, 3600), flashboot=st.sampled_from(["OFF", "FLASHBOOT"]), pools=some,
                excluded_types=st.lists(gpu_types, max_size=2, unique=True), disk=st.integers(1, 1000),
                registry=words, data_centers=some, network_volumes=some,
            ),
            "modal": section(form=st.sampled_from(["web_server", "server"]), proxy_auth=st.booleans(), gpus=some,
                             region=words, routing_region=words, registry=words, volume=words),
            "cloudrun": section(region=words, service_account=words, zonal_redundancy=st.booleans(),
                                ingress=st.sampled_from(["all", "internal"])),
            "knative": section(namespace=names, node_selector=st.dictionaries(words, printed, max_size=2)),
            "compose": section(address=st.sampled_from(["127.0.0.1", "0.0.0.0", "[::]"])),
        },
    )  # fmt: skip
    minimum = section(min_cuda=st.from_regex(r"1[0-9]\.[0-9]{1,2}", fullmatch=True))
    return draw(top) | {"gpu": size | draw(minimum)}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deploy") / "d.yml"


def expected(value: Any) -> str:
    """A variable's text as JSON writes it, which is how the file is written below."""
    return value if isinstance(value, str) else json.dumps(value)


@settings(max_examples=40, deadline=None)
@given(description=descriptions())
def test_every_valid_description_renders_validly_everywhere(description: dict[str, Any], file: Path) -> None:
    file.write_text(json.dumps(description, ensure_ascii=False))  # JSON is YAML
    VALIDATOR.validate(description)
    deployment = read_deployment(file)
    own = {name: expected(value) for name, value in description.get("environment", {}).items()}
    scaling = description.get("scaling", {})
    for target in TARGETS:
        value = parsed(TARGETS[target](deployment).text, target)
        told = environment(value, target)
        assert own.items() <= told.items()
        assert told["PILOTLIGHT_DEVICE"] == "cuda"
        assert int(told["PILOTLIGHT_SHUTDOWN_TIMEOUT"]) <= description.get("timeouts", {}).get("shutdown", 25)
        if target == "runpod":
            queue = value["type"] == "QUEUE"
            assert value["scaling"]["type"] == ("QUEUE_DELAY" if queue else "REQUEST_COUNT")
            assert value["workers"]["min"] == scaling.get("min", 0)
        elif target == "modal":
            assert replica(value)["max_containers"] == scaling.get("max", 3)
        else:
            assert not {"tcpSocket", "grpc"} & set(keys(value))
        if target in ("cloudrun", "knative"):
            secrets = {entry["name"] for entry in container(value)["env"] if "valueFrom" in entry}
            assert secrets == set(description.get("secrets", {}))


OFFERS = {"runpod": gpus.RUNPOD, "modal": gpus.MODAL, "cloudrun": gpus.CLOUD_RUN}
some_generations = st.lists(st.sampled_from(["ampere", "ada", "hopper", "blackwell"]), min_size=1, unique=True)


@given(
    offers=st.sampled_from(list(OFFERS.values())),
    memory=st.floats(0.1, 200),
    kv_cache=st.none() | st.floats(0.1, 100),
    generations=some_generations.map(tuple),
    utilization=st.floats(0.05, 1),
)
def test_smallest_gpu_holds_it_and_none_smaller_does(
    offers: tuple[gpus.Offer, ...], memory: float, kv_cache: float | None, generations: Any, utilization: float
) -> None:
    holds = None if kv_cache is None else Holds(snapshot=memory, kv_cache=kv_cache)
    gpu = Gpu(memory=memory if holds is None else None, holds=holds, generations=generations)

    def will_do(offer: gpus.Offer) -> bool:
        if not set(offer.generations) <= set(generations):
            return False
        if kv_cache is None:
            return memory <= offer.memory
        return memory + kv_cache + 2 <= offer.memory * utilization * (1 + 1e-12)

    found = gpus.smallest(offers, gpu, utilization)
    assert all(will_do(offer) for offer in found)
    assert len({offer.size for offer in found}) <= 1
    smaller = [offer for offer in offers if not found or offer.size < found[0].size]
    slightly = 1 - 1e-9  # the two ways to compute may differ in the last bit
    assert not any(
        set(offer.generations) <= set(generations) and gpus.needed_gb(gpu, utilization) <= offer.memory * slightly
        for offer in smaller
    )


@pytest.mark.parametrize("platform", OFFERS)
def test_offers_stand_in_order_and_once(platform: str) -> None:
    offers = OFFERS[platform]
    assert len({offer.name for offer in offers}) == len(offers)
    assert list(offers) == sorted(offers, key=lambda offer: offer.size)
    assert all(offer.memory <= offer.size for offer in offers)


def test_a_pool_counts_by_its_smallest_card() -> None:
    """RunPod's AMPERE_24 has cards of 20 GB in it."""
    small, large = (gpus.smallest(gpus.RUNPOD, Gpu(memory=memory), 0.9) for memory in (20, 21))
    assert [offer.name for offer in small] == ["AMPERE_24", "ADA_24"]
    assert [offer.name for offer in large] == ["ADA_24"]


def test_schema_in_docs_is_the_description_s() -> None:
    """scripts/make_docs writes it."""
    assert json.loads((ROOT / "docs" / "serverless.schema.json").read_text()) == json.loads(json.dumps(schema()))
    VALIDATOR.check_schema(schema())


def test_example_is_valid_and_says_whose_file_it_is() -> None:
    text = EXAMPLE.read_text()
    assert "no file of the Serverless Framework" in text.splitlines()[0]
    VALIDATOR.validate(read(EXAMPLE, frozenset()).value)
    for target in TARGETS:
        parsed(render(EXAMPLE, target), target)


def test_example_names_every_field_and_its_defaults_are_true() -> None:
    """Fields that are commented out have no default, or one that is empty."""
    text = EXAMPLE.read_text()
    for definition in schema()["$defs"].values():
        missing = [name for name in definition["properties"] if f"{name}:" not in text]
        assert missing == []
    written, bare = read_deployment(EXAMPLE).description, Description(name="a", image="b", gpu=Gpu(memory=1))
    for name in (
        "port",
        "host",
        "scaling",
        "health",
        "timeouts",
        "runpod",
        "modal",
        "cloudrun",
        "knative",
        "compose",
    ):
        assert getattr(written, name) == getattr(bare, name), name
    assert (written.gpu.generations, written.gpu.min_cuda) == (bare.gpu.generations, bare.gpu.min_cuda)
