"""Graphs: nodes and edges, launches, updates, and what an executable graph must not outlive."""

import ctypes
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from tests.softgpu.fixtures import Soft

from . import calls
from .calls import code, ok, start
from .test_streams import HostFunction

MIB = 1 << 20
SEEDS = range(8)


def kernel_node(function: Any, out: int, value: int) -> driver.CUDA_KERNEL_NODE_PARAMS:
    node = driver.CUDA_KERNEL_NODE_PARAMS()
    node.func = function
    node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimX = node.blockDimY = node.blockDimZ = 1
    node.kernelParams = ((out, value), (ctypes.c_uint64, ctypes.c_uint32))
    return node


def captured(stream: Any, kernel: Any, out: int, *values: int) -> Any:
    """An executable graph of one launch a value."""
    calls.warm(kernel)
    ok("cuStreamBeginCapture", stream, calls.GLOBAL)
    for value in values:
        calls.launch(kernel, out, value, stream=stream)
    return ok("cuGraphInstantiate", ok("cuStreamEndCapture", stream), 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_run_after_those_they_depend_on(soft: Soft, seed: int) -> None:
    soft.reset(seed=seed)
    start()
    (twice,) = calls.functions(calls.KERNELS, "twice")
    out, graph = calls.words(1, 1), ok("cuGraphCreate", 0)
    last: list[Any] = []
    for digit in (0, 1, 1):
        last = [ok("cuGraphAddKernelNode", graph, last, len(last), kernel_node(twice, out, digit))]
    executable = ok("cuGraphInstantiate", graph, 0)
    ok("cuGraphLaunch", executable, 0)
    assert calls.read(out) == [0b1011]
    assert [ok("cuGraphGetNodes", graph, 0)[1], ok("cuGraphGetRootNodes", graph, 0)[1]] == [3, 1]


def test_nodes_of_every_kind(soft: Soft) -> None:
    start()
    (add,) = calls.functions(calls.KERNELS, "add")
    block, host, seen = calls.words(4), calls.pinned(4), []
    graph, context = ok("cuGraphCreate", 0), ok("cuCtxGetCurrent")
    fill = driver.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.value, fill.elementSize, fill.width, fill.height = block, 6, 4, 4, 1
    first = ok("cuGraphAddMemsetNode", graph, [], 0, fill, context)
    second = ok("cuGraphAddKernelNode", graph, [first], 1, kernel_node(add, block, 1))
    copy = driver.CUDA_MEMCPY3D()
    copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
    copy.srcDevice, copy.dstHost = block, host.ctypes.data
    copy.WidthInBytes, copy.Height, copy.Depth = 16, 1, 1
    third = ok("cuGraphAddMemcpyNode", graph, [second], 1, copy, context)
    function = HostFunction(lambda _: seen.append(host.tolist()))
    call = driver.CUDA_HOST_NODE_PARAMS()
    call.fn = driver.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value)
    fourth = ok("cuGraphAddHostNode", graph, [third], 1, call)
    fifth = ok("cuGraphAddEmptyNode", graph, [], 0)
    ok("cuGraphAddDependencies", graph, [fourth], [fifth], *([1] if _plain_edges() else [None, 1]))
    kinds = [int(ok("cuGraphNodeGetType", node)) for node in (first, second, third, fourth, fifth)]
    assert kinds == [2, 0, 1, 3, 5]
    ok("cuGraphLaunch", ok("cuGraphInstantiate", graph, 0), 0)
    ok("cuCtxSynchronize")
    assert seen == [[7, 6, 6, 6]]


def _plain_edges() -> bool:
    return "edgeData" not in (driver.cuGraphAddDependencies.__doc__ or "")


def test_a_cycle_is_no_graph(soft: Soft) -> None:
    start()
    graph = ok("cuGraphCreate", 0)
    first = ok("cuGraphAddEmptyNode", graph, [], 0)
    second = ok("cuGraphAddEmptyNode", graph, [first], 1)
    ok("cuGraphAddDependencies", graph, [second], [first], *([1] if _plain_edges() else [None, 1]))
    assert code("cuGraphInstantiate", graph, 0) == calls.INVALID_VALUE


def test_parameters_may_be_exchanged(soft: Soft) -> None:
    start()
    (store,) = calls.functions(calls.KERNELS, "store")
    out, graph = calls.words(1), ok("cuGraphCreate", 0)
    node = ok("cuGraphAddKernelNode", graph, [], 0, kernel_node(store, out, 1))
    executable = ok("cuGraphInstantiate", graph, 0)
    ok("cuGraphExecKernelNodeSetParams", executable, node, kernel_node(store, out, 2))
    ok("cuGraphLaunch", executable, 0)
    assert calls.read(out) == [2]
    assert int(ok("cuGraphKernelNodeGetParams", node).func) == int(store)


def test_a_graph_may_be_updated_to_one_of_the_same_shape(soft: Soft) -> None:
    start()
    (add,) = calls.functions(calls.KERNELS, "add")
    out, stream = calls.words(1), ok("cuStreamCreate", calls.NON_BLOCKING)
    executable = captured(stream, add, out, 1, 1)
    for values, result in (((10, 10), 0), ((1, 1, 1), 910)):
        ok("cuStreamBeginCapture", stream, calls.GLOBAL)
        for value in values:
            calls.launch(add, out, value, stream=stream)
        assert code("cuGraphExecUpdate", executable, ok("cuStreamEndCapture", stream)) == result
    ok("cuGraphLaunch", executable, stream)
    assert calls.read(out) == [20]


def test_an_executable_graph_takes_memory(soft: Soft) -> None:
    soft.reset(memory_bytes=64 * MIB)
    start()
    graph = ok("cuGraphCreate", 0)
    ok("cuGraphAddEmptyNode", graph, [], 0)
    before = ok("cuMemGetInfo")[0]
    made = []
    while (result := driver.cuGraphInstantiate(graph, 0))[0] == 0:
        made.append(result[1])
        assert len(made) <= 64
    assert int(result[0]) == calls.OUT_OF_MEMORY
    assert len(made) > 50
    for executable in made:
        ok("cuGraphExecDestroy", executable)
    assert ok("cuMemGetInfo")[0] == before


def test_instantiation_may_fail(soft: Soft) -> None:
    soft.reset(graph_instantiate_error=2)
    start()
    assert code("cuGraphInstantiate", ok("cuGraphCreate", 0), 0) == calls.OUT_OF_MEMORY


def test_replays_are_counted(soft: Soft) -> None:
    start()
    (add,) = calls.functions(calls.KERNELS, "add")
    out, stream = calls.words(1), ok("cuStreamCreate", calls.NON_BLOCKING)
    executable = captured(stream, add, out, 1, 1, 1)
    for _ in range(5):
        ok("cuGraphLaunch", executable, stream)
    assert calls.read(out) == [15]
    counted = soft.counters()["driver"]
    assert (counted["captures"], counted["instantiations"]) == (1, 1)
    assert (counted["graph_launches"], counted["graph_kernel_nodes"]) == (5, 15)


class TestWhatAGraphNeeds:
    def begin(self, soft: Soft, **knobs: object) -> tuple[Any, int, Any, Any]:
        soft.reset(**knobs)
        start()
        (store,) = calls.functions(calls.KERNELS, "store")
        out, stream = calls.words(1), ok("cuStreamCreate", calls.NON_BLOCKING)
        return store, out, stream, captured(stream, store, out, 1)

    def test_memory_freed(self, soft: Soft) -> None:
        _, out, stream, executable = self.begin(soft)
        ok("cuMemFree", out)
        ok("cuGraphLaunch", executable, stream)
        assert code("cuCtxSynchronize") == calls.ILLEGAL_ADDRESS
        assert len(soft.take_findings("graph-freed-memory")) == 1
        soft.take_findings("out-of-bounds")
        soft.take_findings("use-after-free")

    @pytest.mark.parametrize(("what", "rule"), [("copy", "copy-out-of-bounds"), ("fill", "fill-out-of-bounds")])
    def test_memory_of_a_copy_or_fill_freed(self, soft: Soft, what: str, rule: str) -> None:
        start()
        out, host, stream = calls.words(4), calls.pinned(4), ok("cuStreamCreate", calls.NON_BLOCKING)
        ok("cuStreamBeginCapture", stream, calls.GLOBAL)
        if what == "copy":
            ok("cuMemcpyHtoDAsync", out, host.ctypes.data, 16, stream)
        else:
            ok("cuMemsetD32Async", out, 1, 4, stream)
        executable = ok("cuGraphInstantiate", ok("cuStreamEndCapture", stream), 0)
        ok("cuMemFree", out)
        ok("cuGraphLaunch", executable, stream)
        assert code("cuCtxSynchronize") == calls.ILLEGAL_ADDRESS
        assert len(soft.take_findings("graph-freed-memory")) == 1
        assert len(soft.take_findings(rule)) == 1

    def test_memory_freed_and_allocated_again(self, soft: Soft) -> None:
        _, out, stream, executable = self.begin(soft, memory_bytes=4 * MIB)
        ok("cuMemFree", out)
        calls.words(1)
        ok("cuGraphLaunch", executable, stream)
        code("cuCtxSynchronize")
        assert len(soft.take_findings("graph-freed-memory")) == 1
        soft.take_findings("out-of-bounds")
        soft.take_findings("use-after-free")

    def test_its_module(self, soft: Soft) -> None:
        store, _, stream, executable = self.begin(soft)
        ok("cuModuleUnload", ok("cuFuncGetModule", store))
        assert code("cuGraphLaunch", executable, stream) == calls.INVALID_HANDLE
        assert len(soft.take_findings("graph-unloaded-module")) == 1

    def test_its_graph_it_does_not_need(self, soft: Soft) -> None:
        start()
        (store,) = calls.functions(calls.KERNELS, "store")
        out, graph = calls.words(1), ok("cuGraphCreate", 0)
        ok("cuGraphAddKernelNode", graph, [], 0, kernel_node(store, out, 3))
        executable = ok("cuGraphInstantiate", graph, 0)
        ok("cuGraphDestroy", graph)
        ok("cuGraphLaunch", executable, 0)
        assert calls.read(out) == [3]

    def test_pageable_memory_is_found_in_a_copy_node(self, soft: Soft) -> None:
        start()
        block, host, graph = calls.words(4), np.zeros(4, np.uint32), ok("cuGraphCreate", 0)
        copy = driver.CUDA_MEMCPY3D()
        copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcHost, copy.dstDevice = host.ctypes.data, block
        copy.WidthInBytes, copy.Height, copy.Depth = 16, 1, 1
        ok("cuGraphAddMemcpyNode", graph, [], 0, copy, ok("cuCtxGetCurrent"))
        ok("cuGraphInstantiate", graph, 0)
        assert len(soft.take_findings("pageable-in-graph")) == 1


class TestInFlight:
    def begin(self) -> tuple[Any, int, Any, Any]:
        start()
        (add,) = calls.functions(calls.KERNELS, "add")
        out = calls.words(4096)
        streams = [ok("cuStreamCreate", calls.NON_BLOCKING) for _ in range(2)]
        return add, out, *streams

    def test_one_graph_in_two_streams_at_once(self, soft: Soft) -> None:
        add, out, first, second = self.begin()
        executable = captured(first, add, out, 1)
        ok("cuGraphLaunch", executable, first)
        ok("cuGraphLaunch", executable, second)
        assert calls.read(out) == [2]  # a driver puts one after the other
        assert len(soft.take_findings("graph-relaunch")) == 1

    def test_one_graph_twice_in_a_stream(self, soft: Soft) -> None:
        add, out, first, _ = self.begin()
        executable = captured(first, add, out, 1)
        ok("cuGraphLaunch", executable, first)
        ok("cuGraphLaunch", executable, first)
        assert calls.read(out) == [2]

    def test_one_graph_in_two_streams_that_an_event_orders(self, soft: Soft) -> None:
        add, out, first, second = self.begin()
        executable, event = captured(first, add, out, 1), ok("cuEventCreate", 2)
        ok("cuGraphLaunch", executable, first)
        ok("cuEventRecord", event, first)
        ok("cuStreamWaitEvent", second, event, 0)
        ok("cuGraphLaunch", executable, second)
        assert calls.read(out) == [2]

    def test_two_graphs_that_write_the_same_memory(self, soft: Soft) -> None:
        add, out, first, second = self.begin()
        one, other = captured(first, add, out, 1), captured(second, add, out, 2)
        ok("cuGraphLaunch", one, first)
        ok("cuGraphLaunch", other, second)
        ok("cuCtxSynchronize")
        assert len(soft.take_findings("graphs-share-memory")) == 1

    def test_two_graphs_that_do_so_in_turn(self, soft: Soft) -> None:
        add, out, first, second = self.begin()
        one, other = captured(first, add, out, 1), captured(second, add, out, 2)
        ok("cuGraphLaunch", one, first)
        ok("cuStreamSynchronize", first)
        ok("cuGraphLaunch", other, second)
        assert calls.read(out) == [3]

    def test_two_graphs_that_write_memory_of_their_own(self, soft: Soft) -> None:
        add, out, first, second = self.begin()
        one, other = captured(first, add, out, 1), captured(second, add, out + 8192, 2)
        ok("cuGraphLaunch", one, first)
        ok("cuGraphLaunch", other, second)
        assert calls.read(out) == [1]
