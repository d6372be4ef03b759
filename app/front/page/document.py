"""The page as it is served: page.html with its style sheet and scripts inlined, one file for a browser.

Read when the first browser asks, and kept. The policy that goes with it allows these very scripts by their hashes,
requests to this server, and nothing else.
"""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

_FOLDER = Path(__file__).parent
_LINK = re.compile(r'<link rel="stylesheet" href="(?P<style>\w+\.css)">|<script src="(?P<script>\w+\.js)"></script>')


class Document(NamedTuple):
    body: bytes
    headers: dict[str, str]


def is_wanted(scope: Scope) -> bool:
    """Whether a request to `/` comes from a browser: it names HTML, and prefers it to JSON.

    "*/*" names nothing: curl and the health checks of platforms get the JSON that programs read.
    """
    quality = dict.fromkeys(("text/html", "application/json"), 0.0)
    for item in Headers(scope=scope).get("accept", "").lower().split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        if kind in quality:
            quality[kind] = _quality(parameters)
    return quality["text/html"] > quality["application/json"]


def reply(request: Request) -> Response:
    """The page, or 304 for a browser that has it."""
    body, headers = document()
    known = request.headers.get("if-none-match", "")
    if headers["etag"] in (tag.strip().removeprefix("W/") for tag in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="text/html")


@cache
def document() -> Document:
    hashes: dict[str, list[str]] = {"style": [], "script": []}

    def put_in(link: re.Match[str]) -> str:
        kind = str(link.lastgroup)
        text = _read(link[kind])
        hashes[kind].append(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'")
        return f"<{kind}>{text}</{kind}>"

    body = _LINK.sub(put_in, _read("page.html")).encode()
    policy = [
        "default-src 'none'",
        f"script-src {' '.join(hashes['script'])}",
        f"style-src {' '.join(hashes['style'])}",
        "img-src data:",  # the icon
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
    headers = {
        "cache-control": "no-cache",
        "content-security-policy": "; ".join(policy),
        "etag": f'"{sha256(body).hexdigest()[:32]}"',
        "referrer-policy": "no-referrer",
        "vary": "accept",
        "x-content-type-options": "nosniff",
    }
    return Document(body, headers)


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _quality(parameters: list[str]) -> float:
    """The weight of a media type in Accept: its `q`, 1 without one, 0 for one that is no number."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
