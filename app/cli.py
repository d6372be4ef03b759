"""The `pilotlight` command: names its subcommands and hands over; each is imported when it is called."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType

from .errors import PilotlightError, UsageError

USAGE = """\
usage: pilotlight COMMAND ...

  serve MODEL            serve a model over the OpenAI API (pilotlight serve --help)
  build snapshot SOURCE  turn a checkpoint into a snapshot that loads by a few large copies
  build native           compile the CPU's library with this machine's C++ compiler
  build kernels          compile the CUDA kernels to PTX and to an image per architecture
  deploy render          write a platform's own form of serverless.yml (pilotlight deploy --help)
  deploy push            create the endpoint that serverless.yml describes
  --version              print the version

SOURCE is a Hugging Face directory, a hub id or a GGUF file; MODEL is a snapshot or a Hugging Face directory."""

_INTERRUPTED = 128 + signal.SIGINT  # the exit code of a shell's command that an interrupt ended


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one subcommand and exits with its code. An expected failure is one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        sys.exit(_imported(arguments)())
    except PilotlightError as error:
        print(f"pilotlight: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # a command handles its own
        sys.exit(_INTERRUPTED)


def _imported(arguments: list[str]) -> Callable[[], int]:
    """The subcommand, ready to run. An interrupt while its modules are imported ends the process at once.

    Python's own exception would be lost in a callback of an import; or in msgspec's, which goes on without what it
    was importing and crashes when it is used.
    """
    by_exception = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not: it is ignored
    if by_exception:
        signal.signal(signal.SIGINT, _leave)
    try:
        return _command(arguments)
    finally:
        if by_exception:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(_INTERRUPTED)


def _command(arguments: list[str]) -> Callable[[], int]:
    match arguments:
        case ["serve", *rest]:
            from .front.main import serve

            return lambda: serve(rest)
        case ["build", "snapshot", *rest]:
            from .build.snapshot import command

            return lambda: command(rest)
        case ["build", "native", *rest]:
            from .build.native import command as native

            return lambda: native(rest)
        case ["build", "kernels", *rest]:
            from .build.kernels import command as kernels

            return lambda: kernels(rest)
        case ["deploy", *rest]:
            from .deploy.command import command as deploy

            return lambda: deploy(rest)
        case ["--version" | "-V"]:
            from . import __version__

            return lambda: _say(f"pilotlight {__version__}")
        case ["--help" | "-h" | "help"] | ["build", "--help" | "-h"]:
            return lambda: _say(USAGE)
        case []:
            raise UsageError(f"no command was given\n{USAGE}")
        case _:
            raise UsageError(f"{_unknown(arguments)}\n{USAGE}")


def _say(text: str) -> int:
    print(text)
    return 0


def _unknown(arguments: list[str]) -> str:
    first, *rest = arguments
    if first == "build":
        return "build: expected snapshot, native or kernels" + (f", found {rest[0]!r}" if rest else "")
    import difflib

    near = difflib.get_close_matches(first, ["serve", "build", "deploy"], n=1)
    return f"unknown command {first!r}" + (f"; did you mean {near[0]}?" if near else "")
