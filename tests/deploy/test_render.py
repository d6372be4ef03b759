"""Each platform's form: the goldens as a person would review them, valid, and with HTTP probes."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotlight.deploy.command import TARGETS, command
from pilotlight.deploy.reading import read_deployment
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
        "REFERENCE": "$(PILOTLIGHT_DEVICE) ${HOME} $$ $",
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
        probe = [argument.replace(" 8000)", f" {server.server_port})") for argument in arguments]
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


def test_notes_name_what_the_platform_has_no_place_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["render", str(SMALL), "--target", "cloudrun"]) == 0
    out, err = capsys.readouterr()
    assert out == golden(SMALL, "cloudrun").read_text()
    assert err.splitlines() == [
        "note: gpu.min_cuda: Cloud Run chooses its drivers itself",
        "note: scaling.idle: Cloud Run itself decides how long an idle replica stays",
        "note: image: Cloud Run pulls from ghcr.io only through a remote repository of Artifact Registry",
        "note: timeouts.shutdown: Cloud Run ends a replica 10 seconds after SIGTERM",
    ]


@pytest.mark.parametrize(
    ("image", "noted"),
    [
        ("us-central1-docker.pkg.dev/p/r/pilotlight:1", False),
        ("gcr.io/p/pilotlight", False),
        ("someone/pilotlight:1.0", False),  # Docker Hub's
        ("pilotlight", False),
        ("quay.io/someone/pilotlight", True),
    ],
)
def test_registries_that_cloud_run_does_not_pull_from_are_noted(tmp_path: Path, image: str, noted: bool) -> None:
    file = tmp_path / "d.yml"
    file.write_text(f"name: a\nimage: {image}\ngpu: {{memory: 24}}\n")
    notes = TARGETS["cloudrun"](read_deployment(file)).notes
    assert any(note.startswith("image: ") for note in notes) == noted


def test_key_that_runpod_s_gateway_would_take_for_its_own_is_noted(tmp_path: Path) -> None:
    file = tmp_path / "d.yml"
    text = SMALL.read_text() + "secrets: {PILOTLIGHT_API_KEY: a}\n"
    for more, noted in (("", True), ("runpod: {type: QUEUE}\n", False)):
        file.write_text(text + more)
        notes = TARGETS["runpod"](read_deployment(file)).notes
        assert any("X-API-Key" in note for note in notes) == noted


def test_variables_of_runpod_s_vllm_worker_are_checked_as_there(tmp_path: Path) -> None:
    file = tmp_path / "d.yml"
    file.write_text(SMALL.read_text() + "environment: {QUANTIZATION: awq}\n")
    with pytest.raises(UsageError, match=r"d\.yml:\d+: environment: QUANTIZATION"):
        render(file, "runpod")
    assert "QUANTIZATION" in render(file, "knative")  # where it means nothing to the server


@pytest.mark.parametrize("action", ["render", "push"])
def test_output_is_utf_8_whatever_the_terminal_takes(action: str) -> None:
    command = [sys.executable, "-m", "pilotlight", "deploy", action, "--target", "runpod", str(FULL)]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "häß" in done.stdout.decode()


def test_output_that_cannot_be_written_is_said_in_one_line() -> None:
    command = [sys.executable, "-m", "pilotlight", "deploy", "render", "--target", "runpod", str(SMALL)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == EXIT_UNAVAILABLE
    assert done.stderr.splitlines()[-1] == "pilotlight: stdout: cannot be written: No space left on device"


def test_closed_output_is_said_in_one_line() -> None:
    line = f"exec {sys.executable} -m pilotlight deploy render --target runpod {SMALL} >&-"
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True)
    assert done.returncode == EXIT_UNAVAILABLE
    assert done.stderr.startswith("pilotlight: stdout: is closed; ")
    assert done.stderr.count("\n") == 1


def test_output_goes_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "service.yaml"
    assert command(["render", str(SMALL), "--target", "knative", "-o", str(output)]) == 0
    assert output.read_text() == golden(SMALL, "knative").read_text()
    assert capsys.readouterr().out == ""
    with pytest.raises(UnavailableError, match="cannot be written: Is a directory") as caught:
        command(["render", str(SMALL), "--target", "knative", "-o", str(tmp_path)])
    assert caught.value.exit_code == EXIT_UNAVAILABLE


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "deploy: the following arguments are required: render|push"),
        (["render"], "deploy render: the following arguments are required: --target"),
        (["render", "--target", "mars"], "deploy render: argument --target: invalid choice: 'mars'"),
        (["render", "--targ", "modal"], "deploy render: the following arguments are required: --target"),
        (["push", "--target", "modal"], "deploy push: argument --target: invalid choice: 'modal'"),
    ],
)
def test_wrong_words_are_refused(arguments: list[str], reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        command(arguments)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize("arguments", [["render", "--target", "knative"], ["push", "--target", "runpod", "--yes"]])
def test_reader_that_leaves_ends_it_quietly_and_nothing_is_sent(arguments: list[str]) -> None:
    """As `pilotlight deploy push | head -1` has it. On its way to sending, push would complain of the missing key."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "pilotlight", "deploy", *arguments, str(SMALL)]
    environ = {name: value for name, value in os.environ.items() if name != "RUNPOD_API_KEY"}
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, env=environ)
    os.close(write_end)
    assert done.returncode == 128 + signal.SIGPIPE
    assert [line for line in done.stderr.splitlines() if not line.startswith("note: ")] == []
