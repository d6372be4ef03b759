"""The ASGI application: the routes, and the layers around them from the outside in: body, CORS, key, drain."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from .auth import KeyGuard
from .body import UnreadBodyLayer
from .drain import DrainLayer
from .errors import ApiError, ClientGone, on_api_error, on_client_gone, on_http_exception, on_unexpected
from .routes import ROUTES, is_open
from .service import Service


def build_app(service: Service) -> Starlette:
    """For clients that connect."""
    settings = service.settings
    layers = [Middleware(UnreadBodyLayer)]
    if settings.allowed_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.allowed_origins,
                allow_methods=("GET", "POST", "OPTIONS"),
                allow_headers=("*",),
            )
        )
    if settings.api_key:
        layers.append(Middleware(KeyGuard, key=settings.api_key, is_open=is_open))
    layers.append(Middleware(DrainLayer, drain=service.drain))
    return _app(service, layers)


def inner_app(service: Service) -> Starlette:
    """The routes without the layers: for requests that come through no connection and have been let in already."""
    return _app(service, [])


def _app(service: Service, layers: list[Middleware]) -> Starlette:
    app = Starlette(
        routes=[Route(route.path, route.handler, methods=[route.method]) for route in ROUTES],
        middleware=layers,
        exception_handlers={
            ApiError: on_api_error,
            ClientGone: on_client_gone,
            HTTPException: on_http_exception,
            Exception: on_unexpected,
        },
    )
    app.router.redirect_slashes = False  # a redirect would name http:// behind a proxy that speaks TLS
    app.state.service = service
    return app
