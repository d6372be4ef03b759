"""What the scripts share at a terminal: types of arguments that say what they expect, tables, and how a failure ends.

Only the standard library is used, so that a script may import this before anything is installed.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pilotlight.errors import PilotlightError


def checked(kind: type[int] | type[float], expected: str, is_one: Callable[[float], bool]) -> Callable[[str], float]:
    """A type for `add_argument`; its refusal names `expected` and what was found."""

    def read(text: str) -> float:
        try:
            value = kind(text)
            if is_one(value):
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"expected {expected}, found {text!r}")

    return read


positive = checked(float, "a number above 0", lambda value: 0 < value < math.inf)
not_negative = checked(float, "a number, 0 or more", lambda value: 0 <= value < math.inf)
share = checked(float, "a number between 0 and 1", lambda value: 0 < value < 1)
count = checked(int, "a whole number, 1 or more", lambda value: value >= 1)
whole = checked(int, "a whole number, 0 or more", lambda value: value >= 0)


def named_directory(text: str) -> tuple[str, Path]:
    """A type for `add_argument`: NAME=DIRECTORY."""
    name, equals, directory = text.partition("=")
    if not name or not equals or not directory:
        raise argparse.ArgumentTypeError(f"expected NAME=DIRECTORY, found {text!r}")
    return name, Path(directory)


def fail(script: str, error: "PilotlightError") -> NoReturn:
    """Ends the script as `pilotlight` ends: one line on stderr, and the error's own exit code."""
    print(f"{script}: {error}", file=sys.stderr)
    sys.exit(error.exit_code)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """The first row has the titles. The first column is aligned left, the others, which are figures, right."""
    columns = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, columns[1:], strict=True)]
        print("  ".join([first.ljust(columns[0]), *cells]).rstrip())
