"""What transformers, sentencepiece and torch make of the same files, in the same run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from pilotlight.build.gguf import GgufFile, read_gguf
from pilotlight.build.gguf_tokenizer import tokenizer_of
from pilotlight.build.quants import BLOCKS
from tests.build import demo
from tests.build.gguf_files import (
    add_tensor,
    add_value,
    byte_metadata,
    gguf_name,
    model_metadata,
    permute,
    write_gguf,
)
from tests.build.test_encodings import random_blocks
from tests.build.test_gguf import pieces_of, read_piece
from tests.models import llama_config, llama_tensors

pytestmark = pytest.mark.reference

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
CONFIGS = {
    "llama": llama_config(**SIZES),
    "llama_tied": llama_config(**SIZES, tie_word_embeddings=True),
    "qwen2": llama_config(**SIZES, architectures=["Qwen2ForCausalLM"], model_type="qwen2"),
}


def write_random_blocks(path: Path, config: Mapping[str, Any], encoding: str) -> Path:
    """A file whose matrices are random blocks, for the encodings that gguf can read and not write."""
    writer = gguf.GGUFWriter(path, config["model_type"])
    for key, value in (model_metadata(config) | byte_metadata()).items():
        add_value(writer, key, value)
    kind = gguf.GGMLQuantizationType[encoding]
    elements, nbytes = BLOCKS[encoding]
    for seed, (name, tensor) in enumerate(llama_tensors(config).items()):
        if tensor.ndim == 2:
            blocks = random_blocks(encoding, tensor.size // elements, seed)
            writer.add_tensor(gguf_name(name), blocks.reshape(len(tensor), -1), raw_dtype=kind)
            assert nbytes == blocks.shape[1]
        else:
            heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
            module = name.split(".")[-2]
            paired = config["model_type"] == "llama" and module in heads
            add_tensor(writer, gguf_name(name), permute(tensor, heads[module]) if paired else tensor, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def transformers_weights(file: Path) -> dict[str, np.ndarray]:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    options: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, **options
    )
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("encoding", ["F32", "F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"])
def test_weights_equal_transformers(config: dict[str, Any], encoding: str, tmp_path: Path) -> None:
    if encoding.endswith("_K"):
        file = write_random_blocks(tmp_path / "m.gguf", config, encoding)
    else:
        file = write_gguf(tmp_path / "m.gguf", config, llama_tensors(config), encoding)
    expected = transformers_weights(file)
    pieces = pieces_of(read_gguf(file))
    assert set(expected) - {"lm_head.weight"} == set(pieces) - {"lm_head.weight"}
    for name, piece in pieces.items():
        # each value is a product of two or three float32: the order of multiplying may differ
        np.testing.assert_allclose(read_piece(piece), expected[name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "tekken"])
def test_tokens_equal_transformers(pre: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = CONFIGS["llama"]
    file = write_gguf(tmp_path / "m.gguf", config, llama_tensors(config), metadata=byte_metadata(pre=pre))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    ours = Tokenizer.from_str(json.dumps(tokenizer_of(read_gguf(file))))
    for text in (*demo.TEXTS, "the thing 12345678 camelCase LOUDCase", "x\n\n  y ing"):
        if pre == "qwen2" and "e\u0301" in text:
            continue  # Qwen2 composes first, which transformers leaves out for GGUF files
        assert ours.encode(text, add_special_tokens=False).ids == reference(text, add_special_tokens=False).input_ids


@pytest.mark.filterwarnings("ignore")
def test_qwen2_tokens_equal_its_own_tokenizer() -> None:
    transformers = pytest.importorskip("transformers")
    metadata = byte_metadata(pre="qwen2")
    listed = metadata["tokenizer.ggml.tokens"]
    reference = transformers.Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(listed)},
        merges=[tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]],
    )
    reference.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    ours = Tokenizer.from_str(json.dumps(tokenizer_of(GgufFile(Path("m"), metadata, {}))))
    for text in (*demo.TEXTS, "the thing 12345678 camelCase", "\u1e9b\u0323 \u212b"):
        assert ours.encode(text, add_special_tokens=False).ids == reference(text, add_special_tokens=False).input_ids


def test_tokens_equal_sentencepiece(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    corpus = tmp_path / "corpus.txt"
    text = "the quick brown fox jumps over the lazy dog while thirteen other things happen in the meadow"
    words = text.split()
    random = np.random.default_rng(0)
    corpus.write_text("\n".join(" ".join(random.choice(words, 12)) for _ in range(300)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "sp"), model_type="bpe", vocab_size=420, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sp.model"))
    ids = range(reference.vocab_size())
    kinds = [
        2
        if reference.is_unknown(index)
        else 3
        if reference.is_control(index)
        else 6
        if reference.is_byte(index)
        else 1
        for index in ids
    ]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [reference.id_to_piece(index) for index in ids],
        "tokenizer.ggml.scores": [reference.get_score(index) for index in ids],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": reference.bos_id(),
        "tokenizer.ggml.unknown_token_id": reference.unk_id(),
    }
    ours = Tokenizer.from_str(json.dumps(tokenizer_of(GgufFile(Path("m"), metadata, {}))))
    texts = [" ".join(random.choice(words, 8)) for _ in range(50)]
    texts += ["thethe  quickfox", "\u4f60 caf\u00e9 \U0001f600", "Zebra\n\ttabs", "  lead and trail  "]
    for text in texts:
        assert ours.encode(text, add_special_tokens=False).ids == reference.encode(text), text
        assert ours.decode(reference.encode(text)) == text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not demo.GGUF.exists(), reason="scripts/get_demo_model has not been run")
def test_demo_tokens_golden_is_what_transformers_says() -> None:
    pytest.importorskip("transformers")
    assert json.loads(demo.GOLDEN.read_text(encoding="utf-8")) == demo.make_tokens()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not demo.GGUF.exists(), reason="scripts/get_demo_model has not been run")
def test_demo_weights_equal_transformers() -> None:
    expected = transformers_weights(demo.GGUF)
    for name, piece in pieces_of(read_gguf(demo.GGUF)).items():
        np.testing.assert_allclose(read_piece(piece), expected[name], rtol=1e-6, atol=1e-6, err_msg=name)
