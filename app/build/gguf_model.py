"""A GGUF file seen as a Hugging Face checkpoint: config.json and generation_config.json from its metadata, and each
tensor under transformers' name.

Keys: ggml's docs/gguf.md; tensor names: gguf-py's tensor_mapping.py; the order of q and k: LlamaModel.permute of
llama.cpp's convert_hf_to_gguf.py.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ModelDataError
from ..model.checkpoint import check_shapes, report_ignored
from ..model.spec import TensorSpec
from .encodings import ENCODINGS, decode
from .gguf import GgufFile
from .pieces import Piece

_ARCHITECTURES = {"llama": ("LlamaForCausalLM", "llama"), "qwen2": ("Qwen2ForCausalLM", "qwen2")}
_MODULES = {
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
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_ROPE_FACTORS = "rope_freqs.weight"
# Llama 3.1's rotary scaling, of which a GGUF keeps the resulting factors only (convert_hf_to_gguf.py's defaults)
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def config_of(gguf: GgufFile) -> dict[str, Any]:
    """The config.json that transformers would have. Raises ModelDataError."""
    read = _Metadata(gguf)
    architecture = read.architecture
    if gguf.metadata.get("split.count", 0) > 1:
        raise ModelDataError(f"{gguf.file}: is one part of several; join them with `llama-gguf-split --merge`")
    if architecture not in _ARCHITECTURES:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise ModelDataError(f"{gguf.file}: the architecture {architecture!r} is not supported; expected {known}")
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelDataError(f"{gguf.file}: tensor 'token_embd.weight' is missing or no matrix")
    name, model_type = _ARCHITECTURES[architecture]
    heads = read.integer("attention.head_count")
    config: dict[str, Any] = {
        "architectures": [name],
        "model_type": model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": read.integer("embedding_length"),
        "intermediate_size": read.integer("feed_forward_length"),
        "num_hidden_layers": read.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": read.integer("attention.head_count_kv", heads),
        "hidden_act": "silu",
        "max_position_embeddings": read.integer("context_length"),
        "rms_norm_eps": read.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": read.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
    }
    head_dim = read.integer("attention.key_length", 0)
    if architecture == "llama":
        head_dim = head_dim or read.integer("rope.dimension_count", 0)
        config["attention_bias"] = "blk.0.attn_q.bias" in gguf.tensors
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in gguf.tensors
    if head_dim:
        config["head_dim"] = head_dim
    rotated = read.integer("rope.dimension_count", head_dim)
    if head_dim and rotated != head_dim:
        raise ModelDataError(f"{gguf.file}: rotates {rotated} of {head_dim} numbers a head: this is not supported")
    scaling = _rope_scaling(gguf, read, config)
    if scaling:
        config["rope_scaling"] = scaling
    for role in ("bos", "eos"):
        config[f"{role}_token_id"] = gguf.metadata.get(f"tokenizer.ggml.{role}_token_id")
    return config


def generation_config_of(gguf: GgufFile) -> dict[str, Any]:
    """Every token that ends an answer (end of sequence, of turn, of message) is an EOS for generation."""
    ends = (gguf.metadata.get(f"tokenizer.ggml.{role}_token_id") for role in ("eos", "eot", "eom"))
    return {
        "bos_token_id": gguf.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(dict.fromkeys(token for token in ends if token is not None)),
        "pad_token_id": gguf.metadata.get("tokenizer.ggml.padding_token_id"),
    }


def find_pieces(gguf: GgufFile, config: dict[str, Any], tensors: Sequence[TensorSpec]) -> list[tuple[Piece, ...]]:
    """For each tensor its sources in the file. Raises ModelDataError naming file and tensor."""
    heads: dict[str, int] = {}
    if config["model_type"] == "llama":
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    found = []
    for tensor in tensors:
        pieces = tuple(_piece(gguf, gguf_name(source), heads) for source in tensor.sources)
        check_shapes(tensor, [(piece.file, piece.name, piece.shape) for piece in pieces])
        found.append(pieces)
    wanted = {piece.name for pieces in found for piece in pieces}
    report_ignored(gguf.file, gguf.tensors, wanted)
    return found


def gguf_name(name: str) -> str:
    """ "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight". KeyError: a module that we do not have."""
    module, _, kind = name.rpartition(".")
    layer = _LAYER.fullmatch(module)
    if layer:
        return f"blk.{layer[1]}.{_MODULES[layer[2]]}.{kind}"
    return f"{_MODULES[module]}.{kind}"


def _piece(gguf: GgufFile, name: str, heads: dict[str, int]) -> Piece:
    tensor = gguf.tensors.get(name)
    if tensor is None:
        raise ModelDataError(f"{gguf.file}: tensor {name!r} is missing, its metadata asks for it")
    if tensor.encoding not in ENCODINGS:
        raise ModelDataError(
            f"{gguf.file}: tensor {name!r} is of {tensor.encoding}, expected one of {', '.join(ENCODINGS)}"
        )
    paired = heads.get(name.split(".")[-2], 0)
    if paired and (not tensor.shape or tensor.shape[0] % (2 * paired)):
        raise ModelDataError(f"{gguf.file}: tensor {name!r} has shape {list(tensor.shape)}, not {paired} even heads")
    return Piece(gguf.file, name, tensor.encoding, tensor.shape, tensor.offset, paired)


def _rope_scaling(gguf: GgufFile, read: "_Metadata", config: dict[str, Any]) -> dict[str, Any] | None:
    kind = read.text("rope.scaling.type", "none")
    if _ROPE_FACTORS in gguf.tensors:
        return _llama3_scaling(gguf, config)
    match kind:
        case "none":
            return None
        case "linear":
            factor = read.number("rope.scaling.factor", 1.0)
            return {"rope_type": "linear", "factor": factor} if factor != 1.0 else None
        case "yarn":
            original = read.integer("rope.scaling.original_context_length")
            factor = read.number("rope.scaling.factor")
            return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        case _:
            raise ModelDataError(f"{gguf.file}: the rotary scaling {kind!r} is not supported")


def _llama3_scaling(gguf: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """The parameters whose factors the file has. Formula: transformers' _compute_llama3_parameters."""
    tensor = gguf.tensors[_ROPE_FACTORS]
    if tensor.encoding != "F32" or tensor.nbytes is None:
        raise ModelDataError(f"{gguf.file}: tensor {_ROPE_FACTORS!r} is of {tensor.encoding}, expected F32")
    with open(gguf.file, "rb") as stream:
        stream.seek(tensor.offset)
        stored = decode(np.frombuffer(stream.read(tensor.nbytes), np.uint8), "F32")
    theta = config["rope_theta"]
    if not theta > 0:
        raise ModelDataError(
            f"{gguf.file}: its metadata's llama.rope.freq_base is {theta}, expected a number above 0"
        )
    scaling = {"rope_type": "llama3", "factor": float(stored.max(initial=1.0)), **_LLAMA3}
    low, high, original = _LLAMA3.values()
    expected = []
    for index in range(len(stored)):
        turns = original / (2 * math.pi * theta ** (index / len(stored)))
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        expected.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    if not np.allclose(stored, expected, rtol=1e-3):
        raise ModelDataError(f"{gguf.file}: tensor {_ROPE_FACTORS!r} has other factors than Llama 3's rotary scaling")
    return scaling


class _Metadata:
    """The keys of the file's own architecture, typed. Raises ModelDataError."""

    def __init__(self, gguf: GgufFile) -> None:
        self._gguf = gguf
        self.architecture: str = gguf.metadata.get("general.architecture", "")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if type(value) is not int:
            raise self._wrong(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A float32 as the shortest decimal that means it, so that config.json says 1e-05."""
        value = self._get(key, default)
        if type(value) not in (int, float):
            raise self._wrong(key, value, "a number")
        return float(str(np.float32(value)))

    def text(self, key: str, default: str) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a text")
        return value

    def _get(self, key: str, default: Any) -> Any:
        value = self._gguf.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise ModelDataError(f"{self._gguf.file}: its metadata has no {self.architecture}.{key}")
        return value

    def _wrong(self, key: str, value: Any, expected: str) -> ModelDataError:
        shown = repr(value) if len(repr(value)) < 40 else f"a {type(value).__name__}"
        return ModelDataError(
            f"{self._gguf.file}: its metadata's {self.architecture}.{key} is {shown}, expected {expected}"
        )
