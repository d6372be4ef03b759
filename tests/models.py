"""Small checkpoints that tests serve: made here in a fraction of a second, without torch.

TINY is a random Llama. CHAIN's greedy output is a fixed chain of tokens: hidden size = vocabulary, embedding =
identity, every output and down projection zero, norms 1, and an untied head with a 1 at (next(t), t), so that
the next token depends on the last one only and any text of distinct tokens goes through the real engine.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.tokenizers import Vocabulary, byte_tokenizer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def llama_config(**changes: Any) -> dict[str, Any]:
    """A small Llama's config.json in transformers' older spelling."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return config | changes


def llama_tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random fp32 weights under transformers' names."""
    random = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    def norm() -> np.ndarray:
        return (1 + 0.1 * random.standard_normal(hidden)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(vocab, hidden), "model.norm.weight": norm()}
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": norm(),
            prefix + "post_attention_layernorm.weight": norm(),
            prefix + "self_attn.q_proj.weight": matrix(q, hidden),
            prefix + "self_attn.k_proj.weight": matrix(kv, hidden),
            prefix + "self_attn.v_proj.weight": matrix(kv, hidden),
            prefix + "self_attn.o_proj.weight": matrix(hidden, q),
            prefix + "mlp.gate_proj.weight": matrix(inner, hidden),
            prefix + "mlp.up_proj.weight": matrix(inner, hidden),
            prefix + "mlp.down_proj.weight": matrix(hidden, inner),
        }
        if config["model_type"] == "qwen2":
            for name, size in (("q", q), ("k", kv), ("v", kv)):
                tensors[f"{prefix}self_attn.{name}_proj.bias"] = random.standard_normal(size).astype(np.float32)
    return tensors


def write_checkpoint(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    vocabulary: Vocabulary | None = None,
    *,
    chat_template: str | None = CHATML,
    generation: Mapping[str, Any] | None = None,
    tokenizer_config: Mapping[str, Any] | None = None,
) -> Path:
    """A Hugging Face directory: one weights file, config, tokenizer and what else is given."""
    path.mkdir(parents=True, exist_ok=True)
    vocabulary = vocabulary or byte_tokenizer()
    (path / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), path / "model.safetensors", metadata={"format": "pt"})
    vocabulary.tokenizer.save(str(path / "tokenizer.json"))
    settings = {"chat_template": chat_template} if chat_template else {}
    (path / "tokenizer_config.json").write_text(json.dumps(settings | dict(tokenizer_config or {})))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def write_tiny(path: Path, seed: int = 0, **changes: Any) -> Path:
    """TINY: a random Llama with the byte vocabulary."""
    config = llama_config(**changes)
    return write_checkpoint(path, config, llama_tensors(config, seed))


def write_chain(
    path: Path,
    chain: Iterable[int],
    vocabulary: Vocabulary | None = None,
    *,
    loop: bool = False,
    head_dim: int = 16,
    max_position: int = 256,
    eos: int | list[int] | None = None,
    **files: Any,
) -> Path:
    """CHAIN: after a token that is not in `chain` (a prompt's last, say) comes chain[0]; after chain[i], chain[i+1].

    After the last: the first again with `loop`, else the last is repeated. The chain's tokens must be distinct.
    A prompt must not end with a token of the chain, or it starts in the middle.
    """
    chain = list(chain)
    if len(set(chain)) != len(chain):
        raise ValueError("the chain's tokens must be distinct")
    vocabulary = vocabulary or byte_tokenizer()
    size = -(-vocabulary.size // 32) * 32
    config = llama_config(
        vocab_size=size,
        hidden_size=size,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=head_dim,
        max_position_embeddings=max_position,
        eos_token_id=eos,
    )
    tensors = llama_tensors(config)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[:] = 0
        elif "norm" in name:
            tensor[:] = 1
    tensors["model.embed_tokens.weight"] = np.eye(size, dtype=np.float32)
    following = dict.fromkeys(range(size), chain[0])
    following |= dict(zip(chain, [*chain[1:], chain[0] if loop else chain[-1]], strict=True))
    head = np.zeros((size, size), np.float32)
    for token, after in following.items():
        head[after, token] = 1
    tensors["lm_head.weight"] = head
    return write_checkpoint(path, config, tensors, vocabulary, **files)
