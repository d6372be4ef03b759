"""Makes docs/image.md's table of layers and its line about the start from what scripts/test_image --record wrote."""

import json
from pathlib import Path

from scripts.bench_table import between


def insert(page: str, record: Path) -> str:
    result = json.loads(record.read_bytes())
    machine, starts = result["machine"], result["starts"]
    seconds = starts["median"]["seconds"]
    rows = "".join(f"| {name} | {size:.1f} |\n" for name, size in result["layers_mb"].items())
    table = (
        f"| layer | MB |\n|---|---|\n{rows}\n"
        f"Above the base and without the weights: {result['above_base_without_weights_mb']:.1f} MB. The base is "
        f"{result['base']}.\n\n"
        f"The demo model in a container as above, asked once it is ready: ready {_ms(seconds['ready'])} after the\n"
        f"start of process 1, which first is the container's runtime at work; the first token after\n"
        f"{_ms(seconds['first_token'])}. The median of {starts['starts']} starts with a warm page cache, on "
        f"{machine['cores']} cores of an {machine['cpu']}, {result['date']}\n"
        f"(`{result['command']}`, [{record.name}](../benchmarks/{record.name})).\n"
    )
    return between(page, "layers", table)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"
