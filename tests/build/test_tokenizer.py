"""What `pilotlight build snapshot` makes of a tokenizer.json: a mapped form, or a reason why there is none."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pilotlight.build import tokenizer as build
from pilotlight.build.snapshot import build_snapshot, command
from pilotlight.text.assets import load_text
from pilotlight.text.library import LibraryVocabulary
from pilotlight.text.mapped import MappedVocabulary
from pilotlight.text.mapped_file import InvalidTablesError, read_tables
from tests.models import write_tiny
from tests.text.trained import trained
from tests.tokenizers import byte_tokenizer, metaspace_tokenizer

LETTERS = {letter: token for token, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def bpe(vocabulary=LETTERS, merges=(), *, byte_level=True, **options):
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges), **options))
    if byte_level:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def without(*letters):
    return {letter: token for letter, token in LETTERS.items() if letter not in letters}


def with_post_processor(processor):
    tokenizer = bpe()
    tokenizer.post_processor = processor
    return tokenizer


def write(directory, tokenizer):
    file = directory / "tokenizer.json"
    tokenizer.save(str(file))
    return file


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny")


@pytest.mark.parametrize(
    "make",
    [
        bpe,
        lambda: bpe(LETTERS | {"ab": 900}, [("a", "b")]),
        lambda: bpe(without("À", "þ"), unk_token="a"),  # no text has these
        lambda: bpe(without("a", "Ġ")),
        lambda: bpe({"a": 0, "b": 5, "ab": 7}, [("a", "b")], byte_level=False),
        lambda: bpe({"a": 0}, byte_fallback=True, byte_level=False),
        lambda: with_post_processor(processors.BertProcessing(("a", LETTERS["a"]), ("b", LETTERS["b"]))),
        lambda: with_post_processor(
            processors.TemplateProcessing(single="a a $A a", special_tokens=[("a", LETTERS["a"])])
        ),
        lambda: byte_tokenizer(["piece"]).tokenizer,
        lambda: metaspace_tokenizer(["▁Hello", "▁"]).tokenizer,
    ],
)
def test_these_are_mapped(tmp_path, make):
    file = write(tmp_path, make())
    assert build.write_mapped(file).startswith("tokenizer.safetensors: ")
    ours = MappedVocabulary(read_tables(file.with_name("tokenizer.safetensors"), file), file)
    library = LibraryVocabulary.from_file(file)
    for text in ("", "a", "Hello abab Àþ", "aaa", "  ab 你 \ufffd<0x0A>"):
        for add_special_tokens in (True, False):
            ids = library.encode(text, add_special_tokens)
            assert ours.encode(text, add_special_tokens) == ids
            assert ours.decode(ids) == library.decode(ids)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0, False)), "its model is Unigram, not BPE"),
        (lambda: Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1})), "its model is WordPiece, not BPE"),
        (lambda: Tokenizer(models.WordLevel({"<unk>": 0}, "<unk>")), "its model is WordLevel, not BPE"),
        (lambda: bpe(dropout=0.5), "its BPE has a dropout"),
        (lambda: bpe(end_of_word_suffix="</w>"), "its BPE has a end_of_word_suffix"),
        (lambda: bpe(continuing_subword_prefix="##"), "its BPE has a continuing_subword_prefix"),
        (lambda: bpe(without("a"), unk_token="b"), "a token for unknown characters"),
        (lambda: bpe({"a": 0, "<unk>": 1}, unk_token="<unk>", byte_level=False), "a token for unknown characters"),
        (
            lambda: bpe({"a": 0, "<0x00>": 1}, byte_fallback=True, byte_level=False),
            "falls back to bytes, of which 255 have no token",
        ),
        (
            lambda: bpe(
                {f"<0x{byte:02X}>": byte for byte in range(256)} | {"a": 256, "a<0x00>": 257},
                [("a", "<0x00>")],
                byte_fallback=True,
                byte_level=False,
            ),
            "merges bytes of unknown characters",
        ),
        (lambda: bpe({"a": 0, "b": 10**6}, byte_level=False), "its 2 tokens have ids up to 1000000"),
        (lambda: bpe({"a": 0, "": 1}, byte_level=False), "it has an empty token"),
        (
            lambda: with_post_processor(processors.TemplateProcessing(single="$A a $A", special_tokens=[("a", 3)])),
            "its post-processor does more",
        ),
        (
            lambda: with_post_processor(processors.TemplateProcessing(single="$A $A", special_tokens=[])),
            "other ids",
        ),
    ],
)  # fmt: skip
def test_these_stay_with_the_library(tmp_path, make, reason):
    file = write(tmp_path, make())
    file.with_name("tokenizer.safetensors").write_bytes(b"an older one")
    note = build.write_mapped(file)
    assert note.startswith("tokenizer.json: ")
    assert reason in note
    assert "\n" not in note
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokenizer.json"]


def test_what_encodes_otherwise_when_mapped_stays_with_the_library(tmp_path, monkeypatch):
    file = tmp_path / "tokenizer.json"
    file.write_text(trained("gemma"), encoding="utf-8")
    monkeypatch.setattr(build, "_joins", lambda results: build.np.zeros(0, build.np.uint64))
    assert "otherwise when mapped" in build.write_mapped(file)
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokenizer.json"]


def test_merges_written_as_lines_and_given_twice(tmp_path):
    """Older files have "a b" for a merge. Of one that comes twice the last rank counts."""
    vocabulary = {letter: token for token, letter in enumerate(["a", "b", "c", "ab", "bc", "abc"])}
    document = json.loads(bpe(vocabulary, [], byte_level=False).to_str())
    document["model"]["merges"] = ["#version: 0.2", "a b", "b c", "a b", "ab c"]
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(document))
    build.write_mapped(file)
    ours = MappedVocabulary(read_tables(file.with_name("tokenizer.safetensors"), file), file)
    assert ours.encode("abc", False) == LibraryVocabulary.from_file(file).encode("abc", False) == [0, 4]


def test_snapshot_is_served_by_its_mapped_form(tiny, tmp_path, capsys):
    assert command([str(tiny), "-o", str(tmp_path / "out")]) == 0
    assert "tokenizer.safetensors: 259 tokens" in capsys.readouterr().out
    vocabulary = load_text(tmp_path / "out").tokenizer._vocabulary
    assert isinstance(vocabulary, MappedVocabulary)
    assert isinstance(load_text(tiny).tokenizer._vocabulary, LibraryVocabulary)


def test_snapshot_of_another_kind_of_tokenizer_says_so(tiny, tmp_path, capsys):
    write(tiny, Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, "<unk>")))
    assert command([str(tiny), "-o", str(tmp_path / "out")]) == 0
    assert "its model is WordLevel, not BPE; a server loads it whole" in capsys.readouterr().out
    assert not (tmp_path / "out" / "tokenizer.safetensors").exists()
    assert load_text(tmp_path / "out").tokenizer.encode("a") == [1]


@pytest.mark.parametrize("content", [None, b"of an earlier version"])
def test_standing_snapshot_without_a_mapped_form_gets_one(tiny, tmp_path, content):
    build_snapshot(str(tiny), tmp_path / "out")
    file = tmp_path / "out" / "tokenizer.safetensors"
    whole = file.read_bytes()
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
        with pytest.raises(InvalidTablesError):
            read_tables(file, tmp_path / "out" / "tokenizer.json")
    assert build_snapshot(str(tiny), tmp_path / "out") is False
    assert file.read_bytes() == whole
