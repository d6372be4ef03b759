"""What the failure of a CUDA call means and what to do about it: the table, and the exceptions that say it.

Apart from the driver so that the words can be read, and changed, without one. Numbers are CUresult's (cuda.h).
"""

from ...errors import EXIT_ENGINE, UnavailableError

OUT_OF_MEMORY, NO_DEVICE, FABRIC_NOT_READY = 2, 100, 802

# After one of these every call of the process returns it: only a new process has the device again.
STICKY = frozenset({214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911})

_PTX = "the NVIDIA driver is too old for these kernels: update it on the host"
_ADVICE = {
    2: "free memory of the GPU (nvidia-smi lists who holds it), or lower --gpu-memory-utilization or --max-model-len",
    3: "CUDA is not initialised in this process, or was before a fork, which it does not survive: start a new one",
    46: "the GPU is in exclusive mode and another process has it, or it is being reset: see nvidia-smi on the host",
    100: "no GPU is visible: see nvidia-smi, start the container with `--gpus all`, look at CUDA_VISIBLE_DEVICES; "
    "or use --device cpu",
    101: "no such GPU, or one that was cut into MIG slices of which none is visible: see nvidia-smi -L",
    200: "the compiled kernels are damaged: install the package again, or run `pilotlight build kernels`",
    209: "the compiled kernels have no image for this GPU: run `pilotlight build kernels`",
    218: _PTX,
    221: "the NVIDIA driver has no PTX compiler (libnvidia-ptxjitcompiler): mount it, or use an image for this GPU",
    222: _PTX,
    223: "CUDA_DISABLE_PTX_JIT forbids to compile PTX, and there is no image for this GPU: unset it",
    500: "the compiled kernels are not those of this version: run `pilotlight build kernels`",
    802: "the NVSwitch fabric of the host is not ready: nvidia-fabricmanager must run there, in the driver's version",
    803: "libcuda and the kernel's NVIDIA module are of different versions: reboot the host after a driver update; "
    "in a container, remove a libcuda that is not the host's",
    804: "a libcuda for forward compatibility (cuda-compat) is in front of the host's, and this GPU does not allow "
    "it: remove it from the image or from LD_LIBRARY_PATH",
    999: "the driver could not start: see nvidia-smi and dmesg on the host, and whether /dev/nvidia* may be opened",
}
_LOST = "the GPU is lost to this process; only a new one can use it"


class CudaError(UnavailableError):
    """A driver call failed. `code` is its CUresult, 0 where there was no call: no driver, an old one, no image."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class DeviceLostError(CudaError):
    """A fault that sticks to the process: whoever gets it leaves."""

    exit_code = EXIT_ENGINE


def failure(call: str, code: int, name: str, text: str, detail: str = "") -> CudaError:
    """The exception of a call that gave `code`, called `name` and described as `text` by the driver.

    detail: what the call was about, with its sizes: "weights, 1.2 GB".
    """
    what = f"{call} ({detail})" if detail else call
    message = f"{what}: {name} ({code}), {text}"
    if code in STICKY:
        return DeviceLostError(f"{message}; {_LOST}", code)
    return CudaError(f"{message}; {_ADVICE[code]}" if code in _ADVICE else message, code)


def no_driver(reason: str) -> CudaError:
    return CudaError(
        f"libcuda.so.1, which comes with the NVIDIA driver, cannot be loaded ({reason}): install the driver on the "
        "host, start the container with `--gpus all`, or use --device cpu"
    )


def old_driver(found: int, floor: int) -> CudaError:
    """found, floor: as cuDriverGetVersion gives them, 12020 for CUDA 12.2."""
    return CudaError(
        f"the NVIDIA driver is of CUDA {_version(found)}, and at least {_version(floor)} (driver 535) is needed: "
        "update it on the host, or use --device cpu"
    )


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
