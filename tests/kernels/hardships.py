"""What a card may do and a test seldom meets, as knobs of the soft GPU; `@every_hardship` runs a test under each."""

import pytest

HARDSHIPS = [
    {"seed": 1},
    {"seed": 2, "block_order": "reverse"},
    {"seed": 3, "block_order": "shuffle", "warp_order": "shuffle"},
    {"seed": 4, "resident_blocks": 1, "block_order": "reverse", "warp_order": "reverse"},
    {"seed": 5, "resident_blocks": 1, "block_order": "shuffle", "warp_order": "shuffle"},
    {"seed": 6, "adversarial": 1},
    {"seed": 7, "adversarial": 1, "block_order": "shuffle", "warp_order": "shuffle"},
    {"seed": 8, "adversarial": 1, "resident_blocks": 1, "block_order": "reverse", "warp_order": "shuffle"},
]
every_hardship = pytest.mark.parametrize(
    "gpu", HARDSHIPS, indirect=True, ids=["-".join(f"{k}={v}" for k, v in knobs.items()) for knobs in HARDSHIPS]
)
