"""CUDA_VISIBLE_DEVICES: which cards a process sees, in which order, and what it then calls them."""

import uuid
from typing import Any

import pytest
from cuda.bindings import driver

from tests.softgpu.fixtures import Soft

from . import calls
from .calls import code, ok, start

NO_DEVICE, INVALID_DEVICE = 100, 101


class See:
    """What a fresh process sees under these values of the variable."""

    def __init__(self, soft: Soft, monkeypatch: pytest.MonkeyPatch) -> None:
        self._soft, self._patch = soft, monkeypatch

    def __call__(self, named: str | None, **knobs: Any) -> list[int]:
        """The cards by ordinal, as nvidia-smi counts them; none where cuInit finds none."""
        self._soft.reset(**{"devices": 4} | knobs)
        if named is None:
            self._patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            self._patch.setenv("CUDA_VISIBLE_DEVICES", named)
        result = code("cuInit", 0)
        assert result in (0, NO_DEVICE)
        return [] if result else [bus(device) for device in range(ok("cuDeviceGetCount"))]


@pytest.fixture
def see(soft: Soft, monkeypatch: pytest.MonkeyPatch) -> See:
    return See(soft, monkeypatch)


def bus(device: int) -> int:
    """The card by its PCI bus, which does not depend on who sees it."""
    return int(ok("cuDeviceGetPCIBusId", 16, device)[5:7], 16) - 1


# The bindings for CUDA 13 have one function, the second version.
UUID = "cuDeviceGetUuid_v2" if hasattr(driver, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"


def name(prefix: str, device: int = 0, function: str = UUID) -> str:
    """What nvidia-smi -L calls a device."""
    return prefix + str(uuid.UUID(bytes=ok(function, device).bytes))


@pytest.mark.parametrize(
    ("named", "cards"),
    [
        (None, [0, 1, 2, 3]),
        ("0", [0]),
        ("2,1", [2, 1]),
        ("3,0,1,2", [3, 0, 1, 2]),
        (" 1, 2", [1, 2]),
        ("1st,2nd", [1, 2]),  # as strtol reads
        ("0,2,-1,1", [0, 2]),
        ("1,4,0", [1]),
        ("1,,0", [1]),
        ("1,x,0", [1]),
        ("", []),
        ("-1", []),
        ("4", []),
        ("NoDevFiles", []),
        ("1,2,1", []),  # a card named twice
        ("99999999999999999999", []),
    ],
)
def test_cards_by_index(see: See, named: str | None, cards: list[int]) -> None:
    assert see(named) == cards


def test_without_a_device_nothing_works(see: See) -> None:
    see("")
    assert code("cuInit", 0) == NO_DEVICE
    assert code("cuDeviceGetCount") == calls.NOT_INITIALIZED


def test_the_variable_is_read_at_cuinit(see: See, monkeypatch: pytest.MonkeyPatch) -> None:
    assert see("2,1") == [2, 1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    ok("cuInit", 0)
    assert ok("cuDeviceGetCount") == 2


def test_cards_by_uuid(see: See) -> None:
    see(None)
    names = [name("GPU-", device) for device in range(4)]
    assert len(set(names)) == 4
    assert see(f"{names[2]},{names[0]}") == [2, 0]
    assert [name("GPU-", device) for device in range(2)] == [names[2], names[0]]
    assert see(names[3][: len("GPU-") + 8]) == [3]
    assert see(f"{names[1]},GPU-00000000-0000-0000-0000-000000000000,{names[0]}") == [1]
    assert see("GPU-") == []  # it could be any
    assert see("GPU-", devices=1) == [0]
    assert see(f"{names[1]},0") == [1]  # one kind of name at a time
    assert see(f"0,{names[1]}") == [0]
    assert see(names[1].removeprefix("GPU-").replace(names[1][4], "x", 1)) == []
    assert see(f"{names[1]},{names[1][:20]}") == []


def test_a_device_is_its_card(see: See) -> None:
    """Ordinals count what is visible; memory, contexts and addresses on the bus go by them."""
    see("2,1")
    assert code("cuDeviceGet", 2) == INVALID_DEVICE
    assert code("cuDevicePrimaryCtxRetain", 2) == INVALID_DEVICE
    assert int(ok("cuDeviceGetByPCIBusId", b"0000:02:00.0")) == 1
    assert code("cuDeviceGetByPCIBusId", b"0000:01:00.0") == INVALID_DEVICE
    assert b"NVIDIA" in ok("cuDeviceGetName", 64, 1)
    start(1)
    (store,) = calls.functions(calls.KERNELS, "store")
    out = calls.words(1)
    calls.launch(store, out, 7)
    assert calls.read(out) == [7]
    assert int(ok("cuCtxGetDevice")) == 1


def test_of_mig_devices_one_is_visible(see: See) -> None:
    assert see(None, mig=True) == [0]
    assert b"MIG" in ok("cuDeviceGetName", 64, 0)
    assert code("cuDeviceGet", 1) == INVALID_DEVICE
    first = name("MIG-")
    assert see("1,2", mig=True) == [1]
    second = name("MIG-")
    assert first != second
    assert see(f"{second},{first}", mig=True) == [1]
    assert name("MIG-") == second
    assert see(second[: len("MIG-") + 8], mig=True) == [1]
    assert see(second[:-1] + "x", mig=True) == []
    assert see(second) == []  # a card that is not cut has none


@pytest.mark.skipif(UUID == "cuDeviceGetUuid", reason="these bindings have the second version alone")
def test_the_first_version_of_the_uuid_is_the_cards(see: See) -> None:
    see("2")
    card = name("GPU-", function="cuDeviceGetUuid")
    assert name("GPU-") == card
    see("2", mig=True)
    assert name("GPU-", function="cuDeviceGetUuid") == card
    assert name("GPU-") != card


def test_an_old_name_of_a_mig_device_is_refused(soft: Soft, monkeypatch: pytest.MonkeyPatch) -> None:
    soft.reset(mig=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0")
    assert code("cuInit", 0) == calls.NOT_SUPPORTED
    (found,) = soft.take_findings("unsupported")
    assert "MIG-GPU-" in found.what
