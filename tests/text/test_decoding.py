import pytest
from tokenizers import pre_tokenizers

from pilotlight.text.decoding import ByteScheme, PieceScheme, WholeScheme, incomplete_suffix, read_scheme

REPLACE = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def sequence(*steps):
    return {"type": "Sequence", "decoders": list(steps)}


@pytest.mark.parametrize(
    ("decoder", "kind"),
    [
        (None, WholeScheme),
        (BYTES, ByteScheme),
        (sequence(BYTES), ByteScheme),
        (sequence(sequence(BYTES), FUSE), ByteScheme),
        (sequence(BYTES, STRIP), WholeScheme),
        (METASPACE, PieceScheme),
        (sequence(REPLACE, FALLBACK, FUSE, STRIP), PieceScheme),
        (sequence(REPLACE, FALLBACK, FUSE), PieceScheme),
        (sequence(FALLBACK, METASPACE), PieceScheme),
        # Strip without Fuse cuts every element; Replace after Fuse could match across tokens.
        (sequence(REPLACE, FALLBACK, STRIP), WholeScheme),
        (sequence(FUSE, REPLACE), WholeScheme),
        (sequence(REPLACE, FUSE, STRIP | {"stop": 1}), WholeScheme),
        (sequence(REPLACE, FUSE, STRIP, REPLACE), WholeScheme),
        (sequence(REPLACE | {"pattern": {"Regex": "x+"}}, FUSE), WholeScheme),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, WholeScheme),
        ({"type": "BPEDecoder", "suffix": "</w>"}, WholeScheme),
        ({"type": "SomethingNew"}, WholeScheme),
    ],
)
def test_scheme_of_each_decoder(decoder, kind):
    assert type(read_scheme(decoder)) is kind


def test_metaspace_that_never_prepends_keeps_the_first_space():
    for spelled in (METASPACE | {"prepend_scheme": "never"}, METASPACE | {"add_prefix_space": False}):
        scheme = read_scheme(spelled)
        assert isinstance(scheme, PieceScheme)
        assert scheme.element("\u2581a", first=True) == " a"
    scheme = read_scheme(METASPACE)
    assert isinstance(scheme, PieceScheme)
    assert scheme.element("\u2581a", first=True) == "a"


def test_every_byte_has_its_letter():
    scheme = ByteScheme()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    assert sorted(map(scheme.element, alphabet)) == [bytes([byte]) for byte in range(256)]
    to_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    text = "".join(map(chr, range(0x250))) + "\u20ac\U0001f600\U0010ffff"  # all bytes that UTF-8 has
    [(letters, _)] = to_letters.pre_tokenize_str(text)
    assert scheme.element(letters) == text.encode()


def test_a_spelling_outside_the_alphabet_stands_for_itself():
    assert ByteScheme().element("a b\u20ac") == "a b\u20ac".encode()


@pytest.mark.parametrize(
    ("data", "suffix"),
    [
        (b"", b""),
        (b"abc", b""),
        ("é".encode(), b""),
        ("aé".encode()[:-1], b"\xc3"),
        ("😀".encode()[:1], b"\xf0"),
        ("😀".encode()[:2], b"\xf0\x9f"),
        ("😀".encode()[:3], b"\xf0\x9f\x98"),
        ("😀".encode(), b""),
        (b"\xf0\x9f\xc3", b"\xc3"),
        (b"\xe0\x80", b""),  # an overlong form: no character begins so
        (b"\xed\xa0", b""),  # a surrogate
        (b"\xf4\x90", b""),  # past U+10FFFF
        (b"\xff", b""),
        (b"\xff\xe4", b"\xe4"),
        (b"\x9f\x98\x80", b""),
    ],
)
def test_incomplete_suffix(data, suffix):
    assert incomplete_suffix(data) == suffix
