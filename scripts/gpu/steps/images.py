"""Step 3: every compiled kernel loads; the driver's word on registers against the manifest's; PTX compiled once."""

import json
import os
import time
from typing import Any

os.environ["CUDA_CACHE_DISABLE"] = "1"  # what is compiled here is to be compiled, and timed

from pilotlight.device.cuda import driver, images

from .. import raw
from ..job import Failed, Job
from ..rig import Rig

_COMPILED = "linear"  # by the driver, from PTX: many entries, as the largest modules have
_COMPILED_SOFT = "embed"


def run(job: Job) -> None:
    rig = Rig()
    cuda = raw.library()
    place = images.directory()
    modules: dict[str, Any] = json.loads((place / images.MANIFEST).read_bytes())["modules"]
    found = images.Images(place, rig.gpu.capability, rig.context.title)
    architecture = "sm_{}{}".format(*rig.gpu.capability)
    wrong: list[str] = []
    for module, about in modules.items():
        image = found.read(module)
        start = time.perf_counter()
        loaded = driver.load_module(image.data, str(image.file))
        functions: dict[str, Any] = {entry: driver.get_function(loaded, entry) for entry in about["entries"]}
        taken = time.perf_counter() - start
        is_cubin = image.file.suffix == ".cubin"
        where = f"{image.file.parent.name}/{image.file.name}" if is_cubin else image.file.name
        job.put(modules={module: {"image": where, "load_ms": round(taken * 1e3, 2)}})
        for entry, function in functions.items():
            said = about["entries"][entry]["architectures"].get(image.file.parent.name, {}) if is_cubin else {}
            wrong += _differences(entry, said, raw.function_attributes(cuda, int(function)))
        driver.unload_module(loaded)
    job.put(entries=sum(len(about["entries"]) for about in modules.values()), differences=wrong)
    compiled = _COMPILED_SOFT if job.soft else _COMPILED
    text = (place / f"{compiled}.ptx").read_bytes() + b"\0"
    start = time.perf_counter()
    driver.unload_module(driver.load_module(text, compiled))
    job.put(ptx={"module": compiled, "compile_s": round(time.perf_counter() - start, 3)})
    if wrong:
        raise Failed(f"{len(wrong)} entries are not what the manifest says: {wrong[0]}")
    without = [module for module, about in job.figures["modules"].items() if not about["image"].endswith(".cubin")]
    if without:
        job.note = f"no image for {architecture} of {', '.join(without)}: the driver compiled PTX"


def _differences(entry: str, said: dict[str, int], found: dict[str, int]) -> list[str]:
    """Local memory is a spill; of PTX the manifest says nothing else."""
    wrong = [f"{entry}: {found['local_bytes']} bytes of local memory"] if found.get("local_bytes") else []
    if "registers" in found and found["registers"] != said.get("registers", found["registers"]):
        wrong.append(f"{entry}: {found['registers']} registers, the manifest says {said['registers']}")
    return wrong
