"""Memory of a GPU, taken in slabs that are cut by arithmetic, and host memory that the GPU copies from.

Slabs because what is taken once, before the first request, cannot run out later; sizes are known before anything is
allocated, so a model that does not fit is refused and not found out.
"""

import ctypes
import logging
import mmap
from contextlib import ExitStack

from ...errors import UnavailableError, amount
from . import driver
from .errors import OUT_OF_MEMORY, CudaError, DeviceLostError

ALIGNMENT = 256  # of a slab's parts, and of what cuMemAlloc gives

_log = logging.getLogger(__name__)


class Cuts:
    """Parts of a slab, one after another: `take` gives each one's offset, `nbytes` is what they need in all."""

    def __init__(self) -> None:
        self.nbytes = 0

    def take(self, nbytes: int) -> int:
        offset = self.nbytes
        self.nbytes += nbytes + -nbytes % ALIGNMENT
        return offset


def allocate(nbytes: int, what: str) -> int:
    """The address of a slab. Raises CudaError, with the sizes, where it does not fit."""
    try:
        return driver.allocate(max(nbytes, 1), what)
    except CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        free, total = driver.memory_info()
        raise CudaError(
            f"{what}: the GPU has no {amount(nbytes)} in one piece, {amount(free)} of its {amount(total)} are free; "
            "lower --gpu-memory-utilization, --max-model-len or --max-num-seqs, or free the GPU (nvidia-smi lists "
            "who holds it)",
            OUT_OF_MEMORY,
        ) from None


def create_events(count: int, owned: ExitStack) -> list[driver.Event]:
    """Events that go when `owned` is closed."""
    events = []
    for _ in range(count):
        events.append(driver.create_event())
        owned.callback(driver.destroy_event, events[-1])
    return events


class HostBuffer:
    """Host memory that stays where it is, page-locked unless the driver refuses to; then copies are slower."""

    def __init__(self, nbytes: int) -> None:
        try:
            mapping = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise UnavailableError(
                f"host memory: no {amount(nbytes)} to copy from ({error.strerror}); give the container more"
            ) from None
        # A fork, `!ls` in a notebook, would have the next write go to a copy of the page, which the GPU never sees.
        mapping.madvise(mmap.MADV_DONTFORK)
        self.view = memoryview(mapping)  # zero, and aligned to a page
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.view))
        self.pinned = True
        try:
            driver.register_host(self.address, len(self.view))
        except DeviceLostError:
            raise
        except CudaError as error:  # of many kinds: sandboxes and virtual machines each have their own
            self.pinned = False
            _log.warning("host memory is not page-locked, copies are slower: %s", error)

    def close(self) -> None:
        """Unlocks the memory. No copy may be under way."""
        if self.pinned:
            self.pinned = False
            driver.unregister_host(self.address)
