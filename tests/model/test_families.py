"""From a config.json to a description: what each family makes of its fields, and what is refused by name."""

import pytest

from pilotlight.errors import ModelDataError
from pilotlight.model.families import describe
from pilotlight.model.spec import TensorSpec
from tests.models import llama_config

MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "sliding_window": 8}
SLIDING = QWEN2 | {"use_sliding_window": True}
BOTH = ["sliding_attention", "full_attention"]


def spec_of(*absent, **changes):
    config = llama_config(**changes)
    for name in absent:
        del config[name]
    return describe(config).spec


def shapes(**changes):
    return {tensor.name: tensor.shape for tensor in describe(llama_config(**changes)).tensors}


def test_llama():
    spec = spec_of(rms_norm_eps=1e-5, max_position_embeddings=256)
    assert (spec.family, spec.num_layers, spec.head_dim, spec.q_size, spec.kv_size) == ("llama", 2, 16, 64, 32)
    assert (spec.norm_eps, spec.activation, spec.max_position, spec.windows) == (1e-5, "silu", 256, (None, None))
    assert spec.attention_scale == 16**-0.5
    assert {spec.qkv_bias, spec.output_bias, spec.mlp_bias, spec.tied_head} == {False}


def test_tensors_in_the_order_of_their_use():
    tensors = describe(llama_config(num_hidden_layers=1)).tensors
    assert tensors == (
        TensorSpec("embed.weight", (320, 64), ("model.embed_tokens.weight",)),
        TensorSpec("layers.0.attention_norm.weight", (64,), ("model.layers.0.input_layernorm.weight",)),
        TensorSpec(
            "layers.0.qkv.weight", (128, 64), tuple(f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv")
        ),
        TensorSpec("layers.0.output.weight", (64, 64), ("model.layers.0.self_attn.o_proj.weight",)),
        TensorSpec("layers.0.mlp_norm.weight", (64,), ("model.layers.0.post_attention_layernorm.weight",)),
        TensorSpec(
            "layers.0.gate_up.weight",
            (256, 64),
            ("model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ),
        TensorSpec("layers.0.down.weight", (64, 128), ("model.layers.0.mlp.down_proj.weight",)),
        TensorSpec("norm.weight", (64,), ("model.norm.weight",)),
        TensorSpec("head.weight", (320, 64), ("lm_head.weight",)),
    )


def test_biases():
    found = shapes(attention_bias=True, num_hidden_layers=1)
    assert {name: shape for name, shape in found.items() if name.endswith("bias")} == {
        "layers.0.qkv.bias": (128,),
        "layers.0.output.bias": (64,),
    }
    found = shapes(mlp_bias=True, num_hidden_layers=1)
    assert {name: shape for name, shape in found.items() if name.endswith("bias")} == {
        "layers.0.gate_up.bias": (256,),
        "layers.0.down.bias": (64,),
    }
    found = shapes(**QWEN2, num_hidden_layers=1)
    assert [name for name in found if name.endswith("bias")] == ["layers.0.qkv.bias"]


def test_H02_tied_only_where_the_config_says_so():
    assert not spec_of("tie_word_embeddings").tied_head
    assert not spec_of("tie_word_embeddings", **QWEN2).tied_head
    assert not spec_of(tie_word_embeddings=None).tied_head
    assert spec_of(tie_word_embeddings=True).tied_head
    assert "head.weight" not in shapes(tie_word_embeddings=True)


def test_H08_head_dim():
    assert shapes(head_dim=32)["layers.0.qkv.weight"] == (32 * (4 + 2 + 2), 64)
    assert spec_of(head_dim=32).attention_scale == 32**-0.5
    assert spec_of(head_dim=32).rope.dim == 32
    assert spec_of(head_dim=None).head_dim == spec_of().head_dim == 16


@pytest.mark.parametrize(
    ("absent", "changes", "kv_heads"),
    [
        (["num_key_value_heads"], {}, 4),
        ([], {"num_key_value_heads": None}, 4),
        (["num_key_value_heads"], MISTRAL | {"num_attention_heads": 16}, 8),
        ([], MISTRAL | {"num_key_value_heads": None}, 4),
        (["num_key_value_heads"], QWEN2 | {"num_attention_heads": 32}, 32),
        ([], QWEN2 | {"num_key_value_heads": None}, 4),
    ],
)
def test_kv_heads_default_as_in_transformers(absent, changes, kv_heads):
    assert spec_of(*absent, **changes).num_kv_heads == kv_heads


@pytest.mark.parametrize(("changes", "limit"), [({}, 2048), (MISTRAL, 131072), (QWEN2, 32768)])
def test_position_limit_defaults_as_in_transformers(changes, limit):
    assert spec_of("max_position_embeddings", **changes).max_position == limit


@pytest.mark.parametrize(
    ("scaling", "limit"),
    [
        ({"type": "linear", "factor": 4.0}, 1024),
        ({"type": "dynamic", "factor": 2.0}, 512),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({"type": "yarn", "factor": 4.0}, 1024),
        ({"type": "linear", "factor": 1e308}, 2**31 - 1),
        (
            {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            | {"original_max_position_embeddings": 32},
            256,
        ),
    ],
)
def test_scalings_that_stretch_the_limit(scaling, limit):
    assert spec_of(rope_scaling=scaling, max_position_embeddings=256).max_position == limit


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        (QWEN2, (None, None)),
        (QWEN2 | {"use_sliding_window": False, "max_window_layers": 0}, (None, None)),
        (SLIDING | {"max_window_layers": 0}, (8, 8)),
        (SLIDING | {"max_window_layers": 1}, (None, 8)),
        (SLIDING, (None, None)),
        (SLIDING | {"sliding_window": None, "max_window_layers": 0}, (None, None)),
        (SLIDING | {"max_window_layers": 0, "layer_types": BOTH}, (8, None)),
        (QWEN2 | {"layer_types": ["full_attention"] * 2}, (None, None)),
        (MISTRAL | {"sliding_window": 8}, (8, 8)),
        (MISTRAL | {"sliding_window": None}, (None, None)),
        (MISTRAL, (4096, 4096)),
        ({"sliding_window": 8}, (None, None)),
    ],
)
def test_H17_windows(changes, windows):
    assert spec_of(**changes).windows == windows


def refused(match):
    return pytest.raises(ModelDataError, match=rf"config\.json: .*{match}")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"architectures": ["BloomForCausalLM"]},
            "'BloomForCausalLM' is not supported; .* LlamaForCausalLM, Mistral",
        ),
        ({"architectures": ["Qwen2ForSequenceClassification"]}, "'Qwen2ForSequenceClassification' is not supported"),
        ({"architectures": []}, "architectures is missing"),
        ({"architectures": None}, "architectures is missing"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is .*, expected a list of strings"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized with gptq: this version does not support it"),
        ({"hidden_act": "relu"}, "hidden_act 'relu': this version does not support it"),
        ({"hidden_size": 65}, "hidden_size 65 is not a multiple of num_attention_heads 4"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected a whole number from 1 to 4096"),
        ({"hidden_size": 10**400}, "hidden_size is 10*, expected"),
        ({"rope_theta": 10**400}, "rope_theta is 10*, expected"),
        ({"vocab_size": "320"}, 'vocab_size is "320", expected'),
        (SLIDING | {"layer_types": ["sliding_attention"]}, "layer_types has 1 entries .*; expected 2"),
        (
            SLIDING | {"layer_types": ["full_attention", "chunked"]},
            "layer_types has 2 entries of chunked, full_attention",
        ),
        (QWEN2 | {"layer_types": BOTH}, "layer_types names sliding_attention, but no sliding_window is in use"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 1e-4}},
            "linear rope's factor of 0.0001 leaves no positions",
        ),
    ],
)
def test_refusals(changes, reason):
    with refused(reason):
        describe(llama_config(**changes))
