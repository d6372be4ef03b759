"""The process that long texts go to: the library's ids, one process for many texts, and none left behind."""

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref

import pytest

from pilotlight.build.tokenizer import write_mapped
from pilotlight.text import long_texts, mapped
from pilotlight.text.library import LibraryVocabulary
from pilotlight.text.long_texts import LongTexts
from pilotlight.text.mapped import open_mapped
from pilotlight.text.tokenizer import Tokenizer
from tests.text.trained import mixed_text, trained


@pytest.fixture(scope="module")
def tokenizer_json(tmp_path_factory):
    file = tmp_path_factory.mktemp("long") / "tokenizer.json"
    file.write_text(trained("llama3"), encoding="utf-8")
    write_mapped(file)
    return file


def process_of(texts):
    assert texts._process is not None
    return texts._process


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_long_texts_have_the_librarys_ids(tokenizer_json):
    special = {"bos_token": "quick"}  # of plain vocabulary: the process must be told
    ours = Tokenizer(open_mapped(tokenizer_json), special)
    library = Tokenizer(LibraryVocabulary.from_file(tokenizer_json), special)
    text = mixed_text(mapped.LONG_TEXT + 10)
    for add_special_tokens in (True, False):
        assert ours.encode(text, add_special_tokens) == library.encode(text, add_special_tokens)
    process_of(ours._vocabulary._long_texts)


def test_one_process_serves_all_threads_and_ends_with_its_owner(tokenizer_json):
    texts = LongTexts(tokenizer_json)
    library = LibraryVocabulary.from_file(tokenizer_json)
    found = {}

    def encode(texts, number):
        found[number] = texts.encode(f"{number} tokens " * number, False)

    threads = [threading.Thread(target=encode, args=(texts, number)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: library.encode(f"{number} tokens " * number, False) for number in range(1, 9)}
    pid = process_of(texts).pid
    del texts, threads
    gc.collect()
    assert is_gone(pid)


def test_a_process_that_was_killed_is_replaced(tokenizer_json):
    texts = LongTexts(tokenizer_json)
    first = texts.encode("the quick brown fox", True)
    killed = process_of(texts)
    os.kill(killed.pid, signal.SIGKILL)
    assert texts.encode("the quick brown fox", True) == first
    assert process_of(texts).pid != killed.pid


def test_an_idle_process_ends_and_is_replaced(tokenizer_json, monkeypatch):
    texts = LongTexts(tokenizer_json)
    code = f"import sys; from {long_texts.__name__} import main; import {long_texts.__name__} as it; "
    code += "it._IDLE_SECONDS = 0.01; main(*sys.argv[1:])"
    monkeypatch.setattr(long_texts, "_command", lambda: [sys.executable, "-c", code])
    first = texts.encode("the quick brown fox", True)  # it waits on the line while the process starts
    assert first is not None
    assert process_of(texts).wait(timeout=60) == 0
    monkeypatch.undo()
    assert texts.encode("the quick brown fox", True) == first


def test_processes_that_are_gone_leave_nothing_behind(tokenizer_json):
    texts = LongTexts(tokenizer_json)
    texts.encode("a", False)
    ended = process_of(texts)
    ended.kill()
    ended.wait()
    texts.encode("a", False)
    ended = weakref.ref(ended)
    gc.collect()
    assert ended() is None


@pytest.mark.parametrize("command", [["/nowhere/python"], [sys.executable, "-c", "raise SystemExit(1)"]])
def test_without_a_process_the_text_is_encoded_here(tokenizer_json, monkeypatch, command):
    monkeypatch.setattr(long_texts, "_command", lambda: command)
    monkeypatch.setattr(mapped, "LONG_TEXT", 10)
    ours = open_mapped(tokenizer_json)
    text = "the quick brown fox " * 5
    assert ours._long_texts.encode(text, True) is None
    assert ours.encode(text, True) == LibraryVocabulary.from_file(tokenizer_json).encode(text, True)


def test_the_process_ends_when_its_line_does(tokenizer_json):
    command = [sys.executable, "-P", "-m", long_texts.__name__, str(tokenizer_json)]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_process_knows_no_secret(tokenizer_json, monkeypatch):
    monkeypatch.setenv("PILOTLIGHT_API_KEY", "hunter2")
    texts = LongTexts(tokenizer_json)
    assert texts.encode("a", False) is not None
    with open(f"/proc/{process_of(texts).pid}/environ", "rb") as file:
        assert b"hunter2" not in file.read()
