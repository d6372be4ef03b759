"""An open GPU for the steps: memory, kernels of ptx/ and probes of our own, graphs, and their times.

Apart from the product's device because steps run single kernels, at shapes and in orders that no engine asks for;
they go through the same driver, images and launches.
"""

import ctypes
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilotlight.device.cuda import driver, images
from pilotlight.device.cuda.context import Context
from pilotlight.device.cuda.launch import Launch
from pilotlight.device.cuda.modules import Kernels

PROBES = Path(__file__).with_name("probes")
Array = NDArray[Any]


class Rig:
    """What it takes it keeps until the process ends: a step is a process."""

    def __init__(self) -> None:
        self.context = Context(0)
        self.gpu = self.context.gpu
        self.stream = driver.create_stream()
        self._images = images.Images(images.directory(), self.gpu.capability, self.context.title)
        self._kernels: dict[str, Kernels] = {}
        self._probes: dict[str, driver.Module] = {}

    # --- memory -----------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        return driver.allocate(max(nbytes, 1), f"{nbytes} bytes")

    def upload(self, array: Array) -> int:
        """The address of a copy."""
        address = self.allocate(array.nbytes)
        self.write(address, array)
        return address

    def write(self, address: int, array: Array) -> None:
        array = np.ascontiguousarray(array)
        driver.copy_to_device(address, array.ctypes.data, array.nbytes, self.stream)
        self.wait()

    def fill(self, nbytes: int, block: Array) -> int:
        """The address of so many bytes of `block`, again and again."""
        address, raw = self.allocate(nbytes), block.reshape(-1).view(np.uint8)
        for start in range(0, nbytes, len(raw)):
            size = min(len(raw), nbytes - start)
            driver.copy_to_device(address + start, raw.ctypes.data, size, self.stream)
        self.wait()
        return address

    def read(self, address: int, shape: tuple[int, ...], dtype: Any) -> Array:
        out = np.empty(shape, dtype)
        driver.copy_to_host(out.ctypes.data, address, out.nbytes, self.stream)
        self.wait()
        return out

    def wait(self) -> None:
        driver.synchronize_stream(self.stream)

    # --- kernels ----------------------------------------------------------------------------------------------

    def probe(self, module: str, entry: str) -> driver.Function:
        """A function of probes/."""
        if module not in self._probes:
            text = (PROBES / f"{module}.ptx").read_bytes()
            self._probes[module] = driver.load_module(text + b"\0", module)
        return driver.get_function(self._probes[module], entry)

    def run_probe(self, function: driver.Function, grid: int, block: int, *arguments: int) -> None:
        """Enqueues it. Arguments that fit into 32 bits are given as such: an address never does."""
        values = [(ctypes.c_uint64 if value >> 32 else ctypes.c_uint32)(value) for value in arguments]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, values))
        driver.launch(function, (grid, 1, 1), (block, 1, 1), 0, self.stream, ctypes.addressof(pointers), "probe")

    def launch(self, *launches: Launch) -> None:
        for launch in launches:
            if launch.module not in self._kernels:
                self._kernels[launch.module] = Kernels(self.gpu, [self._images.read(launch.module)])
            self._kernels[launch.module].launch(launch, self.stream)

    # --- graphs and their times -------------------------------------------------------------------------------

    def graph(self, enqueue: Callable[[], None]) -> driver.GraphExec:
        """What `enqueue` enqueues, as a graph. All that it uses has been loaded before."""
        driver.begin_capture(self.stream)
        enqueue()
        graph = driver.end_capture(self.stream)
        executable = driver.instantiate(graph)
        driver.destroy_graph(graph)
        return executable

    def seconds(self, enqueue: Callable[[], None], *, at_least: float, rounds: int = 3) -> float:
        """How long what `enqueue` enqueues takes: the best of `rounds`, each of so many repeats that it takes
        `at_least` seconds, for the host's clock to be exact enough."""
        enqueue()
        self.wait()
        repeats, best = 1, float("inf")
        for _ in range(rounds):
            while True:
                start = time.perf_counter()
                for _ in range(repeats):
                    enqueue()
                self.wait()
                taken = time.perf_counter() - start
                if taken >= at_least:
                    break
                repeats = max(repeats + 1, min(int(repeats * at_least / taken * 1.2), 16 * repeats))
            best = min(best, taken / repeats)
        return best

    def kernel_seconds(self, launches: Iterable[Launch], *, at_least: float) -> float:
        """Of the launches as the nodes of one graph, gaps included. They are run once before."""
        launches = list(launches)
        self.launch(*launches)
        self.wait()
        executable = self.graph(lambda: self.launch(*launches))
        taken = self.seconds(lambda: driver.launch_graph(executable, self.stream), at_least=at_least)
        driver.destroy_executable(executable)
        return taken


def random_halves(count: int, seed: int = 0, scale: float = 1.0) -> NDArray[np.uint16]:
    """bf16 numbers of about `scale`, of either sign: what a kernel computes with has to be finite."""
    values = np.random.default_rng(seed).standard_normal(count, np.float32) * np.float32(scale)
    return (values.view(np.uint32) >> 16).astype(np.uint16)
