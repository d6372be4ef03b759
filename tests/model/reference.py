"""What transformers says, in fp32 on the CPU: run by scripts/make_goldens, and by tests marked `reference`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.model.cases import CHANGES, LENGTHS, config_of, prompt_of, tensors_of

LOGITS = Path(__file__).parents[1] / "golden" / "logits.npz"


def make_logits() -> dict[str, np.ndarray]:
    """For each case the last logits of each prompt: [len(LENGTHS), vocabulary] fp32."""
    return {case: last_logits(config_of(case)) for case in CHANGES}


def last_logits(config: Mapping[str, Any], tensors: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
    model = build(config, tensors_of(config) if tensors is None else tensors)
    return np.stack([forward(model, prompt_of(length))[-1] for length in LENGTHS])


def build(config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Any:
    """A model of transformers from a config.json's values and the weights under their names there."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    given = {name: value for name, value in config.items() if name not in ("model_type", "torch_dtype")}
    # A null is absent for us; transformers' newer config classes refuse some of them.
    given = {name: value for name, value in given.items() if value is not None or name == "sliding_window"}
    made = AutoConfig.for_model(config["model_type"], **given)
    model = AutoModelForCausalLM.from_config(made, attn_implementation="eager", dtype=torch.float32)
    state = {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if config.get("tie_word_embeddings"):
        missing = [name for name in missing if name != "lm_head.weight"]
        model.tie_weights()
    if missing or unexpected:
        raise ValueError(f"missing {missing}, unexpected {unexpected}")
    return model.eval()


def forward(model: Any, tokens: Sequence[int]) -> np.ndarray:
    """The logits of every position, [len(tokens), vocabulary] fp32."""
    import torch

    with torch.inference_mode():
        return model(torch.tensor([list(tokens)]), use_cache=False).logits[0].numpy()
