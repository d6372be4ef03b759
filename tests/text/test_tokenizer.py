import json
import threading
import time

import pytest
from tokenizers import AddedToken, processors

from pilotlight.errors import ModelDataError
from pilotlight.text.tokenizer import Tokenizer
from tests.tokenizers import byte_tokenizer, metaspace_tokenizer


@pytest.fixture
def spm():
    return metaspace_tokenizer(["\u2581Hello", "\u2581world", "\u2581", "\u4f60"])


def with_bos(vocabulary):
    """The vocabulary with a post-processor that puts <s> before every text."""
    vocabulary.tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocabulary.id("<s>"))]
    )
    return Tokenizer(vocabulary.tokenizer, {"bos_token": "<s>"})


def test_encode_and_decode():
    vocabulary = byte_tokenizer()
    tokenizer = Tokenizer(vocabulary.tokenizer)
    text = "naïve 你好 😀\n"
    ids = tokenizer.encode(text)
    assert ids == vocabulary.bytes(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("a<|im_end|>") == [*vocabulary.bytes("a"), vocabulary.id("<|im_end|>")]


def test_decode_hides_special_tokens_only_when_asked():
    vocabulary = byte_tokenizer()
    tokenizer = Tokenizer(vocabulary.tokenizer)
    ids = [*vocabulary.bytes("hi"), vocabulary.id("<|im_end|>")]
    assert tokenizer.decode(ids) == "hi"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "hi<|im_end|>"
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode([vocabulary.id("<|im_end|>")]) == ""


def test_a_normalised_special_token_is_hidden(spm):
    # The library compares the normalised spelling with the special ones and so shows it.
    spm.tokenizer.add_special_tokens([AddedToken("<x>", special=True, normalized=True)])
    tokenizer = Tokenizer(spm.tokenizer)
    assert tokenizer.decode([spm.id("\u2581Hello"), spm.id("<x>")]) == "Hello"


def test_D01_one_bos(spm):
    tokenizer = with_bos(spm)
    bos = tokenizer.bos_token_id
    plain = tokenizer.encode("x", add_special_tokens=False)
    assert bos is not None
    assert tokenizer.encode("x") == [bos, *plain]
    # A text that spells BOS out, as a chat template's result does, gets no second one.
    assert tokenizer.encode("<s>x")[:2] == tokenizer.encode("<s>x", add_special_tokens=False)[:2]
    assert tokenizer.encode("<s>x").count(bos) == 1
    assert tokenizer.encode("") == [bos]
    assert tokenizer.encode("<s>") == [bos]
    assert tokenizer.encode("<s><s>") == [bos, bos]  # what the text itself says stays


def test_D01_bos_that_the_text_repeats_stays_where_none_is_added(spm):
    tokenizer = Tokenizer(spm.tokenizer, {"bos_token": "<s>"})
    assert tokenizer.encode("<s><s>") == [tokenizer.bos_token_id] * 2


def test_B17_bytes_of_a_part_of_a_character():
    vocabulary = byte_tokenizer()
    tokenizer = Tokenizer(vocabulary.tokenizer)
    ids = vocabulary.bytes("😊")
    assert [tokenizer.token_bytes(token) for token in ids] == [b"\xf0", b"\x9f", b"\x98", b"\x8a"]
    assert tokenizer.token_text(ids[0]) == r"bytes:\xf0"
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == "😊"


def test_B17_bytes_of_fallback_tokens(spm):
    tokenizer = Tokenizer(spm.tokenizer)
    assert b"".join(map(tokenizer.token_bytes, spm.bytes("😊"))) == "😊".encode()
    assert tokenizer.token_text(spm.bytes("😊")[1]) == r"bytes:\x9f"
    assert tokenizer.token_text(spm.bytes("a")[0]) == "a"


def test_B19_text_and_bytes_of_a_merged_token():
    vocabulary = byte_tokenizer(["是", " Paris", "\xf0"])
    tokenizer = Tokenizer(vocabulary.tokenizer)
    assert tokenizer.token_text(256) == "是"
    assert list(tokenizer.token_bytes(256)) == [230, 152, 175]
    assert tokenizer.token_text(257) == " Paris"
    assert tokenizer.token_text(258) == "\xf0"  # the letter ð, as two bytes


def test_B19_metaspace_is_a_space(spm):
    tokenizer = Tokenizer(spm.tokenizer)
    assert tokenizer.token_text(spm.id("\u2581world")) == " world"
    assert tokenizer.token_bytes(spm.id("\u4f60")) == "\u4f60".encode()


def test_special_tokens_have_their_text():
    tokenizer = Tokenizer(byte_tokenizer().tokenizer)
    assert tokenizer.token_text(258) == "<|im_end|>"


def test_H19_ids_with_gaps():
    spelled = json.loads(byte_tokenizer().tokenizer.to_str())
    spelled["model"]["vocab"]["far"] = 300
    library = type(byte_tokenizer().tokenizer).from_str(json.dumps(spelled))
    tokenizer = Tokenizer(library)
    assert tokenizer.size == 301
    assert tokenizer.token_text(300) == "far"
    assert tokenizer.decode([104, 300]) == library.decode([104, 300])
    for nothing in (-1, 299, 301, 2**32, 2**70):
        assert tokenizer.token_text(nothing) == ""
        assert tokenizer.token_bytes(nothing) == b""
    assert tokenizer.decode([-1, 299, 104]) == "h"


def test_named_tokens_are_special_even_where_the_vocabulary_lists_them_plainly():
    vocabulary = byte_tokenizer(["<eot>"])
    assert Tokenizer(vocabulary.tokenizer).decode([256]) == "<eot>"
    tokenizer = Tokenizer(vocabulary.tokenizer, {"eos_token": "<eot>", "pad_token": "<nowhere>"})
    assert tokenizer.eos_token_id == 256
    assert 256 in tokenizer.special_ids
    assert tokenizer.decode([256]) == ""
    assert tokenizer.token_id("<nowhere>") is None
    assert tokenizer.size == 260


def test_truncation_and_padding_in_the_file_have_no_effect():
    vocabulary = byte_tokenizer()
    vocabulary.tokenizer.enable_truncation(3)
    vocabulary.tokenizer.enable_padding(length=8)
    assert len(Tokenizer(vocabulary.tokenizer).encode("abcdef")) == 6
    assert len(Tokenizer(vocabulary.tokenizer).encode("a")) == 1


def test_from_file(tmp_path):
    file = tmp_path / "tokenizer.json"
    byte_tokenizer().tokenizer.save(str(file))
    assert Tokenizer.from_file(file).encode("a") == [97]
    file.write_text('{"model": 3')
    with pytest.raises(ModelDataError, match=r"tokenizer\.json: is not a tokenizer\.json"):
        Tokenizer.from_file(file)


def test_G12_other_threads_run_while_a_long_text_is_encoded(monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    tokenizer = Tokenizer(byte_tokenizer().tokenizer)
    encoder = threading.Thread(target=tokenizer.encode, args=("word " * 400_000,))
    begun = before = time.process_time()  # of both threads: a machine that is busy elsewhere is no lock
    longest = 0.0
    encoder.start()
    while encoder.is_alive():
        now = time.process_time()
        longest, before = max(longest, now - before), now
    # With Python's lock held all the while, this loop would have stood still for nearly as long.
    assert longest < (before - begun) * 0.75
