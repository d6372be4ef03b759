"""The parser of a command's arguments. Apart, because a server that starts must not import argparse first."""

import argparse
from typing import NoReturn

from .errors import UsageError


class Parser(argparse.ArgumentParser):
    """Takes no abbreviated flags, and refuses by UsageError, which `cli.main` prints on one line."""

    def __init__(self, prog: str, description: str | None = None) -> None:
        """`prog` is the whole command: "pilotlight build native"."""
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog.removeprefix('pilotlight ')}: {message}")
