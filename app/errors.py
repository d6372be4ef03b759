"""What a person is told when something is wrong: one line, and an exit code that says which kind it was.

A `PilotlightError` is expected: `cli.main` prints its one line, without a traceback, and exits with its code.
Beside the usual 2 for usage the codes are BSD's (sysexits.h), so that a platform's log can tell a bad flag
from a bad file.
"""

EXIT_USAGE = 2  # a flag or an environment variable
EXIT_DATA = 65  # a model file that is cut, misshapen or not what it says it is
EXIT_NO_INPUT = 66  # a model that is not there
EXIT_UNAVAILABLE = 69  # the device, the port, the memory
EXIT_ENGINE = 70  # the engine process died too often
EXIT_KERNEL = 73  # a kernel that does not compile or breaks a rule


class PilotlightError(Exception):
    """An expected failure. The message is one line: what, where, what was expected, what to do."""

    exit_code = 1


class UsageError(PilotlightError):
    exit_code = EXIT_USAGE


class ModelDataError(PilotlightError):
    exit_code = EXIT_DATA


class KernelError(PilotlightError):
    """A kernel's source that does not compile, or whose code breaks a rule or a promise."""

    exit_code = EXIT_KERNEL


class ModelNotFoundError(PilotlightError):
    exit_code = EXIT_NO_INPUT


class UnavailableError(PilotlightError):
    exit_code = EXIT_UNAVAILABLE


class EngineDiedError(PilotlightError):
    exit_code = EXIT_ENGINE


def amount(nbytes: int) -> str:
    """A size as messages give it: "12.3 MB", "1.23 GB"."""
    return f"{nbytes / 1e6:,.1f} MB" if nbytes < 1e9 else f"{nbytes / 1e9:,.2f} GB"
