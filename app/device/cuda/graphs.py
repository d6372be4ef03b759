"""Decode steps as graphs: captured once for each number of sequences, then replayed by a single launch.

A step is filled up with idle sequences to the next number that there are graphs of, so those are few. What a graph
holds are addresses and grids, and for such a step these depend on nothing else: see step.py.
"""

import bisect
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ..base import Stage
from . import driver
from .errors import CudaError, DeviceLostError

EXECUTABLE_BYTES = 1 << 20  # that the driver takes of the device for one
_FORMS = 5  # of graphs of a bucket: see Key

R = TypeVar("R")

_log = logging.getLogger(__name__)


class Key(NamedTuple):
    """What a graph is known by."""

    bucket: int  # sequences
    stage: Stage
    is_plain: bool  # of its sampling; False where there is none

    def __str__(self) -> str:
        """As launches are told, "norm_rms_warp_bf16 [4, 1, 1]": "graph_step_plain [8]"."""
        return f"graph_{self.stage}{'_plain' if self.is_plain else ''} [{self.bucket}]"


@dataclass(frozen=True, slots=True)
class _Captured:
    """executable: None where the driver made none. result: what the captured calls gave."""

    title: str
    executable: driver.GraphExec | None = None
    result: Any = None


class Graphs:
    """Graphs on one stream. `remember` is told of each launch."""

    def __init__(self, num_seqs: int, stream: driver.Stream, remember: Callable[[str], None], name: str) -> None:
        """num_seqs: of the largest step. name: the device's."""
        self._buckets = buckets(num_seqs)
        self._stream = stream
        self._remember = remember
        self._name = name
        self._captured: dict[Key, _Captured] = {}
        self._is_refused = False  # a graph was not to be had: no more are made before they are needed
        self._is_new = True  # no step has been run

    def bucket(self, count: int) -> int:
        """The number of sequences that a step of `count` is filled up to."""
        return self._buckets[bisect.bisect_left(self._buckets, count)]

    def run(self, key: Key, compute: Callable[[], R]) -> R:
        """Has done what `compute` enqueues, and gives what it gave when it was captured.

        The very first step is launched as it comes: where steps are started ahead, it is before the first token that
        a client gets, which is not to wait until a graph is made.
        """
        captured = self._captured.get(key)
        if captured is None:
            if self._is_new:
                self._is_new = False
                return compute()
            captured = self.capture(key, compute)
        if captured.executable is None:
            return compute()
        self._remember(captured.title)
        driver.launch_graph(captured.executable, self._stream)
        result: R = captured.result
        return result

    def capture(self, key: Key, compute: Callable[[], object]) -> _Captured:
        """Makes the graph of what `compute` enqueues. Where the driver makes none such steps stay as they are."""
        try:
            captured = self._capture(str(key), compute)
        except DeviceLostError:
            raise
        except CudaError as error:
            if not self._is_refused:
                _log.warning("%s: no %s, its like are launched kernel by kernel: %s", self._name, key, error)
            self._is_refused = True
            captured = _Captured(str(key))
        self._captured[key] = captured
        return captured

    def missing(self) -> Key | None:
        """The next graph of those that most decode steps are replayed by; None where all are there that can be."""
        if self._is_refused:
            return None
        keys = (Key(bucket, "step", is_plain) for bucket in self._buckets for is_plain in (True, False))
        return next((key for key in keys if key not in self._captured), None)

    def close(self) -> None:
        """None may be under way."""
        for captured in self._captured.values():
            if captured.executable is not None:
                driver.destroy_executable(captured.executable)

    def _capture(self, title: str, compute: Callable[[], object]) -> _Captured:
        try:
            with _uncollected():
                driver.begin_capture(self._stream)
                result = compute()
                graph = driver.end_capture(self._stream)
        except BaseException:
            self._abandon()
            raise
        try:
            executable = driver.instantiate(graph)
        finally:
            driver.destroy_graph(graph)
        try:
            driver.upload_graph(executable, self._stream)
        except CudaError:
            driver.destroy_executable(executable)
            raise
        return _Captured(title, executable, result)

    def _abandon(self) -> None:
        """Ends a capture that failed or was interrupted, wherever it was, so that the stream works again."""
        try:
            driver.destroy_graph(driver.end_capture(self._stream))
        except CudaError as error:
            _log.debug("a capture that failed left no graph: %s", error)


@contextmanager
def _uncollected() -> Iterator[None]:
    """A collection may find a device that was dropped, whose memory must not be freed while this thread captures."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def buckets(num_seqs: int) -> list[int]:
    """1, 2, 4, every 8 to 64, then four to each doubling, and num_seqs: of 32 rows and more, at most a fifth idle."""
    numbers = [1, 2, 4, 8]
    while numbers[-1] < num_seqs:
        numbers.append(numbers[-1] + max(8, 1 << numbers[-1].bit_length() - 3))
    return [number for number in numbers if number < num_seqs] + [num_seqs]


def reserved_bytes(num_seqs: int) -> int:
    """What all graphs of steps of up to so many sequences take."""
    return len(buckets(num_seqs)) * _FORMS * EXECUTABLE_BYTES
