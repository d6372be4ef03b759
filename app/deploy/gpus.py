"""Which GPUs a platform offers, and the smallest of them that will do.

A size is what the card is sold as; `least` is the smallest card of a pool that mixes sizes. The tables hold the
architectures that there are kernels for: sm_80 and up.
"""

from dataclasses import dataclass

from .description import Generation, Gpu

# Activations, graphs, the context and the kernels' code. An allowance to plan with: the server works out what it
# needs when it starts, and says so if it does not fit.
ALLOWANCE_GB = 2.0


@dataclass(frozen=True, slots=True)
class Offer:
    """A GPU type or a pool of them, by the platform's name."""

    name: str
    size: int  # GB
    generations: tuple[Generation, ...]
    least: int | None = None  # GB

    @property
    def memory(self) -> int:
        return self.least or self.size


RUNPOD = (
    Offer("AMPERE_16", 16, ("ampere", "ada")),
    Offer("AMPERE_24", 24, ("ampere",), least=20),
    Offer("ADA_24", 24, ("ada",)),
    Offer("ADA_32_PRO", 32, ("blackwell",)),
    Offer("AMPERE_48", 48, ("ampere",)),
    Offer("ADA_48_PRO", 48, ("ada",)),
    Offer("AMPERE_80", 80, ("ampere",)),
    Offer("ADA_80_PRO", 80, ("hopper",)),
    Offer("BLACKWELL_96", 96, ("blackwell",)),
    Offer("HOPPER_141", 141, ("hopper",)),
    Offer("BLACKWELL_180", 180, ("blackwell",)),
)
MODAL = (
    Offer("L4", 24, ("ada",)),
    Offer("A10", 24, ("ampere",)),
    Offer("A100-40GB", 40, ("ampere",)),
    Offer("L40S", 48, ("ada",)),
    Offer("A100-80GB", 80, ("ampere",)),
    Offer("H100", 80, ("hopper",)),
    Offer("RTX-PRO-6000", 96, ("blackwell",)),
    Offer("H200", 141, ("hopper",)),
    Offer("B200", 180, ("blackwell",)),
)
CLOUD_RUN = (
    Offer("nvidia-l4", 24, ("ada",)),
    Offer("nvidia-rtx-pro-6000", 96, ("blackwell",)),
)


def needed_gb(gpu: Gpu, utilization: float) -> float:
    """Memory that the card must have: as asked, or such that the server's share of it holds what it has to."""
    if gpu.holds is None:
        return gpu.memory or 0.0
    return (gpu.holds.snapshot + gpu.holds.kv_cache + ALLOWANCE_GB) / utilization


def smallest(offers: tuple[Offer, ...], gpu: Gpu, utilization: float) -> tuple[Offer, ...]:
    """All offers of the smallest size that will do; nothing where none does."""
    needed = needed_gb(gpu, utilization)
    fitting = [offer for offer in offers if offer.memory >= needed and set(offer.generations) <= set(gpu.generations)]
    size = min((offer.size for offer in fitting), default=0)
    return tuple(offer for offer in fitting if offer.size == size)
