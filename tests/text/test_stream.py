import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotlight.text.stream import TextStream, settled_text
from pilotlight.text.tokenizer import Tokenizer
from tests.tokenizers import byte_tokenizer, metaspace_tokenizer

BYTE = byte_tokenizer(["foo\nbar", "baz", " é"])
TOKENIZER = Tokenizer(BYTE.tokenizer)
FOO, BAZ = 256, 257
END = BYTE.id("<|im_end|>")


def collect(stream, ids, sizes=None, finish="length", stop_token=None):
    """Pushes `ids` in groups until the stream ends by itself or they do: (text, tokens counted, finish, reason)."""
    groups = sizes or [1] * len(ids)
    text, counted, at = "", 0, 0
    for size in groups:
        group = ids[at : at + size]
        at += size
        last = at >= len(ids)
        piece = stream.push(group, finish if last else None, stop_token if last else None)
        text += piece.text
        counted += piece.consumed
        assert piece.consumed == len(piece.offsets)
        if piece.finish is not None:
            return text, counted, piece.finish, piece.stop_reason
    raise AssertionError("the stream did not end")


def test_A03_held_text_is_delivered_at_eos_and_at_the_limit():
    ids = BYTE.bytes("UNO DUE TRE")
    stop = ["TRE\nAAAA"]
    at_eos = TextStream(TOKENIZER, stop=stop, eos_token_ids=[END])
    assert collect(at_eos, [*ids, END], finish="stop", stop_token=END) == ("UNO DUE TRE", 12, "stop", None)
    assert collect(TextStream(TOKENIZER, stop=stop), ids[:-1]) == ("UNO DUE TR", 10, "length", None)


@pytest.mark.parametrize(("include", "text"), [(False, "foo"), (True, "foo\n")])
def test_A05_a_stop_in_the_middle_of_a_token(include, text):
    stream = TextStream(TOKENIZER, stop=["\n"], include_stop=include)
    assert collect(stream, [FOO, BAZ]) == (text, 1, "stop", "\n")


def test_A05_tokens_behind_the_stop_do_not_count():
    piece = TextStream(TOKENIZER, stop=["\n"]).push([FOO, BAZ, BAZ], "length")
    assert piece == ("foo", 1, "stop", "\n", [0])


@pytest.mark.parametrize(("include", "text"), [(False, "hi"), (True, "hi<|im_end|>")])
def test_A07_a_stop_that_names_a_special_token(include, text):
    ids = [*BYTE.bytes("hi"), END, *BYTE.bytes("more")]
    stream = TextStream(TOKENIZER, stop=["<|im_end|>"], include_stop=include)
    assert collect(stream, ids) == (text, 3, "stop", "<|im_end|>")
    shown = TextStream(TOKENIZER, stop=["<|im_end|>"], include_stop=include, skip_special_tokens=False)
    assert collect(shown, ids) == (text, 3, "stop", "<|im_end|>")


def test_A07_text_held_back_comes_before_the_special_token():
    stream = TextStream(TOKENIZER, stop=["<|im_end|>", "hi there"])
    assert collect(stream, [*BYTE.bytes("hi"), END]) == ("hi", 3, "stop", "<|im_end|>")


def test_A12_the_end_inside_a_character():
    ids = BYTE.bytes("👋")
    texts = [collect(TextStream(TOKENIZER), ids[:count]) for count in (1, 2, 3, 4)]
    assert texts == [(text, count, "length", None) for count, text in enumerate("\ufffd\ufffd\ufffd👋", 1)]


@pytest.mark.parametrize("skip", [True, False])
def test_A18_the_token_that_ends_the_text_is_not_shown(skip):
    ids = [*BYTE.bytes("ok"), END]
    stream = TextStream(TOKENIZER, skip_special_tokens=skip, eos_token_ids=[END])
    assert collect(stream, ids, finish="stop", stop_token=END) == ("ok", 3, "stop", None)


def test_A18_with_include_stop_it_is_shown_unless_special_tokens_are_hidden():
    ids = [*BYTE.bytes("ok"), END]
    for skip, text in ((True, "ok"), (False, "ok<|im_end|>")):
        stream = TextStream(TOKENIZER, include_stop=True, skip_special_tokens=skip)
        assert collect(stream, ids, finish="stop", stop_token=END) == (text, 3, "stop", END)


def test_a_plain_token_named_as_stop_is_the_reason():
    ids = [*BYTE.bytes("ok"), BAZ]
    assert collect(TextStream(TOKENIZER), ids, finish="stop", stop_token=BAZ) == ("ok", 3, "stop", BAZ)
    shown = TextStream(TOKENIZER, include_stop=True)
    assert collect(shown, ids, finish="stop", stop_token=BAZ) == ("okbaz", 3, "stop", BAZ)


def test_a_stop_string_that_the_last_token_completes_beats_the_limit():
    assert collect(TextStream(TOKENIZER, stop=["ok"]), BYTE.bytes("ok")) == ("", 2, "stop", "ok")


def test_a_stop_string_in_text_that_only_the_end_releases():
    # Byte-fallback tokens are held until their run ends, here with the sequence.
    vocabulary = metaspace_tokenizer(["a"])
    stream = TextStream(Tokenizer(vocabulary.tokenizer), stop=["\n"])
    assert collect(stream, [vocabulary.id("a"), *vocabulary.bytes("\nb")]) == ("a", 3, "stop", "\n")


def test_min_tokens_puts_stop_strings_off():
    ids = BYTE.bytes("a.b.c.")
    assert collect(TextStream(TOKENIZER, stop=["."], min_tokens=2), ids) == ("a.b", 4, "stop", ".")
    assert collect(TextStream(TOKENIZER, stop=["."], min_tokens=6), ids) == ("a.b.c.", 6, "length", None)
    # A stop string may begin within the first tokens if it ends behind them.
    assert collect(TextStream(TOKENIZER, stop=["a.b"], min_tokens=2), ids) == ("", 3, "stop", "a.b")
    hidden = TextStream(TOKENIZER, stop=["<|im_end|>"], min_tokens=1)
    assert collect(hidden, [END, *BYTE.bytes("a"), END]) == ("a", 3, "stop", "<|im_end|>")


def test_an_abort_is_passed_on():
    assert collect(TextStream(TOKENIZER, stop=["abc"]), BYTE.bytes("ab"), finish="abort")[0::2] == ("ab", "abort")
    assert TextStream(TOKENIZER).push([], "error") == ("", 0, "error", None, [])


def test_offsets_are_where_each_token_begins():
    stream = TextStream(TOKENIZER, stop=["zzz"])
    ids = [FOO, *BYTE.bytes("😀"), END, BAZ, BAZ]
    piece = stream.push(ids)
    assert piece.offsets == [0, 7, 7, 7, 7, 8, 8, 11]
    assert stream.push(BYTE.bytes("z")).offsets == [14]


def test_echo_and_answer_are_the_text_of_both():
    ids = BYTE.bytes("né😀!")
    for split in range(len(ids) + 1):
        text, offsets = settled_text(TOKENIZER, ids[:split])
        answer = TextStream(TOKENIZER, ids[:split]).push(ids[split:], "length")
        assert text + answer.text == "né😀!"
        assert [*offsets, *(len(text) + at for at in answer.offsets)] == [0, 1, 1, 2, 2, 2, 2, 3]


def test_B16_echo_of_special_tokens():
    prompt = [*BYTE.bytes("hi"), END]
    assert settled_text(TOKENIZER, prompt) == ("hi", [0, 1, 2])
    assert settled_text(TOKENIZER, prompt, skip_special_tokens=False) == ("hi<|im_end|>", [0, 1, 2])


TOKENS = st.sampled_from([*BYTE.bytes("ab\n é😀"), FOO, BAZ, 258, END])


@given(
    ids=st.lists(TOKENS, min_size=1, max_size=12),
    stop=st.lists(st.sampled_from(["\n", "ba", "ab", "é", "o\nb", "a<", "<|im_end|>"]), max_size=3),
    include=st.booleans(),
    skip=st.booleans(),
    data=st.data(),
)
@settings(deadline=None)
def test_the_result_does_not_depend_on_how_tokens_arrive(ids, stop, include, skip, data):
    def stream():
        return TextStream(TOKENIZER, stop=stop, include_stop=include, skip_special_tokens=skip)

    sizes, left = [], len(ids)
    while left:
        sizes.append(data.draw(st.integers(1, left)))
        left -= sizes[-1]
    one_by_one = collect(stream(), ids)
    assert collect(stream(), ids, sizes) == one_by_one
    assert collect(stream(), ids, [len(ids)]) == one_by_one
    if not stop:
        assert one_by_one[0] == TOKENIZER.decode(ids, skip)
