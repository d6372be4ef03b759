"""Hello world of Starlette and uvicorn: what any server of this stack needs before its first 200.

usage: python -I scripts/startup/hello.py PORT
"""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route


async def hello(_: Request) -> Response:
    return PlainTextResponse("hello")


if __name__ == "__main__":
    uvicorn.run(Starlette(routes=[Route("/health", hello)]), port=int(sys.argv[1]), log_level="warning")
