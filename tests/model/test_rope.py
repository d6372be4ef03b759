"""Rotary tables, against their formulas written out pair by pair, and against transformers."""

import math

import numpy as np
import pytest

from pilotlight.errors import ModelDataError
from pilotlight.model.config import Config, read_rope
from pilotlight.model.rope import inverse_frequencies, rotary_table
from pilotlight.model.spec import RopeSpec

DIM, THETA = 64, 10000.0
PLAIN = [THETA ** (-2 * pair / DIM) for pair in range(DIM // 2)]
LONGROPE = {
    "short_factor": tuple(1.0 + pair for pair in range(32)),
    "long_factor": tuple(2.0 + pair for pair in range(32)),
    "factor": 4.0,
}


def rope(scaling="default", original=0, **parameters):
    return RopeSpec(DIM, THETA, scaling, original, tuple(parameters.items()))


def test_table():
    cos, sin = rotary_table(rope(), 100)
    assert cos.shape == sin.shape == (100, 32)
    assert cos.dtype == sin.dtype == np.float32
    for position in (0, 1, 99):
        for pair in (0, 5, 31):
            assert cos[position, pair] == pytest.approx(math.cos(position * PLAIN[pair]), abs=1e-5)
            assert sin[position, pair] == pytest.approx(math.sin(position * PLAIN[pair]), abs=1e-5)


@pytest.mark.parametrize(
    "without",
    [
        RopeSpec(DIM, 1.0, "yarn", 64, (("factor", 2.0), ("truncate", 1.0))),
        RopeSpec(2, THETA, "dynamic", 64, (("factor", 2.0),)),
        rope("longrope", 1, **LONGROPE),
        rope("longrope", 64, **LONGROPE | {"short_factor": (1e-300,) * 32}),
    ],
)
def test_parameters_of_which_no_angles_come_are_refused(without):
    with pytest.raises(ModelDataError, match=rf"^config\.json: no angles come of .* the {without.scaling} rope's"):
        rotary_table(without, 32)


def test_llama3_whose_bands_meet():
    """Nothing is blended then; the formula's quotient is infinite and no warning comes of it."""
    cos, _ = rotary_table(rope("llama3", 64, factor=8.0, low_freq_factor=4.0, high_freq_factor=4.0), 32)
    turns = [64 * frequency / (2 * math.pi) for frequency in PLAIN]
    expected = [frequency / (1 if turn > 4 else 8) for frequency, turn in zip(PLAIN, turns, strict=True)]
    assert cos[31] == pytest.approx([math.cos(31 * frequency) for frequency in expected], abs=1e-5)


def test_attention_factor_scales_the_table():
    plain, scaled = (
        rope("yarn", 64, factor=4.0, truncate=1.0),
        rope("yarn", 64, factor=4.0, truncate=1.0, attention_factor=2.0),
    )
    mscale = 0.1 * math.log(4) + 1
    np.testing.assert_allclose(
        rotary_table(scaled, 10)[0], rotary_table(plain, 10)[0] * np.float32(2 / mscale), rtol=1e-6
    )


def test_linear():
    np.testing.assert_allclose(inverse_frequencies(rope("linear", 64, factor=4.0), 256)[0], np.array(PLAIN) / 4)


def test_dynamic_scales_for_the_configured_length_only():
    dynamic = rope("dynamic", 64, factor=2.0)
    np.testing.assert_allclose(inverse_frequencies(dynamic, 64)[0], PLAIN)
    np.testing.assert_allclose(inverse_frequencies(dynamic, 10)[0], PLAIN)
    theta = THETA * (2 * 256 / 64 - 1) ** (64 / 62)
    np.testing.assert_allclose(
        inverse_frequencies(dynamic, 256)[0], [theta ** (-2 * pair / DIM) for pair in range(DIM // 2)]
    )


def test_llama3():
    found, _ = inverse_frequencies(rope("llama3", 32, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0), 256)
    for pair, plain in enumerate(PLAIN):
        wavelength = 2 * math.pi / plain
        if wavelength < 32 / 4:
            expected = plain
        elif wavelength > 32 / 1:
            expected = plain / 8
        else:
            smooth = (32 / wavelength - 1) / (4 - 1)
            expected = (1 - smooth) * plain / 8 + smooth * plain
        assert found[pair] == pytest.approx(expected, rel=1e-12)


def test_longrope_takes_the_factors_of_the_configured_length():
    longrope = rope("longrope", 64, **LONGROPE)
    short, factor = inverse_frequencies(longrope, 64)
    np.testing.assert_allclose(short, [plain / (1 + pair) for pair, plain in enumerate(PLAIN)])
    assert factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(64)))
    long, _ = inverse_frequencies(longrope, 65)
    np.testing.assert_allclose(long, [plain / (2 + pair) for pair, plain in enumerate(PLAIN)])
    assert inverse_frequencies(rope("longrope", 64, **LONGROPE, attention_factor=1.5), 64)[1] == 1.5
    assert inverse_frequencies(rope("longrope", 64, **LONGROPE | {"factor": 1.0}), 64)[1] == 1.0


CASES = {
    "default": {},
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 3.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 4096},
    "yarn of equal ends": {"factor": 4.0, "original_max_position_embeddings": 4096, "beta_fast": 2, "beta_slow": 2},
    "yarn with mscale": {
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 0.707,
        "mscale_all_dim": 1.0,
    },
    "yarn untruncated": {"factor": 4.0, "original_max_position_embeddings": 4096, "truncate": False},
    "longrope": {
        "short_factor": [1.0 + 0.1 * pair for pair in range(32)],
        "long_factor": [1.0 + 0.5 * pair for pair in range(32)],
        "factor": 4.0,
        "original_max_position_embeddings": 4096,
    },
}


@pytest.mark.reference
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("theta", [10000.0, 1e6])
@pytest.mark.parametrize("length", [64, 4096, 8192, 20000])
def test_equals_transformers(name, theta, length):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = name.split()[0]
    parameters = {"rope_type": scaling, "rope_theta": theta} | CASES[name]
    found, factor = inverse_frequencies(read_rope(Config({"rope_parameters": parameters}), DIM, 8192), length)
    config = transformers.LlamaConfig(
        hidden_size=4 * DIM, num_attention_heads=4, max_position_embeddings=8192, rope_parameters=parameters
    )
    if scaling == "default":
        expected, expected_factor = 1 / theta ** (np.arange(0, DIM, 2) / DIM), 1.0
    else:
        frequencies, expected_factor = ROPE_INIT_FUNCTIONS[scaling](config, seq_len=length)
        expected = frequencies.numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert factor == pytest.approx(expected_factor)
