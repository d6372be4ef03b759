"""A start that cannot succeed: its own exit code and one line, at once, whichever process finds out. See docs/api.md.

How soon is measured by scripts/measure_startup (within 300 ms); the bound here only tells that nothing is waited for.
"""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.front.servers import ServerProcess
from tests.models import write_tiny

SECONDS = 10.0  # on a machine that is busy with other tests


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def cut(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])


def untouched(model: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("spoil", "flags", "code", "said"),
    [
        (cut, ["--device", "cpu"], 65, "model.safetensors: the file is cut"),
        (lambda model: (model / "config.json").write_text("{"), ["--device", "cpu"], 65, "config.json"),
        (lambda model: (model / "config.json").unlink(), ["--device", "cpu"], 65, "config.json"),
        (untouched, ["--device", "cuda"], 69, "--device cpu"),
        (untouched, ["--host", "203.0.113.1"], 69, "cannot listen on 203.0.113.1:0"),
        (untouched, ["--port", "TAKEN"], 69, "cannot listen on 127.0.0.1:TAKEN (Address already in use)"),
        (untouched, ["--port", "http"], 2, "--port (or PILOTLIGHT_PORT) 'http': expected a whole number"),
        (untouched, ["--port", "65536"], 2, "--port (or PILOTLIGHT_PORT) '65536': expected a whole number <= 65535"),
        (untouched, ["--prot", "1"], 2, "unknown argument '--prot'; did you mean --port?"),
        (untouched, ["--device", "tpu"], 2, "--device (or PILOTLIGHT_DEVICE) 'tpu': expected one of"),
    ],
)
def test_it_says_so_and_leaves(
    tmp_path: Path, taken_port: int, spoil: Callable[[Path], object], flags: list[str], code: int, said: str
) -> None:
    model = write_tiny(tmp_path / "model")
    spoil(model)
    hidden = {"CUDA_VISIBLE_DEVICES": ""}  # so that a machine with a GPU has none
    flags = [flag.replace("TAKEN", str(taken_port)) for flag in flags]
    began = time.monotonic()
    with ServerProcess(model, *flags, env=hidden) as server:
        assert server.exit_code() == code
        assert time.monotonic() - began < SECONDS
    last = server.lines[-1]
    assert last.startswith("pilotlight: ")
    assert said.replace("TAKEN", str(taken_port)) in last
    assert not [line for line in server.lines[:-1] if " INFO " not in line], "nothing else is said"
