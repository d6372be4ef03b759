"""What tests of several areas need: the demo model's snapshot, and one BLAS thread."""

import os

# Before numpy is imported anywhere: on matrices as small as most here, threads do little but wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def demo_snapshot() -> Path:
    """SmolLM2-135M-Instruct in fp32: where PILOTLIGHT_DEMO_SNAPSHOT says, else scripts/demo's, made if need be."""
    given = os.environ.get("PILOTLIGHT_DEMO_SNAPSHOT")
    if given:
        return Path(given)
    # lib.sh changes into the project's root; what it prints last is the snapshot's directory there.
    script = '. "$0/scripts/lib.sh" && build_demo_model && printf "%s" "$DEMO_MODEL"'
    environment = os.environ | {"VENV": sys.prefix}
    done = subprocess.run(["bash", "-c", script, str(ROOT)], env=environment, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, "scripts/lib.sh could not build the demo model; what it said stands above"
    return ROOT / done.stdout


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """The GGUF file that the demo model is made from: downloaded if need be."""
    command = [sys.executable, str(ROOT / "scripts" / "get_demo_model"), str(ROOT / "models")]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
