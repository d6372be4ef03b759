"""GGUF files made from checkpoints as llama.cpp's converter makes them: its names, keys and order of q and k."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.tokenizers import Vocabulary, byte_tokenizer

MODULES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
MERGES = ["t h", "th e", "\u0120 the", "1 2", "12 3", "\u0120 1", "\u0120 \u0120", "i n", "in g", "l C"]


def gguf_name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    parts = module.split(".")
    if parts[:2] == ["model", "layers"]:
        return f"blk.{parts[2]}.{MODULES['.'.join(parts[3:])]}.{kind}"
    return f"{MODULES[module]}.{kind}"


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """LlamaModel.permute of convert_hf_to_gguf.py."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def byte_metadata(vocabulary: Vocabulary | None = None, pre: str = "gpt-2") -> dict[str, Any]:
    """A byte-level vocabulary with a few merges; specials are control tokens."""
    vocabulary = vocabulary or byte_tokenizer([merge.replace(" ", "").replace("\u0120", " ") for merge in MERGES])
    by_id = {index: token for token, index in vocabulary.tokenizer.get_vocab(with_added_tokens=True).items()}
    special = {index for index, token in vocabulary.tokenizer.get_added_tokens_decoder().items() if token.special}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [by_id[index] for index in range(len(by_id))],
        "tokenizer.ggml.token_type": [3 if index in special else 1 for index in range(len(by_id))],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": vocabulary.id("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": vocabulary.id("<|im_end|>"),
        "tokenizer.chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}",
    }


def model_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    architecture = config["model_type"]
    values = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_theta"]),
        "vocab_size": config["vocab_size"],
    }
    if architecture == "llama":
        values["rope.dimension_count"] = config.get("head_dim") or (
            config["hidden_size"] // config["num_attention_heads"]
        )
    return {f"{architecture}.{key}": value for key, value in values.items()}


def write_gguf(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    encoding: str = "F32",
    *,
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """`tensors` under transformers' names; matrices in `encoding`, vectors in F32. `extra`: more under GGUF names."""
    writer = gguf.GGUFWriter(path, config["model_type"])
    for key, value in (model_metadata(config) | dict(byte_metadata() if metadata is None else metadata)).items():
        if value is not None:
            add_value(writer, key, value)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in tensors.items():
        module = name.split(".")[-2]
        if config["model_type"] == "llama" and module in heads:
            tensor = permute(tensor, heads[module])
        add_tensor(writer, gguf_name(name), np.ascontiguousarray(tensor), encoding if tensor.ndim == 2 else "F32")
    for name, tensor in (extra or {}).items():
        add_tensor(writer, name, tensor, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: Any, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)


def add_tensor(writer: Any, name: str, tensor: np.ndarray, encoding: str) -> None:
    kind = gguf.GGMLQuantizationType[encoding]
    if encoding == "F32":
        writer.add_tensor(name, tensor.astype(np.float32))
    elif encoding == "F16":
        writer.add_tensor(name, tensor.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quantize(tensor.astype(np.float32), kind), raw_dtype=kind)


def dequantized(tensor: np.ndarray, encoding: str) -> np.ndarray:
    """What a matrix becomes when it is stored in `encoding`, by gguf's own code."""
    kind = gguf.GGMLQuantizationType[encoding]
    return np.asarray(gguf.dequantize(gguf.quantize(tensor, kind), kind), np.float32).reshape(tensor.shape)
