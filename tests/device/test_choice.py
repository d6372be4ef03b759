"""Which device a setting means, and what is loaded for it."""

import subprocess
import sys
from pathlib import Path

import pytest

from pilotlight.device import choice
from pilotlight.device.choice import cuda_ordinal, open_device
from pilotlight.errors import UnavailableError, UsageError
from pilotlight.settings import from_kwargs
from tests.softgpu.fixtures import soft

__all__ = ["soft"]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that shows an NVIDIA driver on a machine that has none yet."""
    file = tmp_path / "nvidiactl"
    monkeypatch.setattr(choice, "_DEVICE_FILES", (file,))
    monkeypatch.setattr(choice, "_LIBRARIES", (tmp_path / "libcuda.so.1",))
    for name in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return file


@pytest.mark.parametrize(
    ("device", "ordinal"), [("cpu", None), ("cuda", 0), ("cuda:0", 0), ("cuda:1", 1), ("cuda:12", 12), ("auto", None)]
)
def test_what_a_device_is_called(machine: Path, device: str, ordinal: int | None) -> None:
    assert cuda_ordinal(device) == ordinal


def test_auto_is_the_gpu_where_the_machine_shows_one(machine: Path, soft: object) -> None:
    settings = from_kwargs(model="m", device="auto")
    assert open_device(settings).name == "cpu"
    machine.touch()
    assert open_device(settings).name == "cuda:0"


@pytest.mark.parametrize(
    ("visible", "mounted", "ordinal"),
    [
        ("all", False, None),  # our image where there is no GPU
        ("all", True, 0),
        ("void", True, None),  # a runtime that gives GPUs in another way shows them by their files
        ("none", True, None),
        ("", True, None),
        ("0", False, 0),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", False, 0),
    ],
)
def test_auto_believes_the_containers_runtime(
    machine: Path, monkeypatch: pytest.MonkeyPatch, visible: str, mounted: bool, ordinal: int | None
) -> None:
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", visible)
    if mounted:
        machine.with_name("libcuda.so.1").touch()
    assert cuda_ordinal("auto") == ordinal


def test_a_promised_gpu_that_does_not_show_is_no_cpu(machine: Path, soft, monkeypatch: pytest.MonkeyPatch) -> None:
    soft.reset(devices=0)
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "0")
    settings = from_kwargs(model="m", device="auto")
    with pytest.raises(UnavailableError, match="CUDA_ERROR_NO_DEVICE"):
        open_device(settings)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # by somebody who wants the CPU
    assert open_device(settings).name == "cpu"


def test_auto_is_the_cpu_where_every_gpu_is_hidden(machine: Path, soft, caplog: pytest.LogCaptureFixture) -> None:
    """As CUDA_VISIBLE_DEVICES= does."""
    machine.touch()
    soft.reset(devices=0)
    assert open_device(from_kwargs(model="m", device="auto")).name == "cpu"
    assert "the CPU is used: cuInit: CUDA_ERROR_NO_DEVICE" in caplog.text
    with pytest.raises(UnavailableError, match="CUDA_ERROR_NO_DEVICE"):
        open_device(from_kwargs(model="m", device="cuda"))


@pytest.mark.parametrize(
    "knobs", [{"init_error": 803}, {"driver_version": 12000}, {"context_error": 46}, {"capability": 75}]
)
def test_auto_does_not_hide_the_trouble_of_a_gpu(machine: Path, soft, knobs: dict) -> None:
    machine.touch()
    soft.reset(**knobs)
    with pytest.raises(UnavailableError):
        open_device(from_kwargs(model="m", device="auto"))


def test_auto_does_not_drop_what_only_a_gpu_does(machine: Path, soft) -> None:
    """fp8 pages were asked for; on the CPU the same memory would hold a fraction of the context."""
    machine.touch()
    soft.reset(devices=0)
    with pytest.raises(
        UsageError, match=r"^--kv-cache-dtype fp8: the CPU keeps .* a GPU usable: cuInit: CUDA_ERROR_NO"
    ):
        open_device(from_kwargs(model="m", device="auto", kv_cache_dtype="fp8"))


def test_a_device_has_less_time_for_a_step_than_the_front_gives(machine: Path, soft) -> None:
    device = open_device(from_kwargs(model="m", device="cuda", engine_timeout=50))
    assert device._step_seconds == 45  # type: ignore[attr-defined]


def test_what_a_device_does_not_do_is_refused(machine: Path) -> None:
    with pytest.raises(UsageError, match=r"^--dtype float32: a GPU computes in bfloat16 or float16"):
        open_device(from_kwargs(model="m", device="cuda", dtype="float32"))
    with pytest.raises(UsageError, match=r"^--kv-cache-dtype fp8: the CPU keeps K/V in float32"):
        open_device(from_kwargs(model="m", device="cpu", kv_cache_dtype="fp8"))


def test_a_server_on_the_cpu_loads_no_cuda_bindings() -> None:
    script = (
        "import sys\n"
        "from pilotlight.device.choice import open_device\n"
        "from pilotlight.settings import from_kwargs\n"
        "open_device(from_kwargs(model='m', device='cpu'))\n"
        "print([name for name in sys.modules if name.startswith('cuda.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
