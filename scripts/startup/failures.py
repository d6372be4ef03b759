"""How soon a start that cannot succeed says so: from exec to exit, with its exit code and its line on stderr."""

import socket
import statistics
import sys
from pathlib import Path
from typing import Any

from tests.models import write_tiny

from .compare import Report
from .figures import DIGITS, quartiles
from .start import Side
from .start import measure as start

KINDS = (
    "a model file that is cut",
    "a model that is not there",
    "no GPU",
    "a port that is taken",
    "a flag that does not exist",
)
TIMEOUT = 30.0  # s, for an exit


def sides(scratch: Path, taken_port: int) -> list[Side]:
    model = write_tiny(scratch / "model")
    broken = write_tiny(scratch / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    serve = (sys.executable, "-m", "pilotlight", "serve")
    unseen = ("env", "CUDA_VISIBLE_DEVICES=")  # so that a machine with a GPU has none
    commands = (
        (*serve, str(broken), "--port", "0"),
        (*serve, str(scratch / "nowhere"), "--port", "0"),
        (*unseen, *serve, str(model), "--device", "cuda", "--port", "0"),
        (*serve, str(model), "--port", str(taken_port)),
        (*serve, str(model), "--prot", "0"),
    )
    return [Side(name, command, until="exit", timeout=TIMEOUT) for name, command in zip(KINDS, commands, strict=True)]


def measure(count: int, scratch: Path, report: Report) -> dict[str, Any]:
    """Failure -> seconds, exit codes and what was said."""
    found: dict[str, dict[str, Any]] = {}
    with socket.create_server(("0.0.0.0", 0)) as taken:
        failing = sides(scratch, taken.getsockname()[1])
        for turn in range(count + 1):
            for side in failing:
                end = start(side, "queued", scratch / "server.log")
                report(side.name, end.marks["exit"])
                if turn:
                    entry = found.setdefault(side.name, {"codes": [], "starts": [], "said": ""})
                    entry["codes"].append(end.code)
                    entry["starts"].append(round(end.marks["exit"], DIGITS))
                    entry["said"] = end.said
    for entry in found.values():
        entry["exit"] = round(statistics.median(entry["starts"]), DIGITS)
        entry["quartiles"] = quartiles(entry["starts"])
        entry["codes"] = sorted(set(entry["codes"]))
    return {"failures": found}
