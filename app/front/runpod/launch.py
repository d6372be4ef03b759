"""What `--runpod-queue` needs, checked before the engine starts: the SDK, and RunPod's variables.

Outside RunPod the SDK's own test API can take the queue's place; its flags keep the names that RunPod's guides give
them, and are taken from the command line here. Nothing of the SDK is imported yet.
"""

import socket
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import NamedTuple

from ...errors import UnavailableError, UsageError
from ...settings import Settings
from ..process import listen

NEEDS_EXTRA = "--runpod-queue needs the runpod extra: pip install 'pilotlight[runpod]'"

# Without these the SDK has nowhere to take jobs from, or to send answers to. RunPod sets them for a queue's worker.
_REQUIRED = ("RUNPOD_WEBHOOK_GET_JOB", "RUNPOD_WEBHOOK_POST_OUTPUT", "RUNPOD_WEBHOOK_POST_STREAM")


class Address(NamedTuple):
    host: str
    port: int


def split_flags(argv: Sequence[str]) -> tuple[list[str], Address | None]:
    """The server's own arguments, and what the SDK's say about its test API. Raises UsageError."""
    import argparse

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--rp_serve_api", action="store_true")
    parser.add_argument("--rp_api_host", default="localhost")
    parser.add_argument("--rp_api_port", type=int, default=8001)  # not the SDK's 8000, which is the server's own
    try:
        known, rest = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise UsageError(str(error)) from None
    if not 0 <= known.rp_api_port <= 65535:
        raise UsageError(f"--rp_api_port {known.rp_api_port}: expected 0 to 65535")
    if not known.rp_serve_api and len(rest) < len(argv):
        raise UsageError("--rp_api_host and --rp_api_port go with --rp_serve_api")
    return rest, Address(known.rp_api_host, known.rp_api_port) if known.rp_serve_api else None


def prepare(settings: Settings, environ: Mapping[str, str], test_api: Address | None) -> socket.socket | None:
    """The test API's listening socket, or None where jobs come from RunPod.

    Raises UnavailableError without the SDK or where the address is taken, UsageError outside RunPod.
    """
    if not settings.runpod_queue:
        raise UsageError("--rp_serve_api goes with --runpod-queue")
    if find_spec("runpod") is None:
        raise UnavailableError(NEEDS_EXTRA)
    missing = [name for name in _REQUIRED if not environ.get(name)] if test_api is None else []
    if missing:
        raise UsageError(
            f"--runpod-queue: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set, as in a worker "
            "that RunPod has started for a queue; to try jobs elsewhere, add --rp_serve_api"
        )
    if test_api is None:
        return None
    try:
        return listen(*test_api)
    except UnavailableError as error:
        raise UnavailableError(str(error).replace("--host or --port", "--rp_api_host or --rp_api_port")) from None
