"""The tokenizer made from a GGUF's metadata splits and joins text as the model's own does."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from pilotlight.build.gguf import GgufFile
from pilotlight.build.gguf_tokenizer import chat_templates_of, tokenizer_config_of, tokenizer_of
from pilotlight.errors import ModelDataError
from tests.build.gguf_files import byte_metadata
from tests.tokenizers import byte_tokenizer

SPACE = "\u2581"
# Sentencepiece pieces with their scores: the higher is joined first.
PIECES = {
    f"{SPACE}t": -1.0, "he": -2.0, f"{SPACE}the": -3.0, "ll": -4.0, "hell": -5.0, f"{SPACE}hell": -6.0,
    SPACE: -7.0, **dict.fromkeys("theloc", -8.0), "\u00e9": -9.0,
}  # fmt: skip


def file_of(metadata: dict[str, Any]) -> GgufFile:
    return GgufFile(Path("m.gguf"), metadata, {})


def built(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer_of(file_of(metadata))))


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, "<|user|>", "[PAD]"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(PIECES), 4, 5]
    scores = [0.0, 0.0, 0.0, *[0.0] * 256, *PIECES.values(), 0.0, 0.0]
    keys = {
        "model": "llama",
        "tokens": tokens,
        "token_type": kinds,
        "scores": scores,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (keys | changes).items() if value is not None}


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.encode(text, add_special_tokens=False).tokens


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["\u0120the", "\u0120", "12", "12", "lC"]),
        ("default", ["\u0120the", "\u0120", "12", "12", "lC"]),
        ("smollm", ["\u0120the", "\u0120", "1", "2", "1", "2", "lC"]),
        ("llama-bpe", ["\u0120the", "\u0120", "12", "1", "2", "lC"]),
        ("llama-v3", ["\u0120the", "\u0120", "12", "1", "2", "lC"]),
        ("qwen2", ["\u0120the", "\u0120", "1", "2", "1", "2", "lC"]),
        ("tekken", ["\u0120the", "\u0120", "1", "2", "1", "2", "l", "C"]),
    ],
)
def test_pre_tokenizer_decides_what_may_be_joined(pre: str, expected: list[str]) -> None:
    tokenizer = built(byte_metadata(pre=pre))
    assert tokens(tokenizer, " the 1212lC") == expected
    assert tokenizer.decode(tokenizer.encode(" the 1212lC").ids) == " the 1212lC"


def test_smollm_isolates_every_digit_of_any_script() -> None:
    tokenizer = built(byte_metadata(pre="smollm"))
    split = tokenizer.pre_tokenizer.pre_tokenize_str("a7\u00bd\u0663 b")
    assert [span for _, span in split] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 6)]


def test_llama3_takes_a_whole_word_before_any_merge() -> None:
    """ "ing" is a token; "in" is too, but Llama 3 looks for whole words first, whatever the merges would make."""
    metadata = byte_metadata(pre="llama-bpe")
    metadata["tokenizer.ggml.merges"] = [merge for merge in metadata["tokenizer.ggml.merges"] if merge != "in g"]
    assert tokens(built(metadata), "ing") == ["ing"]
    assert tokens(built(metadata | {"tokenizer.ggml.pre": "gpt-2"}), "ing") == ["in", "g"]


def test_qwen2_composes_accents_first() -> None:
    composed = tokens(built(byte_metadata(pre="qwen2")), "e\u0301")
    assert composed == ["\u00c3", "\u00a9"]
    assert tokens(built(byte_metadata(pre="gpt-2")), "e\u0301") == ["e", "\u00cc", "\u0123"]


def test_control_tokens_stay_whole_and_keep_their_ids() -> None:
    metadata = byte_metadata()
    tokenizer = built(metadata)
    ids = tokenizer.encode("<|im_start|>a<|im_end|>").ids
    listed = metadata["tokenizer.ggml.tokens"]
    assert [listed[index] for index in ids] == ["<|im_start|>", "a", "<|im_end|>"]
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.get_vocab(with_added_tokens=True) == {token: index for index, token in enumerate(listed)}


def test_user_defined_tokens_stay_whole_and_are_shown() -> None:
    vocabulary = byte_tokenizer(specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"))
    metadata = byte_metadata(vocabulary)
    metadata["tokenizer.ggml.token_type"][vocabulary.id("<think>")] = 4
    metadata["tokenizer.ggml.merges"] = []
    tokenizer = built(metadata)
    assert tokens(tokenizer, "a<think>b") == ["a", "<think>", "b"]
    assert tokenizer.decode(tokenizer.encode("a<think>b<|im_end|>").ids) == "a<think>b"


def test_unused_tokens_that_pad_the_vocabulary_are_left_out() -> None:
    metadata = byte_metadata()
    metadata["tokenizer.ggml.tokens"] += ["[PAD1]", "[PAD2]"]
    metadata["tokenizer.ggml.token_type"] += [5, 5]
    assert "[PAD1]" not in built(metadata).get_vocab()


@pytest.mark.parametrize(
    ("pre", "keys", "expected"),
    [
        ("gpt-2", {}, ["a"]),
        ("gpt-2", {"add_bos_token": True}, ["<|im_start|>", "a"]),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, ["<|im_start|>", "a", "<|im_end|>"]),
        ("gpt-2", {"add_eos_token": True}, ["a", "<|im_end|>"]),
        ("llama-bpe", {}, ["<|im_start|>", "a"]),
        ("llama-bpe", {"add_bos_token": False}, ["a"]),
        ("smollm", {"add_bos_token": False}, ["a"]),
    ],
)
def test_tokens_round_a_text(pre: str, keys: dict[str, bool], expected: list[str]) -> None:
    metadata = byte_metadata(pre=pre) | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    assert built(metadata).encode("a").tokens == expected
    config = tokenizer_config_of(file_of(metadata))
    assert config["add_bos_token"] is ("<|im_start|>" in expected)
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the", [f"{SPACE}the"]),  # sentencepiece: ▁t and he first, then ▁the
        ("hello", [f"{SPACE}hell", "o"]),
        ("the hello", [f"{SPACE}the", f"{SPACE}hell", "o"]),
        ("o\u00e9", [SPACE, "o", "\u00e9"]),
        ("o\u4f60", [SPACE, "o", "<0xE4>", "<0xBD>", "<0xA0>"]),
        ("o\n", [SPACE, "o", "<0x0A>"]),
        ("  o", [SPACE, SPACE, SPACE, "o"]),
        ("</s>o", ["</s>", SPACE, "o"]),
        ("o<|user|>c", [SPACE, "o", "<|user|>", SPACE, "c"]),
    ],
)
def test_sentencepiece(text: str, expected: list[str]) -> None:
    tokenizer = built(sentencepiece_metadata())
    assert tokens(tokenizer, text) == expected
    assert tokenizer.encode(text).tokens == ["<s>", *expected]
    if "<" not in text:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_sentencepiece_without_a_space_before_the_text() -> None:
    tokenizer = built(sentencepiece_metadata(add_space_prefix=False))
    assert tokens(tokenizer, "the") == ["t", "he"]
    assert tokenizer.decode(tokenizer.encode(" the").ids) == " the"


def test_best_scoring_piece_is_merged_first() -> None:
    assert tokenizer_of(file_of(sentencepiece_metadata()))["model"]["merges"] == [
        [SPACE, "t"], ["h", "e"], [f"{SPACE}t", "he"], ["l", "l"], ["he", "ll"], [SPACE, "hell"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "t5"}, "the tokenizer 't5' is not supported; expected gpt2 or llama"),
        ({"model": None}, "the tokenizer None is not supported"),
        ({"tokens": None}, r"no tokenizer\.ggml\.tokens"),
        ({"tokens": []}, r"no tokenizer\.ggml\.tokens"),
        ({"scores": None}, r"no tokenizer\.ggml\.scores"),
        ({"scores": [1.0]}, r"no tokenizer\.ggml\.scores for its \d+ tokens"),
        ({"token_type": [1]}, "tokens and 1 token types"),
        ({"bos_token_id": 10**6}, r"tokenizer\.ggml\.bos_token_id is 1000000, not one of its tokens"),
    ],
)
def test_sentencepiece_metadata_that_makes_no_tokenizer(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelDataError, match=rf"^m\.gguf: .*{reason}"):
        tokenizer_of(file_of(sentencepiece_metadata(**change)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pre": "grok-9"}, "the pre-tokenizer 'grok-9' is not supported; expected one of default, gpt-2"),
        ({"merges": 5}, r"no tokenizer\.ggml\.merges"),
        ({"merges": ["t h", "t q"]}, "its metadata merges 't' and 'q', which are not all tokens"),
        ({"merges": ["th"]}, "its metadata merges 'th' and '', which are not all tokens"),
    ],
)
def test_byte_level_metadata_that_makes_no_tokenizer(change: dict[str, Any], reason: str) -> None:
    metadata = byte_metadata() | {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(ModelDataError, match=rf"^m\.gguf: .*{reason}"):
        tokenizer_of(file_of(metadata))


def test_chat_templates() -> None:
    plain = byte_metadata() | {"tokenizer.chat_template": "A"}
    assert chat_templates_of(file_of(plain)) == {"default": "A"}
    assert "chat_template" not in tokenizer_config_of(file_of(plain))
    named = plain | {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "B"}
    assert tokenizer_config_of(file_of(named))["chat_template"] == [
        {"name": "default", "template": "A"},
        {"name": "tool_use", "template": "B"},
    ]
