"""Modal: what the real `modal deploy` asks its API for, the class that waits for the server, and the Dockerfile."""

import os
import re
import socket
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from modal import FilePatternMatcher
from modal.exception import InvalidError
from modal_proto import api_pb2

from tests.deploy.modal_api import ModalApi, modal_api
from tests.deploy.renderings import HERE, render, run_modal_file

ROOT = HERE.parents[1]
APP = ROOT / "scripts" / "modal_app.py"  # tests/test_settings.py holds it to serverless.yml
SMALL, FULL = HERE / "small.yml", HERE / "full.yml"
DOCKERFILE = ROOT / "Dockerfile"


@pytest.fixture
def api() -> Iterator[ModalApi]:
    with modal_api() as api:
        yield api


def deployed(api: ModalApi, file: Path, directory: Path, **environ: str) -> Any:
    """The one function that `modal deploy FILE` has Modal create, once for each GPU type."""
    done = api.deploy(file, directory, environ)
    assert done.returncode == 0, done.stderr
    (created,) = api.asked("FunctionCreate")
    assert len(api.asked("AppPublish")) == 1
    return created.function_data


def gpus(function: Any) -> list[str]:
    return [ranked.function.resources.gpu_config.gpu_type for ranked in function.ranked_functions]


def variables(api: ModalApi) -> dict[str, str]:
    (own,) = (dict(asked.env_dict) for asked in api.asked("SecretGetOrCreate") if asked.env_dict)
    return own


def test_modal_is_asked_for_a_web_server_behind_its_own_key(api: ModalApi, tmp_path: Path) -> None:
    function = deployed(api, APP, tmp_path)
    assert gpus(function) == ["L4", "A10"]
    first = function.ranked_functions[0].function
    assert (first.function_name, first.app_name) == ("WebServer.*", "pilotlight")
    assert (first.resources.milli_cpu, first.resources.memory_mb) == (4000, 16384)
    scaling = first.autoscaler_settings
    assert (scaling.min_containers, scaling.max_containers, scaling.scaledown_window) == (0, 3, 300)
    assert (first.max_concurrent_inputs, first.target_concurrent_inputs) == (32, 16)
    assert (first.startup_timeout_secs, first.timeout_secs) == (600, 900)
    assert not first.is_checkpointing_function
    web = first.method_definitions["serve"].webhook_config
    assert web.type == api_pb2.WEBHOOK_TYPE_WEB_SERVER
    assert (web.web_server_port, web.web_server_startup_timeout) == (8000, 600)  # Modal's own default is 5 seconds
    assert web.requires_proxy_auth
    pulled, emptied = (list(asked.image.dockerfile_commands) for asked in api.asked("ImageGetOrCreate"))
    assert pulled == ["FROM registry.example.com/pilotlight:0.1.0"]
    assert emptied == ["FROM base", "ENTRYPOINT []"]
    secret = next(asked for asked in api.asked("SecretGetOrCreate") if asked.deployment_name)
    assert (secret.deployment_name, secret.required_keys) == ("pilotlight-api-key", ["PILOTLIGHT_API_KEY"])
    assert (
        variables(api).items() >= {"PORT": "8000", "PILOTLIGHT_DEVICE": "cuda", "DEPLOY_FORM": "web_server"}.items()
    )


def test_shell_chooses_gpu_image_and_form(api: ModalApi, tmp_path: Path) -> None:
    function = deployed(
        api, APP, tmp_path, DEPLOY_FORM="server", DEPLOY_GPU="H100", DEPLOY_IMAGE="ghcr.io/someone/else:2"
    )
    assert gpus(function) == ["H100"]
    first = function.ranked_functions[0].function
    assert (first.function_name, first.is_server, first.startup_timeout_secs) == ("Server", True, 600)
    http = first.http_config
    assert (http.port, http.startup_timeout, http.exit_grace_period, http.unauthenticated) == (8000, 600, 30, False)
    assert first.autoscaler_settings.target_concurrency_float == 16
    assert api.asked("ImageGetOrCreate")[0].image.dockerfile_commands == ["FROM ghcr.io/someone/else:2"]
    assert variables(api)["DEPLOY_FORM"] == "server"  # the container reads the file again


def test_every_field_reaches_modal(api: ModalApi, tmp_path: Path) -> None:
    file = tmp_path / "full.py"
    file.write_text(render(FULL, "modal"))
    function = deployed(api, file, tmp_path)
    assert gpus(function) == ["H200"]
    first = function.ranked_functions[0].function
    assert first.http_config.unauthenticated
    assert list(first.http_config.proxy_regions) == ["eu-west"]
    assert list(first.scheduler_placement.regions) == ["eu"]
    (volume,) = first.volume_mounts
    assert (volume.mount_path, volume.read_only) == ("/models", True)
    assert [asked.deployment_name for asked in api.asked("VolumeGetOrCreate")] == ["models"]
    assert api.asked("ImageGetOrCreate")[0].image.image_registry_config == api_pb2.ImageRegistryConfig(
        registry_auth_type=api_pb2.REGISTRY_AUTH_TYPE_STATIC_CREDS, secret_id="st-1"
    )
    assert variables(api)["PILOTLIGHT_SHUTDOWN_TIMEOUT"] == "40"
    assert first.http_config.exit_grace_period == 45


def test_image_can_be_built_from_the_dockerfile(api: ModalApi, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(DOCKERFILE.read_text())
    for name in copied():
        file = tmp_path / name / "one" if (ROOT / name).is_dir() else tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (tmp_path / "kept_out").mkdir()
    (tmp_path / ".dockerignore").write_text("kept_out\n")
    (tmp_path / "kept_out" / "large").write_text("")
    deployed(api, APP, tmp_path, DEPLOY_IMAGE="Dockerfile", DEPLOY_MODEL="Qwen/Qwen2.5-0.5B-Instruct")
    built = next(asked.image for asked in api.asked("ImageGetOrCreate") if asked.image.build_args)
    assert "\n".join(built.dockerfile_commands).strip() == DOCKERFILE.read_text().strip()
    assert built.build_args == {"MODEL": "Qwen/Qwen2.5-0.5B-Instruct"}
    context = {file.filename for asked in api.asked("MountGetOrCreate") for file in asked.files}
    assert [name for name in copied() if not any(Path(file).is_relative_to(f"/{name}") for file in context)] == []
    assert not [name for name in context if "kept_out" in name]


def test_form_that_there_is_not_is_refused(api: ModalApi, tmp_path: Path) -> None:
    done = api.deploy(APP, tmp_path, {"DEPLOY_FORM": "asgi"})
    assert (done.returncode, done.stderr) == (1, "DEPLOY_FORM: expected web_server or server, found asgi\n")
    assert api.requests == []


def test_modal_refuses_what_it_does_not_know(api: ModalApi, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(render(SMALL, "modal").replace("scaledown_window", "scaledown_widow"))
    done = api.deploy(wrong, tmp_path, {})
    assert "scaledown_widow" in done.stderr
    assert done.returncode == 1


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
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The rendered file under a Modal that decorates nothing; its `pilotlight` is ready when asked a third time."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = tmp_path / "pilotlight"
    program.write_text(SERVER.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PORT", str(port))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # is for what goes out of the container
    file = tmp_path / "d.yml"
    file.write_text(SMALL.read_text() + f"port: {port}\n")
    return run_modal_file(render(file, "modal"))


@pytest.mark.parametrize("form", ["web_server", "server"])
def test_class_waits_until_the_server_is_ready(running: types.ModuleType, form: str) -> None:
    replica = running.Replica()
    replica.start()
    assert replica.server.poll() is None
    replica.stop()
    assert replica.server.returncode == 0


def test_class_says_when_the_server_leaves(running: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIE", "1")
    with pytest.raises(RuntimeError, match="pilotlight serve left with 69"):
        running.Replica().start()


def instructions(text: str) -> list[str]:
    """A Dockerfile's instructions without comments, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [" ".join(part.split()) for part in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines() if part.strip()]


def copied() -> list[str]:
    """What every COPY takes out of the build context, by its path in the repository."""
    words = [line.split()[1:-1] for line in instructions(DOCKERFILE.read_text()) if line.startswith("COPY ")]
    sources = [word for line in words if not any(word.startswith("--from=") for word in line) for word in line]
    found = {source: sorted(ROOT.glob(source)) for source in sources if source not in (".", "--link")}
    assert [source for source, paths in found.items() if not paths] == []
    return [str(path.relative_to(ROOT)) for paths in found.values() for path in paths]


def refused(text: str) -> list[str]:
    """What Modal's builder does not take: its own reader sees flags and variables of COPY only in some places."""
    from modal._utils.docker_utils import extract_copy_command_patterns

    found = []
    try:
        extract_copy_command_patterns(text.splitlines())
    except InvalidError as error:
        found.append(str(error))
    for line in instructions(text):
        name, _, rest = line.partition(" ")
        if name in ("COPY", "ADD") and re.search(r"--(parents|exclude|keep-git-dir|unpack)\b", rest):
            found.append(f"a flag in {line}")
        if name == "COPY" and "$" in rest:
            found.append(f"a variable in {line}")
        if name == "ADD":
            found.append(f"files that Modal does not upload: {line}")
        if "<<" in rest:
            found.append(f"a document within {line}")
    return found


def test_dockerfile_has_nothing_in_it_that_modal_refuses() -> None:
    assert refused(DOCKERFILE.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "COPY --parents app ./",
        "COPY --exclude=tests . .",
        "COPY $MODEL /model",
        "COPY app/${PART} /app",
        "ADD app.tar /app",
        "COPY \\\n  --parents app \\\n  ./",
        "RUN <<END",
    ],
)
def test_what_modal_refuses_is_found(line: str) -> None:
    assert refused(f"FROM scratch\n{line}\n") != []


def test_everything_that_the_dockerfile_copies_is_uploaded() -> None:
    """.dockerignore by Modal's own reader."""
    ignored = FilePatternMatcher(*(ROOT / ".dockerignore").read_text().splitlines())
    for source in [*copied(), "scripts/get_demo_model", "ptx/manifest.json"]:
        assert not ignored(Path(source)), source
    for left_out in ("tests/deploy/test_modal.py", "docs/deploy.md", ".git/config", "benchmarks/cpu.json"):
        assert ignored(Path(left_out)), left_out
