"""Step 6: what bounds everything else, measured: memory, tensor cores by mma.sync, the link to the host, launches."""

import time
from dataclasses import dataclass
from functools import partial

import numpy as np

from pilotlight.device.cuda import driver
from pilotlight.device.cuda.memory import HostBuffer

from ..job import Failed, Job, figure
from ..rig import Rig, random_halves

_BLOCK_BYTES = 16384  # of the probes `copy` and `read`, a block's
_PRODUCT = 2 * 16 * 8 * 16  # operations of an mma
_WARPS, _PRODUCTS = 8, 8  # of `mma_loop`: warps a block, products a round


@dataclass(frozen=True, slots=True)
class _Sizes:
    memory: int  # bytes; beyond all caches
    rounds: int  # of `mma_loop`
    blocks: int  # of it, an SM's
    pinned: int  # bytes copied
    locked: int  # bytes page-locked, to time that
    launches: int
    nodes: int
    at_least: float  # s, of a timing


_FULL = _Sizes(1 << 30, 20_000, 2, 256 << 20, 1 << 30, 5_000, 1_000, 0.03)
_TINY = _Sizes(4 * _BLOCK_BYTES, 2, 1, 1 << 16, 1 << 16, 4, 4, 0.0)


def run(job: Job) -> None:
    sizes = _TINY if job.soft else _FULL
    rig = Rig()
    _memory(job, rig, sizes)
    _tensor_cores(job, rig, sizes)
    _host_link(job, rig, sizes)
    _launches(job, rig, sizes)


def _memory(job: Job, rig: Rig, sizes: _Sizes) -> None:
    block = random_halves(min(sizes.memory, 64 << 20) // 2)
    source, target = rig.fill(sizes.memory, block), rig.allocate(sizes.memory)
    for name, moved in (("copy", 2 * sizes.memory), ("read", sizes.memory)):
        probe = rig.probe("roofs", name)
        run_probe = partial(rig.run_probe, probe, sizes.memory // _BLOCK_BYTES, 256, source, target)
        taken = rig.seconds(run_probe, at_least=sizes.at_least)
        job.put(**{f"{name}_gb_s": figure(moved / taken / 1e9)})
        if name == "copy" and not np.array_equal(rig.read(target, block.shape, block.dtype), block):
            raise Failed("a copy in memory is not what was copied")


def _tensor_cores(job: Job, rig: Rig, sizes: _Sizes) -> None:
    probe = rig.probe("roofs", "mma_loop")
    fragments = rig.upload(random_halves(32 * 12))
    grid = sizes.blocks * rig.gpu.sm_count
    sums = rig.allocate(4 * grid * _WARPS * 32)
    operations = grid * _WARPS * sizes.rounds * _PRODUCTS * _PRODUCT
    taken = rig.seconds(
        lambda: rig.run_probe(probe, grid, 32 * _WARPS, fragments, sums, sizes.rounds), at_least=sizes.at_least
    )
    job.put(mma_bf16_tflops=figure(operations / taken / 1e12))


def _host_link(job: Job, rig: Rig, sizes: _Sizes) -> None:
    start = time.perf_counter()
    buffer = HostBuffer(sizes.locked)
    taken = time.perf_counter() - start
    job.put(pinning_s_per_gb=figure(taken / sizes.locked * 1e9), pinned=buffer.pinned)
    device = rig.allocate(sizes.pinned)
    for name, copy in (
        ("pinned_to_device_gb_s", lambda: driver.copy_to_device(device, buffer.address, sizes.pinned, rig.stream)),
        ("device_to_pinned_gb_s", lambda: driver.copy_to_host(buffer.address, device, sizes.pinned, rig.stream)),
    ):
        taken = rig.seconds(copy, at_least=sizes.at_least)
        job.put(**{name: figure(sizes.pinned / taken / 1e9)})
    small = rig.seconds(
        lambda: driver.copy_to_device(device, buffer.address, 4096, rig.stream), at_least=sizes.at_least
    )
    job.put(small_copy_us=figure(small * 1e6))
    buffer.close()


def _launches(job: Job, rig: Rig, sizes: _Sizes) -> None:
    """launch_us: what the host pays for one. empty_kernel_us: the card's own rate of them. graph_node_us: of many in
    a row. graph_round_trip_us: of a graph of one node, to its end: what the host waits for at least."""
    probe = rig.probe("roofs", "nothing")
    rig.run_probe(probe, 1, 32)
    rig.wait()

    def enqueue(nodes: int) -> None:
        for _ in range(nodes):
            rig.run_probe(probe, 1, 32)

    start = time.perf_counter()
    enqueue(sizes.launches)
    enqueued = time.perf_counter()
    rig.wait()
    done = time.perf_counter()

    def replay(nodes: int) -> float:
        graph = rig.graph(lambda: enqueue(nodes))
        return rig.seconds(lambda: driver.launch_graph(graph, rig.stream), at_least=sizes.at_least)

    def round_trip() -> float:
        graph = rig.graph(lambda: enqueue(1))
        best = float("inf")
        for _ in range(20):
            begun = time.perf_counter()
            driver.launch_graph(graph, rig.stream)
            rig.wait()
            best = min(best, time.perf_counter() - begun)
        return best

    job.put(
        launch_us=figure((enqueued - start) / sizes.launches * 1e6),
        empty_kernel_us=figure((done - start) / sizes.launches * 1e6),
        graph_node_us=figure(replay(sizes.nodes) / sizes.nodes * 1e6),
        graph_round_trip_us=figure(round_trip() * 1e6),
    )
