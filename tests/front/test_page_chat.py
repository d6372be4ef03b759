"""The page in a browser: a chat by mouse and by keyboard, and what goes over the wire for it."""

import pytest

from tests.front.page import ANSWER, NOTE, SAYS, Open, ask
from tests.front.servers import ServerProcess, metric

pytestmark = pytest.mark.slow


def test_answer_streams_and_the_counters_move(talker: ServerProcess, open_page: Open) -> None:
    page = open_page(talker.ready())
    page.click("#options summary")
    page.click("#max-tokens")
    page.run("document.activeElement.select()")
    page.write("300")
    ask(page, "Talk.")
    lengths = [page.wait(f"{ANSWER}.length > {least} && {ANSWER}.length") for least in (0, 20, 60)]
    assert lengths[0] < lengths[1] < lengths[2] < 300  # it grew while it came
    assert page.text("#running") in ("0", "1")
    page.wait("document.getElementById('running').textContent === '1'")
    page.wait("Number(document.getElementById('speed').textContent.replace(',', '')) > 1")
    page.wait("document.querySelector('#sparkline path.line') !== null")
    page.wait("running === null")
    assert page.run(ANSWER) == (SAYS * 10)[:300]
    assert page.run(NOTE).startswith("300 tokens · first after ")
    assert page.run(NOTE).endswith(" per second · cut by the limit")
    with talker.client() as client:
        generated = int(metric(client, "generation_tokens_total"))
    page.wait(f"document.getElementById('totals').textContent.includes('{generated:,} generated')")


def test_conversation_goes_on_with_what_was_said_and_with_the_options(talker: ServerProcess, open_page: Open) -> None:
    """What is sent is what stands on the page."""
    page = open_page(talker.ready())
    page.click("#options summary")
    for field, value in (("#system", "Be brief."), ("#temperature", "0.5"), ("#max-tokens", "5")):
        page.click(field)
        page.run("document.activeElement.select()")
        page.write(value)
    for question in ("One?", "Two?"):
        ask(page, question)
        page.wait("running === null")
    first, second = page.sent
    system = {"role": "system", "content": "Be brief."}
    assert first["messages"] == [system, {"role": "user", "content": "One?"}]
    said = {"role": "assistant", "content": SAYS[:5]}
    assert second["messages"] == [*first["messages"], said, {"role": "user", "content": "Two?"}]
    assert (second["model"], second["temperature"], second["max_tokens"]) == ("some/model", 0.5, 5)

    page.click("#clear")
    assert page.text("#log") == ""
    ask(page, "Three?")
    page.wait("running === null")
    assert page.sent[2]["messages"] == [system, {"role": "user", "content": "Three?"}]


def test_new_chat_knows_nothing_of_an_answer_that_was_still_coming(talker: ServerProcess, open_page: Open) -> None:
    page = open_page(talker.ready())
    ask(page, "Old.")
    page.wait(f"{ANSWER}.length > 5")
    page.click("#clear")
    page.wait("running === null")
    assert page.text("#log") == ""
    assert page.run("document.activeElement.id") == "prompt"
    assert page.run("document.getElementById('prompt').value") == ""
    ask(page, "New.")
    page.wait(f"{ANSWER}.length > 5")
    assert page.sent[-1]["messages"] == [{"role": "user", "content": "New."}]


def test_stop_stops_the_server_too(talker: ServerProcess, open_page: Open) -> None:
    page = open_page(talker.ready())
    page.run("document.getElementById('max-tokens').value = ''")
    ask(page, "Talk on.")
    page.wait(f"{ANSWER}.length > 10")
    page.click("#stop")
    page.wait("running === null")
    assert page.run(NOTE) == "stopped"
    assert SAYS.startswith(page.run(ANSWER)[: len(SAYS)])
    assert page.run("[document.getElementById('stop').hidden, document.getElementById('send').hidden]") == [
        True,
        False,
    ]
    with talker.client() as client:
        page.wait("document.getElementById('running').textContent === '0'")
        assert metric(client, "num_requests_running") == 0


def test_keyboard_is_enough(talker: ServerProcess, open_page: Open) -> None:
    page = open_page(talker.ready())
    order = []
    for _ in range(4):
        page.press("Tab")
        order.append(page.run("document.activeElement.id || document.activeElement.tagName"))
    assert order == ["log", "prompt", "SUMMARY", "send"]
    page.press("Tab", modifiers=8)  # back, with Shift
    page.press("Space")
    assert page.run("document.getElementById('options').open")
    page.press("Tab", modifiers=8)
    page.write("a")
    page.press("Enter", modifiers=8)
    page.write("b")
    assert page.run("document.getElementById('prompt').value") == "a\nb"
    page.press("Enter")
    page.wait(f"{ANSWER}.length > 0")
    assert page.run("document.activeElement.id") == "prompt"
    for _ in range(5):  # over the options that are open now
        page.press("Tab")
    assert page.run("document.activeElement.id") == "stop"
    page.press("Enter")
    page.wait("running === null")
    assert page.run("document.activeElement.id") == "prompt"  # and not nowhere


def test_a_refusal_is_the_servers_own_line_and_the_question_comes_back(
    talker: ServerProcess, open_page: Open
) -> None:
    page = open_page(talker.ready())
    page.run("document.getElementById('temperature').value = '7'")
    ask(page, "Hot?")
    page.wait("running === null")
    with talker.client() as client:
        body = {"model": "some/model", "messages": [{"role": "user", "content": "Hot?"}], "temperature": 7}
        message = client.post("/v1/chat/completions", json=body).json()["error"]["message"]
    assert page.run(NOTE) == message
    assert page.run("document.querySelector('#log .assistant .note').getAttribute('role')") == "alert"
    assert page.run("document.getElementById('prompt').value") == "Hot?"
    page.complaints.clear()  # Chromium itself notes the 400
