"""Every path of the server, in one table: to add one, write its handler and a line in `ROUTES`."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from .. import __version__
from .chat import chat_completions
from .completions import completions
from .metrics import CONTENT_TYPE
from .service import Service, context_of
from .supervisor import shutting_down


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


async def index(request: Request) -> Response:
    """The page for a browser; for anything else what there is, as JSON."""
    from .page import document

    if document.is_wanted(request.scope):
        return document.reply(request)
    routes = [f"{route.method} {route.path.replace(':path', '')}" for route in ROUTES]
    response = _json(
        {"server": "pilotlight", "version": __version__, "models": _service(request).names, "routes": routes}
    )
    response.headers["vary"] = "accept"
    return response


async def models(request: Request) -> Response:
    service = _service(request)
    return _json({"object": "list", "data": [_model_card(service, name) for name in service.names]})


async def model(request: Request) -> Response:
    service = _service(request)
    name = request.path_params["name"]
    service.check_model(name)
    return _json(_model_card(service, name))


async def health(request: Request) -> Response:
    """200 while requests are served, else 503 with the reason."""
    service = _service(request)
    if service.drain.draining:
        raise shutting_down()
    if service.supervisor.ready is None:
        raise service.supervisor.not_ready()
    return _json({"status": "ok"})


async def live(request: Request) -> Response:
    """200 while this process works; an engine that is being restarted is no reason to kill the container."""
    return _json({"status": "ok"})


async def ping(request: Request) -> Response:
    """As `health`, but while the model loads RunPod is told 204: a worker that will be ready and is not yet."""
    service = _service(request)
    if service.supervisor.state == "starting" and service.settings.ping_loading_status == "204":
        return Response(status_code=204)
    return await health(request)


async def version(request: Request) -> Response:
    return _json({"version": __version__})


async def metrics(request: Request) -> Response:
    service = _service(request)
    return Response(
        service.metrics.expose(service.names[0], service.supervisor, service.startup), media_type=CONTENT_TYPE
    )


async def startup(request: Request) -> Response:
    """The ledger of this server's start: spans of both processes in seconds since exec."""
    service = _service(request)
    return _json(service.startup.report(service.names[0], service.supervisor.state))


class Route(NamedTuple):
    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    is_open: bool = False  # answers without the API key


ROUTES = (
    Route("GET", "/", index),
    Route("POST", "/v1/chat/completions", chat_completions),
    Route("POST", "/v1/completions", completions),
    Route("GET", "/v1/models", models),
    Route("GET", "/v1/models/{name:path}", model),
    Route("GET", "/health", health, is_open=True),
    Route("GET", "/v1/health/live", live, is_open=True),
    Route("GET", "/v1/health/ready", health, is_open=True),
    Route("GET", "/ping", ping, is_open=True),
    Route("GET", "/version", version, is_open=True),
    Route("GET", "/metrics", metrics),
    Route("GET", "/startup", startup),
)
OPEN_PATHS = frozenset(route.path for route in ROUTES if route.is_open)


def is_open(scope: Scope) -> bool:
    """Whether a request needs no API key. The page needs none: it is the same for all and asks for the key itself."""
    path: str = scope["path"]
    if path == "/":
        from .page import document

        return document.is_wanted(scope)
    return path in OPEN_PATHS


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _model_card(service: Service, name: str) -> dict[str, Any]:
    ready = service.supervisor.ready
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "pilotlight",
        "root": service.settings.model,
        "parent": None,
        "max_model_len": context_of(ready) if ready else None,
    }
