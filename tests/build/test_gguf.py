"""Our reader of GGUF files finds what gguf's own finds, and model and tokenizer come out as they went in."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pilotlight.build import gguf_model
from pilotlight.build.gguf import GgufFile, read_gguf
from pilotlight.build.pieces import Piece
from pilotlight.errors import ModelDataError
from pilotlight.model.families import describe
from tests.build.gguf_files import byte_metadata, dequantized, write_gguf
from tests.models import llama_config, llama_tensors

LLAMA = llama_config(rope_theta=500000.0)
QWEN2 = llama_config(architectures=["Qwen2ForCausalLM"], model_type="qwen2")


def read_piece(piece: Piece) -> np.ndarray:
    with open(piece.file, "rb") as stream:
        chunks = list(piece.recode(stream.fileno(), "F32"))
    return np.concatenate([chunk.view(np.float32).reshape(-1) for chunk in chunks]).reshape(piece.shape)


def pieces_of(file: GgufFile) -> dict[str, Piece]:
    """By the name that transformers gives."""
    config = gguf_model.config_of(file)
    specs = describe(config).tensors
    found = gguf_model.find_pieces(file, config, specs)
    return {
        name: piece
        for spec, pieces in zip(specs, found, strict=True)
        for name, piece in zip(spec.sources, pieces, strict=True)
    }


def test_metadata_and_tensors_as_ggufs_own_reader_has_them(tmp_path: Path) -> None:
    more = {"a.flag": True, "a.list": [1, 2, 3], "a.floats": [0.5, 1.5], "a.texts": ["x", "", "\u00e4"], "a.f": 1e-5}
    file = write_gguf(tmp_path / "m.gguf", LLAMA, llama_tensors(LLAMA), "Q8_0", metadata=byte_metadata() | more)
    ours, theirs = read_gguf(file), gguf.GGUFReader(file)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert dict(ours.metadata) == fields
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert (found.encoding, found.offset, found.nbytes) == (
            tensor.tensor_type.name,
            tensor.data_offset,
            tensor.n_bytes,
        )
        assert found.shape == tuple(int(size) for size in reversed(tensor.shape))


@pytest.mark.parametrize("config", [LLAMA, QWEN2], ids=["llama", "qwen2"])
@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"])
def test_every_tensor_comes_back_in_transformers_order(config: dict[str, Any], encoding: str, tmp_path: Path) -> None:
    tensors = llama_tensors(config)
    pieces = pieces_of(read_gguf(write_gguf(tmp_path / "m.gguf", config, tensors, encoding)))
    assert set(pieces) == set(tensors)
    for name, tensor in tensors.items():
        # rows keep their blocks when they are put back, so quantizing and reordering commute
        expected = dequantized(tensor, encoding) if tensor.ndim == 2 else tensor
        np.testing.assert_array_equal(read_piece(pieces[name]), expected, err_msg=name)


def test_llama_biases_of_q_and_k_are_put_back_too(tmp_path: Path) -> None:
    config = llama_config(attention_bias=True)
    tensors = llama_tensors(config | {"model_type": "qwen2"})
    for layer in range(2):
        tensors[f"model.layers.{layer}.self_attn.o_proj.bias"] = np.arange(64, dtype=np.float32)
    file = read_gguf(write_gguf(tmp_path / "m.gguf", config, tensors))
    assert gguf_model.config_of(file)["attention_bias"] is True
    pieces = pieces_of(file)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(read_piece(pieces[name]), tensor, err_msg=name)


@pytest.mark.parametrize("config", [LLAMA, QWEN2, llama_config(tie_word_embeddings=True, head_dim=32)])
def test_config_describes_the_same_model(config: dict[str, Any], tmp_path: Path) -> None:
    file = read_gguf(write_gguf(tmp_path / "m.gguf", config, llama_tensors(config)))
    assert describe(gguf_model.config_of(file)) == describe(config)


def test_config_keeps_short_decimals_and_token_ids(tmp_path: Path) -> None:
    config = gguf_model.config_of(read_gguf(write_gguf(tmp_path / "m.gguf", LLAMA, llama_tensors(LLAMA))))
    assert json.dumps(config["rms_norm_eps"]) == "1e-05"
    assert config["rope_theta"] == 500000.0
    metadata = byte_metadata()
    assert config["eos_token_id"] == metadata["tokenizer.ggml.eos_token_id"]
    assert config["bos_token_id"] == metadata["tokenizer.ggml.bos_token_id"]


def test_every_token_that_ends_an_answer_is_an_eos(tmp_path: Path) -> None:
    more = {"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 7}
    file = write_gguf(tmp_path / "m.gguf", LLAMA, llama_tensors(LLAMA), metadata=byte_metadata() | more)
    assert gguf_model.generation_config_of(read_gguf(file))["eos_token_id"] == [7, 5]


def rope_factors(factor: float, theta: float, head_dim: int) -> np.ndarray:
    """As LlamaModel.generate_extra_tensors of convert_hf_to_gguf.py computes them for Llama 3.1's parameters."""
    factors = []
    for frequency in 1.0 / (theta ** (np.arange(0, head_dim, 2) / head_dim)):
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4.0:
            factors.append(1.0)
        elif wavelength > 8192 / 1.0:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_read_back_from_its_factors(factor: float, tmp_path: Path) -> None:
    config = llama_config(rope_theta=500000.0, head_dim=64)
    extra = {"rope_freqs.weight": rope_factors(factor, 500000.0, 64)}
    file = read_gguf(write_gguf(tmp_path / "m.gguf", config, llama_tensors(config), extra=extra))
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert gguf_model.config_of(file)["rope_scaling"] == scaling
    assert describe(gguf_model.config_of(file)) == describe(config | {"rope_scaling": scaling})
    assert "rope_freqs.weight" not in {piece.name for piece in pieces_of(file).values()}


def test_other_rotary_factors_are_refused(tmp_path: Path) -> None:
    extra = {"rope_freqs.weight": np.linspace(1, 8, 8, dtype=np.float32)}
    file = read_gguf(write_gguf(tmp_path / "m.gguf", LLAMA, llama_tensors(LLAMA), extra=extra))
    with pytest.raises(ModelDataError, match=r"m\.gguf: tensor 'rope_freqs\.weight' has other factors"):
        gguf_model.config_of(file)


@pytest.mark.parametrize("theta", [0.0, -1.0, float("nan")])
def test_rotary_factors_of_an_impossible_base_are_refused(theta: float, tmp_path: Path) -> None:
    config = llama_config(head_dim=64)
    metadata = byte_metadata() | {"llama.rope.freq_base": theta}
    extra = {"rope_freqs.weight": rope_factors(8.0, 500000.0, 64)}
    file = write_gguf(tmp_path / "m.gguf", config, llama_tensors(config), metadata=metadata, extra=extra)
    with pytest.raises(ModelDataError, match=rf"freq_base is {theta}, expected a number above 0"):
        gguf_model.config_of(read_gguf(file))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, None),
        ({"type": "none"}, None),
        ({"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 64},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_rotary_scaling_of_the_metadata(keys: dict[str, Any], expected: object, tmp_path: Path) -> None:
    metadata = byte_metadata() | {f"qwen2.rope.scaling.{key}": value for key, value in keys.items()}
    file = read_gguf(write_gguf(tmp_path / "m.gguf", QWEN2, llama_tensors(QWEN2), metadata=metadata))
    assert gguf_model.config_of(file).get("rope_scaling") == expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"general.architecture": "mamba"}, "the architecture 'mamba' is not supported; expected llama, qwen2"),
        ({"split.count": 3}, "is one part of several; join them with `llama-gguf-split --merge`"),
        ({"llama.block_count": None}, r"its metadata has no llama\.block_count"),
        ({"llama.block_count": [2, 2]}, r"llama\.block_count is \[2, 2\], expected a whole number"),
        ({"llama.rope.freq_base": "x"}, r"llama\.rope\.freq_base is 'x', expected a number"),
        ({"llama.rope.scaling.type": "su"}, "the rotary scaling 'su' is not supported"),
    ],
)
def test_metadata_that_describes_no_model_of_ours(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    file = read_gguf(write_gguf(tmp_path / "m.gguf", LLAMA, llama_tensors(LLAMA)))
    metadata = {key: value for key, value in (dict(file.metadata) | change).items() if value is not None}
    with pytest.raises(ModelDataError, match=rf"m\.gguf: .*{reason}"):
        gguf_model.config_of(GgufFile(file.file, metadata, file.tensors))


def test_tensor_that_is_missing_or_of_another_encoding_is_named(tmp_path: Path) -> None:
    tensors = llama_tensors(LLAMA)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(ModelDataError, match=r"a\.gguf: tensor 'blk\.1\.ffn_up\.weight' is missing"):
        pieces_of(read_gguf(write_gguf(tmp_path / "a.gguf", LLAMA, tensors)))
    tensors = llama_tensors(LLAMA)
    file = write_gguf(tmp_path / "b.gguf", LLAMA, tensors, "Q5_0")
    with pytest.raises(ModelDataError, match=r"b\.gguf: tensor 'token_embd\.weight' is of Q5_0, expected one of F32"):
        pieces_of(read_gguf(file))


def test_misshapen_tensor_is_named(tmp_path: Path) -> None:
    tensors = llama_tensors(LLAMA)
    tensors["model.layers.1.mlp.up_proj.weight"] = np.zeros((128, 32), np.float32)
    with pytest.raises(ModelDataError, match=r"m\.gguf: tensor 'blk\.1\.ffn_up\.weight' has shape \[128, 32\]"):
        pieces_of(read_gguf(write_gguf(tmp_path / "m.gguf", LLAMA, tensors)))


def test_partial_rotary_is_refused(tmp_path: Path) -> None:
    more = {"llama.attention.key_length": 16, "llama.rope.dimension_count": 8}
    file = write_gguf(tmp_path / "m.gguf", LLAMA, llama_tensors(LLAMA), metadata=byte_metadata() | more)
    with pytest.raises(ModelDataError, match="rotates 8 of 16 numbers a head"):
        gguf_model.config_of(read_gguf(file))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("split.count", "x", "int"),
        ("tokenizer.ggml.pre", ["gpt-2"], "str"),
        ("tokenizer.ggml.tokens", "x", "list of str"),
        ("tokenizer.ggml.tokens", [1, 2], "list of str"),
        ("tokenizer.ggml.token_type", 1, "list of int"),
        ("tokenizer.ggml.merges", [1], "list of str"),
        ("tokenizer.ggml.eos_token_id", [1], "int"),
        ("tokenizer.ggml.eot_token_id", True, "int"),
        ("tokenizer.ggml.add_bos_token", "yes", "bool"),
        ("tokenizer.chat_templates", 1, "list of str"),
    ],
)
def test_metadata_of_another_type_is_refused(key: str, value: Any, expected: str, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", LLAMA, {}, metadata=byte_metadata() | {key: value})
    with pytest.raises(ModelDataError, match=rf"m\.gguf: its metadata's {key} is .*, expected {expected}$"):
        read_gguf(file)
