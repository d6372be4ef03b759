"""tokenizer.json, tokenizer_config.json and the chat template from a GGUF file's metadata.

GGUF keeps the vocabulary, the merges or scores and one word that names the pre-tokenizer; the rest of a
tokenizer.json follows from these. Pre-tokenizers: llama.cpp's llama-vocab.cpp and the tokenizer.json files of the
models that it names them after.
"""

from collections.abc import Mapping
from typing import Any

from ..errors import ModelDataError
from .gguf import GgufFile

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}


def _split(pattern: str) -> list[dict[str, Any]]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return [split, _byte_level(use_regex=False)]


_GPT2 = [_byte_level(use_regex=True)]
# tokenizer.ggml.pre -> the steps before the merges
_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": [{"type": "Digits", "individual_digits": True}, *_GPT2],
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _split(_LLAMA3_SPLIT)),
    "qwen2": _split(_QWEN2_SPLIT),
    "tekken": _split(_TEKKEN_SPLIT),
}
_LLAMA3_LIKE = ("llama-bpe", "llama3", "llama-v3", "tekken")  # whole words first, BOS by default


def tokenizer_of(gguf: GgufFile) -> dict[str, Any]:
    """The contents of tokenizer.json. Raises ModelDataError for a kind of tokenizer that is not known here."""
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise ModelDataError(f"{gguf.file}: its metadata has no tokenizer.ggml.tokens")
    kinds = gguf.metadata.get("tokenizer.ggml.token_type") or [0] * len(tokens)
    if len(kinds) != len(tokens):
        raise ModelDataError(f"{gguf.file}: its metadata has {len(tokens)} tokens and {len(kinds)} token types")
    vocabulary: dict[str, int] = {}
    added = []
    for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind == _UNUSED or token in vocabulary:  # fills the embedding up to a round number
            continue
        vocabulary[token] = index
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED):
            added.append(_added_token(index, token, special=kind != _USER_DEFINED))
    match gguf.metadata.get("tokenizer.ggml.model"):
        case "gpt2":
            parts = _byte_level_parts(gguf, vocabulary)
        case "llama":
            parts = _sentencepiece_parts(gguf, vocabulary)
        case other:
            raise ModelDataError(f"{gguf.file}: the tokenizer {other!r} is not supported; expected gpt2 or llama")
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    return whole | {"post_processor": _post_processor(gguf)} | parts


def tokenizer_config_of(gguf: GgufFile) -> dict[str, Any]:
    """The contents of tokenizer_config.json; several named chat templates stand here, a single one in its file."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": _adds(gguf, "bos"),
        "add_eos_token": _adds(gguf, "eos"),
        "clean_up_tokenization_spaces": False,
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = _special(gguf, key)
        if token is not None:
            config[f"{role}_token"] = token[1]
    named = chat_templates_of(gguf)
    if len(named) > 1:
        config["chat_template"] = [{"name": name, "template": template} for name, template in named.items()]
    return config


def chat_templates_of(gguf: GgufFile) -> dict[str, str]:
    """The chat templates by name; the plain one is called "default"."""
    found = {"default": gguf.metadata.get("tokenizer.chat_template")}
    for name in gguf.metadata.get("tokenizer.chat_templates", []):
        found[name] = gguf.metadata.get(f"tokenizer.chat_template.{name}")
    return {name: template for name, template in found.items() if isinstance(template, str)}


def _byte_level_parts(gguf: GgufFile, vocabulary: Mapping[str, int]) -> dict[str, Any]:
    pre = gguf.metadata.get("tokenizer.ggml.pre", "default")
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise ModelDataError(f"{gguf.file}: the pre-tokenizer {pre!r} is not supported; expected one of {known}")
    lines = gguf.metadata.get("tokenizer.ggml.merges")
    if not isinstance(lines, list):
        raise ModelDataError(f"{gguf.file}: its metadata has no tokenizer.ggml.merges")
    # a merge is two tokens and a space between; a token may begin with a space itself
    merges = [[line[:1] + first, second] for line in lines for first, _, second in [line[1:].partition(" ")]]
    for first, second in merges:
        if not {first, second, first + second} <= vocabulary.keys():
            raise ModelDataError(
                f"{gguf.file}: its metadata merges {first!r} and {second!r}, which are not all tokens"
            )
    return {
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[pre]},
        "decoder": _byte_level(use_regex=True),
        "model": _bpe(vocabulary, merges, ignore_merges=pre in _LLAMA3_LIKE),
    }


def _sentencepiece_parts(gguf: GgufFile, vocabulary: Mapping[str, int]) -> dict[str, Any]:
    """As Llama 2's tokenizer.json: spaces are \u2581, one stands before the text, unknown characters become bytes."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    back = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    normalizers: list[dict[str, Any]] = [replace]
    decoders: list[dict[str, Any]] = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if gguf.metadata.get("tokenizer.ggml.add_space_prefix", True):
        normalizers.insert(0, {"type": "Prepend", "prepend": "\u2581"})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    scores = gguf.metadata.get("tokenizer.ggml.scores")
    tokens = gguf.metadata["tokenizer.ggml.tokens"]
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelDataError(f"{gguf.file}: its metadata has no tokenizer.ggml.scores for its {len(tokens)} tokens")
    unknown = _special(gguf, "unknown")
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(
            vocabulary,
            _merges_by_score(vocabulary, dict(zip(tokens, scores, strict=True))),
            unk_token=unknown[1] if unknown else None,
            fuse_unk=True,
            byte_fallback=True,
        ),
    }


def _merges_by_score(vocabulary: Mapping[str, int], scores: Mapping[str, float]) -> list[list[str]]:
    """Sentencepiece joins the pair whose whole scores best; as merges: every way to halve a token, best token first.

    Ties as in transformers' generate_merges: the longer first half goes first.
    """
    found = []
    for token in vocabulary:
        halves = [(token[:at], token[at:]) for at in range(1, len(token))]
        pairs = [pair for pair in halves if pair[0] in vocabulary and pair[1] in vocabulary]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        found += [(scores[token], len(first), len(second), first, second) for first, second in pairs]
    found.sort(key=lambda merge: merge[:3], reverse=True)
    return [[first, second] for *_, first, second in found]


def _bpe(vocabulary: Mapping[str, int], merges: list[list[str]], **changes: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **changes,
        "vocab": vocabulary,
        "merges": merges,
    }


def _added_token(index: int, content: str, *, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": index, "content": content, **flags, "special": special}


def _post_processor(gguf: GgufFile) -> dict[str, Any] | None:
    """Puts the tokens round a text that the model was trained to see there."""
    bos = _special(gguf, "bos") if _adds(gguf, "bos") else None
    eos = _special(gguf, "eos") if _adds(gguf, "eos") else None
    if bos is None and eos is None:
        return None

    def template(*texts: str) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        for type_id, text in enumerate(texts):
            parts += [{"SpecialToken": {"id": bos[1], "type_id": type_id}}] if bos else []
            parts.append({"Sequence": {"id": text, "type_id": type_id}})
            parts += [{"SpecialToken": {"id": eos[1], "type_id": type_id}}] if eos else []
        return parts

    used = {token: {"id": token, "ids": [index], "tokens": [token]} for index, token in filter(None, (bos, eos))}
    return {
        "type": "TemplateProcessing",
        "single": template("A"),
        "pair": template("A", "B"),
        "special_tokens": used,
    }


def _adds(gguf: GgufFile, role: str) -> bool:
    default = role == "bos" and (
        gguf.metadata.get("tokenizer.ggml.model") == "llama"
        or gguf.metadata.get("tokenizer.ggml.pre") in _LLAMA3_LIKE
    )
    return bool(gguf.metadata.get(f"tokenizer.ggml.add_{role}_token", default))


def _special(gguf: GgufFile, key: str) -> tuple[int, str] | None:
    """Id and text of a special token. Raises ModelDataError for an id that is no token."""
    index = gguf.metadata.get(f"tokenizer.ggml.{key}_token_id")
    if index is None:
        return None
    tokens = gguf.metadata["tokenizer.ggml.tokens"]
    if type(index) is not int or not 0 <= index < len(tokens):
        raise ModelDataError(f"{gguf.file}: tokenizer.ggml.{key}_token_id is {index!r}, not one of its tokens")
    return index, tokens[index]
