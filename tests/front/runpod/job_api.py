"""RunPod's job API on the loopback, as its SDK speaks to it: jobs are long-polled, parts and answers are posted.

Every poll waits for a job, or until the API is closed; a real one ends after a minute or so.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit


class JobApi:
    """A context, and its address as the environment of a worker. What was heard is kept by the job's id."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Any]] = defaultdict(list)  # posted to the stream
        self.results: dict[str, dict[str, Any]] = {}  # posted as the answer
        self.takes: list[int] = []  # how many jobs each poll asked for
        self.polls = 0  # that wait now
        self.pings: list[dict[str, list[str]]] = []
        self.gone: list[str] = []  # polls that the worker hung up on
        self.accepts = threading.Event()  # answers; while it is not set, they are heard and not replied to
        self.accepts.set()
        self._waiting: list[Any] = []
        self._stops: list[str] = []
        self._open = True
        self._news = threading.Condition()
        self._count = 0
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                api._get(self)

            def do_POST(self) -> None:
                api._post(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> "JobApi":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.accepts.set()
        with self._news:
            self._open = False
            self._news.notify_all()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def environ(self) -> dict[str, str]:
        """What RunPod sets in a worker."""
        base = f"http://127.0.0.1:{self._server.server_port}"
        return {
            "RUNPOD_POD_ID": "worker-7",
            "RUNPOD_AI_API_KEY": "key-of-the-worker",
            "RUNPOD_WEBHOOK_GET_JOB": f"{base}/job-take/$ID?gpu=L4",
            "RUNPOD_WEBHOOK_POST_OUTPUT": f"{base}/job-done/$RUNPOD_POD_ID/$ID?gpu=L4",
            "RUNPOD_WEBHOOK_POST_STREAM": f"{base}/job-stream/$RUNPOD_POD_ID/$ID?gpu=L4",
            "RUNPOD_WEBHOOK_PING": f"{base}/ping/$RUNPOD_POD_ID",
            "RUNPOD_PING_INTERVAL": "1000",
            "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
        }

    def put(self, *inputs: Any) -> list[str]:
        """Jobs for whoever asks; their ids."""
        ids = [f"job-{self._count + index}" for index in range(len(inputs))]
        self._count += len(inputs)
        self.put_raw(*({"id": id, "input": given} for id, given in zip(ids, inputs, strict=True)))
        return ids

    def put_raw(self, *jobs: Any) -> None:
        with self._news:
            self._waiting += jobs
            self._news.notify_all()

    def stop(self, id: str) -> None:
        """Tells the worker to give a job up."""
        with self._news:
            self._stops.append(id)
            self._news.notify_all()

    def wait(self, condition: Callable[[], Any], seconds: float = 20) -> Any:
        """What `condition` says, once that is true."""
        with self._news:
            assert self._news.wait_for(condition, seconds), f"never true; results: {self.results}"
            return condition()

    def result(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.wait(lambda: self.results.get(id))
        return found

    def output(self, given: Any) -> list[Any]:
        """A job's answer: everything that its handler yielded."""
        (id,) = self.put(given)
        result = self.result(id)
        assert list(result) == ["output"], result
        assert self.parts[id] == [{"output": part} for part in result["output"]]
        return list(result["output"])

    # --- what the SDK asks --------------------------------------------------------------------------------------

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        query = parse_qs(url.query)
        match url.path.split("/")[1:]:
            case ["job-take", "worker-7"]:
                jobs = self._poll(request, lambda: self._take(1))
                _reply(request, jobs[0] if jobs else None)
            case ["job-take-batch", "worker-7"]:
                count = int(query["batch_size"][0])
                _reply(request, self._poll(request, lambda: self._take(count)))
            case ["job-stop", "worker-7"]:
                stops = self._poll(request, self._take_stops)
                _reply(request, {"jobsToStop": stops} if stops else None)
            case ["ping", "worker-7"]:
                with self._news:
                    self.pings.append(query)
                    self._news.notify_all()
                _reply(request, {})
            case _:
                request.send_error(404)

    def _post(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["content-length"])))
        kind, worker, id = urlsplit(request.path).path.split("/")[1:]
        assert worker == "worker-7"
        with self._news:
            if kind == "job-done":
                assert id not in self.results
                self.results[id] = body
            else:
                self.parts[id].append(body)
            self._news.notify_all()
        if kind == "job-done":
            self.accepts.wait()
        _reply(request, {})

    def _take(self, count: int) -> list[Any]:
        jobs, self._waiting = self._waiting[:count], self._waiting[count:]
        return jobs

    def _take_stops(self) -> list[str]:
        stops, self._stops = self._stops, []
        return stops

    def _poll(self, request: BaseHTTPRequestHandler, take: Callable[[], list[Any]]) -> list[Any]:
        """Waits for something to take, as long as the worker waits too."""
        path = urlsplit(request.path).path
        is_take = "job-take" in path
        request.connection.setblocking(False)
        with self._news:
            if is_take:
                query = parse_qs(urlsplit(request.path).query)
                self.takes.append(int(query.get("batch_size", ["1"])[0]))
                self.polls += 1
                self._news.notify_all()
            taken: list[Any] = []
            while self._open and not (taken := take()):
                if _has_hung_up(request):
                    self.gone.append(path)
                    break
                self._news.wait(0.02)
            self.polls -= is_take
            self._news.notify_all()
        request.connection.setblocking(True)
        return taken


def _has_hung_up(request: BaseHTTPRequestHandler) -> bool:
    try:
        return request.connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _reply(request: BaseHTTPRequestHandler, value: Any) -> None:
    body = b"" if value is None else json.dumps(value).encode()
    try:
        request.send_response(204 if value is None else 200)
        request.send_header("content-type", "application/json")
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
    except OSError:
        request.close_connection = True
