"""One GPU, opened: its primary context, its name, the figures that launches are computed from."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from . import driver
from .errors import NO_DEVICE, CudaError
from .launch import Gpu

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Context:
    """The primary context of device `ordinal`, current on the thread that opens it, kept until the process ends.

    Raises CudaError, saying what to do, for a driver or a GPU that cannot be used.
    """

    def __init__(self, ordinal: int) -> None:
        driver.initialize()
        count = driver.device_count()
        if ordinal >= count:
            names = ", ".join(f"cuda:{number}" for number in range(count)) or "none"
            visible = os.environ.get(_VISIBLE)
            shown = "there are" if visible is None else f"{_VISIBLE}={visible} shows"
            raise CudaError(f"--device cuda:{ordinal}: there is no such GPU; {shown} {names}", NO_DEVICE)
        self.ordinal = ordinal
        self.name = driver.device_name(ordinal)
        self._context = driver.retain_primary_context(ordinal)
        self.bind()
        self.gpu = Gpu(
            capability=driver.compute_capability(ordinal),
            sm_count=driver.multiprocessor_count(ordinal),
            shared_bytes=driver.shared_bytes(ordinal),
        )

    def bind(self) -> None:
        """Makes the context the calling thread's: each thread that calls the driver needs it."""
        driver.set_current(self._context)

    @contextmanager
    def bound(self) -> Iterator[None]:
        """`bind` for a while: the calling thread has its own context again after."""
        driver.push_current(self._context)
        try:
            yield
        finally:
            driver.pop_current()

    @property
    def title(self) -> str:
        """ "NVIDIA H200 (compute capability 9.0)"."""
        return "{} (compute capability {}.{})".format(self.name, *self.gpu.capability)
