"""For the tests of the page: a browser, a server that talks, and pages that are checked when their test is over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.front.browser import NAMES, Browser, Page, find
from tests.front.page import SAYS, STATE, Open
from tests.front.servers import ServerProcess
from tests.models import write_tiny


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    command = find()
    if command is None:
        pytest.skip(f"no Chromium that runs ({', '.join(NAMES)}); on Debian: apt-get install chromium")
    with Browser(command) as browser:
        yield browser


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def talker(tiny: Path) -> Iterator[ServerProcess]:
    """A server whose scripted engine repeats SAYS, slowly enough to be watched."""
    fake = {"interval": 0.01, "tokens": list(SAYS.encode()), "max_model_len": 4096}
    with ServerProcess(tiny, names="some/model", fake=fake) as server:
        server.ready()
        yield server


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a page; in the end it must have complained of nothing and asked nobody else for anything."""
    opened: list[tuple[Page, str]] = []

    def open_page(address: str, *, before: str = "", state: str = "ready", **view: object) -> Page:
        page = browser.page(**view)  # type: ignore[arg-type]
        if before:
            page.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        opened.append((page, address))
        page.open(address)
        page.wait(f"{STATE} === {state!r}")
        return page

    yield open_page
    for page, address in opened:
        assert page.text()  # and hear what it has said meanwhile
        strangers = [url for url in page.requests if not url.startswith((f"{address}/", "data:image/svg+xml,"))]
        assert strangers == []
        assert page.complaints == []
        page.close()
