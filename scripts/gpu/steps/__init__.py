"""The steps of first contact, in their order: cheap and telling ones first, so that a card that fails early says why.

Each is a file with `run(job)`; `seconds` is when it is stopped.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    name: str
    seconds: float
    what: str

    @property
    def module(self) -> str:
        return f"{__name__}.{self.name}"


STEPS = (
    Step(1, "host", 20, "the machine: driver, card, limits of the container"),
    Step(2, "context", 60, "cuInit and the primary context: times, attributes, free memory"),
    Step(3, "images", 60, "every compiled kernel loads, with the registers that the manifest says"),
    Step(4, "instructions", 30, "what the kernels stand on, instruction by instruction, against exact expectations"),
    Step(5, "ops", 120, "every kernel's smallest tests, a process each"),
    Step(6, "roofs", 45, "memory, mma.sync, host link, pinning, launches and graph nodes"),
    Step(7, "replay", 30, "a graph of the kernels gives the same bits a thousand times"),
    Step(8, "golden", 60, "a real model's answers against the reference's"),
    Step(9, "hot", 75, "the kernels that matter at real shapes, as shares of the roofs"),
    Step(10, "starts", 120, "from process start to first token"),
    Step(11, "throughput", 100, "tokens a second of 1 to 256 streams, and transformers beside them"),
    Step(12, "tests", 600, "all tests of the kernels and of the device, with what time is left"),
)
