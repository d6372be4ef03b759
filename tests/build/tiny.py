"""The small checkpoint that builds are tried on."""

from pathlib import Path

from tests.models import llama_config, llama_tensors

CONFIG = llama_config()
TENSORS = llama_tensors(CONFIG)


def beside(output: Path) -> list[str]:
    """What stands in the output's directory under its name: itself, and what a build has begun."""
    return sorted(entry.name for entry in output.parent.iterdir() if entry.name.startswith(output.name))
