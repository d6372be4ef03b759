"""The page at `/` as a client without a browser sees it: who gets it, its headers, and that it needs nothing else."""

import base64
import hashlib
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from starlette.types import Scope

from pilotlight.front.page import document
from tests.front.servers import ServerProcess
from tests.models import write_tiny

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
KEY = "k-1"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[httpx.Client]:
    """Of a server with a key, which this client does not send."""
    with ServerProcess(model, fake={}, env={"PILOTLIGHT_API_KEY": KEY}) as server, server.client() as client:
        yield client


def page(client: httpx.Client, **headers: str) -> httpx.Response:
    return client.get("/", headers={"accept": BROWSER} | headers)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("TEXT/HTML;charset=utf-8", True),
        ("application/json;q=0.5, text/html", True),
        (None, False),
        ("", False),
        ("*/*", False),  # curl
        ("application/json", False),
        ("application/json, text/html", False),
        ("application/json, text/html;q=0.9", False),
        ("text/html;q=0", False),
        ("text/html;q=much", False),
        ("text/*", False),
    ],
)
def test_page_is_for_who_prefers_html(accept: str | None, wanted: bool) -> None:
    scope: Scope = {"type": "http", "headers": [] if accept is None else [(b"accept", accept.encode())]}
    assert document.is_wanted(scope) is wanted


def test_browser_gets_the_page_without_a_key_and_a_program_the_list_with_one(client: httpx.Client) -> None:
    response = page(client)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["vary"] == "accept"
    assert response.text.startswith("<!doctype html>")
    assert client.head("/", headers={"accept": BROWSER}).headers["etag"] == response.headers["etag"]

    for accept in ("*/*", "application/json"):
        assert client.get("/", headers={"accept": accept}).status_code == 401
        listed = client.get("/", headers={"accept": accept, "authorization": f"Bearer {KEY}"})
        assert listed.headers["vary"] == "accept"
        assert {"GET /", "GET /startup", "GET /metrics"} <= set(listed.json()["routes"])


def test_page_opens_nothing_but_itself(client: httpx.Client) -> None:
    """Only GET / is open to who says that it is a browser."""
    for path in ("/startup", "/metrics", "/v1/models", "/index.html"):
        assert client.get(path, headers={"accept": BROWSER}).status_code == 401
    assert client.post("/", headers={"accept": BROWSER}).status_code == 405


def test_browser_that_has_the_page_is_told_so(client: httpx.Client) -> None:
    tag = page(client).headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        response = page(client, **{"if-none-match": known})
        assert (response.status_code, response.content) == (304, b"")
        assert response.headers["etag"] == tag
        assert response.headers["cache-control"] == "no-cache"
    assert page(client, **{"if-none-match": '"other"'}).status_code == 200


class Parts(HTMLParser):
    """What matters here of a document: scripts and styles, and whatever else could run code or load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.inline: dict[str, list[str]] = {"script": [], "style": []}
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.ids: list[str] = []
        self._inside: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "action", "formaction", "srcset", "data", "poster", "xlink:href"):
                self.addresses.append(value or "")
            if name.startswith("on") or name == "style":
                self.handlers.append(f"{tag} {name}")
            if name == "id":
                self.ids.append(value or "")
        if tag in self.inline:
            self._inside = tag
            self.inline[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.inline[self._inside][-1] += data


def test_page_is_one_file_and_its_policy_allows_just_that(client: httpx.Client) -> None:
    response = page(client)
    parts = Parts(response.text)
    policy = dict(rule.split(" ", 1) for rule in response.headers["content-security-policy"].split("; "))
    for kind, least in (("script", 6), ("style", 1)):
        texts = parts.inline[kind]
        assert len(texts) >= least
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert policy.pop(f"{kind}-src").split() == [f"'sha256-{digest}'" for digest in digests]
    assert policy == {
        "default-src": "'none'",
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert parts.handlers == []  # they would need 'unsafe-inline'
    assert [address.partition(",")[0] for address in parts.addresses] == ["data:image/svg+xml"]
    assert len(parts.ids) == len(set(parts.ids))


def test_page_names_no_other_address() -> None:
    text = document.document().body.decode()
    namespaces = {"http://www.w3.org/2000/svg"}  # a name, never asked for
    assert set(re.findall(r"\b[a-z]+://[^\s'\"<>]+", text)) <= namespaces
    assert not re.search(r"@import|url\(|\bimport\b|XMLHttpRequest|WebSocket|EventSource|sendBeacon", text)


def test_scripts_write_text_and_never_markup() -> None:
    script = "\n".join(Parts(document.document().body.decode()).inline["script"])
    sinks = (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "createContextualFragment",
        "DOMParser",
    )
    assert [sink for sink in (*sinks, "srcdoc", "eval(", "Function(", 'setAttribute("on') if sink in script] == []
    assert "localStorage" not in script  # the key is gone with its tab


def test_every_id_that_a_script_asks_for_is_in_the_page() -> None:
    parts = Parts(document.document().body.decode())
    asked = set(re.findall(r'(?:byId|show|fill)\("([\w-]+)"', "\n".join(parts.inline["script"])))
    assert len(asked) > 20
    assert asked <= set(parts.ids)


def test_page_is_read_when_it_is_asked_for(model: Path) -> None:
    """It must cost a start nothing."""
    patch = """
import atexit
loaded = lambda: print("page module loaded:", "pilotlight.front.page.document" in sys.modules, file=sys.stderr)
atexit.register(loaded)
"""
    assert "pilotlight.front.page.document" in sys.modules  # here, or the name is wrong
    for headers, expected in (({}, "False"), ({"accept": BROWSER}, "True")):
        with ServerProcess(model, fake={}, patch=patch) as server, server.client() as client:
            assert (
                client.post("/v1/completions", json={"model": "m", "prompt": "a", "max_tokens": 1}).status_code == 200
            )
            if headers:
                client.get("/", headers=headers)
            server.terminate()
            assert server.exit_code() == 0
            assert server.wait_for(r"page module loaded: (\w+)")[1] == expected
