"""Qwen2 and Qwen2.5: a Llama with biases on q, k and v, whose upper layers may look back a window only."""

from ...errors import ModelDataError
from ..config import CONFIG_FILE, Config
from ..spec import Description
from .dense import dense

ARCHITECTURES = ("Qwen2ForCausalLM",)


def describe(config: Config) -> Description:
    heads = config.integer("num_attention_heads") if config.is_null("num_key_value_heads") else 32
    return dense(
        config,
        family="qwen2",
        num_kv_heads=config.integer("num_key_value_heads", heads),
        max_position=32768,
        windows=_windows(config, config.layers()),
        qkv_bias=True,
    )


def _windows(config: Config, num_layers: int) -> tuple[int | None, ...]:
    """A window counts only where `use_sliding_window` says so: on the layers that `layer_types` names, else from
    `max_window_layers` on.
    """
    window: int | None = None
    if config.switch("use_sliding_window", False) and not config.is_null("sliding_window"):
        window = config.integer("sliding_window", 4096)
    types = config.texts("layer_types")
    if types is None:
        first = config.count("max_window_layers", 28)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    unknown = set(types) - {"full_attention", "sliding_attention"}
    if len(types) != num_layers or unknown:
        raise ModelDataError(
            f"{CONFIG_FILE}: layer_types has {len(types)} entries of {', '.join(sorted(set(types)))}; expected "
            f"{num_layers} of full_attention or sliding_attention"
        )
    if window is None and "sliding_attention" in types:
        raise ModelDataError(f"{CONFIG_FILE}: layer_types names sliding_attention, but no sliding_window is in use")
    return tuple(window if kind == "sliding_attention" else None for kind in types)
