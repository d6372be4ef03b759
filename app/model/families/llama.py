"""Llama 2 and 3.x, and all that is published under their architecture (SmolLM2, Yi, DeepSeek-Coder, ...)."""

from ..config import Config
from ..spec import Description
from .dense import dense

ARCHITECTURES = ("LlamaForCausalLM",)


def describe(config: Config) -> Description:
    attention_bias = config.switch("attention_bias", False)
    return dense(
        config,
        family="llama",
        num_kv_heads=config.integer("num_key_value_heads", config.integer("num_attention_heads")),
        max_position=2048,
        windows=(None,) * config.layers(),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=config.switch("mlp_bias", False),
    )
