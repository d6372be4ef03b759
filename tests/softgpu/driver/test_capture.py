"""Stream capture: what it forbids on which thread, how captures join and end, and what it freezes."""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from tests.softgpu.fixtures import Soft

from . import calls
from .calls import code, ok, start

INVALIDATED, ACTIVE, NONE = 2, 1, 0


class Capturing:
    """A capture on a non-blocking stream, with a warmed kernel and a word to write."""

    def __init__(self, mode: Any = calls.GLOBAL, flags: int = calls.NON_BLOCKING) -> None:
        start()
        self.store, self.add = calls.functions(calls.KERNELS, "store", "add")
        calls.warm(self.store, self.add)
        self.out = calls.words(4)
        self.event = ok("cuEventCreate", 2)
        self.stream, self.other = ok("cuStreamCreate", flags), ok("cuStreamCreate", calls.NON_BLOCKING)
        ok("cuStreamBeginCapture", self.stream, mode)

    def end(self) -> int:
        return code("cuStreamEndCapture", self.stream)

    def status(self) -> int:
        return int(ok("cuStreamIsCapturing", self.stream))


UNSAFE: dict[str, Callable[[Capturing], int]] = {
    "cuCtxSynchronize": lambda c: code("cuCtxSynchronize"),
    "cuStreamSynchronize": lambda c: code("cuStreamSynchronize", c.other),
    "cuStreamSynchronize, itself": lambda c: code("cuStreamSynchronize", c.stream),
    "cuStreamQuery": lambda c: code("cuStreamQuery", c.other),
    "cuEventQuery": lambda c: code("cuEventQuery", c.event),
    "cuEventSynchronize": lambda c: code("cuEventSynchronize", c.event),
    "cuMemAlloc": lambda c: code("cuMemAlloc", 16),
    "cuMemFree": lambda c: code("cuMemFree", c.out),
    "cuMemHostAlloc": lambda c: code("cuMemHostAlloc", 16, 0),
    "cuMemcpyHtoD": lambda c: code("cuMemcpyHtoD", c.out, np.zeros(1, np.uint32).ctypes.data, 4),
    "cuMemsetD32": lambda c: code("cuMemsetD32", c.out, 0, 1),
    "cuModuleLoadData": lambda c: code("cuModuleLoadData", calls.KERNELS),
    "cuFuncSetAttribute": lambda c: code(
        "cuFuncSetAttribute", c.store, driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1
    ),
}
# These would wait for what is only being recorded, whatever the mode.
ALWAYS = {"cuCtxSynchronize", "cuStreamSynchronize, itself"}


@pytest.mark.parametrize("call", UNSAFE)
@pytest.mark.parametrize("mode", [calls.GLOBAL, calls.THREAD_LOCAL])
def test_an_unsafe_call_on_the_capturing_thread(soft: Soft, call: str, mode: Any) -> None:
    capture = Capturing(mode)
    assert UNSAFE[call](capture) == calls.CAPTURE_UNSUPPORTED
    assert capture.status() == INVALIDATED
    assert calls.launch_code(capture.store, capture.out, 1, stream=capture.stream) == calls.CAPTURE_INVALIDATED
    assert capture.end() == calls.CAPTURE_INVALIDATED
    assert capture.status() == NONE
    assert UNSAFE[call](capture) == 0


@pytest.mark.parametrize("call", UNSAFE)
def test_a_relaxed_capture_allows_what_does_not_wait_for_it(soft: Soft, call: str) -> None:
    capture = Capturing(calls.RELAXED)
    expected = calls.CAPTURE_UNSUPPORTED if call in ALWAYS else 0
    assert UNSAFE[call](capture) == expected
    assert capture.end() == (calls.CAPTURE_INVALIDATED if expected else 0)


def elsewhere(function: Callable[[], int]) -> int:
    """The code that a call gives on another thread, in the same context."""
    context, codes = ok("cuCtxGetCurrent"), []

    def run() -> None:
        ok("cuCtxSetCurrent", context)
        codes.append(function())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return codes[0]


@pytest.mark.parametrize(("mode", "expected"), [(calls.GLOBAL, 900), (calls.THREAD_LOCAL, 0), (calls.RELAXED, 0)])
def test_an_unsafe_call_on_another_thread(soft: Soft, mode: Any, expected: int) -> None:
    capture = Capturing(mode)
    assert elsewhere(lambda: code("cuMemAlloc", 16)) == expected
    assert capture.end() == (calls.CAPTURE_INVALIDATED if expected else 0)


def test_a_thread_may_answer_for_itself(soft: Soft) -> None:
    capture = Capturing(calls.GLOBAL)

    def answered() -> int:
        assert ok("cuThreadExchangeStreamCaptureMode", calls.RELAXED) == calls.GLOBAL
        return code("cuMemAlloc", 16)

    assert elsewhere(answered) == 0
    assert capture.end() == 0


class TestTheNullStream:
    @pytest.mark.parametrize("mode", [calls.GLOBAL, calls.THREAD_LOCAL, calls.RELAXED])
    @pytest.mark.parametrize("thread", ["same", "other"])
    def test_against_a_blocking_capture(self, soft: Soft, mode: Any, thread: str) -> None:
        capture = Capturing(mode, calls.BLOCKING)

        def call() -> int:
            return calls.launch_code(capture.store, capture.out, 1)

        assert (call() if thread == "same" else elsewhere(call)) == 906
        assert capture.end() == calls.CAPTURE_INVALIDATED

    def test_a_synchronous_copy_is_a_call_to_it(self, soft: Soft) -> None:
        capture = Capturing(calls.THREAD_LOCAL, calls.BLOCKING)
        host = np.zeros(1, np.uint32)
        assert elsewhere(lambda: code("cuMemcpyHtoD", capture.out, host.ctypes.data, 4)) == 906
        assert capture.end() == calls.CAPTURE_INVALIDATED

    def test_against_a_non_blocking_capture(self, soft: Soft) -> None:
        capture = Capturing(calls.THREAD_LOCAL)
        assert calls.launch_code(capture.store, capture.out, 1) == 0
        assert capture.end() == 0

    def test_it_cannot_be_captured(self, soft: Soft) -> None:
        start()
        assert code("cuStreamBeginCapture", calls.LEGACY, calls.GLOBAL) == calls.CAPTURE_UNSUPPORTED


class TestJoining:
    def test_fork_and_join(self, soft: Soft) -> None:
        capture = Capturing()
        back = ok("cuEventCreate", 2)
        calls.launch(capture.store, capture.out, 5, stream=capture.stream)
        ok("cuEventRecord", capture.event, capture.stream)
        ok("cuStreamWaitEvent", capture.other, capture.event, 0)
        assert int(ok("cuStreamIsCapturing", capture.other)) == ACTIVE
        calls.launch(capture.add, capture.out, 1, stream=capture.other)
        ok("cuEventRecord", back, capture.other)
        ok("cuStreamWaitEvent", capture.stream, back, 0)
        calls.launch(capture.add, capture.out, 1, stream=capture.stream)
        graph = ok("cuStreamEndCapture", capture.stream)
        assert int(ok("cuStreamIsCapturing", capture.other)) == NONE
        assert ok("cuGraphGetNodes", graph, 0)[1] == 3
        ok("cuGraphLaunch", ok("cuGraphInstantiate", graph, 0), capture.stream)
        assert calls.read(capture.out) == [7]

    def test_unjoined_work(self, soft: Soft) -> None:
        capture = Capturing()
        calls.launch(capture.store, capture.out, 5, stream=capture.stream)
        ok("cuEventRecord", capture.event, capture.stream)
        ok("cuStreamWaitEvent", capture.other, capture.event, 0)
        calls.launch(capture.add, capture.out, 1, stream=capture.other)
        assert capture.end() == 904
        assert int(ok("cuStreamIsCapturing", capture.other)) == NONE

    def test_an_event_of_uncaptured_work(self, soft: Soft) -> None:
        capture = Capturing()
        ok("cuEventRecord", capture.event, capture.other)
        assert code("cuStreamWaitEvent", capture.stream, capture.event, 0) == 905
        assert capture.end() == calls.CAPTURE_INVALIDATED

    def test_two_captures_do_not_merge(self, soft: Soft) -> None:
        capture = Capturing()
        ok("cuStreamBeginCapture", capture.other, calls.GLOBAL)
        ok("cuEventRecord", capture.event, capture.other)
        assert code("cuStreamWaitEvent", capture.stream, capture.event, 0) == 902
        assert capture.end() == calls.CAPTURE_INVALIDATED
        assert code("cuStreamEndCapture", capture.other) == calls.CAPTURE_INVALIDATED

    @pytest.mark.parametrize("call", ["cuEventQuery", "cuEventSynchronize"])
    def test_a_captured_event_has_no_time(self, soft: Soft, call: str) -> None:
        capture = Capturing(calls.RELAXED)
        ok("cuEventRecord", capture.event, capture.stream)
        assert code(call, capture.event) == 907
        assert capture.end() == calls.CAPTURE_INVALIDATED

    def test_a_joined_stream_cannot_end_it(self, soft: Soft) -> None:
        capture = Capturing()
        ok("cuEventRecord", capture.event, capture.stream)
        ok("cuStreamWaitEvent", capture.other, capture.event, 0)
        assert code("cuStreamEndCapture", capture.other) == 903


class TestEnding:
    @pytest.mark.parametrize(("mode", "result"), [(calls.GLOBAL, 908), (calls.THREAD_LOCAL, 908), (calls.RELAXED, 0)])
    def test_on_another_thread(self, soft: Soft, mode: Any, result: int) -> None:
        capture = Capturing(mode)
        assert elsewhere(capture.end) == result
        assert capture.end() == (0 if result else 401)

    def test_what_was_not_begun(self, soft: Soft) -> None:
        capture = Capturing()
        assert code("cuStreamEndCapture", capture.other) == 401
        assert code("cuStreamBeginCapture", capture.stream, calls.GLOBAL) == 401
        assert capture.end() == 0

    def test_information(self, soft: Soft) -> None:
        capture = Capturing()
        calls.launch(capture.store, capture.out, 1, stream=capture.stream)
        status, identity, graph, nodes, *rest = ok("cuStreamGetCaptureInfo", capture.stream)
        assert int(status) == ACTIVE
        assert int(identity) > 0
        assert len(nodes) == rest[-1] == 1
        assert int(ok("cuStreamGetCaptureInfo", capture.other)[0]) == NONE
        assert int(ok("cuStreamEndCapture", capture.stream)) == int(graph)


class TestFreezing:
    def test_parameters_freeze(self, soft: Soft) -> None:
        capture = Capturing()
        value = ctypes.c_uint32(5)
        address = ctypes.c_uint64(capture.out)
        pointers = (ctypes.c_void_p * 2)(ctypes.addressof(address), ctypes.addressof(value))
        ok("cuLaunchKernel", capture.store, 1, 1, 1, 1, 1, 1, 0, capture.stream, ctypes.addressof(pointers), 0)
        value.value = 6
        executable = ok("cuGraphInstantiate", ok("cuStreamEndCapture", capture.stream), 0)
        assert calls.read(capture.out) == [0]  # recorded, not run
        ok("cuGraphLaunch", executable, capture.stream)
        assert calls.read(capture.out) == [5]

    def test_pageable_memory_in_a_capture_is_found(self, soft: Soft) -> None:
        capture = Capturing()
        host = np.zeros(4, np.uint32)
        ok("cuMemcpyHtoDAsync", capture.out, host.ctypes.data, 16, capture.stream)
        assert capture.end() == 0
        (found,) = soft.take_findings("pageable-in-graph")
        assert "cuMemcpyHtoDAsync" in found.where

    def test_pinned_memory_is_read_at_launch(self, soft: Soft) -> None:
        start()
        host = calls.pinned(4)
        capture = Capturing()
        ok("cuMemcpyHtoDAsync", capture.out, host.ctypes.data, 16, capture.stream)
        executable = ok("cuGraphInstantiate", ok("cuStreamEndCapture", capture.stream), 0)
        host[:] = [1, 2, 3, 4]
        ok("cuGraphLaunch", executable, capture.stream)
        assert calls.read(capture.out, 4) == [1, 2, 3, 4]
        ok("cuGraphLaunch", executable, capture.stream)
        host[:] = 9
        ok("cuCtxSynchronize")
        assert len(soft.take_findings("source-changed")) == 1


class TestFirstUse:
    def capture_it(self, prepare: Callable[[Any], object]) -> None:
        start()
        (store,) = calls.functions(calls.KERNELS, "store")
        out, stream = calls.words(1), ok("cuStreamCreate", calls.NON_BLOCKING)
        prepare(store)
        ok("cuStreamBeginCapture", stream, calls.GLOBAL)
        calls.launch(store, out, 1, stream=stream)
        ok("cuStreamEndCapture", stream)

    def test_in_a_capture_is_found(self, soft: Soft) -> None:
        self.capture_it(lambda store: None)
        (found,) = soft.take_findings("first-use-in-capture")
        assert "store" in found.where

    def test_after_a_launch(self, soft: Soft) -> None:
        def launch(store: Any) -> None:
            calls.launch(store, calls.words(1), 1)
            ok("cuCtxSynchronize")

        self.capture_it(launch)

    def test_after_loading_it(self, soft: Soft) -> None:
        self.capture_it(lambda store: ok("cuFuncLoad", store))

    def test_after_asking_about_it(self, soft: Soft) -> None:
        self.capture_it(lambda store: calls.warm(store))

    @pytest.mark.parametrize(("mode", "eager"), [("EAGER", True), ("LAZY", False)])
    def test_by_loading_mode(self, soft: Soft, monkeypatch: pytest.MonkeyPatch, mode: str, eager: bool) -> None:
        monkeypatch.setenv("CUDA_MODULE_LOADING", mode)
        self.capture_it(lambda store: None)
        assert (int(ok("cuModuleGetLoadingMode")) == 1) == eager
        assert (soft.take_findings("first-use-in-capture") == []) == eager
