"""Pilotlight: an LLM inference server for scale-to-zero GPUs.

The public names are imported on first use: a serving process must not pay for what it does not touch.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from .llm import LLM, SamplingParams


def __getattr__(name: str) -> Any:
    if name in ("LLM", "SamplingParams"):
        from . import llm

        return getattr(llm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
