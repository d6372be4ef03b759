"""The page in a browser, about the server: its start and its waterfall, its death, its key, and rest."""

import json
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.front.browser import Page
from tests.front.page import ANSWER, NOTE, STATE, Open, ask
from tests.front.servers import ServerProcess
from tests.models import write_chain
from tests.tokenizers import byte_tokenizer

pytestmark = pytest.mark.slow


KEY = "clé-💡"


def rows(page: Page) -> list[list[str]]:
    """The waterfall's: process, name, length, rate, classes."""
    found: list[list[str]] = page.run(
        """[...document.querySelectorAll('.processes > li')].flatMap((group) =>
            [...group.querySelectorAll('ol > li')].map((row) => [
                group.querySelector('h3').textContent,
                ...['.name', '.time', '.rate'].map((part) => row.querySelector(part).textContent), row.className]))"""
    )
    return found


def test_waterfall_has_every_span_of_the_start(tmp_path: Path, open_page: Open) -> None:
    """Of the real engine, after a first token."""
    vocabulary = byte_tokenizer()
    end = vocabulary.id("<|im_end|>")
    chain = write_chain(tmp_path / "chain", [*vocabulary.bytes("The quick"), end], vocabulary, eos=end)
    with ServerProcess(chain) as server, server.client() as client:
        page = open_page(server.ready())
        ask(page, "Begin.")
        page.wait(f"{ANSWER} === 'The quick'")
        startup = client.get("/startup").json()
        spans = startup["spans"]
        assert startup["seconds"]["first_token"] is not None
        page.wait(f"document.querySelectorAll('.processes ol > li').length === {len(spans)}")

        found = rows(page)
        assert sorted(row[:2] for row in found) == sorted([span["process"], span["name"]] for span in spans)
        critical = sorted(row[1] for row in found if "critical" in row[4].split())
        assert critical == sorted(span["name"] for span in spans if span["critical"])
        assert critical
        with_bytes = {span["name"] for span in spans if span["bytes"] and span["end"]}
        assert with_bytes == {row[1] for row in found if row[3].endswith("B/s")}
        assert "weights" in with_bytes
        for name in ("port_open", "ready", "first_token"):
            seconds = startup["seconds"][name]
            shown = page.text(f"#{name.replace('_', '-')}")
            assert shown == (f"{seconds * 1000:.0f} ms" if 0.00995 <= seconds < 0.9995 else shown)
            value, unit = shown.split()
            assert float(value) * {"ms": 1e-3, "s": 1}[unit] == pytest.approx(seconds, rel=0.05)
        (wait,) = [span for span in spans if span["name"] == "wait for a request"]
        label = page.text("#first-token-label")
        value, unit = label.removeprefix("first token · ").removesuffix(" without the wait for a request").split()
        seconds = startup["seconds"]["first_token"] - (wait["end"] - wait["start"])
        assert float(value) * {"ms": 1e-3, "s": 1}[unit] == pytest.approx(seconds, rel=0.05)
        assert page.text("#model") == "m"
        assert page.text("#device").startswith("cpu")


def test_answer_that_is_not_streamed_is_not_called_a_token(tiny: Path, open_page: Open) -> None:
    with ServerProcess(tiny, fake={}) as server, server.client() as client:
        server.ready()
        body = {"model": "m", "prompt": "a", "max_tokens": 2}
        assert client.post("/v1/completions", json=body).status_code == 200
        page = open_page(server.ready())
        page.wait("document.getElementById('first-token-label').textContent.startsWith('first answer')")
        assert "first answer" in page.run(
            "[...document.querySelectorAll('.moment')].map((moment) => moment.textContent)"
        )


@pytest.mark.parametrize("waits", [0.0, 7200.0])
def test_bars_lie_where_their_times_are(talker: ServerProcess, open_page: Open, waits: float) -> None:
    """On one axis; a wait that lasts longer than all the rest is cut to a twelfth of it."""
    page = open_page(talker.ready())
    spans = [
        {"process": "front", "name": "a", "start": 0.0, "end": 1.0},
        {"process": "engine", "name": "b", "start": 0.5, "end": 2.0},
        {"process": "front", "name": "wait for a request", "start": 2.0, "end": 2.0 + waits},
        {"process": "engine", "name": "c", "start": 2.0 + waits, "end": 4.0 + waits},
    ]
    startup = {
        "spans": [span | {"bytes": None, "critical": False} for span in spans],
        "seconds": {"port_open": 0.1, "ready": 2.0, "first_token": 4.0 + waits},
    }
    page.run(f"clearTimeout(timer), drawWaterfall({json.dumps(startup)}, 0)")
    places = page.run(
        """Object.fromEntries([...document.querySelectorAll('.processes ol > li')].map((row) => {
            const box = (part) => row.querySelector(part).getBoundingClientRect();
            const [track, bar] = [box('.track'), box('.track i')];
            return [row.querySelector('.name').textContent,
                [(bar.left - track.left) / track.width, (bar.right - track.left) / track.width]]}))"""
    )
    scale = 4 if waits == 0 else 4 / (11 / 12)
    late = 2 if waits == 0 else 2 + scale / 12
    assert places["a"] == pytest.approx([0, 1 / scale], abs=0.005)
    assert places["b"] == pytest.approx([0.5 / scale, 2 / scale], abs=0.005)
    assert places["c"] == pytest.approx([late / scale, 1], abs=0.005)


def test_start_is_watched_while_it_runs_and_a_question_waits_for_it(tiny: Path, open_page: Open) -> None:
    with ServerProcess(tiny, fake={"ready_delay": 3.0, "tokens": list(b"abc")}) as server:
        page = open_page(server.listening(), state="starting")
        assert page.text("#state") == "Starting"
        assert "being loaded" in page.text("#notice")
        assert page.text("#ready") == "–"
        page.wait("document.querySelector('.processes li.running') !== null")
        width = "document.querySelector('.processes li.running .time').textContent"
        before = page.run(width)
        page.wait(f"({width}) !== {before!r}")  # it grows
        ask(page, "Early.")
        assert page.run(STATE) == "starting"
        page.wait(f"{STATE} === 'ready'")
        page.wait(f"{ANSWER}.startsWith('abc')")
        page.wait("document.getElementById('ready').textContent !== '–'")
        assert page.run("document.getElementById('notice').hidden")
        assert page.run("document.querySelector('.processes li.running')") is None


# --- trouble --------------------------------------------------------------------------------------------------


def test_engine_that_dies_shows_and_so_does_its_return(tiny: Path, open_page: Open) -> None:
    fake = {"ready_delay": 1.0, "interval": 0.01}
    with ServerProcess(tiny, fake=fake) as server:
        page = open_page(server.ready())
        page.run("document.getElementById('max-tokens').value = ''")
        ask(page, "Talk on.")
        page.wait(f"{ANSWER}.length > 5")
        os.kill(server.engine_pid(), signal.SIGKILL)
        page.wait(f"{STATE} === 'restarting'")
        assert page.text("#state") == "Engine restarting"
        assert "died and is being started again" in page.text("#notice")
        page.wait("running === null")
        assert page.run(NOTE) == "the engine died while it worked on this request"
        page.wait(f"{STATE} === 'ready'")
        assert page.run("document.getElementById('notice').hidden")
        page.wait("document.getElementById('totals').textContent.includes('1 engine restart')")
        page.complaints.clear()  # Chromium itself notes refused requests, if a question met the dead engine


def test_server_that_is_gone_shows(tiny: Path, open_page: Open) -> None:
    with ServerProcess(tiny, fake={}) as server:
        page = open_page(server.ready())
        server.process.send_signal(signal.SIGSTOP)
        page.wait(f"{STATE} === 'unreachable'")
        assert "Nobody answers at 127.0.0.1:" in page.text("#notice")
        server.process.send_signal(signal.SIGCONT)
        page.wait(f"{STATE} === 'ready'")
        server.process.kill()
        page.wait(f"{STATE} === 'unreachable'")
        ask(page, "Hello?")
        page.wait("running === null")
        assert page.run(NOTE).startswith("no answer: ")
        assert page.run("document.getElementById('prompt').value") == "Hello?"
        page.complaints.clear()  # Chromium itself notes each connection that is refused


def test_key_is_asked_for_kept_in_the_tab_and_sent(tiny: Path, open_page: Open) -> None:
    with ServerProcess(tiny, fake={}, env={"PILOTLIGHT_API_KEY": KEY}) as server:
        page = open_page(server.ready(), state="locked")
        assert page.run("document.activeElement.id") == "key-text"
        assert page.text("#key-error") == ""
        assert page.run("getComputedStyle(document.querySelector('main')).display") == "none"
        page.write("wrong")
        page.press("Enter")
        page.wait("document.getElementById('key-error').textContent")
        refused = httpx.get(f"{server.ready()}/startup").json()["error"]["message"]
        assert page.text("#key-error") == refused
        page.write(KEY)
        page.press("Enter")
        page.wait(f"{STATE} === 'ready'")
        assert page.run("document.getElementById('key').hidden")
        ask(page, "Hi.")
        page.wait(f"{ANSWER}.startsWith('abc')")
        page.open(server.ready())  # again: the tab knows it
        page.wait(f"{STATE} === 'ready'")
        assert page.run("[localStorage.length, document.cookie, location.search]") == [0, "", ""]
        page.complaints.clear()  # Chromium itself notes each 401


def test_page_rests_when_nobody_looks(talker: ServerProcess, open_page: Open) -> None:
    """Or a tab that was forgotten would keep a server from being scaled to zero."""
    skewed = (
        "window.later = 0; const real = performance.now.bind(performance); performance.now = () => real() + later;"
    )
    hidden = "Object.defineProperty(document, 'hidden', {get: () => window.away ?? false});"
    page = open_page(talker.ready(), before=skewed + hidden)
    page.run("window.later = 301_000")
    page.wait("timer === null && document.getElementById('notice').textContent.startsWith('Paused')")
    asked = len(page.requests)
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=200, y=300)
    page.wait("document.getElementById('notice').hidden")
    assert len(page.requests) > asked
    asked = len(page.requests)
    page.run("look(), Array.from({length: 100}, () => dispatchEvent(new Event('pointermove'))).length")
    page.wait("timer !== null")
    assert len(page.requests) <= asked + 4  # a lively pointer is no reason to ask more often
    page.run("window.away = true, document.dispatchEvent(new Event('visibilitychange'))")
    page.wait("timer === null")
    page.run("window.away = false, document.dispatchEvent(new Event('visibilitychange'))")
    page.wait("timer !== null")
