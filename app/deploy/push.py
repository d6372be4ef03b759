"""`pilotlight deploy push`: the one request that creates an endpoint, shown first and sent when told to."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from typing import IO, Any

from .. import __version__
from ..errors import UnavailableError, UsageError
from .reading import Deployment
from .runpod import request_body

URL = "https://api.runpod.io/v2/serverless"
KEY = "RUNPOD_API_KEY"
_TIMEOUT = 60  # seconds
_LARGEST_ANSWER = 1 << 20
_LONGEST_REASON = 1000  # characters


def push(deployment: Deployment, *, send: bool, environ: Mapping[str, str] | None = None, url: str = URL) -> None:
    """Prints the request and, where `send` is set, sends it and prints what was created.

    Raises UsageError without a key, UnavailableError where RunPod cannot be reached or refuses.
    """
    environ = os.environ if environ is None else environ
    body = request_body(deployment)
    text = json.dumps(body, indent=2, ensure_ascii=False)
    headers = {"Content-Type": "application/json", "User-Agent": f"pilotlight/{__version__}"}
    print(f"POST {url}\nAuthorization: Bearer (hidden: {KEY})")
    print("".join(f"{name}: {value}\n" for name, value in headers.items()) + f"\n{text}", flush=True)
    if not send:
        print("\nnot sent: --yes sends it")
        return
    if deployment.description.image.partition("/")[0].endswith("example.com"):
        raise deployment.error(("image",), "is the example's; push yours to a registry and name it here")
    key = environ.get(KEY, "")
    if not key or not key.isascii() or not key.isprintable() or key != key.strip():
        raise UsageError(f"{KEY} holds no key; create one in RunPod's console and export it")
    headers["Authorization"] = f"Bearer {key}"
    try:
        answer = _post(urllib.request.Request(url, text.encode(), headers))  # noqa: S310 - the address above
    except UnavailableError as error:
        raise UnavailableError(_shown(error, key)) from None
    lines = [f"created {answer.get('name', body['name'])} with the id {answer.get('id', '(none given)')}"]
    if isinstance(addresses := answer.get("requestUrls"), dict):
        lines += [f"  {name}: {address}" for name, address in sorted(addresses.items())]
    print("", *(_shown(line, key) for line in lines), sep="\n")


def _shown(text: object, key: str) -> str:
    """What RunPod said, as a terminal may have it: without the key, and without control characters."""
    words = str(text).replace(key, f"(hidden: {KEY})")
    return "".join(letter if letter.isprintable() else "?" for letter in words)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: following it would hand the key to whoever it names."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


def _post(request: urllib.request.Request) -> dict[str, Any]:
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=_TIMEOUT) as answer:
            status, content = answer.status, answer.read(_LARGEST_ANSWER)
    except urllib.error.HTTPError as error:
        with error:
            raise UnavailableError(f"RunPod answered {error.code}: {_reason(error)}") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        said = str(reason) or type(reason).__name__
        raise UnavailableError(f"{request.full_url}: {said}; RunPod's console says whether it was created") from None
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UnavailableError(f"RunPod answered {status} with what is no JSON object; look into its console")
    return value


def _reason(error: urllib.error.HTTPError) -> str:
    """One line of RunPod's own words (title, detail, errors), or the status' name."""
    hint = f"; {KEY} must hold a key that may create endpoints" if error.code in (401, 403) else ""
    try:
        value = json.loads(error.read(_LARGEST_ANSWER))
        errors = value.get("errors")
        words = [value.get("detail") or value.get("title"), *(errors if isinstance(errors, list) else [errors])]
        said = "; ".join(" ".join(str(word).split()) for word in words if word)[:_LONGEST_REASON]
    except (ValueError, RecursionError, AttributeError, OSError, HTTPException):
        said = ""
    return (said or error.reason or "no reason given") + hint
