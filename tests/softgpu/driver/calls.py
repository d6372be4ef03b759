"""How the driver's tests make calls, for the value or for the code, and what most need: a context, words, kernels."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver

from tests import softgpu

ROOT = Path(__file__).parents[3]
INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, INVALID_CONTEXT, INVALID_HANDLE = 1, 2, 3, 201, 400
NOT_FOUND, NOT_READY, ILLEGAL_ADDRESS, OUT_OF_RESOURCES, NOT_SUPPORTED = 500, 600, 700, 701, 801
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED = 900, 901
LEGACY, PER_THREAD = 0, 2  # stream handles
BLOCKING, NON_BLOCKING = 0, 1  # stream flags
GLOBAL, THREAD_LOCAL, RELAXED = (driver.CUstreamCaptureMode(mode) for mode in range(3))

_ENTRY = """\
.visible .entry {name}(.param .u64 p_out, .param .u32 p_value){directives}
{{
.reg .b64 %rd<4>; .reg .b32 %r<4>;
ld.param.u64 %rd1, [p_out];
ld.param.u32 %r1, [p_value];
cvta.to.global.u64 %rd1, %rd1;
mov.u32 %r2, %tid.x;
mul.wide.u32 %rd2, %r2, 4;
add.s64 %rd1, %rd1, %rd2;
{body}
ret;
}}
"""
STORE = "st.global.u32 [%rd1], %r1;"
ADD = "ld.global.u32 %r3, [%rd1];\nadd.u32 %r3, %r3, %r1;\nst.global.u32 [%rd1], %r3;"
TWICE_AND_ADD = "ld.global.u32 %r3, [%rd1];\nshl.b32 %r3, %r3, 1;\nadd.u32 %r3, %r3, %r1;\nst.global.u32 [%rd1], %r3;"


def entry(name: str, body: str, directives: str = "") -> str:
    """An entry (u64 out, u32 value): %rd1 is the address of the thread's word of `out`, %r1 the value."""
    return _ENTRY.format(name=name, body=body, directives=f" {directives}" if directives else "")


def module(*entries: str, version: str = "7.4", target: str = "sm_80", before: str = "") -> bytes:
    header = f".version {version}\n.target {target}\n.address_size 64\n{before}\n"
    return (header + "\n".join(entries)).encode() + b"\0"


KERNELS = module(entry("store", STORE), entry("add", ADD), entry("twice", TWICE_AND_ADD))


def code(name: str, *arguments: Any) -> int:
    """The call's result code."""
    return int(getattr(driver, name)(*arguments)[0])


def ok(name: str, *arguments: Any) -> Any:
    """What the call gives; it must succeed."""
    result, *values = getattr(driver, name)(*arguments)
    assert result == driver.CUresult.CUDA_SUCCESS, f"{name}: {result!r}"
    return values[0] if len(values) == 1 else tuple(values)


def start(device: int = 0) -> Any:
    """The primary context of a device, current on this thread."""
    ok("cuInit", 0)
    context = ok("cuDevicePrimaryCtxRetain", ok("cuDeviceGet", device))
    ok("cuCtxSetCurrent", context)
    return context


def functions(image: bytes = KERNELS, *names: str) -> list[Any]:
    loaded = ok("cuModuleLoadData", image)
    return [ok("cuModuleGetFunction", loaded, name.encode()) for name in names]


def warm(*kernels: Any) -> None:
    """What a function's first use loads is loaded."""
    for kernel in kernels:
        ok("cuFuncGetAttribute", driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, kernel)


def launch_code(
    kernel: Any,
    out: int,
    value: int,
    *,
    stream: Any = LEGACY,
    grid: Any = (1, 1, 1),
    block: Any = (1, 1, 1),
    shared: int = 0,
) -> int:
    arguments = ((int(out), value), (ctypes.c_uint64, ctypes.c_uint32))
    return code("cuLaunchKernel", kernel, *grid, *block, shared, stream, arguments, 0)


def launch(kernel: Any, out: int, value: int, **how: Any) -> None:
    assert launch_code(kernel, out, value, **how) == 0


def words(count: int, value: int = 0) -> int:
    """Device memory of `count` words, all of this value."""
    address = int(ok("cuMemAlloc", 4 * count))
    ok("cuMemsetD32", address, value, count)
    ok("cuCtxSynchronize")
    return address


def read(address: int, count: int = 1) -> list[int]:
    """Device words, after all work."""
    ok("cuCtxSynchronize")
    out = np.empty(count, np.uint32)
    ok("cuMemcpyDtoH", out.ctypes.data, address, out.nbytes)
    return out.tolist()


def pinned(count: int) -> np.ndarray:
    """Words of pinned host memory, zero. They live until the soft GPU is reset."""
    address = int(ok("cuMemHostAlloc", 4 * count, 0))
    array = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint32)), (count,))
    array[:] = 0
    return array


def child(script: str, **knobs: Any) -> Any:
    """Runs a script in a process of its own with the soft GPU as its driver; gives what it prints, read as JSON."""
    lines = "import json\nfrom tests.softgpu.driver.calls import *\n" + script
    done = subprocess.run(
        [sys.executable, "-c", lines],
        env=softgpu.environment(**knobs),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
