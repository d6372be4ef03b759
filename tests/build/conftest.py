"""Fixtures of the build tests."""

from pathlib import Path

import pytest

from tests.build.tiny import CONFIG, TENSORS
from tests.models import write_checkpoint


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "tiny", CONFIG, TENSORS, generation={"eos_token_id": [5, 7]})
