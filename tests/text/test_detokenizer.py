"""The detokeniser against the library's decode of the whole, at every split."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders

from pilotlight.text.decoding import ByteScheme, PieceScheme, WholeScheme
from pilotlight.text.detokenizer import Detokenizer
from pilotlight.text.tokenizer import Tokenizer
from tests.tokenizers import byte_tokenizer, metaspace_tokenizer

PIECES = ["\u2581Hello", "\u2581world", "\u2581", "\u2581\u2581", "a", "中", "x\u2581y", "\u2581a", "<0xGG>"]


def _byte_vocabulary():
    vocabulary = byte_tokenizer([" Hello", " world", "é", "是"])
    vocabulary.tokenizer.add_tokens(["añ b", "é€", AddedToken("<tool>", special=False)])
    return vocabulary


def _piece_vocabulary(decoder=None):
    vocabulary = metaspace_tokenizer(PIECES)
    vocabulary.tokenizer.add_tokens(["foo bar", AddedToken("<tool>", special=False, normalized=False)])
    if decoder is not None:
        vocabulary.tokenizer.decoder = decoder
    return vocabulary


REPLACE, STRIP = decoders.Replace("\u2581", " "), decoders.Strip(" ", 1, 0)
FALLBACK, FUSE = decoders.ByteFallback(), decoders.Fuse()
VOCABULARIES = {
    "byte": (_byte_vocabulary(), ByteScheme),
    "llama": (_piece_vocabulary(), PieceScheme),
    "gemma": (_piece_vocabulary(decoders.Sequence([REPLACE, FALLBACK, FUSE])), PieceScheme),
    "metaspace": (_piece_vocabulary(decoders.Metaspace()), PieceScheme),
    "metaspace never": (_piece_vocabulary(decoders.Metaspace(prepend_scheme="never")), PieceScheme),
    "fallback metaspace": (_piece_vocabulary(decoders.Sequence([FALLBACK, decoders.Metaspace()])), PieceScheme),
    "metaspace fallback": (_piece_vocabulary(decoders.Sequence([decoders.Metaspace(), FALLBACK])), PieceScheme),
    "fallback first": (_piece_vocabulary(decoders.Sequence([FALLBACK, REPLACE, FUSE, STRIP])), PieceScheme),
    "wordpiece": (_piece_vocabulary(decoders.WordPiece("x")), WholeScheme),
    "bpe": (_piece_vocabulary(decoders.BPEDecoder("lo")), WholeScheme),
    "ctc": (_piece_vocabulary(decoders.CTC()), WholeScheme),
}
TOKENIZERS = {name: Tokenizer(vocabulary.tokenizer) for name, (vocabulary, _) in VOCABULARIES.items()}


@cache
def _ids(name):
    """Token ids of a vocabulary, those that make trouble most often: parts of characters, spaces, specials, gaps."""
    vocabulary, _ = VOCABULARIES[name]
    troubled = vocabulary.bytes("a 😀是ñ\u2581".encode() + b"\xc0\xff\xed\xa0\xe4")
    single = set(vocabulary.bytes(bytes(range(256))))
    others = [token for token in range(vocabulary.size + 3) if token not in single]
    return st.lists(st.sampled_from(troubled) | st.sampled_from(others), max_size=14)


def collect(tokenizer, prompt, ids, skip=True):
    detokenizer = Detokenizer(tokenizer, prompt, skip)
    return "".join([*map(detokenizer.push, ids), detokenizer.flush()])


def settled(tokenizer, prompt, skip=True):
    detokenizer = Detokenizer(tokenizer, (), skip)
    return "".join([*map(detokenizer.push, prompt), detokenizer.settle()])


@pytest.mark.parametrize("name", VOCABULARIES)
def test_the_schemes_are_the_ones_that_are_meant(name):
    assert type(TOKENIZERS[name].scheme) is VOCABULARIES[name][1]


@pytest.mark.parametrize("name", VOCABULARIES)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_pushes_joined_are_the_decode_of_the_whole(name, data):
    ids, skip = data.draw(_ids(name)), data.draw(st.booleans())
    library = VOCABULARIES[name][0].tokenizer
    expected = library.decode(ids, skip_special_tokens=skip) if ids else ""
    assert collect(TOKENIZERS[name], (), ids, skip) == expected


@pytest.mark.parametrize("name", ["byte", "metaspace", "metaspace never", "wordpiece", "ctc"])
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_at_every_split_prompt_and_answer_are_the_decode_of_both(name, data):
    ids, skip = data.draw(_ids(name)), data.draw(st.booleans())
    tokenizer = TOKENIZERS[name]
    whole = VOCABULARIES[name][0].tokenizer.decode(ids, skip_special_tokens=skip) if ids else ""
    for split in range(len(ids) + 1):
        prompt, answer = ids[:split], ids[split:]
        assert settled(tokenizer, prompt, skip) + collect(tokenizer, prompt, answer, skip) == whole


@pytest.mark.parametrize("name", ["llama", "gemma", "fallback metaspace", "metaspace fallback", "fallback first"])
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_at_every_split_the_answer_is_the_decode_from_the_incomplete_character_on(name, data):
    # A run of byte tokens is valid or not as a whole: what the prompt has settled is cut off for the reference.
    ids = data.draw(_ids(name))
    vocabulary, _ = VOCABULARIES[name]
    library, specials = vocabulary.tokenizer, TOKENIZERS[name].special_ids
    byte_of = {token: byte for byte, token in enumerate(vocabulary.bytes(bytes(range(256))))}
    anchor = vocabulary.id("a")
    for split in range(len(ids) + 1):
        prompt, answer = ids[:split], ids[split:]
        shown = [token for token in prompt if token not in specials and library.id_to_token(token) is not None]
        dangling = 0
        for length in (1, 2, 3):
            tail = shown[-length:]
            if len(tail) == length and all(token in byte_of for token in tail):
                raw = bytes(byte_of[token] for token in tail)
                if _is_incomplete(raw):
                    dangling = length
        context = [anchor] if shown else []
        before = library.decode(context) if context else ""
        whole = library.decode(context + shown[len(shown) - dangling :] + answer) if context or answer else ""
        assert whole.startswith(before)
        assert collect(TOKENIZERS[name], prompt, answer) == whole[len(before) :]


def _is_incomplete(raw):
    """Whether some continuation bytes would make one character of it."""
    for count in (1, 2, 3):
        for filler in (b"\x80", b"\x90", b"\xa0"):
            try:
                if len((raw + filler + b"\x80" * (count - 1)).decode()) == 1:
                    return True
            except UnicodeDecodeError:
                pass
    return False


def test_A01_no_replacement_inside_characters():
    vocabulary = byte_tokenizer()
    tokenizer = Tokenizer(vocabulary.tokenizer)
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in vocabulary.bytes("a😀ďb")]
    assert pieces == ["a", "", "", "", "😀", "", "ď", "b"]
    assert detokenizer.flush() == ""


def test_A01_a_run_of_fallback_bytes_comes_whole():
    vocabulary = metaspace_tokenizer(PIECES)
    detokenizer = Detokenizer(Tokenizer(vocabulary.tokenizer))
    ids = [*vocabulary.bytes("😀"), vocabulary.id("a")]
    assert [detokenizer.push(token) for token in ids] == ["", "", "", "", "😀a"]


def test_A08_a_prompt_that_ends_inside_a_character():
    vocabulary = byte_tokenizer()
    tokenizer = Tokenizer(vocabulary.tokenizer)
    raw = vocabulary.bytes("Hello world 😀")
    prompt, rest = raw[:-2], raw[-2:]
    assert settled(tokenizer, prompt) == "Hello world "
    assert collect(tokenizer, prompt, rest) == "😀"
    assert collect(tokenizer, prompt, vocabulary.bytes("x")) == "\ufffdx"


def test_A08_a_prompt_of_fallback_bytes_that_ends_inside_a_character():
    vocabulary = metaspace_tokenizer(PIECES)
    tokenizer = Tokenizer(vocabulary.tokenizer)
    raw = [vocabulary.id("\u2581Hello"), *vocabulary.bytes("你😀")]
    prompt, rest = raw[:-2], raw[-2:]
    assert settled(tokenizer, prompt) == "Hello你"
    assert collect(tokenizer, prompt, rest) == "😀"
    assert collect(tokenizer, prompt, [vocabulary.id("a")]) == "\ufffd\ufffda"


def test_A12_a_character_cut_by_the_end_is_one_replacement():
    vocabulary = byte_tokenizer()
    tokenizer = Tokenizer(vocabulary.tokenizer)
    raw = vocabulary.bytes("👋")
    assert [collect(tokenizer, (), raw[:count]) for count in (1, 2, 3, 4)] == ["\ufffd", "\ufffd", "\ufffd", "👋"]


def test_A15_spaces_between_words():
    vocabulary = metaspace_tokenizer(PIECES)
    tokenizer = Tokenizer(vocabulary.tokenizer)
    hello, world = vocabulary.id("\u2581Hello"), vocabulary.id("\u2581world")
    assert collect(tokenizer, (), [hello, world]) == "Hello world"
    assert collect(tokenizer, [hello], [world]) == " world"
    assert collect(tokenizer, [vocabulary.id("<s>")], [world]) == "world"  # only a hidden token before it


def test_A17_bytes_that_no_character_completes():
    vocabulary = metaspace_tokenizer(PIECES)
    tokenizer = Tokenizer(vocabulary.tokenizer)
    world = vocabulary.id("\u2581world")
    assert collect(tokenizer, (), [*vocabulary.bytes(b"\xe4\xbd"), world]) == "\ufffd\ufffd world"
    assert collect(tokenizer, (), [*vocabulary.bytes(b"\xe4\xbd\xa0"), world]) == "你 world"


def test_A18_special_tokens_are_hidden_only_when_asked():
    vocabulary = byte_tokenizer()
    tokenizer = Tokenizer(vocabulary.tokenizer)
    ids = [*vocabulary.bytes("ok"), vocabulary.id("<|im_end|>")]
    assert collect(tokenizer, (), ids) == "ok"
    assert collect(tokenizer, (), ids, skip=False) == "ok<|im_end|>"


def test_A10_ids_without_a_token_add_nothing():
    for tokenizer in TOKENIZERS.values():
        assert collect(tokenizer, [-1, 10**6], [-1, 10**6, 2**40]) == ""


def test_the_real_vocabulary_of_the_demo_model(demo_snapshot):
    tokenizer = _load(demo_snapshot / "tokenizer.json")
    text = "Élan vital: 你好,世界 😀🇫🇷 … def f(x):\n    return x**2\n\tनमस्ते, Привет! e\u0301 \u200d 1234567"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    for split in range(len(ids) + 1):
        assert settled(tokenizer, ids[:split]) + collect(tokenizer, ids[:split], ids[split:]) == text


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_random_tokens_of_the_demo_model(demo_snapshot, data):
    tokenizer = _load(demo_snapshot / "tokenizer.json")
    ids = data.draw(st.lists(st.integers(0, tokenizer.size + 2), max_size=20))
    split = data.draw(st.integers(0, len(ids)))
    assert settled(tokenizer, ids[:split]) + collect(tokenizer, ids[:split], ids[split:]) == tokenizer.decode(ids)


_load = cache(Tokenizer.from_file)
