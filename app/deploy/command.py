"""`pilotlight deploy render` and `push`: which file, which platform, where to."""

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ..command_line import Parser
from ..errors import UnavailableError
from . import cloudrun, compose, knative, modal, runpod
from .push import push
from .reading import Deployment, read_deployment
from .rendering import Rendering

TARGETS: dict[str, Callable[[Deployment], Rendering]] = {
    "runpod": runpod.render,
    "modal": modal.render,
    "cloudrun": cloudrun.render,
    "knative": knative.render,
    "compose": compose.render,
}
DEFAULT_FILE = "serverless.yml"


def command(argv: Sequence[str]) -> int:
    """Runs `pilotlight deploy`. Returns the exit code; raises PilotlightError."""
    options = _parse(argv)
    if sys.stdout is None:  # as Python has it where the descriptor is closed
        raise UnavailableError("stdout: is closed; what is shown goes there (/dev/null will do)")
    deployment = read_deployment(Path(options.file))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as a file is, whatever the terminal is said to take
    try:
        if options.action == "push":
            push(deployment, send=options.yes)
        else:
            _write(TARGETS[options.target](deployment), options.output)
        sys.stdout.flush()
    except OSError as error:
        # What is still buffered goes nowhere: Python flushes again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # whoever read has left, as `head` does
            return 128 + signal.SIGPIPE
        raise UnavailableError(f"stdout: cannot be written: {error.strerror}") from None
    return 0


def _write(rendering: Rendering, output: str | None) -> None:
    for note in rendering.notes:
        print(f"note: {note}", file=sys.stderr)
    if output is None:
        sys.stdout.write(rendering.text)
        return
    try:
        Path(output).write_text(rendering.text, encoding="utf-8")
    except OSError as error:
        raise UnavailableError(f"{output}: cannot be written: {error.strerror}") from None


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("pilotlight deploy", "Deploy by one description.")
    actions = parser.add_subparsers(dest="action", metavar="render|push", required=True)
    render = actions.add_parser("render", help="write a platform's own form")
    render.add_argument("--target", choices=TARGETS, required=True, help="platform")
    render.add_argument("-o", "--output", metavar="FILE", help="file to write (default: stdout)")
    send = actions.add_parser("push", help="create the endpoint by the platform's API")
    send.add_argument("--target", choices=("runpod",), required=True, help="platform")
    send.add_argument("--yes", action="store_true", help="send the request; without it, it is only shown")
    for action in (render, send):
        action.add_argument(
            "file", nargs="?", metavar="FILE", default=DEFAULT_FILE, help=f"description (default: {DEFAULT_FILE})"
        )
    return parser.parse_args(argv)
