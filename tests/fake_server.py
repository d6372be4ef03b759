"""A server that starts in steps, as real ones do: port, refusals, answers. Run by a path, without this project.

usage: python -I -S tests/fake_server.py PORT [die] [deaf] [refuse=N] [startup=JSON] [write=FILE]

die: it leaves with code 3 at once. deaf: it never opens its port. refuse: so many requests of each path are answered
503 first. startup: what it says at /startup. write: each request's path and body are added to the file.
"""

import json
import socketserver
import sys
import time
from http.server import BaseHTTPRequestHandler

PORT = int(sys.argv[1])
KNOBS = dict(word.partition("=")[::2] for word in sys.argv[2:])
REFUSALS = int(KNOBS.get("refuse", "0"))
seen: dict[str, int] = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(b"")

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, body: bytes) -> None:
        if "write" in KNOBS:
            with open(KNOBS["write"], "a") as out:
                out.write(f"{self.path} {body.decode()}\n")
        seen[self.path] = seen.get(self.path, 0) + 1
        if seen[self.path] <= REFUSALS:
            self.reply(503, b"Loading model")
        elif self.path == "/startup":
            self.reply(200 if "startup" in KNOBS else 404, KNOBS.get("startup", "").encode())
        elif self.path == "/v1/completions":
            self.stream(json.loads(body)["max_tokens"])
        else:
            self.reply(200, b"ok")

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, tokens: int) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(tokens):
            event = b'data: {"choices": [{"text": "a"}]}\n\n'
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    if "die" in KNOBS:
        sys.exit("no weights here") if KNOBS["die"] == "" else sys.exit(int(KNOBS["die"]))
    while "deaf" in KNOBS:
        time.sleep(1)
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", PORT), Handler) as server:
        server.daemon_threads = True
        server.serve_forever()
