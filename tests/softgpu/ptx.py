"""Runs a few lines of PTX and hands back numpy arrays: how tests of instructions and of rules talk to the machine.

Kept apart from the fixtures because it knows the driver API only: what it runs, a card runs too.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from cuda.bindings import driver

Output = np.ndarray | tuple[int | tuple[int, ...], Any]  # initial contents, or (shape, dtype) left as allocated

# What every entry may use without declaring it. %thread is the thread's index in the grid (x only), %lane its lane.
REGISTERS = """\
.reg .pred %p<16>;
.reg .b16 %h<32>;
.reg .b32 %r<64>;
.reg .b64 %rd<32>;
.reg .f32 %f<64>;
.reg .f64 %fd<32>;
.reg .b32 %thread, %lane;
.reg .b64 %at;"""


class DriverError(Exception):
    """A driver call's result other than success; `code` is the number of the CUresult."""

    def __init__(self, call: str, code: int, detail: str = "") -> None:
        super().__init__(f"{call}: error {code} {driver.CUresult(code).name}{detail}")
        self.code = code


def call(name: str, *arguments: Any) -> Any:
    """`driver.<name>(*arguments)`: what it returns besides the result code, or DriverError."""
    result, *values = getattr(driver, name)(*arguments)
    if result != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(name, int(result))
    return values[0] if len(values) == 1 else values


@contextmanager
def context(device: int = 0) -> Iterator[None]:
    """The device's primary context, current on this thread."""
    call("cuInit", 0)
    handle = call("cuDeviceGet", device)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", handle))
    try:
        yield
    finally:
        driver.cuCtxSetCurrent(driver.CUcontext(0))
        driver.cuDevicePrimaryCtxRelease(handle)


def module(
    body: str,
    *,
    inputs: int = 0,
    outputs: int = 0,
    scalars: int = 0,
    before: str = "",
    version: str = "7.4",
    target: str = "sm_80",
    directives: str = "",
) -> str:
    """A module with one entry, `probe`, its pointers in %in0, ..., %out0, ... and its 32-bit scalars in %s0, ...

    `before` goes to module scope (shared arrays, functions), `directives` between the parameters and the body.
    """
    pointers = [f"in{i}" for i in range(inputs)] + [f"out{i}" for i in range(outputs)]
    values = [f"s{i}" for i in range(scalars)]
    parameters = [f".param .u64 p_{name}" for name in pointers] + [f".param .u32 p_{name}" for name in values]
    lines = [f".version {version}", f".target {target}", ".address_size 64", before]
    lines += [f".visible .entry probe({', '.join(parameters)})", directives, "{", REGISTERS]
    for name in pointers:
        lines += [f".reg .b64 %{name};", f"ld.param.u64 %{name}, [p_{name}];"]
    for name in values:
        lines += [f".reg .b32 %{name};", f"ld.param.u32 %{name}, [p_{name}];"]
    lines += ["mov.u32 %r0, %ctaid.x;", "mov.u32 %r1, %ntid.x;", "mov.u32 %thread, %tid.x;"]
    lines += ["mad.lo.u32 %thread, %r0, %r1, %thread;", "mov.u32 %lane, %laneid;", body, "ret;", "}", ""]
    return "\n".join(line for line in lines if line)


def fetch(register: str, pointer: str, kind: str, elements: int = 1, index: str = "%thread") -> str:
    """Loads `pointer[index]`, each `elements` values of type `kind` wide (the first of them), into `register`."""
    return f"{_address(pointer, kind, elements, index)}\nld.global.{kind} {register}, [%at];"


def put(pointer: str, kind: str, register: str, elements: int = 1, index: str = "%thread", offset: int = 0) -> str:
    """Stores `register` at element `offset` of `pointer[index]`, each `elements` values of type `kind` wide."""
    width = int(kind[1:]) // 8
    return f"{_address(pointer, kind, elements, index)}\nst.global.{kind} [%at+{offset * width}], {register};"


def _address(pointer: str, kind: str, elements: int, index: str) -> str:
    return f"mad.wide.u32 %at, {index}, {int(kind[1:]) // 8 * elements}, {pointer};"


def run(
    text: str,
    inputs: Sequence[np.ndarray] = (),
    outputs: Sequence[Output] = (),
    scalars: Sequence[int] = (),
    *,
    entry: str = "probe",
    grid: int | tuple[int, int, int] = 1,
    block: int | tuple[int, int, int] = 32,
    shared: int = 0,
) -> list[np.ndarray]:
    """Loads the module, launches `entry`(inputs, outputs, scalars) once and gives the outputs' contents after it."""
    grid = (grid, 1, 1) if isinstance(grid, int) else grid
    block = (block, 1, 1) if isinstance(block, int) else block
    hosts = [np.ascontiguousarray(array) for array in inputs]
    hosts += [output.copy() if isinstance(output, np.ndarray) else np.empty(*output) for output in outputs]
    given = [True] * len(inputs) + [isinstance(output, np.ndarray) for output in outputs]
    with context():
        loaded = load(text)
        function = call("cuModuleGetFunction", loaded, entry.encode())
        if shared > 48 << 10:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call("cuFuncSetAttribute", function, attribute, shared)
        addresses = [int(call("cuMemAlloc", max(host.nbytes, 1))) for host in hosts]
        for address, host, known in zip(addresses, hosts, given, strict=True):
            if known and host.nbytes:
                call("cuMemcpyHtoD", address, host.ctypes.data, host.nbytes)
        values = (*addresses, *scalars)
        types = (ctypes.c_uint64,) * len(addresses) + (ctypes.c_uint32,) * len(scalars)
        arguments = (values, types) if values else 0
        call("cuLaunchKernel", function, *grid, *block, shared, 0, arguments, 0)
        call("cuCtxSynchronize")
        for address, host in zip(addresses[len(inputs) :], hosts[len(inputs) :], strict=True):
            if host.nbytes:
                call("cuMemcpyDtoH", host.ctypes.data, address, host.nbytes)
        for address in addresses:
            call("cuMemFree", address)
        call("cuModuleUnload", loaded)
    return hosts[len(inputs) :]


def load(text: str) -> Any:
    """cuModuleLoadDataEx in the current context; the error carries the loader's log."""
    log = bytearray(4096)
    options = [
        driver.CUjit_option.CU_JIT_ERROR_LOG_BUFFER,
        driver.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ]
    image = text.encode() + b"\0"
    result, loaded = driver.cuModuleLoadDataEx(image, 2, options, [log, len(log)])
    if result != driver.CUresult.CUDA_SUCCESS:
        raise DriverError("cuModuleLoadDataEx", int(result), "\n" + log.rstrip(b"\0").decode(errors="replace"))
    return loaded


def each(
    instructions: str, *sources: Any, result: Any, version: str = "7.4", target: str = "sm_80", block: int = 128
) -> np.ndarray:
    """Runs the instructions once a value: {a}, {b}, {c}, {e} hold the sources' elements, {d} takes the result.

    Registers have the width of the numpy type and no PTX type (8-bit values are in 16-bit registers); a bool is a
    predicate. Sources are broadcast; `result` is the dtype of what comes back.
    """
    arrays = np.broadcast_arrays(*[np.atleast_1d(source) for source in sources])
    count = arrays[0].size
    padded = -(-count // block) * block
    result = np.dtype(result)
    names = dict(zip("abce", ("%va", "%vb", "%vc", "%ve"), strict=True))
    lines = [_declare(names["abce"[i]], array.dtype) for i, array in enumerate(arrays)]
    lines.append(_declare("%vd", result))
    inputs = []
    for i, array in enumerate(arrays):
        register = names["abce"[i]]
        flat = np.resize(array.ravel(), padded)
        if array.dtype == np.bool_:
            inputs.append(flat.astype(np.uint32))
            lines += [fetch("%r2", f"%in{i}", "u32"), f"setp.ne.u32 {register}, %r2, 0;"]
        else:
            inputs.append(flat)
            lines.append(fetch(register, f"%in{i}", _kind(array.dtype)))
    lines.append(instructions.format(d="%vd", **names))
    stored = np.dtype(np.uint32) if result == np.bool_ else result
    if result == np.bool_:
        lines += ["selp.u32 %r2, 1, 0, %vd;", put("%out0", "u32", "%r2")]
    else:
        lines.append(put("%out0", _kind(result), "%vd"))
    text = module("\n".join(lines), inputs=len(inputs), outputs=1, version=version, target=target)
    (out,) = run(text, inputs, [(padded, stored)], grid=padded // block, block=block)
    return out[:count].astype(result)


def _declare(register: str, dtype: np.dtype) -> str:
    if dtype == np.bool_:
        return f".reg .pred {register};"
    return f".reg .b{max(dtype.itemsize, 2) * 8} {register};"


def _kind(dtype: np.dtype) -> str:
    return f"{'s' if dtype == np.int8 else 'u' if dtype == np.uint8 else 'b'}{dtype.itemsize * 8}"


def expect_refused(text: str) -> str:
    """Asserts that the module does not load, and gives the words of the error.

    218 is what an assembler refuses, 222 a .version too new; 801 what the soft GPU does not know, which may well be
    no PTX at all, and is a finding ("unsupported") too.
    """
    refusal = None
    with context():
        try:
            load(text)
        except DriverError as error:
            refusal = error
    assert refusal is not None, "the module loaded:\n" + text
    assert refusal.code in (218, 222, 801), str(refusal)
    return str(refusal)
