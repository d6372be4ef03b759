"""The mapped vocabulary against the library, for every kind of tokenizer: the same ids, the same text."""

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from pilotlight.build.tokenizer import write_mapped
from pilotlight.text import mapped
from pilotlight.text.detokenizer import Detokenizer
from pilotlight.text.library import LibraryVocabulary
from pilotlight.text.mapped import MappedVocabulary, open_mapped
from pilotlight.text.tokenizer import Tokenizer
from tests.text.trained import KINDS, SNIPPETS, SPECIALS, mixed_text, trained

# What a text is made of: whole snippets, parts of them, anything at all, and runs that make long words.
_PARTS = (
    st.sampled_from(SNIPPETS)
    | st.sampled_from([part for snippet in SNIPPETS for part in snippet.split()])
    | st.sampled_from([*SPECIALS, "<s>", "</s>", "<tool>", "</tool>", "word", "wordy", "foo bar", "e\u0301e", "éé"])
    | st.sampled_from([" ", "  ", "\n", "\n\n", "\t", "a", "aaaa", "▁", "'s", "1", "z", "á"])
    | st.text(max_size=6)
    | st.integers(1, 60).map(lambda count: "ab" * count)
)
TEXTS = st.lists(_PARTS, max_size=12).map("".join)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """kind -> (mapped, library), each of the same tokenizer.json."""

    return cache(lambda kind: both(tmp_path_factory.mktemp(kind), trained(kind)))


def both(directory: Path, tokenizer_json: str) -> tuple[MappedVocabulary, LibraryVocabulary]:
    file = directory / "tokenizer.json"
    file.write_text(tokenizer_json, encoding="utf-8")
    assert write_mapped(file).startswith("tokenizer.safetensors: ")
    found = open_mapped(file)
    assert found is not None
    return found, LibraryVocabulary.from_file(file)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, add_special_tokens=st.booleans())
@settings(max_examples=120, deadline=None)
def test_ids_are_the_librarys(pair, kind, text, add_special_tokens):
    ours, library = pair(kind)
    expected = library.encode(text, add_special_tokens)
    assert ours.encode(text, add_special_tokens) == expected
    assert ours.decode(expected) == library.decode(expected)


@pytest.mark.parametrize("characters", [60_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_a_long_mixed_text(pair, kind, characters, monkeypatch):
    monkeypatch.setattr(mapped, "LONG_TEXT", 10**9)
    ours, library = pair(kind)
    text = mixed_text(characters)
    assert ours.encode(text, True) == library.encode(text, True)


@pytest.mark.parametrize("kind", KINDS)
@given(word=st.text("ab", min_size=150, max_size=900) | st.text("aé你 ▁", min_size=150, max_size=400))
@settings(max_examples=25, deadline=None)
def test_ids_of_long_words(pair, kind, word):
    ours, library = pair(kind)
    assert ours.encode(word, False) == library.encode(word, False)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_decoding_and_streaming_are_the_librarys(pair, kind, data):
    ours, library = map(Tokenizer, pair(kind))
    ids = data.draw(st.lists(st.integers(0, library.size + 3), max_size=16))
    skip = data.draw(st.booleans())
    assert ours.decode(ids, skip) == library.decode(ids, skip)
    assert [ours.token_bytes(token) for token in ids] == [library.token_bytes(token) for token in ids]
    split = data.draw(st.integers(0, len(ids)))
    streams = [Detokenizer(tokenizer, ids[:split], skip) for tokenizer in (ours, library)]
    for token in ids[split:]:
        pushed, expected = (stream.push(token) for stream in streams)
        assert pushed == expected
    assert streams[0].flush() == streams[1].flush()


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_found_both_ways(pair, kind):
    ours, library = pair(kind)
    names = Library.from_str(trained(kind)).get_vocab(with_added_tokens=True)
    assert ours.size == library.size
    assert {name: ours.token_id(name) for name in names} == names
    for token in range(ours.size + 2):
        assert ours.spelling(token) == library.spelling(token)
    for name in ("no such token", "", "\ud800", "\U0010ffff", "\0"):
        assert ours.token_id(name) == names.get(name)
    assert ours.special_ids == library.special_ids
    assert ours.decoder == library.decoder


@pytest.mark.parametrize(("kind", "name"), [("qwen", "Ġthe"), ("gemma", "▁def"), ("gpt2", "a")])
def test_tokens_made_special_by_their_names(tmp_path, kind, name):
    ours, library = (Tokenizer(vocabulary, {"bos_token": name}) for vocabulary in both(tmp_path, trained(kind)))
    for tokenizer in (ours, library):
        tokenizer._vocabulary.make_special([name, "no such token", "</s>", "<|im_end|>", "<0x0A>", "<0x0A>", "="])
    assert ours.special_ids == library.special_ids
    assert ours.bos_token_id == library.bos_token_id is not None
    for text in (name, f"{name}{name} x", f"a = {name}<0x0A> ==", mixed_text(5000)):
        assert ours.encode(text) == library.encode(text)
    assert ours.decode(ours.encode(f"{name}="), False) == library.decode(library.encode(f"{name}="), False)


def test_whole_words_come_before_merges(pair):
    ours, library = pair("llama3")
    names = ("ĠTensor", "quick", "Ġlazy!")
    assert [ours.encode(name.replace("Ġ", " "), False) for name in names] == [
        library.encode(name.replace("Ġ", " "), False) for name in names
    ]
    assert len(ours.encode("quick", False)) == 1


def test_dropped_characters_join_their_neighbours(pair):
    ours, _ = pair("smollm")
    assert ours.encode("the", False) == ours.encode("tzhe", False) == ours.encode("thez", False)
    assert ours.encode("z", False) == []
    run = "the" * 20  # long enough to be cut
    assert ours.encode(f"z{run}z", False) == ours.encode(run, False)


def test_an_added_character_is_no_token_of_the_model(tmp_path):
    """Added as a word of its own, it is found there only; inside a word it is as unknown as before."""
    tokenizer = Library.from_str(trained("smollm"))
    assert tokenizer.token_to_id("z") is None
    tokenizer.add_tokens([AddedToken("z", single_word=True, normalized=False)])
    ours, library = both(tmp_path, tokenizer.to_str())
    assert ours.encode("z", False) == [tokenizer.token_to_id("z")]
    assert ours.encode("aza z", False) == library.encode("aza z", False)


def test_half_a_surrogate_pair_is_refused_as_before(pair):
    ours, library = pair("qwen")
    with pytest.raises(TypeError):
        library.encode("a\ud800", False)
    with pytest.raises(TypeError):
        ours.encode("a\ud800", False)
    with pytest.raises(TypeError):
        ours.encode("a\ud800" * mapped.LONG_TEXT, False)


def test_tokenizer_uses_what_lies_beside_its_file(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(trained("gpt2"), encoding="utf-8")
    assert isinstance(Tokenizer.from_file(file)._vocabulary, LibraryVocabulary)
    write_mapped(file)
    assert isinstance(Tokenizer.from_file(file)._vocabulary, MappedVocabulary)


def test_kinds_are_what_they_are_meant_to_be():
    models = {kind: json.loads(trained(kind))["model"] for kind in KINDS}
    assert all(len(model["merges"]) > 250 for model in models.values())
    assert [kind for kind, model in models.items() if model["byte_fallback"]] == ["llama2", "gemma", "mistral"]
    assert [kind for kind, model in models.items() if model["ignore_merges"]] == ["llama3"]
