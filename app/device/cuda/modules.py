"""The kernels on a GPU: modules loaded, every function resolved, and launches with arguments held to the manifest.

All of it is done before the first step, so that nothing is left to be loaded while a graph is captured. A launch is
one `struct.pack_into` and one driver call: the array of pointers that the driver takes is made once for each entry.
"""

import ctypes
import struct
from collections import deque
from collections.abc import Iterable
from typing import Any

from . import driver
from .errors import CudaError
from .images import Image
from .launch import Gpu, Launch

_REMEMBERED = 16  # launches that are told when a device is lost
_FORMATS = {"u64": "Q", "s64": "q", "b64": "Q", "u32": "I", "s32": "i", "b32": "I", "f32": "f"}  # of struct


class Kernels:
    """Modules on the context that is current. Not thread-safe: the arguments' memory is shared."""

    def __init__(self, gpu: Gpu, images: Iterable[Image]) -> None:
        """Raises CudaError for an image that the driver refuses."""
        self._entries: dict[str, _Entry] = {}
        self._modules: list[driver.Module] = []
        self._recent: deque[Launch | str] = deque(maxlen=_REMEMBERED)
        try:
            for image in images:
                self._load(gpu, image)
        except CudaError:
            self.close()
            raise

    def launch(self, launch: Launch, stream: driver.Stream) -> None:
        """Enqueues it. Raises CudaError, and ValueError for arguments that are not the entry's."""
        entry = self._entries[launch.entry]
        entry.pack(launch.arguments)
        self._recent.append(launch)
        driver.launch(
            entry.function, launch.grid, launch.block, launch.shared_bytes, stream, entry.pointers, launch.entry
        )

    def close(self) -> None:
        """Unloads them. No launch may be under way."""
        for module in self._modules:
            driver.unload_module(module)

    def _load(self, gpu: Gpu, image: Image) -> None:
        module = driver.load_module(image.data, str(image.file))
        self._modules.append(module)
        for entry, about in image.entries.items():
            function = driver.get_function(module, entry)
            # Asked of the driver: what it has compiled from PTX is not the manifest's.
            room = gpu.shared_bytes - driver.static_shared_bytes(function)
            driver.allow_shared_bytes(function, room, entry)  # which also loads it, should loading be lazy
            self._entries[entry] = _Entry(entry, function, about["parameters"])

    def remember(self, title: str) -> None:
        """Counts a graph's replay among the launches that are told when a device is lost."""
        self._recent.append(title)

    def recent(self) -> str:
        """The last launches, the latest first: "graph_step [8], norm_rms_warp_bf16 [4, 1, 1], ..."."""
        return ", ".join(map(_title, reversed(self._recent))) or "none"


def _title(launch: Launch | str) -> str:
    return launch if isinstance(launch, str) else f"{launch.entry} {list(launch.grid)}"


class _Entry:
    """A function, and the memory in which its arguments are handed over."""

    def __init__(self, name: str, function: driver.Function, parameters: list[dict[str, Any]]) -> None:
        self.function = function
        self._name = name
        self._kinds = [parameter["type"] for parameter in parameters]
        self._types = tuple(float if kind == "f32" else int for kind in self._kinds)
        self._format, size = "<", 0
        for parameter in parameters:
            self._format += "x" * (parameter["offset"] - size) + _FORMATS[parameter["type"]]
            size = parameter["offset"] + parameter["bytes"]
        self._packer = struct.Struct(self._format)
        self._memory = ctypes.create_string_buffer(max(size, 1))
        base = ctypes.addressof(self._memory)
        addresses = [base + parameter["offset"] for parameter in parameters]
        self._array = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        self.pointers = ctypes.addressof(self._array)

    def pack(self, arguments: tuple[int | float, ...]) -> None:
        """Writes the arguments where `pointers` point. Raises ValueError for a wrong count, a type, an overflow."""
        try:
            self._packer.pack_into(self._memory, 0, *arguments)
        except (struct.error, OverflowError):
            raise ValueError(self._objection(arguments)) from None
        if tuple(map(type, arguments)) != self._types:
            raise ValueError(self._objection(arguments))

    def _objection(self, arguments: tuple[int | float, ...]) -> str:
        if len(arguments) != len(self._kinds):
            return f"{self._name} takes {len(self._kinds)} arguments, {len(arguments)} given"
        for index, (kind, value) in enumerate(zip(self._kinds, arguments, strict=True)):
            try:
                struct.pack("<" + _FORMATS[kind], value)
            except (struct.error, OverflowError):
                return f"{self._name}: argument {index} is {value!r}, which is no {kind}"
            if type(value) is not (float if kind == "f32" else int):
                return f"{self._name}: argument {index} is {value!r}, expected {kind}"
        return f"{self._name}: arguments {arguments}"
