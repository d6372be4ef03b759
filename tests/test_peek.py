"""What is read before the settings agrees with them, wherever they are right: the start goes by it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotlight import peek
from pilotlight.errors import UsageError
from pilotlight.settings import from_args

WORDS = st.sampled_from(
    [
        *(
            "m",
            "--port",
            "--port=9",
            "--port=",
            "8001",
            "08",
            "65535",
            "65536",
            "--host",
            "::1",
            "--host=h",
            "--host=",
            "",
            "-1",
            "٣",
        ),
        *(
            "--device",
            "cuda:1",
            "--device=cpu",
            "auto",
            "--verify",
            "--no-verify",
            "--",
            "--dtype",
            "float32",
            "--model",
        ),
        *("--ports", "--port9", "tcp://10.0.0.1:80", "localhost"),
    ]
)
TEXTS = st.sampled_from(["", "9000", "tcp://10.0.0.1:8000", "::", "h", "cpu", "cuda", "m"])
ENVIRONS = st.fixed_dictionaries(
    {}, optional={f"PILOTLIGHT_{name}": TEXTS for name in ("HOST", "PORT", "DEVICE", "MODEL")} | {"PORT": TEXTS}
)


@given(st.lists(WORDS, max_size=7), ENVIRONS)
def test_what_is_read_first_is_what_the_settings_say(argv: list[str], environ: dict[str, str]) -> None:
    address, device = peek.address(argv, environ), peek.device(argv, environ)
    try:
        settings = from_args(argv, environ)
    except UsageError:
        return
    assert address in (None, (settings.host, settings.port))
    assert device == settings.device


def test_plain_settings_are_never_in_doubt() -> None:
    assert peek.address([], {}) == ("127.0.0.1", 8000)
    assert peek.address(["m", "--port", "1", "--host", "::"], {"PORT": "2"}) == ("::", 1)
    assert peek.address(["m"], {"PORT": "2", "PILOTLIGHT_HOST": "0.0.0.0"}) == ("0.0.0.0", 2)
    assert peek.address(["m"], {"PILOTLIGHT_PORT": "3", "PORT": "2"}) == ("127.0.0.1", 3)
    assert peek.address(["m", "--port=http"], {}) is None
    assert peek.address(["m", "--port", "65535"], {}) == ("127.0.0.1", 65535)
    assert peek.address(["m", "--port", "65536"], {}) is None  # nobody can listen there
    assert peek.device(["m", "--device", "cuda:1"], {"PILOTLIGHT_DEVICE": "cpu"}) == "cuda:1"
    assert peek.device([], {}) == "auto"


@pytest.mark.parametrize("form", [["{}"], ["--model", "{}"], ["--model={}"], ["--verify", "{}"], []])
def test_weights_are_found_however_the_model_is_named(tmp_path: Path, form: list[str]) -> None:
    (tmp_path / "weights.safetensors").touch()
    argv = [word.format(tmp_path) for word in form]
    environ = {} if form else {"PILOTLIGHT_MODEL": str(tmp_path)}
    assert peek.weights(["--port", "1", *argv], environ) == [str(tmp_path / "weights.safetensors")]


def test_weights_of_the_image_are_left_alone_where_runpod_names_another_model(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").touch()
    environ = {"RUNPOD_POD_ID": "x", "PILOTLIGHT_MODEL": str(tmp_path), "MODEL_NAME": "a/b"}
    assert peek.weights([], environ) == []
    assert peek.weights([], environ | {"MODEL_NAME": ""}) == [str(tmp_path / "weights.safetensors")]
    assert peek.weights([], environ | {"RUNPOD_POD_ID": ""}) == [str(tmp_path / "weights.safetensors")]


def test_only_a_snapshot_has_weights_that_are_known_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert peek.weights([str(tmp_path), "no/such/place", ""], {}) == []
    for number in (1, 2):
        (tmp_path / f"weights-0000{number}-of-00002.safetensors").touch()
    assert len(peek.weights([str(tmp_path)], {})) == 2
