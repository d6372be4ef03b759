"""The page in a browser: text stays text, fits a phone, can be read in light and dark, and read out."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.front.page import ANSWER, Open, ask
from tests.front.servers import ServerProcess

pytestmark = pytest.mark.slow


# Whatever might leave the place of text: markup, attributes, a direction mark, and a very long word.
HOSTILE = "<img src=x onerror=alert(1)>\"'</script><script>alert(1)</script>\u202e{{}}&lt;" + "W" * 200


@pytest.fixture(scope="module")
def hostile(tiny: Path) -> Iterator[ServerProcess]:
    """A server whose model's name and output are markup."""
    fake = {"tokens": list(HOSTILE.encode()), "max_model_len": 4096}
    with ServerProcess(tiny, names=HOSTILE, fake=fake) as server:
        server.ready()
        yield server


def test_markup_stays_text(hostile: ServerProcess, open_page: Open) -> None:
    page = open_page(hostile.ready())
    count = "document.querySelectorAll('script, img, iframe, style, a').length"
    before = page.run(count)
    page.run(f"document.getElementById('max-tokens').value = '{len(HOSTILE.encode())}'")
    ask(page, HOSTILE)
    page.wait("running === null")
    assert page.run("document.querySelector('#log .user .text').textContent") == HOSTILE
    assert page.run(ANSWER) == HOSTILE
    assert page.run("document.getElementById('model').textContent") == HOSTILE
    assert page.run(count) == before
    page.wait("document.getElementById('totals').textContent.includes(' generated')")  # its metrics could be read
    # And the second lock, behind that of the scripts: their policy refuses markup from anybody.
    refused = page.run("(() => { try { document.body.innerHTML = 'x' } catch (error) { return error.name } })()")
    assert refused == "TypeError"
    page.complaints.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_at_a_phones_width(hostile: ServerProcess, open_page: Open, scheme: str) -> None:
    page = open_page(hostile.ready(), width=390, height=844, scheme=scheme)
    page.click("#options summary")
    ask(page, HOSTILE)
    page.wait("running === null")
    assert page.run("document.documentElement.scrollWidth") == 390
    beyond = """[...document.querySelectorAll('body *')].filter((element) => {
        const {left, right, width} = element.getBoundingClientRect();
        return width > 0 && (left < -0.5 || right > innerWidth + 0.5);
    }).map((element) => element.outerHTML.slice(0, 80))"""
    assert page.run(beyond) == []
    assert page.run("document.getElementById('log').scrollWidth - document.getElementById('log').clientWidth") == 0


def test_the_legends_swatches_stay_beside_their_words(hostile: ServerProcess, open_page: Open) -> None:
    page = open_page(hostile.ready(), width=390, height=844)
    gaps = """[...document.querySelectorAll('.swatch')].map((swatch) => {
        const words = document.createRange();
        words.selectNode(swatch.nextSibling);
        const [first] = words.getClientRects(), {right, top, bottom} = swatch.getBoundingClientRect();
        return first.top < bottom && top < first.bottom ? Math.round(first.left - right) : null;
    })"""
    assert page.run(gaps) == [6, 6, 6]


def test_on_a_phone_the_chat_comes_before_the_starts_thirty_rows(hostile: ServerProcess, open_page: Open) -> None:
    page = open_page(hostile.ready(), width=390, height=844)
    top = "document.getElementById('{}').getBoundingClientRect().top"
    assert page.run(top.format("live")) < page.run(top.format("chat")) < page.run(top.format("start"))


CONTRAST = """(() => {
    // WCAG 2.2's definition. Colours are "rgb(r, g, b)"; a background is the nearest one that is not transparent.
    const rgb = (color) => color.match(/[\\d.]+/g).map(Number);
    const luminance = (color) => {
        const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
        const [r, g, b] = rgb(color).map((c) => linear(c / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        const color = getComputedStyle(element).backgroundColor;
        return rgb(color)[3] === 0 ? behind(element.parentElement) : color;
    };
    const isText = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim();
    const texts = [...document.querySelectorAll('body *')].filter((element) =>
        element.checkVisibility() && (element.placeholder || [...element.childNodes].some(isText)));
    return texts.map((element) => {
        const [a, b] = [getComputedStyle(element).color, behind(element)].map(luminance);
        const name = element.id || element.className || element.tagName;
        return [name, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
    });
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(talker: ServerProcess, open_page: Open, scheme: str) -> None:
    page = open_page(talker.ready(), scheme=scheme)
    page.click("#options summary")
    page.run("document.getElementById('max-tokens').value = '5'")
    ask(page, "Hi.")
    page.wait("running === null")
    page.run("clearTimeout(timer), notice('Trouble.')")
    page.run("enter('unreachable')")
    page.run("document.querySelectorAll('section').forEach((section) => (section.style.opacity = 1))")
    found = page.run(CONTRAST)
    assert len(found) > 30
    assert [(name, round(ratio, 2)) for name, ratio in found if ratio < 4.5] == []
    red, green, blue = page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (red + green + blue > 600) is (scheme == "light")


def test_every_control_has_a_name(talker: ServerProcess, open_page: Open) -> None:
    """For those who hear the page."""
    page = open_page(talker.ready())
    page.click("#options summary")
    ask(page, "Hi.")
    nodes = [node for node in page.call("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    named: dict[str, list[str]] = {}
    for node in nodes:
        named.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    wanted = {"button", "textbox", "spinbutton", "meter", "log", "image", "region"}
    assert wanted <= set(named)
    assert [role for role in wanted for name in named[role] if not name] == []
    assert {"Now", "Start", "Chat"} <= set(named["region"])
    assert named["status"] == [""]
    assert page.text("#state") == "Ready"
    assert page.run("document.documentElement.lang") == "en"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ("null", "–"),
        ("0", "0 ms"),
        ("0.00002", "0.02 ms"),
        ("0.0032", "3.2 ms"),
        ("0.00996", "10 ms"),
        ("0.3124", "312 ms"),
        ("0.99951", "1.00 s"),
        ("1.236", "1.24 s"),
        ("59.96", "60.0 s"),
        ("125.2", "2 min 5 s"),
        ("119.7", "2 min 0 s"),
        ("7384", "2 h 3 min"),
    ],
)
def test_durations_have_the_digits_that_count(
    talker: ServerProcess, open_page: Open, seconds: str, text: str
) -> None:
    page = open_page(talker.ready())
    assert page.run(f"duration({seconds})") == text
