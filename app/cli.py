"""The `pilotlight` command: names its subcommands and hands over; each is imported when it is called."""

import sys
from collections.abc import Sequence

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


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one subcommand and exits with its code. An expected failure is one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        sys.exit(_dispatch(arguments))
    except PilotlightError as error:
        print(f"pilotlight: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # while modules are imported; a command handles its own
        sys.exit(130)


def _dispatch(arguments: list[str]) -> int:
    match arguments:
        case ["serve", *rest]:
            from .front.main import serve

            return serve(rest)
        case ["build", "snapshot", *rest]:
            from .build.snapshot import command

            return command(rest)
        case ["build", "native", *rest]:
            from .build.native import command as native

            return native(rest)
        case ["build", "kernels", *rest]:
            from .build.kernels import command as kernels

            return kernels(rest)
        case ["deploy", *rest]:
            from .deploy.command import command as deploy

            return deploy(rest)
        case ["--version" | "-V"]:
            from . import __version__

            print(f"pilotlight {__version__}")
            return 0
        case ["--help" | "-h" | "help"] | ["build", "--help" | "-h"]:
            print(USAGE)
            return 0
        case []:
            raise UsageError(f"no command was given\n{USAGE}")
        case _:
            raise UsageError(f"{_unknown(arguments)}\n{USAGE}")


def _unknown(arguments: list[str]) -> str:
    first, *rest = arguments
    if first == "build":
        return "build: expected snapshot, native or kernels" + (f", found {rest[0]!r}" if rest else "")
    import difflib

    near = difflib.get_close_matches(first, ["serve", "build", "deploy"], n=1)
    return f"unknown command {first!r}" + (f"; did you mean {near[0]}?" if near else "")
