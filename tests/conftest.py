"""What tests of several areas need: the demo model's snapshot, a GPU to run on or none, and one BLAS thread."""

import os

# Before numpy is imported anywhere: on matrices as small as most here, threads do little but wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# On a machine with a GPU too, who wants one says so: for servers, which tests start; for this process see below.
os.environ["PILOTLIGHT_DEVICE"] = "cpu"
os.environ.pop("NVIDIA_VISIBLE_DEVICES", None)

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pilotlight.device import choice
from tests.softgpu import library
from tests.softgpu.build import BuildError
from tests.softgpu.fixtures import soft

__all__ = ["soft"]

ROOT = Path(__file__).parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gpu", choices=["soft", "real"], default="soft",
        help="what tests marked `gpu` run on: the soft GPU, which needs no hardware, or this machine's own",
    )  # fmt: skip
    parser.addoption("--ptx", type=Path, default=ROOT / "ptx", help="the kernels that tests marked `gpu` run")


def pytest_configure() -> None:
    """What a shell tells its own servers is not for those that tests start, no proxy stands before the loopback, and
    what programs print is compared: its colours and width are not the terminal's.
    """
    for name in [*os.environ]:
        is_tests_own = name in ("PILOTLIGHT_DEMO_SNAPSHOT", "PILOTLIGHT_DEVICE")
        if name.startswith(("PILOTLIGHT_", "RUNPOD_")) and not is_tests_own:
            del os.environ[name]
    direct = [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"]
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(filter(None, direct))
    os.environ.pop("FORCE_COLOR", None)
    os.environ["COLUMNS"] = "80"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a card, tests of the soft GPU itself are skipped; elsewhere it is built before any time limit runs."""
    fixtures = {item: getattr(item, "fixturenames", ()) for item in items}
    for item in items:
        if "gpu" in fixtures[item]:
            item.add_marker(pytest.mark.gpu)
    if config.getoption("gpu") == "real":
        for item in items:
            if "soft" in fixtures[item]:
                item.add_marker(pytest.mark.skip(reason="a test of the soft GPU"))
    elif not config.option.collectonly and any({"soft", "gpu"} & set(names) for names in fixtures.values()):
        with suppress(BuildError):  # the tests say it
            library()


@pytest.fixture(scope="session", autouse=True)
def no_gpu_unasked() -> Iterator[None]:
    """`auto` is the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "_DEVICE_FILES", ())
        patch.setattr(choice, "_LIBRARIES", ())
        yield


@pytest.fixture(scope="session")
def demo_snapshot() -> Path:
    """SmolLM2-135M-Instruct in fp32: where PILOTLIGHT_DEMO_SNAPSHOT says, else in models/, made if need be."""
    given = os.environ.get("PILOTLIGHT_DEMO_SNAPSHOT")
    if given:
        return Path(given)
    # lib.sh changes into the project's root; what it prints last is the snapshot's directory there.
    script = '. "$0/scripts/lib.sh" && build_demo_model float32 && printf "%s" "$DEMO_SNAPSHOT"'
    environment = os.environ | {"VENV": sys.prefix}
    done = subprocess.run(["bash", "-c", script, str(ROOT)], env=environment, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, "scripts/lib.sh could not build the demo model; what it said stands above"
    return ROOT / done.stdout


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """The GGUF file that the demo model is made from: downloaded if need be."""
    command = [sys.executable, str(ROOT / "scripts" / "get_demo_model"), str(ROOT / "models")]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
