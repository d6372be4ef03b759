"""One card for the kernels' tests: the soft GPU, or with `pytest --gpu real` the machine's own.

It runs `Launch` records as the engine will, and is stricter than an engine: arguments are held to the manifest,
outputs are poisoned, and on a real card they are fenced by guard zones (on the soft GPU an allocation ends where the
tensor ends, and a byte beyond it is a fault that names its place).
"""

import ctypes
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pilotlight.device.cuda.launch import Gpu, Launch
from tests import softgpu

_GUARD = 256  # bytes on both sides of an output on a real card
_GUARD_BYTE, _POISON_BYTE = 0xA5, 0xFF  # 0xFFFF is a NaN in bf16 and fp16, 0xFFFFFFFF in fp32
_TYPES: dict[str, Any] = {
    "u64": ctypes.c_uint64, "s64": ctypes.c_int64, "b64": ctypes.c_uint64,
    "u32": ctypes.c_uint32, "s32": ctypes.c_int32, "b32": ctypes.c_uint32,
    "f32": ctypes.c_float,
}  # fmt: skip


def to_bf16(array: NDArray[Any]) -> NDArray[np.uint16]:
    """fp32 rounded to the nearest bf16, ties to even: its bits."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), 0x7FFF, rounded).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_half(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The nearest values of `dtype` ("bfloat16", "float16") as they lie in memory; bf16 as uint16."""
    return to_bf16(array) if dtype == "bfloat16" else np.asarray(array, np.float16)


def from_half(array: NDArray[Any]) -> NDArray[np.float32]:
    """The inverse of `to_half`: fp32."""
    return from_bf16(array) if array.dtype == np.uint16 else array.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in device memory."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    allocation: int
    guard: int  # bytes before and after

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class CardError(Exception):
    """A driver call failed; what the soft GPU found says where."""


class Card:
    """A context on the first device, one stream, and the modules of ptx/ as they are asked for."""

    def __init__(self, ptx: Path, *, soft: bool, **knobs: Any) -> None:
        """ptx: the directory of the kernels to run. knobs: the soft GPU's."""
        self.soft = soft
        if soft:
            softgpu.load()
            softgpu.reset(**knobs)
        self.epoch = softgpu.epoch()
        from cuda.bindings import driver

        self._cuda = driver
        self._ptx = ptx
        self._manifest = json.loads((ptx / "manifest.json").read_text())["modules"]
        self._functions: dict[tuple[str, str], Any] = {}
        self._modules: dict[str, Any] = {}
        self._allocations: set[int] = set()
        self.entries: set[str] = set()  # that have run
        self._call("cuInit", 0)
        self._device = self._call("cuDeviceGet", 0)
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._call("cuCtxSetCurrent", self._context)
        self._stream = self._call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        attribute = driver.CUdevice_attribute
        self.gpu = Gpu(
            capability=(
                self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            ),
            sm_count=self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            shared_bytes=self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        )

    # --- memory -------------------------------------------------------------------------------------------

    def upload(self, array: NDArray[Any]) -> Buffer:
        """A copy of `array` in device memory."""
        array = np.ascontiguousarray(array)
        buffer = self._allocate(array.shape, array.dtype, guard=0)
        self.write(buffer.address, array)
        return buffer

    def output(self, shape: tuple[int, ...], dtype: DTypeLike) -> Buffer:
        """Poisoned with NaN, to be read with `read`."""
        buffer = self._allocate(shape, np.dtype(dtype), guard=0 if self.soft else _GUARD)
        guard = np.full(buffer.guard, _GUARD_BYTE, np.uint8)
        poison = np.full(buffer.nbytes, _POISON_BYTE, np.uint8)
        self.write(buffer.allocation, np.concatenate([guard, poison, guard]))
        return buffer

    def pool(self, nbytes: int) -> Buffer:
        """Memory that is not filled: may be so large that offsets into it pass 32 bits."""
        return self._allocate((nbytes,), np.dtype(np.uint8), guard=0)

    def write(self, address: int, array: NDArray[Any]) -> None:
        array = np.ascontiguousarray(array)
        if array.nbytes:
            self._call("cuMemcpyHtoD", address, array.ctypes.data, array.nbytes)

    def read(self, buffer: Buffer) -> NDArray[Any]:
        """The tensor, once what stands around it has been found untouched."""
        raw = self.read_bytes(buffer.allocation, buffer.nbytes + 2 * buffer.guard)
        if buffer.guard:
            around = np.concatenate([raw[: buffer.guard], raw[-buffer.guard :]])
            assert (around == _GUARD_BYTE).all(), "a kernel wrote outside its output"
        body = raw[buffer.guard : buffer.guard + buffer.nbytes]
        return body.view(buffer.dtype).reshape(buffer.shape)

    def read_bytes(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        out = np.empty(nbytes, np.uint8)
        if nbytes:
            self._call("cuMemcpyDtoH", out.ctypes.data, address, nbytes)
        return out

    def free_all(self) -> None:
        self._call("cuCtxSynchronize")  # copies of inputs that no launch has waited for
        for allocation in self._allocations:
            self._call("cuMemFree", allocation)
        self._allocations.clear()

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any], guard: int) -> Buffer:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        allocation = int(self._call("cuMemAlloc", max(nbytes + 2 * guard, 1)))
        self._allocations.add(allocation)
        return Buffer(allocation + guard, shape, dtype, allocation, guard)

    # --- launches -----------------------------------------------------------------------------------------

    def run(self, *launches: Launch) -> None:
        """In order, and waits for the last."""
        self._call("cuCtxSynchronize")  # a copy from pageable memory may land after the call that made it returns
        for launch in launches:
            self._launch(launch)
        self._call("cuStreamSynchronize", self._stream)

    def counted(self, *launches: Launch) -> dict[str, Any]:
        """Runs them and gives the soft GPU's counters of just these, by kernel: see `softgpu.counters`."""
        before = softgpu.counters()["kernels"]
        self.run(*launches)
        after = softgpu.counters()["kernels"]
        names = {launch.entry for launch in launches}
        return {name: _subtract(after[name], before.get(name, {})) for name in names}

    def _launch(self, launch: Launch) -> None:
        entry = self._manifest[launch.module]["entries"][launch.entry]
        parameters = entry["parameters"]
        assert len(launch.arguments) == len(parameters), (
            f"{launch.entry} takes {len(parameters)} arguments, {len(launch.arguments)} given"
        )
        values = []
        for index, (given, parameter) in enumerate(zip(launch.arguments, parameters, strict=True)):
            kind = _TYPES[parameter["type"]]
            assert isinstance(given, float) == (kind is ctypes.c_float), f"{launch.entry} argument {index}: {given!r}"
            value = kind(given)
            assert isinstance(given, float) or value.value == given, (
                f"{launch.entry} argument {index} overflows: {given}"
            )
            values.append(value)
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        function = self._function(launch.module, launch.entry)
        if launch.shared_bytes:
            attribute = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call("cuFuncSetAttribute", function, attribute, launch.shared_bytes)
        self._call(
            "cuLaunchKernel", function, *launch.grid, *launch.block, launch.shared_bytes, self._stream,
            ctypes.addressof(pointers), 0,
        )  # fmt: skip
        self.entries.add(launch.entry)

    def _function(self, module: str, entry: str) -> Any:
        if (module, entry) not in self._functions:
            if module not in self._modules:
                self._modules[module] = self._call("cuModuleLoadData", self._image(module))
            self._functions[module, entry] = self._call("cuModuleGetFunction", self._modules[module], entry.encode())
        return self._functions[module, entry]

    def _image(self, module: str) -> bytes:
        """The cubin for a real card where it has been assembled, else the PTX that it comes from."""
        cubin = self._ptx / "sm_{}{}".format(*self.gpu.capability) / f"{module}.cubin"
        if not self.soft and cubin.exists():
            return cubin.read_bytes()
        return (self._ptx / f"{module}.ptx").read_bytes() + b"\0"

    def _attribute(self, attribute: Any) -> int:
        return int(self._call("cuDeviceGetAttribute", attribute, self._device))

    def _call(self, name: str, *arguments: Any) -> Any:
        result, *values = getattr(self._cuda, name)(*arguments)
        if int(result):
            found = "".join(f"\n{finding}" for finding in softgpu.findings()) if self.soft else ""
            raise CardError(f"{name}: {result.name}{found}")
        return values[0] if values else None

    # --- ends ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        if not self.soft:  # the soft GPU forgets everything at its next reset
            self.free_all()
            self._call("cuDevicePrimaryCtxRelease", self._device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _subtract(after: Any, before: Any) -> Any:
    """`after` less `before`, number by number."""
    if isinstance(after, dict):
        return {key: _subtract(value, (before or {}).get(key)) for key, value in after.items()}
    return after - (before or 0) if isinstance(after, int | float) else after
