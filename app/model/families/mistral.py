"""Mistral 7B and its kin: a Llama whose every layer may look back a window only."""

from ..config import Config
from ..spec import Description
from .dense import dense

ARCHITECTURES = ("MistralForCausalLM",)


def describe(config: Config) -> Description:
    heads = config.integer("num_attention_heads") if config.is_null("num_key_value_heads") else 8
    window = None if config.is_null("sliding_window") else config.integer("sliding_window", 4096)
    return dense(
        config,
        family="mistral",
        num_kv_heads=config.integer("num_key_value_heads", heads),
        max_position=131072,
        windows=(window,) * config.layers(),
    )
