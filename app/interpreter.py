"""How a module of ours is run in a process of its own, by this interpreter."""

import os
import sys


def module_command(module: str) -> list[str]:
    """The command line that runs `module`; its arguments are to be appended.

    `python -m` puts the working directory ahead of every library. Unless we were imported from there ourselves, -P
    leaves it out: a file that happens to lie in it (random.py) must not take a library's place.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:  # deleted since: nothing can be imported from it
        here = ""
    safe = [] if here in sys.path or "" in sys.path else ["-P"]
    return [sys.executable, *safe, "-m", module]
