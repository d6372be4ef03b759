"""How long a context and how many KV pages: arithmetic over bytes, before anything is allocated.

Apart from model.py so that any machine can be planned for in a test. What does not fit is refused here, with the
numbers and with the largest context that would fit.
"""

import logging

import msgspec

from ..errors import UnavailableError, UsageError, amount
from .spec import ModelSpec

_log = logging.getLogger(__name__)


class Memory(msgspec.Struct, frozen=True):
    """What the plan starts from, in bytes."""

    available: int  # before the utilization share is taken
    weights: int
    activations: int  # of the largest step
    page: int  # one KV page over all layers
    page_scratch: int  # what attention takes beside each page in use
    default_kv: int | None = None  # most that K/V take unless the user says more


class Plan(msgspec.Struct, frozen=True):
    max_model_len: int
    num_pages: int


def plan_pages(
    spec: ModelSpec,
    memory: Memory,
    *,
    page_size: int,
    utilization: float,
    max_num_seqs: int,
    max_model_len: int | None = None,
    kv_bytes: int | None = None,
) -> Plan:
    """The context length and the number of pages.

    Asked for no length, the model's own limit is taken, or what fits if that is less (and a warning says so). The
    pages are what `max_num_seqs` sequences of that length can need, within `kv_bytes`, or else within the memory.
    Raises UsageError for a length beyond the model's limit, UnavailableError for what the memory does not hold.
    """
    if max_model_len is not None and max_model_len > spec.max_position:
        raise UsageError(
            f"--max-model-len {max_model_len} is beyond the model's own limit of {spec.max_position} positions"
        )
    budget = int(memory.available * utilization) - memory.weights - memory.activations
    needs = f"weights {amount(memory.weights)}, activations {amount(memory.activations)}"
    has = f"there are {utilization * 100:g}% of the {amount(memory.available)} that are free"
    fitting = max(0, budget) // (memory.page + memory.page_scratch)
    source = has
    if kv_bytes is not None:
        shown = amount(kv_bytes) if kv_bytes >= 1e6 else f"{kv_bytes} bytes"  # of a few, "0.0 MB" would say nothing
        if kv_bytes > budget:
            raise UnavailableError(f"the model does not fit: {needs}, --kv-cache-memory-bytes {shown}; {has}")
        fitting, source = kv_bytes // memory.page, f"--kv-cache-memory-bytes allows {shown}"
    wanted = max_model_len or spec.max_position
    pages_wanted = -(-wanted // page_size)
    if fitting < 1:
        raise UnavailableError(
            f"the model does not fit: {needs}, and {amount(memory.page)} for each {page_size} tokens of context; "
            f"{source}"
        )
    if pages_wanted > fitting:
        largest = fitting * page_size
        message = (
            f"a context of {wanted} tokens needs {amount(pages_wanted * memory.page)} of KV cache beside {needs}; "
            f"{source}"
        )
        if max_model_len is not None:
            raise UnavailableError(f"{message}; the largest context that fits is --max-model-len {largest}")
        _log.warning("%s: the context is cut to the %d tokens that fit", message, largest)
        wanted, pages_wanted = largest, fitting
    if kv_bytes is None and memory.default_kv is not None:
        fitting = min(fitting, max(memory.default_kv // memory.page, pages_wanted))
    return Plan(wanted, min(fitting, max_num_seqs * pages_wanted))
