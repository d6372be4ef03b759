"""What GPUs are capable of: a small table from their makers' data sheets, or the roofs that gpu_check has measured.

Apart because a figure must never change its kind: one from a data sheet says so wherever it is printed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotlight.device.cuda.launch import Gpu
from pilotlight.errors import UsageError

from .report import SOFT

KB, MB = 1 << 10, 1 << 20
NODE_GAP = (1.3, 3.0)  # us, between the kernels of a graph: what is to be expected of any card
_SHARED = {(8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}  # KB a block may have


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU's roofs. `source`: "data sheet", or the file that holds what was measured."""

    name: str
    capability: tuple[int, int]
    sm_count: int
    memory_gb_s: float
    tensor_tflops: float  # bf16, dense, sums in fp32; measured: of mma.sync itself
    mma_share: tuple[float, float]  # of that, what mma.sync can be expected to reach, and its ceiling
    l2_bytes: int
    link_gb_s: float  # from the host, one way
    shared_bytes: int  # of one block
    node_gap_us: tuple[float, float] = NODE_GAP
    source: str = "data sheet"

    @property
    def gpu(self) -> Gpu:
        """What the geometry of a launch depends on."""
        return Gpu(self.capability, self.sm_count, self.shared_bytes)

    @property
    def mma_tflops(self) -> float:
        """The tensor roof of kernels that use mma.sync."""
        return self.tensor_tflops * self.mma_share[1]

    def microseconds(self, nbytes: int, operations: int) -> float:
        """The least that so many bytes and tensor-core operations take."""
        return max(nbytes / self.memory_gb_s / 1e3, operations / self.mma_tflops / 1e6)


def _card(
    name: str,
    capability: tuple[int, int],
    sm_count: int,
    memory_gb_s: float,
    tensor_tflops: float,
    mma_share: tuple[float, float],
    l2_mb: int,
    link_gb_s: float,
) -> Card:
    shared = _SHARED[capability] * KB
    return Card(name, capability, sm_count, memory_gb_s, tensor_tflops, mma_share, l2_mb * MB, link_gb_s, shared)


# Sources: NVIDIA's data sheets and architecture white papers; rates without sparsity, PCIe one way. The mma.sync
# shares are no data-sheet figures but estimates, which a gpu_check of the card replaces.
_AMPERE_MMA, _HOPPER_MMA, _BLACKWELL_MMA = (0.70, 0.85), (0.45, 0.65), (0.15, 0.22)
_TABLE = (
    _card("A100", (8, 0), 108, 2039, 312, _AMPERE_MMA, 40, 32),  # SXM, 80 GB
    _card("L4", (8, 9), 58, 300, 121, _AMPERE_MMA, 48, 32),
    _card("L40S", (8, 9), 142, 864, 362, _AMPERE_MMA, 96, 32),
    _card("RTX4090", (8, 9), 128, 1008, 165.2, _AMPERE_MMA, 72, 32),
    _card("RTX5090", (12, 0), 170, 1792, 209.5, _AMPERE_MMA, 96, 64),
    _card("H100", (9, 0), 132, 3350, 989, _HOPPER_MMA, 50, 64),  # SXM, 80 GB
    _card("H200", (9, 0), 132, 4800, 989, _HOPPER_MMA, 50, 64),  # SXM
    _card("B200", (10, 0), 148, 8000, 2250, _BLACKWELL_MMA, 126, 64),
)
CARDS = {card.name: card for card in _TABLE}


def find(name: str) -> Card:
    """A card of the table, in any spelling, or the file of a gpu_check. Raises UsageError."""
    if name.endswith(".json"):
        return measured(Path(name))
    wanted = name.lower().replace(" ", "").replace("-", "")
    for card in _TABLE:
        if card.name.lower() == wanted:
            return card
    raise UsageError(f"no GPU {name!r} is known; there are {', '.join(CARDS)}, or the JSON of scripts/gpu_check")


def measured(file: Path) -> Card:
    """The card of a gpu_check's JSON, with the roofs that it measured. Raises UsageError."""
    try:
        report: dict[str, Any] = json.loads(file.read_bytes())
        if report["card"] == SOFT:
            raise UsageError(f"{file}: is of the soft GPU, which measures nothing")
        return of_figures({step["name"]: step["figures"] for step in report["steps"]}, report["card"], str(file))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{file}: is no whole gpu_check, its steps context and roofs are needed: {error!r}"
        ) from None


def of_figures(figures: Mapping[str, Any], name: str, source: str) -> Card:
    """A card by the figures of gpu_check's steps. Raises KeyError for one that is missing."""
    attributes, roofs = figures["context"]["attributes"], figures["roofs"]
    return Card(
        name=name,
        capability=(attributes["capability_major"], attributes["capability_minor"]),
        sm_count=attributes["sm_count"],
        memory_gb_s=max(roofs["read_gb_s"], roofs["copy_gb_s"]),
        tensor_tflops=roofs["mma_bf16_tflops"],
        mma_share=(1.0, 1.0),
        l2_bytes=attributes["l2_bytes"],
        link_gb_s=roofs["pinned_to_device_gb_s"],
        shared_bytes=attributes["shared_bytes_per_block"],
        node_gap_us=(roofs["graph_node_us"], roofs["graph_node_us"]),
        source=source,
    )
