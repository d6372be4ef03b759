"""Pilotlight: an LLM inference server for scale-to-zero GPUs.

The public names are imported on first use: a serving process must not pay for what it does not touch.
"""

from time import monotonic

FIRST_LINE = monotonic()  # when the interpreter had come up: see timeline.py
EXEC_TIME = "PILOTLIGHT_EXEC_TIME"  # CLOCK_MONOTONIC seconds, taken by whoever execs a process, right before
__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

TYPE_CHECKING = False  # `typing`, which says the same, takes longer to import than the port to open
if TYPE_CHECKING:
    from .llm import LLM, SamplingParams


def __getattr__(name: str) -> object:
    if name in ("LLM", "SamplingParams"):
        from . import llm

        return getattr(llm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
