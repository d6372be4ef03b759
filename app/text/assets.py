"""What a model's directory says about text: its tokenizer, chat template, end tokens and generation defaults.

The one reader of those files, so that each mistake in them is refused in one way: a line that names the file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelDataError, UsageError
from ..messages import MAX_EOS_TOKENS
from .template import ChatTemplate
from .tokenizer import Tokenizer

# A directory may hold one of these instead of tokenizer.json, which alone is read.
_OTHER_TOKENIZERS = ("tokenizer.model", "spiece.model", "tekken.json", "tiktoken.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class Text:
    tokenizer: Tokenizer
    template: ChatTemplate | None  # None: the model has none and cannot chat
    eos_token_ids: tuple[int, ...]  # of generation_config.json, config.json and the tokenizer together
    generation: Mapping[str, Any]  # generation_config.json as it stands; {} without one


def load_text(directory: Path, chat_template: str | None = None) -> Text:
    """Reads tokenizer.json, which must be there, and what else there is beside it.

    `chat_template` replaces the model's own template: a file, or a template, which has a brace.
    Raises ModelDataError, or UsageError for that file.
    """
    config = _read_object(directory / "config.json")
    generation = _read_object(directory / "generation_config.json")
    tokenizer_config = _read_object(directory / "tokenizer_config.json")
    special_tokens = _read_special_tokens(directory, tokenizer_config)
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise _missing(file)
    tokenizer = Tokenizer.from_file(file, special_tokens)
    for name in ("bos", "eos"):  # a tokenizer.json alone does not name them
        ids = _token_ids(config, f"{name}_token_id", directory / "config.json")
        spelling = tokenizer.spelling(ids[0]) if ids else None
        if spelling is not None:
            tokenizer.special_tokens.setdefault(f"{name}_token", spelling)
    eos = dict.fromkeys(
        [
            *_token_ids(generation, "eos_token_id", directory / "generation_config.json"),
            *_token_ids(config, "eos_token_id", directory / "config.json"),
            *([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]),
        ]
    )
    if len(eos) > MAX_EOS_TOKENS:
        raise ModelDataError(
            f"{directory}: eos_token_id of generation_config.json and config.json name {len(eos)} end tokens, "
            f"expected at most {MAX_EOS_TOKENS}"
        )
    templates = _read_templates(directory, tokenizer_config, chat_template)
    template = ChatTemplate(templates, tokenizer.special_tokens) if templates else None
    return Text(tokenizer, template, tuple(eos), generation)


def _read_templates(directory: Path, tokenizer_config: Mapping[str, Any], given: str | None) -> dict[str, str]:
    """Template texts by name. In transformers' order: files of their own win over tokenizer_config.json's entry."""
    if given is not None and "{" in given:
        return {"default": given}
    if given is not None:
        try:
            return {"default": Path(given).read_text(encoding="utf-8")}
        except OSError as error:
            raise UsageError(f"--chat-template {given}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise UsageError(f"--chat-template {given}: is not UTF-8 (byte {error.start})") from None
    files = {"default": directory / "chat_template.jinja"}
    files |= {file.stem: file for file in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    templates = {name: _read_text(file) for name, file in files.items() if file.is_file()}
    if templates:
        return templates
    processor = directory / "chat_template.json"
    entry = _read_object(processor).get("chat_template")
    if entry is not None:
        return _named_templates(entry, processor)
    return _named_templates(tokenizer_config.get("chat_template"), directory / "tokenizer_config.json")


def _named_templates(entry: object, file: Path) -> dict[str, str]:
    """Of a template's text, a list of {name, template}, or an object of them."""
    templates: object = entry
    if entry is None:
        templates = {}
    elif isinstance(entry, str):
        templates = {"default": entry}
    elif isinstance(entry, list) and all(isinstance(item, dict) for item in entry):
        templates = {item.get("name"): item.get("template") for item in entry}
    if isinstance(templates, dict) and all(isinstance(part, str) for item in templates.items() for part in item):
        return templates
    raise ModelDataError(f"{file}: chat_template is neither a text nor a list of objects with name and template")


def _read_special_tokens(directory: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Named tokens ("bos_token" -> "<s>"), from either of the two files that may say so."""
    tokens: dict[str, str] = {}
    older = {} if "added_tokens_decoder" in tokenizer_config else _read_object(directory / "special_tokens_map.json")
    for key, value in (*tokenizer_config.items(), *older.items()):
        spelling = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(spelling, str):
            tokens[key] = spelling
    return tokens


def _token_ids(values: Mapping[str, Any], key: str, file: Path) -> list[int]:
    value = values.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in ids):
        raise ModelDataError(f"{file}: {key} is {json.dumps(value)[:80]}, expected a token id or a list of them")
    return ids


def _missing(file: Path) -> ModelDataError:
    others = [name for name in _OTHER_TOKENIZERS if (file.parent / name).is_file()]
    if not others:
        return ModelDataError(f"{file}: is missing; a model needs it for its text")
    return ModelDataError(
        f"{file}: is missing; {others[0]} is not read. transformers makes one of the other: "
        "AutoTokenizer.from_pretrained(directory).save_pretrained(directory)"
    )


def _read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; {} where there is none."""
    if not file.is_file():
        return {}
    text = _read_text(file)
    try:
        value = json.loads(text)
        if "\\ud" in text.lower():  # Python takes half a surrogate pair, which no text can hold
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ModelDataError(
            f"{file}: has half of a surrogate pair in an escape (\\ud800), expected characters"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ModelDataError(f"{file}: is not JSON ({str(error)[:80]})") from None
    if not isinstance(value, dict):
        raise ModelDataError(f"{file}: is not a JSON object")
    return value


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelDataError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ModelDataError(f"{file}: is not UTF-8 (byte {error.start})") from None
