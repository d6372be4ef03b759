"""Each platform's form: the goldens as a person would review them, valid, with HTTP probes, and Modal's by Modal."""

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from pilotlight.deploy.command import TARGETS, command
from pilotlight.device.cuda.driver import FLOOR
from pilotlight.errors import EXIT_UNAVAILABLE, UnavailableError, UsageError
from pilotlight.front.routes import OPEN_PATHS
from tests.deploy.renderings import HERE, container, environment, keys, parsed, render

SUFFIX = {"runpod": "json", "modal": "py"}
SMALL, FULL = HERE / "small.yml", HERE / "full.yml"


def golden(file: Path, target: str) -> Path:
    return HERE / "golden" / f"{file.stem}_{target}.{SUFFIX.get(target, 'yaml')}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("file", [SMALL, FULL], ids=lambda file: file.stem)
def test_rendering_is_the_golden_and_valid(file: Path, target: str) -> None:
    text = render(file, target)
    assert text == golden(file, target).read_text(), (
        f"render it again, if so it shall be: pilotlight deploy render {file} --target {target} -o GOLDEN"
    )
    parsed(text, target)


@pytest.mark.parametrize("target", TARGETS)
def test_server_is_told_the_same_everywhere(target: str) -> None:
    told = environment(parsed(render(FULL, target), target), target)
    shutdown = told.pop("PILOTLIGHT_SHUTDOWN_TIMEOUT")
    assert shutdown == ("9" if target == "cloudrun" else "40")
    for name in ("PORT", "PORT_HEALTH", "HEALTH_CHECK_PATH"):
        told.pop(name, None)
    assert told == {
        "PILOTLIGHT_DEVICE": "cuda",
        "PILOTLIGHT_STARTUP_TIMEOUT": "301",
        "PILOTLIGHT_MAX_NUM_SEQS": "64",
        "PILOTLIGHT_GPU_MEMORY_UTILIZATION": "0.90",
        "PILOTLIGHT_VERIFY": "true",
        "PILOTLIGHT_CHAT_TEMPLATE": 'a "$quoted" {path}: häß # 1',
        "OTHER": "",
        "SCIENTIFIC": "1e3",
    }


@pytest.mark.parametrize("target", ["cloudrun", "knative"])
def test_kubernetes_probes_are_http_and_name_routes_that_need_no_key(target: str) -> None:
    service = parsed(render(SMALL, target), target)
    assert not {"tcpSocket", "exec", "grpc"} & set(keys(service))
    first = container(service)["startupProbe" if target == "cloudrun" else "readinessProbe"]
    assert first["httpGet"]["path"] == "/health"  # 503 while loading; /ping is not
    assert container(service)["livenessProbe"]["httpGet"]["path"] == "/v1/health/live"
    assert {"/health", "/v1/health/ready", "/v1/health/live", "/ping"} <= OPEN_PATHS


def test_knative_asks_often_until_the_first_success() -> None:
    """Knative takes a period of zero for that, and refuses a threshold and a timeout beside it."""
    readiness = container(parsed(render(SMALL, "knative"), "knative"))["readinessProbe"]
    assert readiness == {"httpGet": {"path": "/health"}, "successThreshold": 1}


@pytest.mark.parametrize(("seconds", "failures"), [(1, 1), (2, 1), (3, 2), (1799, 900), (1800, 900)])
def test_cloud_run_s_startup_probe_lasts_as_long_as_a_start_may(tmp_path: Path, seconds: int, failures: int) -> None:
    file = tmp_path / "d.yml"
    file.write_text(SMALL.read_text() + f"timeouts: {{startup: {seconds}}}\n")
    startup = container(parsed(render(file, "cloudrun"), "cloudrun"))["startupProbe"]
    assert startup["failureThreshold"] == failures
    assert startup["failureThreshold"] * startup["periodSeconds"] <= 1800  # Cloud Run's limit with a GPU


def test_compose_probe_tells_ready_from_loading() -> None:
    """The probe's own code, against a server that answers 503, then 200."""
    import http.server
    import threading

    class Handler(http.server.BaseHTTPRequestHandler):
        answers = iter([503, 200])

        def do_GET(self) -> None:
            assert self.path == "/health"
            self.send_response(next(self.answers))
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (service,) = parsed(render(SMALL, "compose"), "compose")["services"].values()
        kind, _, *arguments = service["healthcheck"]["test"]
        assert kind == "CMD"
        probe = [argument.replace(":8000/", f":{server.server_port}/") for argument in arguments]
        codes = [subprocess.run([sys.executable, *probe], stderr=subprocess.DEVNULL).returncode for _ in range(2)]
        server.shutdown()
    assert codes == [1, 0]


def test_driver_that_is_asked_for_is_the_oldest_that_works() -> None:
    gpu = parsed(render(SMALL, "runpod"), "runpod")["gpu"]
    major, minor = gpu["minCudaVersion"].split(".")
    assert int(major) * 1000 + int(minor) * 10 == FLOOR


def test_runpod_scales_a_load_balancer_on_requests_and_a_queue_on_waiting() -> None:
    balancer, queue = (parsed(render(file, "runpod"), "runpod") for file in (SMALL, FULL))
    assert balancer["type"] == "LOAD_BALANCER"
    assert balancer["scaling"] == {"type": "REQUEST_COUNT", "requestCount": 16}
    assert balancer["ports"] == ["8000/http"]
    assert {"PORT": "8000", "PORT_HEALTH": "8000", "HEALTH_CHECK_PATH": "/ping"}.items() <= balancer["env"].items()
    assert "args" not in balancer
    assert queue["type"] == "QUEUE"
    assert queue["scaling"] == {"type": "QUEUE_DELAY", "queueDelay": 2.5}
    assert queue["workers"] == {"min": 1, "max": 7, "idleTimeout": 60}
    assert queue["args"] == "--runpod-queue"
    assert queue["timeout"] == 3_600_000  # ms
    assert queue["env"]["HF_TOKEN"] == "{{ RUNPOD_SECRET_hugging-face }}"


MODAL_CHECK = """
import importlib.util, sys
for number, file in enumerate(sys.argv[1:]):
    spec = importlib.util.spec_from_file_location(f"deployed{number}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    print(type(module.app).__name__, type(module.Pilotlight).__name__)
"""


def by_modal(directory: Path, *files: Path) -> "subprocess.CompletedProcess[str]":
    """Imports the files with the real package, which checks every argument; nothing leaves this machine."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MODAL_")}
    command = [sys.executable, "-W", "error", "-c", MODAL_CHECK, *map(str, files)]
    return subprocess.run(command, env=environ | {"HOME": str(directory)}, capture_output=True, text=True)


def test_modal_itself_takes_the_file(tmp_path: Path) -> None:
    whole = tmp_path / "d.yml"
    whole.write_text(FULL.read_text().replace("form: server", "form: web_server"))
    file = tmp_path / "full_web_server.py"
    file.write_text(render(whole, "modal"))
    done = by_modal(tmp_path, golden(SMALL, "modal"), golden(FULL, "modal"), file)
    assert (done.returncode, done.stdout) == (0, "App Cls\nApp Server\nApp Cls\n"), done.stderr


def test_modal_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(golden(SMALL, "modal").read_text().replace("scaledown_window", "scaledown_widow"))
    assert "scaledown_widow" in by_modal(tmp_path, wrong).stderr


SERVER = """#!{python}
import http.server, os, signal, sys
assert sys.argv[1:] == ["serve"]
if os.environ.get("DIE"):
    sys.exit(69)
class Handler(http.server.BaseHTTPRequestHandler):
    answers = iter([503, 204, 200])
    def do_GET(self):
        self.send_response(next(self.answers))
        self.end_headers()
    def log_message(self, *_):
        pass
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The rendered file under a Modal that decorates nothing; its `pilotlight` is ready when asked a third time."""
    import socket

    class Anything:
        def __getattr__(self, name: str) -> Any:
            return Anything()

        def __call__(self, *arguments: Any, **_: Any) -> Any:
            return arguments[0] if arguments and callable(arguments[0]) else Anything()

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = tmp_path / "pilotlight"
    program.write_text(SERVER.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PORT", str(port))
    monkeypatch.setitem(sys.modules, "modal", Anything())  # type: ignore[arg-type]
    file = tmp_path / "d.yml"
    file.write_text(SMALL.read_text() + f"port: {port}\n")
    module = types.ModuleType("deployed")
    exec(compile(render(file, "modal"), "modal.py", "exec"), module.__dict__)
    return module


def test_modal_s_class_waits_until_the_server_is_ready(deployed: types.ModuleType) -> None:
    replica = deployed.Pilotlight()
    replica.start()
    assert replica.server.poll() is None
    replica.stop()
    assert replica.server.returncode == 0


def test_modal_s_class_says_when_the_server_leaves(
    deployed: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIE", "1")
    with pytest.raises(RuntimeError, match="pilotlight serve left with 69"):
        deployed.Pilotlight().start()


def test_notes_name_what_the_platform_has_no_place_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["render", str(SMALL), "--target", "cloudrun"]) == 0
    out, err = capsys.readouterr()
    assert out == golden(SMALL, "cloudrun").read_text()
    assert err.splitlines() == [
        "note: scaling.idle: Cloud Run itself decides how long an idle replica stays",
        "note: timeouts.shutdown: Cloud Run ends a replica 10 seconds after SIGTERM",
    ]


def test_output_goes_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "service.yaml"
    assert command(["render", str(SMALL), "--target", "knative", "-o", str(output)]) == 0
    assert output.read_text() == golden(SMALL, "knative").read_text()
    assert capsys.readouterr().out == ""
    with pytest.raises(UnavailableError, match="cannot be written: Is a directory") as caught:
        command(["render", str(SMALL), "--target", "knative", "-o", str(tmp_path)])
    assert caught.value.exit_code == EXIT_UNAVAILABLE


@pytest.mark.parametrize("arguments", [[], ["render"], ["render", "--target", "mars"], ["push", "--target", "modal"]])
def test_wrong_words_are_refused(arguments: list[str]) -> None:
    with pytest.raises(UsageError, match=r"^deploy: "):
        command(arguments)
