"""Random small models whose logits transformers has given: what tests/golden/logits.npz holds, and for which configs.

The weights come from a seeded numpy generator, so that the goldens need neither torch nor stored weights.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.models import llama_config, llama_tensors

LENGTHS = (1, 7, 40, 64, 200, 300)  # of the prompts whose last logits are compared
TOLERANCE = 2e-5  # of the range of the logits: a tenth of what is promised, so that gelu and its approximation differ
VOCABULARY = 320

_BASE: dict[str, Any] = {
    "hidden_size": 192,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
}
_QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "head_dim": None,
}
_MISTRAL: dict[str, Any] = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
_SLIDING: dict[str, Any] = _QWEN2 | {"sliding_window": 8, "use_sliding_window": True}
_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
_YARN = {"factor": 8.0, "original_max_position_embeddings": 64}
_LONGROPE = {
    "short_factor": [1.0 + 0.02 * pair for pair in range(32)],
    "long_factor": [1.0 + 0.4 * pair for pair in range(32)],
}

CHANGES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama_tied": {"tie_word_embeddings": True},
    "llama_biases": {"attention_bias": True, "mlp_bias": True},
    "llama_gelu": {"hidden_act": "gelu"},
    "llama_gelu_tanh": {"hidden_act": "gelu_pytorch_tanh"},
    "llama_one_head_each": {"num_key_value_heads": 6},
    "llama_theta": {"rope_theta": 500000.0},
    "llama_linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama_dynamic": {"rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_position_embeddings": 100},
    "llama_llama3": {"rope_scaling": {"rope_type": "llama3"} | _LLAMA3},
    "llama_llama3_new": {"rope_theta": None, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5} | _LLAMA3},
    "llama_yarn": {"rope_scaling": {"rope_type": "yarn"} | _YARN},
    "llama_yarn_mscale": {"rope_scaling": {"rope_type": "yarn", "mscale": 0.7, "mscale_all_dim": 0.3} | _YARN},
    "llama_yarn_all": {
        "rope_scaling": {"rope_type": "yarn", "attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2}
        | _YARN
        | {"truncate": False}
    },
    "llama_longrope": {
        "rope_scaling": {"rope_type": "longrope", "factor": 4.0} | _LONGROPE,
        "original_max_position_embeddings": 100,
    },
    "llama_longrope_attention_factor": {
        "rope_scaling": {"rope_type": "longrope", "attention_factor": 1.25} | _LONGROPE,
        "original_max_position_embeddings": 100,
    },
    "llama_head_dim": {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 32},
    "mistral": _MISTRAL | {"sliding_window": None},
    "mistral_window": _MISTRAL | {"sliding_window": 8},
    "qwen2": _QWEN2,
    "qwen2_tied_yarn": _QWEN2 | {"tie_word_embeddings": True, "rope_scaling": {"type": "yarn"} | _YARN},
    "qwen2_window_off": _QWEN2 | {"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 0},
    "qwen2_window": _SLIDING | {"max_window_layers": 0},
    "qwen2_window_above": _SLIDING | {"max_window_layers": 1},
    "qwen2_layer_types": _SLIDING | {"layer_types": ["sliding_attention", "full_attention"]},
}

# Frequencies that transformers picks by the length of the prompt and a server by its --max-model-len.
LENGTH_DEPENDENT = {"llama_dynamic", "llama_longrope", "llama_longrope_attention_factor"}


def config_of(case: str) -> dict[str, Any]:
    return llama_config(**_BASE | CHANGES[case])


def tensors_of(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The weights of a case under transformers' names. Larger than a model's usually are: its logits are lively."""
    tensors = llama_tensors(config, seed=1)
    random = np.random.default_rng(2)
    biased = [name for name, wanted in _biased(config) if wanted]
    for name, weight in list(tensors.items()):
        if any(part in name for part in biased):
            tensors[name.replace(".weight", ".bias")] = random.standard_normal(len(weight)).astype(np.float32)
    return tensors


def prompt_of(length: int) -> list[int]:
    """The prompts are the beginnings of one sequence, so that each is the context of the next."""
    return np.random.default_rng(3).integers(0, VOCABULARY, max(LENGTHS)).tolist()[:length]


def _biased(config: Mapping[str, Any]) -> list[tuple[str, bool]]:
    attention, mlp = config.get("attention_bias", False), config.get("mlp_bias", False)
    return [("self_attn.", attention), ("mlp.", mlp)]
