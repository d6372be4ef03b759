"""A hub on the loopback: the part of the Hugging Face protocol that downloading a model takes.

GET /api/models/ID/revision/REV and /api/models/ID/tree/REV; HEAD and GET /ID/resolve/REV/FILE with ETag,
X-Repo-Commit and, for large files, a redirect to where they are stored.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Serves one repository, `model`, from `directory`; `requests` are (method, path) in order of arrival."""

    def __init__(self, model: str, directory: Path) -> None:
        self.model = model
        self.directory = directory
        self.requests: list[tuple[str, str]] = []
        self.url = ""
        self.gated = False
        self.cut: str | None = None  # a file whose download ends in the middle

    def downloaded(self) -> set[str]:
        return {path.rpartition("/")[2] for method, path in self.requests if method == "GET" and "/api/" not in path}

    def answer(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        name = path.rpartition("/")[2]
        file = self.directory / name
        if self.gated and not path.startswith("/api/"):
            return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}, b""
        if path == f"/api/models/{self.model}/revision/main":
            siblings = [{"rfilename": entry.name} for entry in sorted(self.directory.iterdir())]
            return self._json({"id": self.model, "sha": COMMIT, "siblings": siblings})
        if path == f"/api/models/{self.model}/tree/{COMMIT}":
            return self._json([self._entry(entry) for entry in sorted(self.directory.iterdir())])
        if path.startswith("/stored/") and file.is_file():
            return 200, {}, file.read_bytes()
        if path.startswith((f"/{self.model}/resolve/{COMMIT}/", f"/{self.model}/resolve/main/")):
            if not file.is_file():
                return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b""
            size, etag = str(file.stat().st_size), f'"{self._blob(file)}"'
            headers = {"X-Repo-Commit": COMMIT, "ETag": etag, "X-Linked-Etag": etag, "X-Linked-Size": size}
            if file.suffix != ".safetensors":
                return 200, headers, file.read_bytes()
            # as on the hub, large files lie on another host
            return 302, headers | {"Location": f"{self.url}/stored/{name}".replace("127.0.0.1", "localhost")}, b""
        return 404, {"X-Error-Code": "RepoNotFound"}, b""

    def _entry(self, file: Path) -> dict[str, Any]:
        size, digest = file.stat().st_size, self._blob(file)
        entry: dict[str, Any] = {"type": "file", "path": file.name, "size": size, "oid": digest[:40]}
        if file.suffix == ".safetensors":
            entry["lfs"] = {"oid": digest, "size": size, "pointerSize": 134}
        return entry

    def _blob(self, file: Path) -> str:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return digest if file.suffix == ".safetensors" else digest[:40]

    def _json(self, value: object) -> tuple[int, dict[str, str], bytes]:
        return 200, {"Content-Type": "application/json", "X-Repo-Commit": COMMIT}, json.dumps(value).encode()


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((self.command, path))
            status, headers, body = hub.answer(self.command, path)
            first, last = self._range(len(body))
            self.send_response(206 if first or last < len(body) else status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(last - first))
            self.end_headers()
            if self.command == "GET":
                if path.rpartition("/")[2] == hub.cut:
                    last = (first + last) // 2
                    self.close_connection = True
                self.wfile.write(body[first:last])

        do_HEAD = do_GET

        def _range(self, size: int) -> tuple[int, int]:
            unit, _, span = self.headers.get("Range", "").partition("=")
            first, _, last = span.partition("-")
            if unit != "bytes" or not first:
                return 0, size
            return int(first), min(size, int(last) + 1 if last else size)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
