"""The demo model's GGUF becomes the model that its makers published: tokens, configuration, weights."""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from pilotlight.build.gguf import GgufFile, read_gguf
from pilotlight.build.gguf_model import config_of, find_pieces, generation_config_of
from pilotlight.build.gguf_tokenizer import chat_templates_of, tokenizer_config_of, tokenizer_of
from pilotlight.model.families import describe
from tests.build import demo

pytestmark = pytest.mark.skipif(not demo.GGUF.exists(), reason="scripts/get_demo_model has not been run")


@cache
def opened() -> GgufFile:
    return read_gguf(demo.GGUF)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer_of(opened())))


@cache
def golden() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(demo.GOLDEN.read_text(encoding="utf-8"))
    return found


def test_golden_covers_the_texts() -> None:
    assert [entry["text"] for entry in golden()] == list(demo.TEXTS)


@pytest.mark.parametrize("index", range(len(demo.TEXTS)))
def test_tokens(index: int) -> None:
    text, ids = golden()[index]["text"], golden()[index]["ids"]
    assert tokenizer().encode(text, add_special_tokens=False).ids == ids
    assert tokenizer().encode(text).ids == ids  # this model has no token before a text
    assert tokenizer().decode(ids, skip_special_tokens=False) == text


def test_config_is_the_published_one() -> None:
    """Values of HuggingFaceTB/SmolLM2-135M-Instruct's config.json and generation_config.json."""
    config = config_of(opened())
    published = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert config == published | {"head_dim": 64}
    assert generation_config_of(opened()) == {"bos_token_id": 1, "eos_token_id": [2], "pad_token_id": 2}
    names = tokenizer_config_of(opened())
    assert (names["bos_token"], names["eos_token"], names["unk_token"]) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
    )
    (template,) = chat_templates_of(opened()).values()
    assert "You are a helpful AI assistant named SmolLM, trained by Hugging Face" in template


def test_every_tensor_is_found_and_only_the_rotary_ones_are_put_back() -> None:
    config = config_of(opened())
    description = describe(config)
    pieces = [piece for found in find_pieces(opened(), config, description.tensors) for piece in found]
    assert {piece.name for piece in pieces} == set(opened().tensors)
    assert {piece.name.split(".")[-2]: piece.paired_heads for piece in pieces if piece.paired_heads} == {
        "attn_q": 9,
        "attn_k": 3,
    }
    assert sum(piece.elements for piece in pieces) == 134_515_008
    (norm,) = [piece for piece in pieces if piece.name == "output_norm.weight"]
    with open(norm.file, "rb") as stream:
        (values,) = norm.recode(stream.fileno(), "F32")
    assert np.isfinite(values.view(np.float32)).all()
    assert values.view(np.float32).shape == (576,)
