"""Models by name, as their config.json says they are: what figures are computed for, and what random weights imitate.

Apart from any checkpoint, so that a floor or a start can be had where no weights are.
"""

from pathlib import Path
from typing import Any

from pilotlight.errors import ModelNotFoundError, UsageError
from pilotlight.model.checkpoint import untied
from pilotlight.model.config import read_config
from pilotlight.model.families import describe
from pilotlight.model.spec import Description
from pilotlight.source import resolve_model


def _config(architecture: str, kind: str, **sizes: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": kind,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16",
        **sizes,
    }


SHAPES: dict[str, dict[str, Any]] = {
    "SmolLM2-135M": _config(
        "LlamaForCausalLM", "llama", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192, rope_theta=100000.0,
        tie_word_embeddings=True,
    ),
    "Qwen2.5-0.5B": _config(
        "Qwen2ForCausalLM", "qwen2", vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, max_position_embeddings=32768, rope_theta=1e6,
        tie_word_embeddings=True,
    ),
    "Qwen2.5-1.5B": _config(
        "Qwen2ForCausalLM", "qwen2", vocab_size=151936, hidden_size=1536, intermediate_size=8960,
        num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, max_position_embeddings=32768,
        rope_theta=1e6, tie_word_embeddings=True,
    ),
    "Llama-3.1-8B": _config(
        "LlamaForCausalLM", "llama", vocab_size=128256, hidden_size=4096, intermediate_size=14336,
        num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072,
        rope_theta=500000.0, tie_word_embeddings=False,
    ),
}  # fmt: skip

# For the soft GPU, on which a step of the others would take minutes.
TINY = _config(
    "LlamaForCausalLM", "llama", vocab_size=1024, hidden_size=256, intermediate_size=256, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=512, rope_theta=10000.0,
    tie_word_embeddings=False,
)  # fmt: skip


def find(model: str) -> Description:
    """The model in a directory, of a hub id that is cached here, or of a name of SHAPES. Raises PilotlightError."""
    if model in SHAPES and not Path(model).exists():
        return describe(SHAPES[model])
    try:
        directory = resolve_model(model)
    except ModelNotFoundError as error:
        raise UsageError(f"{error}; by name alone there are {', '.join(SHAPES)}") from None
    return describe(untied(directory, read_config(directory)))
