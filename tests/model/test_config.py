"""config.json: what is read in which spelling, and what each wrong field is refused with."""

import json
import re

import pytest

from pilotlight.errors import ModelDataError
from pilotlight.model.config import Config, read_config, read_rope

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def refused(match):
    return pytest.raises(ModelDataError, match=match)


def rope(max_position=1024, dim=64, **fields):
    return read_rope(Config(fields), dim, max_position)


def parameters(**fields):
    return dict(rope(**fields).parameters)


def test_the_file(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 64}))
    assert read_config(tmp_path) == {"hidden_size": 64}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_file_that_is_no_config(tmp_path, content, reason):
    (tmp_path / "config.json").write_bytes(content)
    with refused(rf"{re.escape(str(tmp_path))}/config\.json: .*{reason}"):
        read_config(tmp_path)


def test_no_file(tmp_path):
    with refused(r"config\.json: is missing"):
        read_config(tmp_path)
    (tmp_path / "config.json").mkdir()
    with refused(r"config\.json: cannot be read: Is a directory"):
        read_config(tmp_path)


@pytest.mark.parametrize("value", [0, -1, 1.5, "64", True, [64], {}, 2**31])
def test_integers(value):
    shown = re.escape(json.dumps(value))
    with refused(rf"config\.json: hidden_size is {shown}, expected a whole number from 1 to 2147483647"):
        Config({"hidden_size": value}).integer("hidden_size")


@pytest.mark.parametrize("value", [0, -0.5, "1e-5", False, float("inf"), float("nan"), 10**400])
def test_numbers(value):
    with refused("rms_norm_eps is .*, expected a number above 0"):
        Config({"rms_norm_eps": value}).number("rms_norm_eps")


def test_other_types():
    config = Config({"a": 1, "b": "yes", "c": [1], "d": -1})
    with refused("a is 1, expected a string"):
        config.text("a", "silu")
    with refused('b is "yes", expected true or false'):
        config.switch("b", False)
    with refused("c is .*, expected a list of strings"):
        config.texts("c")
    with refused("c is .*, expected an object"):
        config.table("c")
    with refused("d is -1, expected a whole number from 0 to 2147483647"):
        config.count("d", 0)
    with refused("c is .*, expected a list of 2 numbers above 0"):
        config.numbers("c", 2)


def test_absent_and_null_fields_take_the_default():
    config = Config({"null": None})
    for name in ("null", "absent"):
        assert config.integer(name, 3) == 3
        assert config.number(name, 0.5) == 0.5
        assert config.switch(name, True) is True
        assert config.text(name, "x") == "x"
        assert config.texts(name) is None
        assert config.table(name) == {}
        assert name not in config
        with refused(f"{name} is missing"):
            config.integer(name)
    assert config.is_null("null")
    assert not config.is_null("absent")


# --- rotary parameters --------------------------------------------------------------------------------------


def test_H04_theta_in_both_spellings():
    assert rope(rope_theta=500000.0) == rope(rope_parameters={"rope_type": "default", "rope_theta": 500000})
    assert rope(rope_theta=500000.0).theta == 500000.0
    assert rope().theta == 10000.0
    assert rope(rope_theta=1e4, rope_parameters={"rope_theta": 1e6}).theta == 1e6
    assert rope(rope_theta=1e6, rope_scaling=None).scaling == "default"


def test_rope_type_in_both_spellings():
    for field in ("rope_scaling", "rope_parameters"):
        for key in ("type", "rope_type"):
            found = rope(**{field: {key: "linear", "factor": 4}})
            assert (found.scaling, found.original_max_position, dict(found.parameters)) == (
                "linear",
                1024,
                {"factor": 4.0},
            )
    assert rope(rope_scaling={"rope_type": "linear", "type": "default", "factor": 4}).scaling == "linear"


def test_H06_llama3():
    scaling = {"rope_type": "llama3", "original_max_position_embeddings": 32} | LLAMA3
    assert rope(rope_scaling=scaling).original_max_position == 32
    assert parameters(rope_scaling=scaling) == LLAMA3
    assert rope(rope_scaling={"rope_type": "llama3"} | LLAMA3).original_max_position == 1024


def test_original_length_at_the_top_wins():
    found = rope(
        original_max_position_embeddings=256,
        rope_scaling={"type": "yarn", "factor": 2, "original_max_position_embeddings": 512},
    )
    assert found.original_max_position == 256


def test_yarn():
    scaling = {"rope_type": "yarn", "original_max_position_embeddings": 256}
    assert parameters(rope_scaling=scaling) == {"factor": 4.0, "truncate": 1.0}
    full = scaling | {
        "factor": 8,
        "beta_fast": 16,
        "beta_slow": 2,
        "mscale": 1,
        "mscale_all_dim": 0,
        "truncate": False,
    }
    assert parameters(rope_scaling=full) == {
        "factor": 8.0,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "truncate": 0.0,
    }


@pytest.mark.parametrize("name", ["longrope", "su"])
def test_longrope(name):
    factors = {"short_factor": [1] * 32, "long_factor": [2.0] * 32}
    found = rope(original_max_position_embeddings=128, rope_scaling={"type": name} | factors)
    assert found.scaling == "longrope"
    assert found.original_max_position == 128
    assert dict(found.parameters) == {"short_factor": (1.0,) * 32, "long_factor": (2.0,) * 32, "factor": 8.0}


@pytest.mark.parametrize(
    ("scaling", "reason"),
    [
        ({"type": "ntk"}, "rope type 'ntk' is unknown; expected one of default, linear"),
        ({"type": "linear"}, "factor is missing"),
        ({"type": "linear", "factor": -2}, "factor is -2, expected a number above 0"),
        ({"type": "linear", "factor": "2"}, 'factor is "2", expected a number above 0'),
        ({"type": 3}, "type is 3, expected a string"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor is missing"),
        ({"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [1.0] * 31}, "long_factor is .* list of 32"),
        ({"type": "longrope", "short_factor": [1.0] * 32}, "long_factor is null, expected a list of 32"),
        ({"rope_theta": 0}, "rope_theta is 0, expected a number above 0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1: this version does not support it"),
        ({"full_attention": {"rope_theta": 1e4}}, "that differ from layer to layer"),
    ],
)
def test_wrong_rotary_parameters(scaling, reason):
    with refused(rf"config\.json: .*{reason}"):
        rope(rope_parameters=scaling)


def test_partial_rotation_at_the_top_is_refused():
    with refused("partial_rotary_factor"):
        rope(partial_rotary_factor=0.5)
