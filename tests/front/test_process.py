"""Process 1 and the kernel: the listening socket, the engine's process, orphans, exit codes as words."""

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pilotlight.errors import UnavailableError
from pilotlight.front.process import (
    address_of,
    describe_exit,
    engine_command,
    listen,
    start_engine,
)
from pilotlight.messages import FrameReader, Start, decode_to_engine
from pilotlight.settings import Settings


def test_listens_at_once_and_names_its_address() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert address_of(listener) == f"http://127.0.0.1:{port}"
        socket.create_connection(("127.0.0.1", port), 5).close()  # accepted by the kernel, without any server


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_what_is_written_does_not_wait_for_an_acknowledgement(host: str) -> None:
    """A client on a connection that is used again delays it by 40 ms, and with it each answer's second write."""
    with (
        listen(host, 0) as listener,
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), 5),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_listens_on_both_families_where_asked_for_every_interface() -> None:
    with listen("::", 0) as listener:
        port = listener.getsockname()[1]
        assert address_of(listener) == f"http://[::]:{port}"
        socket.create_connection(("127.0.0.1", port), 5).close()
        if _has_ipv6_loopback():
            socket.create_connection(("::1", port), 5).close()


def _has_ipv6_loopback() -> bool:
    """A container's kernel may know IPv6 where none of its interfaces has such an address."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_a_taken_port_is_one_line_that_says_what_to_do() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port} .Address already in use.*--port") as raised:
            listen("127.0.0.1", port)
    assert raised.value.exit_code == 69
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("host", ["203.0.113.1", "no such host", "a" * 70, "no-such-host.invalid"])
def test_a_host_that_is_not_ours_is_one_line(host: str) -> None:
    with pytest.raises(UnavailableError, match="cannot listen on") as raised:
        listen(host, 0)
    assert "\n" not in str(raised.value)


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:  # the listing's own
        return False


def test_the_engine_inherits_its_end_of_the_line_and_no_other_descriptor() -> None:
    script = "import os, sys; os.write(int(sys.argv[1]), ' '.join(os.listdir('/proc/self/fd')).encode())"
    inheritable = {fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_inheritable(fd)}
    process = start_engine([sys.executable, "-c", script], Settings(model="m"))
    with process.line:
        open_there = set(map(int, process.line.recv(1000).split()))
    os.waitpid(process.pid, 0)
    assert inheritable < open_there
    assert len(open_there) == len(inheritable) + 2  # the line and the listing itself


def test_the_engine_hears_its_settings_first() -> None:
    script = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.sendall(s.recv(10000))"
    settings = Settings(model="/models/m", max_num_seqs=3)
    process = start_engine([sys.executable, "-c", script], settings)
    with process.line:
        (body,) = FrameReader().feed(process.line.recv(10000))
    os.waitpid(process.pid, 0)
    assert decode_to_engine(body) == Start(settings)


def test_the_engine_does_not_learn_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTLIGHT_API_KEY", "secret")
    script = (
        "import os, socket, sys; s = socket.socket(fileno=int(sys.argv[1])); "
        "s.sendall(s.recv(10000) + repr(os.environ).encode())"
    )
    process = start_engine([sys.executable, "-c", script], Settings(model="m", api_key="secret"))
    with process.line:
        heard = process.line.recv(100_000)
    os.waitpid(process.pid, 0)
    assert b"PATH" in heard
    assert b"secret" not in heard


def test_the_engine_has_a_process_group_of_its_own_and_is_told_to_stop_by_its_line_alone() -> None:
    script = (
        "import os, signal, sys; "
        "alone = os.getpgrp() == os.getpid(); "
        "[os.kill(os.getpid(), number) for number in (signal.SIGTERM, signal.SIGINT)]; "
        "default = signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL; "
        "os.write(int(sys.argv[1]), b'yes' if alone and default else b'no')"
    )
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = start_engine([sys.executable, "-c", script], Settings(model="m"))
    finally:
        signal.signal(signal.SIGCHLD, previous)
    with process.line:
        assert process.line.recv(10) == b"yes"
    assert os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1]) == 0


def test_an_engine_that_dies_at_once_is_no_error_of_starting_it() -> None:
    process = start_engine(["/bin/true"], Settings(model="m"))
    assert os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1]) == 0
    process.line.close()


def test_the_engine_is_a_module_of_the_package_it_was_started_from() -> None:
    command = engine_command()
    assert command[0] == sys.executable
    assert command[-2:] == ["-m", "pilotlight.engine"]


def test_a_file_in_the_working_directory_is_not_imported_by_the_engine(tmp_path: os.PathLike[str]) -> None:
    script = "from pilotlight.front.process import engine_command; print(engine_command()[1])"
    ran = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "-P\n"


def test_a_directory_that_is_gone_is_no_error(tmp_path: Path) -> None:
    script = "from pilotlight.front.process import engine_command; print(engine_command()[1])"
    gone = tmp_path / "gone"
    gone.mkdir()
    ran = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", sys.executable, "-P", "-c", script],
        cwd=gone,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "-P\n"


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_lead_nowhere(tmp_path: Path, closed: str) -> None:
    script = (
        "import os, socket, sys\n"
        "from pilotlight.front.process import open_standard_streams\n"
        "open_standard_streams()\n"
        "print('log', file=sys.stderr, flush=True)\n"
        "with socket.socket() as line:\n"
        "    found = [line.fileno() > 2, *map(os.get_inheritable, range(3))]\n"
        "open(sys.argv[1], 'w').write(repr(found))\n"
    )
    result = tmp_path / "result"
    command = [sys.executable, "-X", "dev", "-c", script, str(result)]
    subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *command], check=True, stderr=subprocess.DEVNULL)
    assert result.read_text() == repr([True] * 4)


def test_orphans_are_collected_and_the_engine_is_left_to_its_supervisor() -> None:
    """As process 1 would: a subreaper gets the children of children that died."""
    script = """
import ctypes, os
from pilotlight.front.process import reap_orphans
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
engine = os.fork()
if not engine:
    os._exit(7)
read, write = os.pipe()
parent = os.fork()
if not parent:
    orphan = os.fork()
    if orphan:
        os.write(write, b"%d" % orphan)
    os._exit(0)
os.waitpid(parent, 0)
orphan = int(os.read(read, 100))
for child in (engine, orphan):
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
reap_orphans(keep=engine)
assert os.waitstatus_to_exitcode(os.waitpid(engine, 0)[1]) == 7
reap_orphans(keep=engine)
assert not os.path.exists(f"/proc/{orphan}")
reap_orphans(keep=engine)  # there is nothing left to collect
"""
    subprocess.run([sys.executable, "-c", script], timeout=30, check=True)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exited with code 0"),
        (65 << 8, "exited with code 65"),
        (70 << 8, "exited with code 70 (its last lines say why)"),
        (signal.SIGSEGV, "was killed by SIGSEGV"),
        (signal.SIGKILL, "was killed by SIGKILL (the kernel's answer when memory runs out)"),
        (
            signal.SIGBUS,
            "was killed by SIGBUS (the kernel's answer when a file in use, such as the weights, was cut or cannot be "
            "read)",
        ),
    ],
)
def test_exit_status_in_words(status: int, words: str) -> None:
    assert describe_exit(status) == words


def test_the_soft_file_limit_is_raised_to_the_hard_one() -> None:
    script = (
        "import resource; from pilotlight.front.process import raise_file_limit; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512)); raise_file_limit(); "
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 512
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "512 512\n"
