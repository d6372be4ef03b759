"""Settings: every flag and variable sets its field, what is wrong is refused in one line, the docs fit."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotlight.errors import UsageError
from pilotlight.settings import (
    FIELDS,
    Settings,
    default_of,
    env_name,
    flag,
    from_args,
    from_kwargs,
    is_switch,
    unknown_variables,
)

ROOT = Path(__file__).parent.parent

# field -> what a person writes, what the field then holds. None of the values is the default.
EXAMPLES: dict[str, tuple[str, Any]] = {
    "model": ("some/dir", "some/dir"),
    "served_model_name": ("a, b,", ("a", "b")),
    "host": ("::1", "::1"),
    "port": ("9000", 9000),
    "health_port": ("9001", 9001),
    "ping_loading_status": ("204", "204"),
    "api_key": ("clé", "clé"),
    "device": ("cuda:1", "cuda:1"),
    "dtype": ("float32", "float32"),
    "max_model_len": ("2048", 2048),
    "max_num_seqs": ("7", 7),
    "max_num_batched_tokens": ("64", 64),
    "max_waiting_requests": ("0", 0),
    "enable_prefix_caching": ("false", False),
    "gpu_memory_utilization": ("0.25", 0.25),
    "kv_cache_memory_bytes": ("1048576", 1048576),
    "kv_cache_dtype": ("fp8", "fp8"),
    "tensor_parallel_size": ("1", 1),
    "seed": ("9223372036854775807", 2**63 - 1),
    "chat_template": ("template.jinja", "template.jinja"),
    "max_logprobs": ("5", 5),
    "max_request_bytes": ("1024", 1024),
    "allowed_origins": ("*", ("*",)),
    "shutdown_timeout": ("0", 0.0),
    "startup_timeout": ("1.5", 1.5),
    "engine_timeout": ("20", 20.0),
    "max_engine_deaths": ("1", 1),
    "runpod_queue": ("true", True),
    "verify": ("true", True),
    "startup_trace": ("start.json", "start.json"),
    "log_level": ("debug", "debug"),
}
VALUED = [name for name in EXAMPLES if name != "model" and not is_switch(name)]
SWITCHES = [name for name in EXAMPLES if is_switch(name)]


def refusal(*argv: str, **environ: str) -> str:
    """The line with which `serve` refuses these arguments."""
    with pytest.raises(UsageError) as caught:
        from_args(argv, environ)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_every_setting_has_an_example_here() -> None:
    assert list(EXAMPLES) == list(FIELDS)


def test_defaults_need_only_a_model() -> None:
    settings = from_args(["m"], {})
    assert settings == Settings(model="m")
    assert settings == from_kwargs(model="m")
    assert settings.host == "127.0.0.1", "a server must not listen on every interface unasked"


@pytest.mark.parametrize("name", VALUED)
def test_flag_sets_its_field_and_no_other(name: str) -> None:
    text, value = EXAMPLES[name]
    expected = msgspec.structs.replace(Settings(model="m"), **{name: value})
    assert from_args(["m", flag(name), text], {}) == expected
    assert from_args([f"{flag(name)}={text}", "m"], {}) == expected


@pytest.mark.parametrize("name", SWITCHES)
def test_switch_is_turned_on_and_off(name: str) -> None:
    assert getattr(from_args(["m", flag(name)], {}), name) is True
    assert getattr(from_args(["m", "--no-" + flag(name)[2:]], {}), name) is False


@pytest.mark.parametrize("name", EXAMPLES)
def test_environment_sets_its_field_and_a_flag_wins(name: str) -> None:
    text, value = EXAMPLES[name]
    environ = {"PILOTLIGHT_MODEL": "m", env_name(name): text}
    expected = msgspec.structs.replace(Settings(model="m"), **{name: value})
    assert from_args([], environ) == expected
    if name == "model":
        assert from_args(["other"], environ).model == "other"
    elif is_switch(name):
        assert getattr(from_args([flag(name) if not value else "--no-" + flag(name)[2:]], environ), name) is not value
    else:
        # The environment's value is not even read when a flag is there.
        assert from_args([flag(name), text], environ | {env_name(name): "rubbish"}) == expected


@pytest.mark.parametrize("name", EXAMPLES)
def test_J03_empty_variable_counts_as_unset(name: str) -> None:
    assert from_args(["m"], {env_name(name): ""}) == Settings(model="m")


def test_platform_port_comes_after_ours() -> None:
    assert from_args(["m"], {"PORT": "8080"}).port == 8080
    assert from_args(["m"], {"PORT": "8080", "PILOTLIGHT_PORT": "9000"}).port == 9000
    assert from_args(["m"], {"PORT": "8080", "PILOTLIGHT_PORT": ""}).port == 8080
    assert from_args(["m", "--port", "1"], {"PORT": "8080", "PILOTLIGHT_PORT": "9000"}).port == 1
    # What Kubernetes tells a pod beside a service that is called pilotlight.
    assert from_args(["m"], {"PILOTLIGHT_PORT": "tcp://10.0.0.1:8000"}).port == 8000
    assert from_args(["m"], {"PILOTLIGHT_PORT": "tcp://10.0.0.1:8000", "PORT": "8080"}).port == 8080


@pytest.mark.parametrize("text", ["1", "true", "True", "TRUE"])
def test_switch_variables_take_the_usual_words_for_yes(text: str) -> None:
    assert from_args(["m"], {"PILOTLIGHT_VERIFY": text}).verify is True


@pytest.mark.parametrize("text", ["0", "false", "False"])
def test_switch_variables_take_the_usual_words_for_no(text: str) -> None:
    assert from_args(["m"], {"PILOTLIGHT_ENABLE_PREFIX_CACHING": text}).enable_prefix_caching is False


def test_other_words_for_a_switch_are_refused() -> None:
    assert "PILOTLIGHT_VERIFY" in refusal("m", PILOTLIGHT_VERIFY="perhaps")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("port", "65536", "65535"),
        ("port", "-1", "0"),
        ("port", "http", "a whole number; "),
        ("max_model_len", "0", "1"),
        ("max_num_seqs", "1.5", "a whole number; "),
        ("max_num_seqs", "1025", "1024"),
        ("max_num_batched_tokens", "15", "16"),
        ("gpu_memory_utilization", "0", "0"),
        ("gpu_memory_utilization", "1.01", "1"),
        ("gpu_memory_utilization", "nan", ""),
        ("kv_cache_memory_bytes", "8GB", "a whole number, or one with K, M or G; "),
        ("seed", "-1", "0"),
        ("seed", "9223372036854775808", "9223372036854775807"),
        ("seed", "abc", "expected a whole number; "),
        ("startup_timeout", "0", "0"),
        ("shutdown_timeout", "-1", "0"),
        ("device", "tpu", "one of auto, cpu, cuda, cuda:N"),
        ("device", "cuda:", "one of auto, cpu, cuda, cuda:N"),
        ("dtype", "float8", "one of auto, float32"),
        ("log_level", "loud", "one of debug, info, warning, error"),
    ],
)
def test_refusal_names_flag_variable_value_and_what_was_expected(name: str, text: str, expected: str) -> None:
    for line in (refusal("m", f"{flag(name)}={text}"), refusal("m", **{env_name(name): text})):
        assert line.startswith(f"{flag(name)} (or {env_name(name)}) {text!r}: expected")
        assert expected in line.partition(": ")[2]


@pytest.mark.parametrize("name", [name for name in VALUED if isinstance(EXAMPLES[name][1], int)])
def test_number_that_the_line_to_the_engine_cannot_carry_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"^{flag(name)} .*: expected a whole number <= "):
        from_args(["m", f"{flag(name)}={2**63}"], {})


@pytest.mark.parametrize("name", [name for name in VALUED if isinstance(EXAMPLES[name][1], str | tuple)])
def test_bytes_that_are_no_text_are_refused(name: str) -> None:
    text = os.fsdecode(b"\xff\xfe")
    with pytest.raises(UsageError, match=rf"^{flag(name)} .*: expected ") as caught:
        from_args([f"{flag(name)}={text}", "m"] if name != "model" else [text], {})
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2G", 2_000_000_000), ("2000M", 2_000_000_000), ("1g", 10**9), ("64k", 64_000), ("4096", 4096)],
)
@pytest.mark.parametrize("name", ["kv_cache_memory_bytes", "max_request_bytes"])
def test_sizes_take_a_suffix(name: str, text: str, expected: int) -> None:
    assert getattr(from_args(["m", f"{flag(name)}={text}"], {}), name) == expected
    assert getattr(from_args(["m"], {env_name(name): text}), name) == expected


@pytest.mark.parametrize("text", ["G", "-1G", "1.5G", "1_0M", "٣G", "1 G", "1T", "0G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    assert ": expected " in refusal("m", f"--kv-cache-memory-bytes={text}")


def test_a_misspelt_variable_is_told_with_the_nearest_right_name() -> None:
    assert unknown_variables({"PILOTLIGHT_MAXNUMSEQS": "3"}) == (
        "PILOTLIGHT_MAXNUMSEQS is no variable of the server; did you mean PILOTLIGHT_MAX_NUM_SEQS? "
        "(docs/flags.md has them all)"
    )
    secret = unknown_variables({"PILOTLIGHT_XYZ": "secret"})
    assert secret == "PILOTLIGHT_XYZ is no variable of the server (docs/flags.md has them all)"


def test_variables_that_are_right_or_kubernetes_own_are_not_told() -> None:
    assert unknown_variables({env_name(name): "x" for name in FIELDS}) is None
    assert unknown_variables({"PILOTLIGHT_EXEC_TIME": "1.0", "PILOTLIGHTS": "x", "MAXNUMSEQS": "3"}) is None
    for service in ("PILOTLIGHT", "PILOTLIGHT_CHAT"):  # what a pod sees of a service `pilotlight`, `pilotlight-chat`
        of_service = {
            "SERVICE_HOST": "10.0.0.11",
            "SERVICE_PORT": "80",
            "SERVICE_PORT_HTTP": "80",
            "PORT": "tcp://10.0.0.11:80",
            "PORT_80_TCP": "tcp://10.0.0.11:80",
            "PORT_80_TCP_PROTO": "tcp",
            "PORT_80_TCP_PORT": "80",
            "PORT_80_TCP_ADDR": "10.0.0.11",
        }
        assert unknown_variables({f"{service}_{name}": value for name, value in of_service.items()}) is None
    assert "PILOTLIGHT_HEALTH_PORT?" in str(unknown_variables({"PILOTLIGHT_HEALT_PORT": "9000"}))


@pytest.mark.parametrize("key", ["", "  ", "k\n", " k"])
def test_a_key_that_no_request_can_carry_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match=r"^--api-key .*leave it out"):
        from_args(["m", "--api-key", key], {})


def test_api_key_is_not_repeated_in_a_refusal() -> None:
    with pytest.raises(UsageError) as caught:
        from_kwargs(model="m", api_key=b"secret")
    assert "secret" not in str(caught.value)
    assert "(hidden)" in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("--max-model-length", "--max-model-len"),
        ("--max-num-seq=3", "--max-num-seqs"),
        ("--gpu-memory-utilisation", "--gpu-memory-utilization"),
        ("--tensor-parallel", "--tensor-parallel-size"),
    ],
)
def test_unknown_flag_is_refused_with_the_nearest_right_name(typed: str, nearest: str) -> None:
    assert refusal("m", typed) == f"unknown argument {typed!r}; did you mean {nearest}?"


@pytest.mark.parametrize("typed", ["--xyzzy", "--enable-lora", "--trust-remote-code", "--root-path=/x"])
def test_unknown_flag_far_from_any_is_refused_without_a_guess(typed: str) -> None:
    assert refusal("m", typed) == f"unknown argument {typed!r}; pilotlight serve --help lists them"


def test_flag_is_not_taken_by_its_beginning() -> None:
    assert refusal("m", "--max-num-s", "3").startswith("unknown argument '--max-num-s'")


def test_flag_without_its_value_is_refused() -> None:
    assert "--port" in refusal("m", "--port")


def test_unknown_keyword_is_refused_with_the_nearest_right_name() -> None:
    with pytest.raises(UsageError, match=r"^unknown setting 'max_model_length'; did you mean max_model_len\?$"):
        from_kwargs(model="m", max_model_length=5)


def test_keywords_are_typed() -> None:
    assert from_kwargs(model="m", max_num_seqs=3).max_num_seqs == 3
    with pytest.raises(UsageError, match="--max-num-seqs"):
        from_kwargs(model="m", max_num_seqs="3")


def test_no_model_is_refused_with_what_to_do() -> None:
    assert refusal() == "no model was named: pass a directory or a hub id, or set PILOTLIGHT_MODEL"


def test_two_models_are_refused_unless_they_agree() -> None:
    assert refusal("a", "--model", "b") == "two models were named: 'a' and 'b'"
    assert refusal("a", "b").startswith("unknown argument 'b'")
    assert from_args(["a", "--model", "a"], {}).model == "a"
    assert from_args(["--model", "a"], {}).model == "a"


def test_more_than_one_device_is_refused() -> None:
    assert "--tensor-parallel-size 2" in refusal("m", "--tensor-parallel-size", "2")


def test_help_shows_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        from_args(["--help"], {})
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in FIELDS:
        assert flag(name) in text
    assert f"(default: {default_of('max_num_seqs')})" in text
    assert "prompts that begin alike (default: on)" in text
    assert "PILOTLIGHT_MAX_NUM_SEQS" in text


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings(model="m").port = 1  # type: ignore[misc]


def test_docs_fit_the_settings() -> None:
    check = subprocess.run([sys.executable, "scripts/make_docs", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert check.returncode == 0, check.stderr
    page = (ROOT / "docs" / "flags.md").read_text()
    for name in FIELDS:
        assert f"`{flag(name)}`" in page
        assert f"`{env_name(name)}`" in page
