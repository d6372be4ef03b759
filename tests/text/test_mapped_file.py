"""tokenizer.safetensors, whole, altered and forged: what cannot be trusted is refused in one line."""

import json
import logging
import os
import random
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

from pilotlight.build import tokenizer as build
from pilotlight.errors import ModelDataError
from pilotlight.text import mapped_file
from pilotlight.text.library import LibraryVocabulary
from pilotlight.text.mapped import MappedVocabulary, open_mapped
from pilotlight.text.tokenizer import Tokenizer
from tests.text.trained import trained

TEXT = "The quick brown fox's <|im_start|>naïve 你好 12"


@pytest.fixture
def tokenizer_json(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(trained("qwen"), encoding="utf-8")
    build.write_mapped(file)
    return file


@pytest.fixture
def refused(tokenizer_json, caplog):
    """Asserts that the file is refused for a reason, in one line, and that the library serves instead."""

    def check(reason=""):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            tokenizer = Tokenizer.from_file(tokenizer_json)
        assert isinstance(tokenizer._vocabulary, LibraryVocabulary)
        (record,) = caplog.records
        message = record.getMessage()
        assert message.startswith(f"{mapped(tokenizer_json)}: ")
        assert reason in message
        assert "\n" not in message
        assert len(message) < 400

    return check


def mapped(tokenizer_json):
    return tokenizer_json.with_name("tokenizer.safetensors")


def wait_for_a_later_time(tokenizer_json):
    """Changes it later than the mapped file by the file system's clock, which ticks in milliseconds."""
    while tokenizer_json.stat().st_ctime_ns <= mapped(tokenizer_json).stat().st_ctime_ns:
        tokenizer_json.chmod(0o644)


def table_of(file):
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def rewrite(file, change):
    """Changes the header or the data and makes the checksum right again."""
    table, data = table_of(file)
    metadata = table.pop("__metadata__")
    notes = json.loads(metadata[mapped_file.NOTES])
    data = bytearray(data)
    change(table, notes, data)
    metadata = {
        mapped_file.NOTES: json.dumps(notes),
        mapped_file.CHECKSUM: mapped_file.checksum(table, notes, bytes(data)),
    }
    header = json.dumps({"__metadata__": metadata, **table}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + data)


def test_any_tool_reads_it(tokenizer_json):
    arrays = load_file(mapped(tokenizer_json))
    assert set(arrays) == set(mapped_file.DTYPES)
    names = {value: name for name, value in LibraryVocabulary.from_file(tokenizer_json).library.get_vocab().items()}
    spellings = arrays["spellings"].tobytes()
    for token, (start, end) in enumerate(zip(arrays["offsets"], arrays["offsets"][1:], strict=False)):
        if token in names and token not in arrays["added"]:
            assert spellings[start:end].decode() == names[token]
    assert (np.diff(arrays["pairs"].astype(np.int64)) > 0).all()
    assert sorted(arrays["merged"] >> np.uint64(32)) == list(range(len(arrays["merged"])))
    with safe_open(mapped(tokenizer_json), framework="numpy") as file:
        assert json.loads(file.metadata()[mapped_file.NOTES])["format"] == mapped_file.FORMAT


def test_the_same_bytes_every_time(tokenizer_json):
    before = mapped(tokenizer_json).read_bytes()
    build.write_mapped(tokenizer_json)
    assert mapped(tokenizer_json).read_bytes() == before


def test_every_cut_is_refused(tokenizer_json, refused):
    whole = mapped(tokenizer_json).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for length in (0, 1, 7, 8, 9, 100, header - 1, header, header + 1, len(whole) // 2, len(whole) - 1):
        mapped(tokenizer_json).write_bytes(whole[:length])
        refused()
    mapped(tokenizer_json).write_bytes(whole + b"\0")
    refused()


def test_every_altered_byte_is_refused(tokenizer_json, refused):
    whole = mapped(tokenizer_json).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    draw = random.Random(5)
    places = [*range(8), *draw.sample(range(8, header), 60), *draw.sample(range(header, len(whole)), 60)]
    for place in places:
        if whole[place : place + 1].isspace():
            continue  # spacing of the header, which says nothing
        altered = bytearray(whole)
        altered[place] ^= 1 << draw.randrange(7)
        mapped(tokenizer_json).write_bytes(altered)
        refused()


def test_another_tokenizer_json_is_noticed(tokenizer_json, refused):
    text = tokenizer_json.read_text(encoding="utf-8")
    tokenizer_json.write_text(text + " ", encoding="utf-8")
    refused("was not made of this tokenizer.json")
    tokenizer_json.write_text(text.replace("im_start", "im_stert"), encoding="utf-8")  # as long as before
    for times in ((0, 0), (2**33, 2**33)):  # whatever it says of its age
        os.utime(tokenizer_json, times)
        wait_for_a_later_time(tokenizer_json)
        refused("was not made of this tokenizer.json")
    tokenizer_json.write_text(text, encoding="utf-8")  # written since, but the same
    wait_for_a_later_time(tokenizer_json)
    assert open_mapped(tokenizer_json) is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda table, notes, data: notes.update(format=2), "has format 2, this version reads 1"),
        (lambda table, notes, data: table.pop("joins"), "has arrays"),
        (lambda table, notes, data: table.update(more=table["pairs"]), "has arrays"),
        (lambda table, notes, data: table["pairs"].update(dtype="U32"), "pairs is not a whole array of U64"),
        (lambda table, notes, data: table["pairs"].update(shape=[1]), "pairs is not a whole array of U64"),
        (lambda table, notes, data: table["pairs"].update(shape=[1, 2]), "is misshapen"),
        (lambda table, notes, data: table["pairs"].update(data_offsets=[0, 10**9]), "pairs is not a whole array"),
        (lambda table, notes, data: table["pairs"].update(data_offsets=[-16, -8], shape=[1]), "not a whole array"),
        (lambda table, notes, data: table["merged"].update(data_offsets=[0, 8], shape=[1]), "no results"),
        (lambda table, notes, data: table["offsets"].update(data_offsets=[0, 0], shape=[0]), "do not fit"),
        (lambda table, notes, data: notes.update(prefix=["a"]), "is misshapen"),
        (lambda table, notes, data: notes.update(aliases=[]), "is misshapen"),
        (lambda table, notes, data: notes.update(aliases={"a": "b"}), "is misshapen"),
        (lambda table, notes, data: notes.update(whole={"a": -1}), "is misshapen"),
        (lambda table, notes, data: notes.update(decoder=5), "is misshapen"),
        (lambda table, notes, data: notes.update(probe=["a", [1, 2, 3, 4]]), "another text"),
        (lambda table, notes, data: notes.pop("suffix"), "is misshapen"),
        (lambda table, notes, data: table["frame"].update(data_offsets=[0, 0], shape=[0]), "version of tokenizers"),
    ],
)
def test_forged_headers_are_refused(tokenizer_json, refused, change, reason):
    rewrite(mapped(tokenizer_json), change)
    refused("is not for this version of tokenizers" if reason == "another text" else reason)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{}", b"\xff" * 64, (2).to_bytes(8, "little") + b"{}", (2**63).to_bytes(8, "little") + b"{}",
        (20_000).to_bytes(8, "little") + b"[" * 20_000, (4).to_bytes(8, "little") + b"null",
        (20).to_bytes(8, "little") + b'{"__metadata__":[] }',
    ],
)  # fmt: skip
def test_what_is_no_such_file_at_all_is_refused(tokenizer_json, refused, content):
    mapped(tokenizer_json).write_bytes(content)
    refused()


def test_what_cannot_be_opened_is_refused(tokenizer_json, refused):
    mapped(tokenizer_json).chmod(0)
    if os.access(mapped(tokenizer_json), os.R_OK):  # root reads everything
        pytest.skip("this user may read everything")
    refused("cannot be read")


@pytest.fixture(scope="module")
def forgeable(tmp_path_factory):
    directory = tmp_path_factory.mktemp("forged")
    file = directory / "tokenizer.json"
    file.write_text(trained("qwen"), encoding="utf-8")
    build.write_mapped(file)
    mapped(file).rename(directory / "whole")
    return directory


@given(seed=st.integers(0, 2**32), name=st.sampled_from(sorted(set(mapped_file.DTYPES) - {"frame"})))
@settings(max_examples=60, deadline=None)
def test_forged_arrays_harm_nobody(forgeable, seed, name):
    """Whoever can write the file can make it wrong; what it cannot be made to do is to crash or to hang."""
    file = forgeable / "tokenizer.json"
    mapped(file).write_bytes((forgeable / "whole").read_bytes())

    def forge(table, notes, data):
        begin, end = table[name]["data_offsets"]
        draw = random.Random(seed)
        for place in draw.sample(range(begin, end), min(draw.choice([4, 10**6]), end - begin)):
            data[place] = draw.randrange(256)
        notes["probe"] = ["", []]

    rewrite(mapped(file), forge)
    with suppress(mapped_file.InvalidTablesError, ModelDataError):
        found = MappedVocabulary(mapped_file.read_tables(mapped(file), file), file)
        found.token_id("the")
        ids = found.encode(TEXT, True)
        assert all(0 <= token < 2**32 for token in ids)
        assert isinstance(found.decode(ids), str)
