"""What process 1 asks of the kernel: the listening socket, the file limit, the engine's process, its children.

Apart because all of it happens before anything heavy is imported: at its top this module imports the standard
library's lightest modules and nothing else. `typing` alone takes 8 ms.
"""

import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from .. import EXEC_TIME
from ..errors import EXIT_ENGINE, UnavailableError
from ..peek import env_name, snapshot_weights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..settings import Settings

_HINTS: dict[int, str] = {
    signal.SIGKILL: " (the kernel's answer when memory runs out)",
    signal.SIGBUS: " (the kernel's answer when a file in use, such as the weights, was cut or cannot be read)",
}
BACKLOG = 2048  # connections that may wait while the web stack is being imported


class EngineProcess:
    """A started engine: its process id and our end of the line."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self.line = line

    def tell(self, settings: "Settings") -> None:
        """The engine's first message: what it is to load."""
        import msgspec

        from ..messages import Start, encode

        settings = msgspec.structs.replace(settings, api_key=None)  # the engine has no use for the secret
        with suppress(OSError):  # it is dead already: the line's end will say so
            self.line.sendall(encode(Start(settings)))

    def abandon(self) -> None:
        """Ends an engine that has nothing to load."""
        self.line.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def open_standard_streams() -> None:
    """Leads descriptors 0 to 2, where closed, to nowhere: else a socket would get such a number, and the log."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8")  # noqa: SIM115  # for the life of the process


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises UnavailableError where the address is not ours or is taken."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        dualstack = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=dualstack)
        # Connections inherit it; asyncio sets it only on sockets of its own making. Without it a token waits for
        # the client's delayed acknowledgement of the one before, 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except socket.gaierror as error:
        reason = error.strerror
    except UnicodeError:
        reason = "no host name"
    except OSError as error:
        reason = os.strerror(error.errno or 0)  # its own text repeats the address
    raise UnavailableError(
        f"cannot listen on {host}:{port} ({reason}); choose another --host or --port (0 picks a free one)"
    )


def address_of(listener: socket.socket) -> str:
    """ "http://127.0.0.1:8000", as a client on this machine would write it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def raise_file_limit() -> None:
    """One connection is one descriptor, and many images start with a soft limit of 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def engine_command() -> list[str]:
    """How this interpreter runs the engine; `start_engine` appends the descriptor of its end of the line."""
    from ..interpreter import module_command  # the port is open by now

    root = __name__.partition(".")[0]  # "pilotlight", or "app" in the tree
    return module_command(f"{root}.engine")


def start_engine(command: Sequence[str], settings: "Settings") -> EngineProcess:
    """Starts the engine and tells it its settings."""
    process = spawn_engine(command, settings.device, snapshot_weights(settings.model))
    process.tell(settings)
    return process


def spawn_engine(command: Sequence[str], device: str, weights: Sequence[str]) -> EngineProcess:
    """Starts the engine, which begins with `device` (as --device has it) and with reading the files `weights`.

    It gets a process group of its own: Ctrl-C in a terminal is for the front, which drains first. A service manager
    may signal every process: what tells to stop is blocked from its first instruction on, until it ignores it. How it
    follows the front into death is its own affair (engine/worker.py).
    """
    environment = {name: value for name, value in os.environ.items() if name != env_name("api_key")}
    environment[EXEC_TIME] = repr(time.monotonic())  # the engine's own
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.set_inheritable(True)
        pid = os.posix_spawn(
            command[0],
            [*command, str(theirs.fileno()), device, *weights],
            environment,
            setpgroup=0,
            setsigmask=[signal.SIGTERM, signal.SIGINT],
            setsigdef=[signal.SIGCHLD],
        )
    return EngineProcess(pid, ours)


def reap_orphans(keep: int) -> None:
    """Collects what was left to process 1 by children that died before their own; `keep` is collected elsewhere."""
    with suppress(ChildProcessError):
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and dead.si_pid != keep:
            os.waitpid(dead.si_pid, 0)


def describe_exit(status: int) -> str:
    """What waitpid's status says, for a person."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exited with code {code}{' (its last lines say why)' if code == EXIT_ENGINE else ''}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
    return f"was killed by {name}{_HINTS.get(-code, '')}"
