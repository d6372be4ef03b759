"""Streams and events: nothing runs at enqueue, what the order guarantees holds, and what it does not is found out."""

import ctypes
import threading
from collections.abc import Callable

import numpy as np
import pytest
from cuda.bindings import driver

from tests.softgpu.fixtures import Soft

from . import calls
from .calls import code, ok, start

HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
SEEDS = range(8)


def host_function(stream: object, function: HostFunction) -> None:  # type: ignore[valid-type]
    ok("cuLaunchHostFunc", stream, driver.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value), 0)


def test_nothing_runs_when_it_is_enqueued(soft: Soft) -> None:
    start()
    (store,) = calls.functions(calls.KERNELS, "store")
    out, seen = calls.words(1), []
    stream = ok("cuStreamCreate", calls.NON_BLOCKING)
    noted = HostFunction(lambda _: seen.append(1))
    calls.launch(store, out, 7, stream=stream)
    host_function(stream, noted)
    assert seen == []
    ok("cuStreamSynchronize", stream)
    assert seen == [1]
    assert calls.read(out) == [7]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_keeps_its_order(soft: Soft, seed: int) -> None:
    soft.reset(seed=seed)
    start()
    (twice,) = calls.functions(calls.KERNELS, "twice")
    out = calls.words(1, 1)
    stream = ok("cuStreamCreate", calls.NON_BLOCKING)
    for digit in (1, 0, 1, 1):
        calls.launch(twice, out, digit, stream=stream)
    ok("cuStreamSynchronize", stream)
    assert calls.read(out) == [0b11011]


def orders(soft: Soft, enqueue: Callable[[Callable[[str], HostFunction]], None]) -> set[str]:  # type: ignore[valid-type]
    """The orders in which marked host functions ran, over many seeds."""
    seen = set()
    for seed in range(24):
        soft.reset(seed=seed)
        start()
        ran: list[str] = []
        kept = []

        def mark(name: str, ran: list[str] = ran, kept: list[object] = kept) -> HostFunction:  # type: ignore[valid-type]
            function = HostFunction(lambda _: ran.append(name))
            kept.append(function)
            return function

        enqueue(mark)
        ok("cuCtxSynchronize")
        seen.add("".join(ran))
    return seen


def test_streams_run_in_any_order(soft: Soft) -> None:
    def enqueue(mark: Callable[[str], HostFunction]) -> None:  # type: ignore[valid-type]
        for name in "ab":
            host_function(ok("cuStreamCreate", calls.NON_BLOCKING), mark(name))

    assert orders(soft, enqueue) == {"ab", "ba"}


def test_an_event_orders_streams(soft: Soft) -> None:
    def enqueue(mark: Callable[[str], HostFunction]) -> None:  # type: ignore[valid-type]
        first, second = (ok("cuStreamCreate", calls.NON_BLOCKING) for _ in range(2))
        event = ok("cuEventCreate", 2)
        host_function(first, mark("a"))
        ok("cuEventRecord", event, first)
        ok("cuStreamWaitEvent", second, event, 0)
        host_function(second, mark("b"))

    assert orders(soft, enqueue) == {"ab"}


def test_the_null_stream_waits_for_blocking_streams_and_they_for_it(soft: Soft) -> None:
    def enqueue(mark: Callable[[str], HostFunction]) -> None:  # type: ignore[valid-type]
        first, second = (ok("cuStreamCreate", calls.BLOCKING) for _ in range(2))
        host_function(first, mark("a"))
        host_function(calls.LEGACY, mark("b"))
        host_function(second, mark("c"))

    assert orders(soft, enqueue) == {"abc"}


def test_the_null_stream_and_a_non_blocking_one_do_not_wait(soft: Soft) -> None:
    def enqueue(mark: Callable[[str], HostFunction]) -> None:  # type: ignore[valid-type]
        host_function(calls.LEGACY, mark("a"))
        host_function(ok("cuStreamCreate", calls.NON_BLOCKING), mark("b"))

    assert orders(soft, enqueue) == {"ab", "ba"}


def test_a_threads_own_stream_is_a_blocking_one(soft: Soft) -> None:
    def enqueue(mark: Callable[[str], HostFunction]) -> None:  # type: ignore[valid-type]
        host_function(calls.LEGACY, mark("a"))
        host_function(calls.PER_THREAD, mark("b"))
        host_function(calls.LEGACY, mark("c"))

    assert orders(soft, enqueue) == {"abc"}


def test_a_driver_call_in_a_host_function_is_refused(soft: Soft) -> None:
    start()
    codes = []
    function = HostFunction(lambda _: codes.append(code("cuCtxSynchronize")))
    host_function(calls.LEGACY, function)
    ok("cuCtxSynchronize")
    assert codes == [800]


def test_a_query_makes_progress(soft: Soft) -> None:
    start()
    (add,) = calls.functions(calls.KERNELS, "add")
    out, event = calls.words(1), ok("cuEventCreate", 2)
    stream = ok("cuStreamCreate", calls.NON_BLOCKING)
    for _ in range(10):
        calls.launch(add, out, 1, stream=stream)
    ok("cuEventRecord", event, stream)
    codes = [code("cuEventQuery", event)]
    while codes[-1] == calls.NOT_READY:
        codes.append(code("cuEventQuery", event))
        assert len(codes) < 100
    assert codes[-1] == 0
    assert len(codes) > 2
    assert code("cuStreamQuery", stream) == 0
    assert calls.read(out) == [10]


def test_others_enqueue_and_ask_while_a_host_function_runs(soft: Soft) -> None:
    start()
    (store,) = calls.functions(calls.KERNELS, "store")
    out, event, go = calls.words(1), ok("cuEventCreate", 2), threading.Event()
    blocked, free = (ok("cuStreamCreate", calls.NON_BLOCKING) for _ in range(2))
    waits = HostFunction(lambda _: go.wait(30))
    host_function(blocked, waits)
    ok("cuEventRecord", event, blocked)
    assert {code("cuEventQuery", event) for _ in range(8)} == {calls.NOT_READY}
    calls.launch(store, out, 5, stream=free)
    ok("cuStreamSynchronize", free)
    go.set()
    ok("cuEventSynchronize", event)
    assert calls.read(out) == [5]


def test_events_time(soft: Soft) -> None:
    start()
    begin, end, untimed = (ok("cuEventCreate", flags) for flags in (0, 0, 2))
    assert code("cuEventElapsedTime", begin, end) == calls.INVALID_HANDLE
    ok("cuEventRecord", begin, 0)
    ok("cuEventRecord", end, 0)
    ok("cuEventRecord", untimed, 0)
    assert code("cuEventElapsedTime", begin, end) == calls.NOT_READY
    ok("cuCtxSynchronize")
    assert ok("cuEventElapsedTime", begin, end) >= 0
    assert code("cuEventElapsedTime", begin, untimed) == calls.INVALID_HANDLE


def test_an_event_never_recorded_is_found(soft: Soft) -> None:
    start()
    event = ok("cuEventCreate", 2)
    assert code("cuEventQuery", event) == 0
    ok("cuStreamWaitEvent", ok("cuStreamCreate", calls.NON_BLOCKING), event, 0)
    assert len(soft.take_findings("event-never-recorded")) == 1


def test_streams_have_properties(soft: Soft) -> None:
    start()
    assert ok("cuCtxGetStreamPriorityRange") == (0, -5)
    stream = ok("cuStreamCreateWithPriority", calls.NON_BLOCKING, -9)
    assert ok("cuStreamGetPriority", stream) == -5
    assert ok("cuStreamGetFlags", stream) == calls.NON_BLOCKING
    assert code("cuStreamCreate", 2) == calls.INVALID_VALUE
    ok("cuStreamDestroy", stream)
    assert code("cuStreamDestroy", stream) == calls.INVALID_HANDLE


class TestCopies:
    def begin(self, soft: Soft, **knobs: object) -> tuple[int, object]:
        soft.reset(**knobs)
        start()
        return calls.words(4), ok("cuStreamCreate", calls.NON_BLOCKING)

    def test_a_pinned_source_must_not_change(self, soft: Soft) -> None:
        block, stream = self.begin(soft)
        source = calls.pinned(4)
        ok("cuMemcpyHtoDAsync", block, source.ctypes.data, 16, stream)
        source[2] = 1
        ok("cuStreamSynchronize", stream)
        (found,) = soft.take_findings("source-changed")
        assert "cuMemcpyHtoDAsync" in found.where
        assert "16 bytes" in found.where

    def test_a_pinned_source_may_change_after_the_copy(self, soft: Soft) -> None:
        block, stream = self.begin(soft)
        source = calls.pinned(4)
        source[:] = [1, 2, 3, 4]
        ok("cuMemcpyHtoDAsync", block, source.ctypes.data, 16, stream)
        ok("cuStreamSynchronize", stream)
        source[:] = 9
        assert calls.read(block, 4) == [1, 2, 3, 4]

    def test_a_pageable_source_is_staged(self, soft: Soft) -> None:
        block, stream = self.begin(soft)
        source = np.array([1, 2, 3, 4], np.uint32)
        ok("cuMemcpyHtoDAsync", block, source.ctypes.data, 16, stream)
        source[:] = 9
        assert calls.read(block, 4) == [1, 2, 3, 4]

    def test_a_pinned_target_is_poison_until_the_copy_is_done(self, soft: Soft) -> None:
        block, stream = self.begin(soft)
        target = calls.pinned(4)
        ok("cuMemcpyDtoHAsync", target.ctypes.data, block, 16, stream)
        assert (target == 0xFFFFFFFF).all()
        ok("cuStreamSynchronize", stream)
        assert (target == 0).all()

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_pinned_buffer_may_be_source_and_target_in_turn(self, soft: Soft, seed: int) -> None:
        block, stream = self.begin(soft, seed=seed)
        (add,) = calls.functions(calls.KERNELS, "add")
        both = calls.pinned(4)
        both[:] = 5
        ok("cuMemcpyHtoDAsync", block, both.ctypes.data, 16, stream)
        calls.launch(add, block, 1, stream=stream, block=(4, 1, 1))
        ok("cuMemcpyDtoHAsync", both.ctypes.data, block, 16, stream)
        ok("cuStreamSynchronize", stream)
        assert both.tolist() == [6] * 4

    def test_into_pageable_memory_the_call_waits(self, soft: Soft) -> None:
        block, stream = self.begin(soft)
        (store,) = calls.functions(calls.KERNELS, "store")
        target = np.zeros(4, np.uint32)
        calls.launch(store, block, 3, stream=stream, block=(4, 1, 1))
        ok("cuMemcpyDtoHAsync", target.ctypes.data, block, 16, stream)
        assert target.tolist() == [3] * 4

    def test_a_staged_synchronous_copy_is_not_ordered_with_a_non_blocking_stream(self, soft: Soft) -> None:
        seen = set()
        for seed in range(12):
            block, stream = self.begin(soft, seed=seed)
            (add,) = calls.functions(calls.KERNELS, "add")
            source = np.full(1, 40, np.uint32)
            ok("cuMemcpyHtoD", block, source.ctypes.data, 4)
            calls.launch(add, block, 2, stream=stream)
            seen.add(calls.read(block)[0])
            (found,) = soft.take_findings("copy-not-ordered")
            assert "kernel add" in found.where
        assert seen == {40, 42}

    @pytest.mark.parametrize("seed", SEEDS)
    def test_it_is_after_a_wait_or_in_a_blocking_stream(self, soft: Soft, seed: int) -> None:
        block, stream = self.begin(soft, seed=seed)
        (add,) = calls.functions(calls.KERNELS, "add")
        source = np.full(1, 40, np.uint32)
        ok("cuMemcpyHtoD", block, source.ctypes.data, 4)
        calls.launch(add, block, 2, stream=ok("cuStreamCreate", calls.BLOCKING))
        ok("cuCtxSynchronize")
        calls.launch(add, block, 2, stream=stream)
        assert calls.read(block) == [44]

    def test_strictly_no_copy_holds_the_host_up(self, soft: Soft) -> None:
        block, stream = self.begin(soft, strict_copies=True)
        host = calls.pinned(4)
        ok("cuMemcpyHtoDAsync", block, host.ctypes.data, 16, stream)
        ok("cuMemcpyDtoHAsync", host.ctypes.data, block, 16, stream)
        ok("cuStreamSynchronize", stream)
        soft.check()
        pageable = np.zeros(4, np.uint32)
        ok("cuMemcpyHtoD", block, host.ctypes.data, 16)
        ok("cuMemcpyDtoHAsync", pageable.ctypes.data, block, 16, stream)
        assert len(soft.take_findings("synchronous-copy")) == 2


class TestInFlight:
    def begin(self, soft: Soft) -> tuple[int, object, object]:
        start()
        (store,) = calls.functions(calls.KERNELS, "store")
        return calls.words(4), ok("cuStreamCreate", calls.NON_BLOCKING), store

    def test_freeing_what_a_kernel_is_about_to_write(self, soft: Soft) -> None:
        block, stream, store = self.begin(soft)
        calls.launch(store, block, 3, stream=stream)
        assert code("cuMemFree", block) == 0
        (found,) = soft.take_findings("free-in-flight")
        assert "kernel store" in found.where

    def test_freeing_what_a_copy_is_about_to_read(self, soft: Soft) -> None:
        block, stream, _ = self.begin(soft)
        source = int(ok("cuMemHostAlloc", 16, 0))
        ok("cuMemcpyHtoDAsync", block, source, 16, stream)
        assert code("cuMemFreeHost", source) == 0
        assert len(soft.take_findings("free-in-flight")) == 1

    def test_freeing_after_the_work(self, soft: Soft) -> None:
        block, stream, store = self.begin(soft)
        calls.launch(store, block, 3, stream=stream)
        ok("cuStreamSynchronize", stream)
        assert code("cuMemFree", block) == 0

    def test_freeing_something_else(self, soft: Soft) -> None:
        block, stream, store = self.begin(soft)
        other = calls.words(4)
        calls.launch(store, block, 3, stream=stream)
        assert code("cuMemFree", other) == 0

    def test_unloading_a_module_that_is_about_to_run(self, soft: Soft) -> None:
        block, stream, store = self.begin(soft)
        calls.launch(store, block, 3, stream=stream)
        assert code("cuModuleUnload", ok("cuFuncGetModule", store)) == 0
        assert len(soft.take_findings("unload-in-flight")) == 1
        assert calls.launch_code(store, block, 3) == calls.INVALID_HANDLE
