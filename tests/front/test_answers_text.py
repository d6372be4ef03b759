"""Cases A over HTTP: the text of an answer, through the real engine on CHAIN checkpoints."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.front.answers import CHAT, COMPLETIONS, ask, ask_every_way
from tests.front.servers import ServerProcess
from tests.models import write_chain
from tests.tokenizers import Vocabulary, byte_tokenizer, metaspace_tokenizer

Serve = Callable[..., ServerProcess]
NEIGHBOUR = {"prompt": "zzz", "max_tokens": 5}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serves a CHAIN checkpoint, with `write_chain`'s arguments."""
    with ExitStack() as servers:

        def start(chain: list[int], vocabulary: Vocabulary, **options: Any) -> ServerProcess:
            path = write_chain(tmp_path / "chain", chain, vocabulary, **options)
            server = servers.enter_context(ServerProcess(path))
            server.ready()
            return server

        yield start


def test_A01_characters_of_several_tokens_come_whole(serve: Serve) -> None:
    vocabulary = byte_tokenizer()
    text = "a😀ďb"
    server = serve(
        [*vocabulary.bytes(text), vocabulary.id("<|im_end|>")], vocabulary, eos=vocabulary.id("<|im_end|>")
    )
    messages = [{"role": "user", "content": "hi!"}]
    answer = ask_every_way(server, CHAT, {"messages": messages}, NEIGHBOUR)
    assert (answer.text, answer.finish) == (text, "stop")
    answer = ask_every_way(server, COMPLETIONS, {"prompt": "hi!", "max_tokens": 20}, NEIGHBOUR)
    assert (answer.text, answer.finish) == (text, "stop")
    assert answer.usage["completion_tokens"] == len(text.encode()) + 1


def test_line_ends_of_other_alphabets_do_not_cut_an_event(serve: Serve) -> None:
    """Many clients cut a stream with str.splitlines (httpx's iter_lines, which these tests use, is one)."""
    text = "a\u2028b\x85c\u2029d\x0be\x1cf\rg\nh!"
    vocabulary = byte_tokenizer([text[at : at + 2] for at in range(0, len(text), 2)])
    end = vocabulary.id("<|im_end|>")
    server = serve([*range(256, 256 + len(text[::2])), end], vocabulary, eos=end)
    assert ask_every_way(server, COMPLETIONS, {"prompt": "x", "logprobs": 1}, NEIGHBOUR).text == text
    chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": True}
    assert ask_every_way(server, CHAT, chat, NEIGHBOUR).text == text


def test_A03_text_held_back_for_a_stop_string_is_delivered_at_the_end(serve: Serve) -> None:
    vocabulary = byte_tokenizer(["UNO", " DUE", " TR"])
    end = vocabulary.id("<|endoftext|>")
    server = serve([256, 257, 258, *vocabulary.bytes("E"), end], vocabulary, eos=end)
    body = {"prompt": "x", "max_tokens": 50, "stop": ["TRE\nAAAA"]}
    answer = ask_every_way(server, COMPLETIONS, body, NEIGHBOUR)
    assert (answer.text, answer.finish) == ("UNO DUE TRE", "stop")
    answer = ask_every_way(server, COMPLETIONS, body | {"max_tokens": 3}, NEIGHBOUR)
    assert (answer.text, answer.finish) == ("UNO DUE TR", "length")


def test_A05_a_stop_string_within_a_token_ends_the_text_there(serve: Serve) -> None:
    vocabulary = byte_tokenizer(["foo\nbar", "baz", "qux"])
    server = serve([256, 257, 258], vocabulary, loop=True)
    body = {"prompt": "x", "max_tokens": 50, "stop": ["\n"]}
    answer = ask_every_way(server, COMPLETIONS, body, NEIGHBOUR)
    assert (answer.text, answer.finish, answer.stop_reasons) == ("foo", "stop", ["\n"])
    assert answer.usage["completion_tokens"] == 1
    answer = ask_every_way(server, COMPLETIONS, body | {"include_stop_str_in_output": True}, NEIGHBOUR)
    assert (answer.text, answer.finish) == ("foo\n", "stop")
    # One over a border of tokens.
    answer = ask_every_way(server, COMPLETIONS, body | {"stop": ["arba"]}, NEIGHBOUR)
    assert (answer.text, answer.finish, answer.usage["completion_tokens"]) == ("foo\nb", "stop", 2)


def test_A07_a_stop_string_that_names_a_special_token_fires(serve: Serve) -> None:
    vocabulary = byte_tokenizer(["hi", "more"])
    server = serve([256, vocabulary.id("<|im_end|>"), 257], vocabulary)
    body = {"prompt": "x", "max_tokens": 50, "stop": ["<|im_end|>"]}
    answer = ask_every_way(server, COMPLETIONS, body, NEIGHBOUR)
    assert (answer.text, answer.finish, answer.stop_reasons) == ("hi", "stop", ["<|im_end|>"])


def test_A08_a_prompt_that_ends_within_a_character_is_not_repeated(serve: Serve) -> None:
    vocabulary = byte_tokenizer()
    begun, rest = vocabulary.bytes("Hello world 😀")[:-2], vocabulary.bytes("😀")[-2:]
    server = serve([*vocabulary.bytes("😀")[:2], *rest, vocabulary.id("<|endoftext|>")], vocabulary, eos=256)
    body = {"prompt": begun, "max_tokens": 10}
    answer = ask_every_way(server, COMPLETIONS, body, NEIGHBOUR)
    assert (answer.text, answer.finish) == ("😀", "stop")
    answer = ask_every_way(server, COMPLETIONS, body | {"echo": True}, NEIGHBOUR)
    assert answer.text == "Hello world 😀"


def test_A12_a_limit_within_a_character_leaves_valid_utf8(serve: Serve) -> None:
    vocabulary = byte_tokenizer()
    server = serve(vocabulary.bytes("👋"), vocabulary)
    for limit, text in ((1, "\ufffd"), (2, "\ufffd"), (3, "\ufffd"), (4, "👋")):
        answer = ask_every_way(server, COMPLETIONS, {"prompt": "x", "max_tokens": limit}, NEIGHBOUR)
        assert (answer.text, answer.finish) == (text, "length")
        assert answer.usage["completion_tokens"] == limit


def test_A15_A17_spaces_and_broken_characters_of_a_metaspace_vocabulary(serve: Serve) -> None:
    vocabulary = metaspace_tokenizer(["▁Hello", "▁world", "▁again"])
    hello, world, again = map(vocabulary.id, ("▁Hello", "▁world", "▁again"))
    broken = vocabulary.bytes(b"\xe4\xbd")
    server = serve([hello, world, *broken, again, vocabulary.id("</s>")], vocabulary, eos=vocabulary.id("</s>"))
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    assert ask_every_way(server, CHAT, chat, NEIGHBOUR).text == " Hello world"  # a prompt stands before it
    answer = ask_every_way(server, COMPLETIONS, {"prompt": "x", "max_tokens": 2}, NEIGHBOUR)
    assert answer.text == " Hello world"
    answer = ask_every_way(server, COMPLETIONS, {"prompt": "x", "max_tokens": 2, "echo": True}, NEIGHBOUR)
    assert answer.text == "x Hello world"
    answer = ask_every_way(server, COMPLETIONS, {"prompt": [hello], "max_tokens": 10}, NEIGHBOUR)
    assert (answer.text, answer.finish) == (" world\ufffd\ufffd again", "stop")


def test_A17_a_whole_character_of_bytes_before_a_word(serve: Serve) -> None:
    vocabulary = metaspace_tokenizer(["▁world"])
    server = serve([*vocabulary.bytes("你"), vocabulary.id("▁world"), vocabulary.id("</s>")], vocabulary, eos=2)
    answer = ask_every_way(server, COMPLETIONS, {"prompt": "x", "max_tokens": 10}, NEIGHBOUR)
    assert answer.text == "你 world"


def test_A18_the_text_of_an_end_token_is_not_shown(serve: Serve) -> None:
    vocabulary = byte_tokenizer(["ok"])
    end = vocabulary.id("<|im_end|>")
    server = serve([256, end], vocabulary, eos=end)
    body = {"messages": [{"role": "user", "content": "x"}]}
    answer = ask_every_way(server, CHAT, body, NEIGHBOUR)
    assert (answer.text, answer.finish, answer.stop_reasons) == ("ok", "stop", [None])
    assert answer.usage["completion_tokens"] == 2
    # The rule does not change with skip_special_tokens; the text of an end token is shown on request only.
    answer = ask_every_way(server, CHAT, body | {"skip_special_tokens": False}, NEIGHBOUR)
    assert answer.text == "ok"
    shown = {"skip_special_tokens": False, "include_stop_str_in_output": True}
    assert ask_every_way(server, CHAT, body | shown, NEIGHBOUR).text == "ok<|im_end|>"
    # Generated on the way and not ending anything, it is hidden like any special token, or shown.
    past = body | {"ignore_eos": True, "max_tokens": 2}
    assert ask_every_way(server, CHAT, past, NEIGHBOUR).text == "ok"
    assert ask_every_way(server, CHAT, past | {"skip_special_tokens": False}, NEIGHBOUR).text == "ok<|im_end|>"


def test_H09_every_end_token_of_the_configuration_ends_an_answer(serve: Serve) -> None:
    vocabulary = byte_tokenizer(["ok"])
    first, second = vocabulary.id("<|endoftext|>"), vocabulary.id("<|im_end|>")
    server = serve([256, second], vocabulary, eos=first, generation={"eos_token_id": [first, second]})
    with server.client() as client:
        answer = ask(client, COMPLETIONS, {"prompt": "x", "max_tokens": 10})
        assert (answer.text, answer.finish, answer.usage["completion_tokens"]) == ("ok", "stop", 2)
        answer = ask(client, COMPLETIONS, {"prompt": "x", "max_tokens": 10, "stop_token_ids": [256]})
        assert (answer.text, answer.finish, answer.stop_reasons) == ("", "stop", [256])
