"""The head of every recorded benchmark (the machine, the command, the model's dtype), and how its JSON is written.

Apart, because scripts/bench_serving and scripts/measure_startup record the same.
"""

import datetime
import json
import os
import platform
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CPU_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")  # what decides the speed of a dtype


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    cpu = dict(line.split("\t: ", 1) for line in lines if "\t: " in line)
    names = {name.strip(): value for name, value in cpu.items()}
    return {
        "cpu": names.get("model name", platform.processor()),
        "family_model": f"{names.get('cpu family')}/{names.get('model')}",
        "features": [name for name in CPU_FEATURES if name in names.get("flags", "").split()],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
    }


def origin(command: Sequence[str], removed: Sequence[str]) -> dict[str, Any]:
    """How to repeat a run, which variables were `removed` from its environment, and when it was."""
    return {
        "command": shlex.join(command),
        "removed_environment": {name: os.environ[name] for name in removed if name in os.environ},
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }


def dtype_of(model: Path) -> str:
    """The weights' dtype, from a snapshot's manifest or a checkpoint's config."""
    for name, key in (("manifest.json", "dtype"), ("config.json", "dtype"), ("config.json", "torch_dtype")):
        if (model / name).is_file() and (dtype := json.loads((model / name).read_bytes()).get(key)):
            return str(dtype)
    return "unknown"


def write(result: dict[str, Any], output: Path | None) -> None:
    """As JSON to the file, else to standard output; a list of figures on one line."""
    text = json.dumps(result, indent=2) + "\n"
    text = re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found[0].split()), text)
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
