"""Step 1: what machine this is, by its own word and before any call of CUDA."""

import os
import platform
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

from pilotlight.device import host

from ..job import Job

_QUERIED = (
    "name", "driver_version", "vbios_version", "memory.total", "memory.used", "clocks.max.sm", "clocks.max.mem",
    "power.limit", "temperature.gpu", "ecc.mode.current", "mig.mode.current", "compute_mode", "persistence_mode",
    "pcie.link.gen.max", "pcie.link.gen.current", "pcie.link.width.current",
)  # fmt: skip
_CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING", "CUDA_DISABLE_PTX_JIT")
_CGROUP_FILES = ("memory.max", "cpu.max", "cpuset.cpus.effective", "memory/memory.limit_in_bytes")


def run(job: Job) -> None:
    cpu = _cpuinfo()
    job.put(
        cpu=cpu.get("model name", platform.processor()),
        cpu_flags=[name for name in _CPU_FLAGS if name in cpu.get("flags", "").split()],
        cpus=host.usable_cpus(),
        cpus_of_the_machine=os.cpu_count(),
        memory_available_bytes=host.available_bytes(),
        disk_free_bytes=shutil.disk_usage(job.scratch).free,
        locked_memory_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        kernel=platform.release(),
        python=platform.python_version(),
        libc=" ".join(platform.libc_ver()),
        user=os.getuid(),
    )
    job.put(
        environment={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        cgroup={name: text for name in _CGROUP_FILES if (text := _text(Path("/sys/fs/cgroup", name)))},
        kernel_module=_text(Path("/proc/driver/nvidia/version")).split("\n")[0],
        device_files=sorted(str(path) for path in Path("/dev").glob("nvidia*")),
    )
    job.put(nvidia_smi=_nvidia_smi())


def _cpuinfo() -> dict[str, str]:
    lines = (line.partition(":") for line in _text(Path("/proc/cpuinfo")).splitlines())
    return {name.strip(): value.strip() for name, _, value in lines if name.strip()}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _nvidia_smi() -> Any:
    """What NVML knows of each card; a field that this driver does not know costs that field alone."""
    program = shutil.which("nvidia-smi")
    if not program:
        return "nvidia-smi is not there"
    fields = list(_QUERIED)
    while fields:
        command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.strip().splitlines()]
            return [dict(zip(fields, row, strict=False)) for row in rows]
        refused = [name for name in fields if f'"{name}"' in done.stdout + done.stderr]
        if not refused:
            return (done.stdout + done.stderr).strip()[:500]
        fields.remove(refused[0])
    return "no field is known"
