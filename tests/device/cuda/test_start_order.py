"""The order of a GPU's start, read from the ledger: what takes long goes on beside what else has to be done."""

from typing import Any

import httpx
import pytest

from tests.front.servers import eventually, stream
from tests.models import write_chain

from .servers import CHAIN, COMPLETIONS, CudaServer, body_of


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The ledger of a start with a queued request, once the engine has prepared all that it prepares late."""
    directory = tmp_path_factory.mktemp("models")
    model = write_chain(directory / "chain", CHAIN, loop=True, head_dim=64)
    with CudaServer(model) as server, httpx.Client(base_url=server.listening(), timeout=60) as client:
        assert stream(client, COMPLETIONS, body_of("abc"))[-1] == "[DONE]"

        def ledger() -> dict[str, Any]:
            return dict(client.get("/startup").json())

        eventually(lambda: any(each["name"] == "prepare" and each["end"] for each in ledger()["spans"]), 60)
        return ledger()


def engine(found: dict[str, Any], name: str) -> dict[str, Any]:
    (only,) = [each for each in found["spans"] if (each["process"], each["name"]) == ("engine", name)]
    return dict(only)


def test_the_context_is_begun_before_anything_heavy_is_imported(found: dict[str, Any]) -> None:
    context = engine(found, "context")
    assert context["start"] < engine(found, "first imports")["end"]
    assert context["start"] < engine(found, "imports")["start"]
    assert context["end"] <= engine(found, "device")["end"]


def test_kernels_are_loaded_while_weights_are_copied(found: dict[str, Any]) -> None:
    kernels, weights = engine(found, "kernels"), engine(found, "weights")
    assert max(kernels["start"], weights["start"]) < min(kernels["end"], weights["end"])
    assert kernels["bytes"] > 100_000
    assert weights["bytes"] > 100_000


def test_the_first_token_is_out_before_the_last_graph_is_made(found: dict[str, Any]) -> None:
    graphs = engine(found, "prepare")
    assert found["seconds"]["first_token"] < graphs["end"]
    assert engine(found, "report")["end"] <= graphs["start"]
    assert not graphs["critical"]


def test_the_start_is_explained(found: dict[str, Any]) -> None:
    end = found["seconds"]["first_token"]
    assert found["unattributed"] <= max(0.05 * end, 0.010)
    path = [(each["process"], each["name"]) for each in found["spans"] if each["critical"]]
    assert path[0] == ("front", "python")
    assert ("engine", "prefill") in path
    assert path[-1] == ("front", "write")
