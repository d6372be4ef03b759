"""The planner: pages and context from bytes, and what is said where they do not fit."""

import logging

import pytest

from pilotlight.errors import UnavailableError, UsageError
from pilotlight.model.families import describe
from pilotlight.model.plan import Memory, Plan, plan_pages
from tests.models import llama_config

MB = 10**6
WEIGHTS = 500 * MB
PAGE = 100_000  # with its scratch 150,000
SPEC = describe(llama_config(max_position_embeddings=4096, num_hidden_layers=2)).spec
LONG = describe(llama_config(max_position_embeddings=131072, num_hidden_layers=2)).spec


def plan(available, spec=SPEC, *, default_kv=None, utilization=1.0, activations=0, **options):
    memory = Memory(available, WEIGHTS, activations, PAGE, PAGE // 2, default_kv)
    options = {"page_size": 16, "max_num_seqs": 4} | options
    return plan_pages(spec, memory, utilization=utilization, **options)


def test_room_for_all_sequences_at_full_length():
    assert plan(10_000 * MB) == Plan(4096, 4 * 256)
    assert plan(10_000 * MB, max_model_len=100) == Plan(100, 4 * 7)
    assert plan(10_000 * MB, max_num_seqs=1) == Plan(4096, 256)


def test_pages_are_what_the_memory_holds():
    assert plan(WEIGHTS + 300 * 150_000) == Plan(4096, 300)
    assert plan(WEIGHTS + 300 * 150_000, max_num_seqs=1) == Plan(4096, 256)


def test_activations_and_the_share_count():
    assert plan(2 * (WEIGHTS + 50 * MB + 300 * 150_000), activations=50 * MB, utilization=0.5) == Plan(4096, 300)


def test_J09_weights_do_not_fit():
    with pytest.raises(UnavailableError) as refusal:
        plan(WEIGHTS - MB)
    assert str(refusal.value) == (
        "the model does not fit: weights 500.0 MB, activations 0.0 MB, and 0.1 MB for each 16 tokens of context; "
        "there are 100% of the 499.0 MB that are free"
    )
    with pytest.raises(UnavailableError, match="the model does not fit"):
        plan(WEIGHTS + 149_999)
    with pytest.raises(UnavailableError, match=r"there are 0\.1% of the 10\.00 GB"):
        plan(10_000 * MB, utilization=0.001)


def test_J09_one_megabyte_above_the_weights(caplog):
    with caplog.at_level(logging.WARNING):
        assert plan(WEIGHTS + MB) == Plan(6 * 16, 6)
    assert "the context is cut to the 96 tokens that fit" in caplog.text


def test_J09_a_long_context_on_24_gb(caplog):
    available = 24_000 * MB
    with caplog.at_level(logging.WARNING):
        assert plan(available, LONG, utilization=0.9, max_num_seqs=2) == Plan(131072, 2 * 8192)
        assert plan(available, LONG, utilization=0.9, max_num_seqs=32) == Plan(131072, 21_100 * MB // 150_000)
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING):
        assert plan(1_600 * MB, LONG) == Plan(7333 * 16, 7333)
    assert (
        "a context of 131072 tokens needs 819.2 MB of KV cache beside weights 500.0 MB, activations 0.0 MB; there "
        "are 100% of the 1.60 GB that are free: the context is cut to the 117328 tokens that fit" in caplog.text
    )


def test_J09_a_context_that_was_asked_for_is_not_cut():
    with pytest.raises(UnavailableError) as refusal:
        plan(1_600 * MB, LONG, max_model_len=131072)
    assert str(refusal.value).endswith("the largest context that fits is --max-model-len 117328")
    assert plan(1_600 * MB, LONG, max_model_len=117328) == Plan(117328, 7333)


def test_a_context_beyond_the_models_limit_is_refused():
    with pytest.raises(UsageError, match="--max-model-len 4097 is beyond the model's own limit of 4096"):
        plan(10_000 * MB, max_model_len=4097)


def test_the_devices_default_bounds_the_pages_but_not_the_context():
    assert plan(10_000 * MB, default_kv=50 * MB) == Plan(4096, 500)
    assert plan(10_000 * MB, default_kv=MB) == Plan(4096, 256)
    assert plan(10_000 * MB, default_kv=50 * MB, max_num_seqs=1) == Plan(4096, 256)


def test_kv_cache_bytes_that_the_user_gives():
    assert plan(10_000 * MB, default_kv=MB, kv_bytes=30 * MB) == Plan(4096, 300)
    assert plan(10_000 * MB, kv_bytes=500 * MB) == Plan(4096, 1024)
    with pytest.raises(UnavailableError, match=r"--kv-cache-memory-bytes 30.0 MB; there are 100% of the 510.0 MB"):
        plan(WEIGHTS + 10 * MB, kv_bytes=30 * MB)
    with pytest.raises(UnavailableError, match=r"needs 25.6 MB .* largest context .* --max-model-len 160$"):
        plan(10_000 * MB, kv_bytes=MB, max_model_len=4096)
    with pytest.raises(UnavailableError, match=r"tokens of context; --kv-cache-memory-bytes allows 99999 bytes$"):
        plan(10_000 * MB, kv_bytes=PAGE - 1)
