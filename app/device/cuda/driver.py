"""The CUDA driver API as typed functions that raise CudaError: the only file that imports cuda.bindings.

Each function is one call. Addresses, of either side, are int; the rest are the bindings' own handles, opaque to
everybody else. Calls act on the context that is current on their thread.
"""

import ctypes
import logging
import time
from typing import Any, NewType

from cuda.bindings import driver as _cuda

from .early import LIBRARY, environment
from .errors import FABRIC_NOT_READY, CudaError, failure, no_driver, old_driver

Context = NewType("Context", object)
Stream = NewType("Stream", object)
Event = NewType("Event", object)
Module = NewType("Module", object)
Function = NewType("Function", object)
Graph = NewType("Graph", object)
GraphExec = NewType("GraphExec", object)

FLOOR = 12020  # CUDA 12.2
FABRIC_SECONDS = 30.0  # that an H200's fabric may take after a boot
_RETRY_SECONDS = 0.25
_LOG_BYTES = 4096  # of the PTX compiler's words

_log = logging.getLogger(__name__)


# --- the process and its devices ------------------------------------------------------------------------------


def initialize() -> None:
    """Loads the driver and initialises it. Waits for a fabric that is not ready, up to FABRIC_SECONDS."""
    environment()
    version = driver_version()
    if version < FLOOR:
        raise old_driver(version, FLOOR)
    _call_patiently("cuInit", 0)


def driver_version() -> int:
    """The CUDA version that the driver brings: 12020 is 12.2.

    Asked of the library itself: the bindings can make no call of one before 12.0.
    """
    version = ctypes.c_int()
    try:
        ctypes.CDLL(LIBRARY).cuDriverGetVersion(ctypes.byref(version))
    except OSError as error:
        raise no_driver(str(error)) from None
    return version.value


def device_count() -> int:
    return int(_call("cuDeviceGetCount"))


def device_name(ordinal: int) -> str:
    name: bytes = _call("cuDeviceGetName", 256, ordinal)
    return name.split(b"\0")[0].decode(errors="replace")


def compute_capability(ordinal: int) -> tuple[int, int]:
    attribute = _cuda.CUdevice_attribute
    major = _call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ordinal)
    minor = _call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, ordinal)
    return int(major), int(minor)


def multiprocessor_count(ordinal: int) -> int:
    attribute = _cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    return int(_call("cuDeviceGetAttribute", attribute, ordinal))


def shared_bytes(ordinal: int) -> int:
    """Shared memory of a block, at most, once the kernel's attribute asks for it."""
    attribute = _cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    return int(_call("cuDeviceGetAttribute", attribute, ordinal))


def retain_primary_context(ordinal: int) -> Context:
    """Waits for a fabric that is not ready, as `initialize` does."""
    return Context(_call_patiently("cuDevicePrimaryCtxRetain", ordinal))


def set_current(context: Context) -> None:
    """Makes the context this thread's."""
    _call("cuCtxSetCurrent", context)


def push_current(context: Context) -> None:
    """`set_current` until pop_current, which brings back the one that was."""
    _call("cuCtxPushCurrent", context)


def pop_current() -> None:
    _call("cuCtxPopCurrent")


def memory_info() -> tuple[int, int]:
    """Bytes of the device that are free, and all of them."""
    free, total = _call("cuMemGetInfo")
    return int(free), int(total)


# --- memory and copies ----------------------------------------------------------------------------------------


def allocate(nbytes: int, detail: str) -> int:
    return int(_call("cuMemAlloc", nbytes, detail=detail))


def free(address: int) -> None:
    _call("cuMemFree", address)


def register_host(address: int, nbytes: int) -> None:
    """Page-locks host memory that is the caller's."""
    _call("cuMemHostRegister", address, nbytes, 0)


def unregister_host(address: int) -> None:
    _call("cuMemHostUnregister", address)


def clear(address: int, nbytes: int, stream: Stream) -> None:
    """Zeroes device memory, in the stream's order."""
    _call("cuMemsetD8Async", address, 0, nbytes, stream)


def copy_to_device(device: int, host: int, nbytes: int, stream: Stream) -> None:
    """In the stream's order; the host memory must stay as it is until then."""
    _call("cuMemcpyHtoDAsync", device, host, nbytes, stream)


def copy_to_host(host: int, device: int, nbytes: int, stream: Stream) -> None:
    """In the stream's order; the host memory is nobody's until then."""
    _call("cuMemcpyDtoHAsync", host, device, nbytes, stream)


# --- streams and events ---------------------------------------------------------------------------------------


def create_stream() -> Stream:
    """Non-blocking: what is done in the legacy stream, by whomever, neither waits for it nor breaks its captures."""
    return Stream(_call("cuStreamCreate", _cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))


def destroy_stream(stream: Stream) -> None:
    _call("cuStreamDestroy", stream)


def synchronize_stream(stream: Stream) -> None:
    _call("cuStreamSynchronize", stream)


def create_event() -> Event:
    """A thread that waits for it sleeps: spinning would take a CPU from whoever shares the container."""
    flags = _cuda.CUevent_flags
    return Event(_call("cuEventCreate", flags.CU_EVENT_DISABLE_TIMING | flags.CU_EVENT_BLOCKING_SYNC))


def destroy_event(event: Event) -> None:
    _call("cuEventDestroy", event)


def record_event(event: Event, stream: Stream) -> None:
    _call("cuEventRecord", event, stream)


def synchronize_event(event: Event) -> None:
    """Waits for what was in the stream when the event was recorded; not at all where it never was."""
    _call("cuEventSynchronize", event)


# --- modules, functions, launches -----------------------------------------------------------------------------


def load_module(image: bytes, detail: str) -> Module:
    """A cubin, or PTX ended by a NUL byte. Where PTX is refused, the compiler's words are in the error."""
    log = bytearray(_LOG_BYTES)
    option = _cuda.CUjit_option
    options = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    result, module = _answer("cuModuleLoadDataEx", image, len(options), options, [log, len(log)])
    words = log.split(b"\0")[0].decode(errors="replace").split()
    _check("cuModuleLoadData", result, f"{detail}: {' '.join(words)}" if words else detail)
    return Module(module)


def unload_module(module: Module) -> None:
    _call("cuModuleUnload", module)


def get_function(module: Module, entry: str) -> Function:
    return Function(_call("cuModuleGetFunction", module, entry.encode(), detail=entry))


def static_shared_bytes(function: Function) -> int:
    """Shared memory that each block of the function has, whatever a launch asks for."""
    attribute = _cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
    return int(_call("cuFuncGetAttribute", attribute, function))


def allow_shared_bytes(function: Function, nbytes: int, detail: str) -> None:
    """How much dynamic shared memory launches of the function may ask for."""
    attribute = _cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _call("cuFuncSetAttribute", function, attribute, nbytes, detail=detail)


def launch(
    function: Function,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    stream: Stream,
    parameters: int,
    detail: str,
) -> None:
    """parameters: address of an array of pointers, one to each argument, which are read before this returns."""
    result = _answer("cuLaunchKernel", function, *grid, *block, shared_bytes, stream, parameters, 0)[0]
    if result:
        _check("cuLaunchKernel", result, f"{detail}, grid {grid}, block {block}, {shared_bytes} bytes shared")


# --- graphs ---------------------------------------------------------------------------------------------------


def begin_capture(stream: Stream) -> None:
    """What this thread enqueues from now on becomes a graph. Other threads' calls are none of its concern."""
    _call("cuStreamBeginCapture", stream, _cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)


def end_capture(stream: Stream) -> Graph:
    return Graph(_call("cuStreamEndCapture", stream))


def instantiate(graph: Graph) -> GraphExec:
    return GraphExec(_call("cuGraphInstantiate", graph, 0))


def upload_graph(executable: GraphExec, stream: Stream) -> None:
    """Takes what the graph needs of the device's memory now, instead of at its first launch."""
    _call("cuGraphUpload", executable, stream)


def launch_graph(executable: GraphExec, stream: Stream) -> None:
    _call("cuGraphLaunch", executable, stream)


def destroy_graph(graph: Graph) -> None:
    _call("cuGraphDestroy", graph)


def destroy_executable(executable: GraphExec) -> None:
    _call("cuGraphExecDestroy", executable)


# --- results --------------------------------------------------------------------------------------------------


def _call(name: str, *arguments: Any, detail: str = "") -> Any:
    """Makes the call; what it gives. Raises CudaError."""
    result, *values = _answer(name, *arguments)
    _check(name, result, detail)
    return values[0] if len(values) == 1 else tuple(values)


def _answer(name: str, *arguments: Any) -> tuple[Any, ...]:
    """The call's result, and what it gives. Raises CudaError for a result that the bindings do not know."""
    try:
        answer: tuple[Any, ...] = getattr(_cuda, name)(*arguments)
    except ValueError as error:  # "999 is not a valid CUresult": the driver is newer than they are
        code, _, said = str(error).partition(" ")
        if "CUresult" not in said:
            raise
        raise failure(name, int(code), f"error {code}", "of a driver that is newer than these bindings") from None
    return answer


def _call_patiently(name: str, *arguments: Any) -> Any:
    """`_call`, again and again for FABRIC_SECONDS while the fabric between the GPUs is not ready."""
    deadline = time.monotonic() + FABRIC_SECONDS
    told = False
    while True:
        try:
            return _call(name, *arguments)
        except CudaError as error:
            left = deadline - time.monotonic()
            if error.code != FABRIC_NOT_READY:
                raise
            if left <= 0:
                raise CudaError(f"{error} (waited for {FABRIC_SECONDS:g} s)", error.code) from None
        if not told:
            _log.warning("%s: the NVSwitch fabric is not ready yet, trying for %g s", name, FABRIC_SECONDS)
            told = True
        time.sleep(min(_RETRY_SECONDS, left))


def _check(name: str, result: Any, detail: str = "") -> None:
    if not result:
        return
    code = int(result)
    title, text = (_words(getattr(_cuda, function)(result)) for function in ("cuGetErrorName", "cuGetErrorString"))
    raise failure(name, code, title or f"error {code}", text or "unknown to this driver", detail)


def _words(answer: tuple[Any, bytes | None]) -> str:
    return answer[1].decode() if answer[1] else ""
