"""`pilotlight serve --device cuda` on the soft GPU as a process: what it is asked, and what the soft GPU says."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests import softgpu
from tests.front.servers import ServerProcess, eventually, sse, stream

from .bench import PTX

CHAIN = tuple(range(97, 123))  # a to z, and again
TEXT = "abcdefghijklmnopqrstuvwxyz" * 8
COMPLETIONS = "/v1/completions"


class CudaServer(ServerProcess):
    """Four sequences at most. `knobs` are the soft GPU's; its report is in `report`, also while it runs."""

    def __init__(self, model: Path, *flags: str, env: dict[str, str] | None = None, **knobs: Any) -> None:
        self._report = knobs.get("report")
        environment = softgpu.environment(**{"ptx_directory": PTX} | knobs) | (env or {})
        super().__init__(model, "--device", "cuda", *flags, "--max-num-seqs", "4", env=environment)

    def report(self) -> "Report":
        assert self._report
        return Report(json.loads(Path(self._report).read_text()))

    def stop(self) -> "Report":
        """Ends it in peace."""
        self.terminate()
        assert self.exit_code() == 0
        return self.report()

    def settle(self) -> "Report":
        """As it is once the graphs are there that are made while there is nothing to do. Needs `report_at_waits`."""

        def is_settled() -> bool:
            ask(client, "1 ", max_tokens=1)  # it waits for the GPU, and so has the report written
            return self.report().graphs >= 6  # plain and general ones of 1, 2 and 4 sequences

        with self.client() as client:
            eventually(is_settled, 30)
        return self.report()


class Report:
    """What the soft GPU found and counted in an engine's process."""

    def __init__(self, run: dict[str, Any]) -> None:
        self.findings: list[dict[str, Any]] = run["findings"]
        self.calls: Counter[str] = Counter(run["counters"]["calls"])
        self.driver: dict[str, int] = run["counters"]["driver"]
        self.kernels: dict[str, Any] = run["counters"]["kernels"]

    @property
    def graphs(self) -> int:
        return self.driver["instantiations"]

    def decode_launches(self) -> tuple[int, int]:
        """Of decode attention: those by a graph, and the others."""
        (decode,) = (kernel for name, kernel in self.kernels.items() if name.startswith("attention_decode_d"))
        return decode["replays"], decode["launches"] - decode["replays"]


def body_of(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt, "max_tokens": 12, "temperature": 0} | fields


def ask(client: httpx.Client, prompt: Any, **fields: Any) -> dict[str, Any]:
    """The one choice of an answer that is not streamed."""
    response = client.post(COMPLETIONS, json=body_of(prompt, **fields))
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return dict(choice)


def ask_all(client: httpx.Client, bodies: Sequence[dict[str, Any]]) -> list[str]:
    """The texts of requests that are made at once, each streamed."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: text_of(stream(client, COMPLETIONS, body)), bodies))


def text_of(events: Iterable[Any]) -> str:
    return "".join(event["choices"][0]["text"] for event in events if event != "[DONE]" and event["choices"])


def ending(address: str, body: dict[str, Any]) -> str:
    """How a stream ends: the finish reason, the error's code, or the status of what was no stream. It does end."""
    with httpx.stream("POST", address + COMPLETIONS, json=body | {"stream": True}, timeout=60) as response:
        if response.status_code != 200:
            response.read()
            return str(response.json()["error"]["code"])
        last = [event for event in sse(response) if event != "[DONE]"][-1]
        return str(last["error"]["code"] if "error" in last else last["choices"][0]["finish_reason"])


def endings(address: str, bodies: Sequence[dict[str, Any]]) -> list[str]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: ending(address, body), bodies))
