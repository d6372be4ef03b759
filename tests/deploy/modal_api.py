"""A loopback stand-in for Modal's API, which `modal deploy` talks to: what the real command would have Modal create.

It answers every call that creates something with an id and keeps the requests; anything else is refused by name.
"""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpclib import GRPCError, Status
from grpclib.server import Server
from modal_proto import api_grpc, api_pb2

SETTINGS = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
FUNCTION = api_pb2.FunctionHandleMetadata(function_name="one")
SECRET = api_pb2.SecretMetadata(keys=["REGISTRY_USERNAME", "REGISTRY_PASSWORD"])
ANSWERS: dict[str, Any] = {
    "ClientHello": {},
    "EnvironmentGetOrCreate": {
        "environment_id": "en-1",
        "metadata": api_pb2.EnvironmentMetadata(name="main", settings=SETTINGS),
    },
    "AppGetByDeploymentName": {},
    "AppCreate": {"app_id": "ap-1"},
    "AppGetOrCreate": {"app_id": "ap-1"},
    "AppHeartbeat": {},
    "AppPublish": {"url": "https://modal.com/apps/one", "deployed_at": 1.0},
    "AppClientDisconnect": {},
    "SecretGetOrCreate": {"secret_id": "st-1", "metadata": SECRET},
    "VolumeGetOrCreate": {"volume_id": "vo-1"},
    "MountPutFile": {"exists": True},
    "MountBatchedCheckExistence": {},
    "MountGetOrCreate": {
        "mount_id": "mo-1",
        "handle_metadata": api_pb2.MountHandleMetadata(content_checksum_sha256_hex="0" * 64),
    },
    "ImageGetOrCreate": {
        "image_id": "im-1",
        "result": api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS),
    },
    "FunctionPrecreate": {"function_id": "fu-1", "handle_metadata": FUNCTION},
    "FunctionCreate": {"function_id": "fu-1", "handle_metadata": FUNCTION},
    "ClassCreate": {"class_id": "cs-1"},
}


class ModalApi:
    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.port = 0

    def asked(self, name: str) -> list[Any]:
        """The requests of one call, in the order that they came in."""
        return [request for called, request in self.requests if called == name]

    def deploy(self, file: Path, directory: Path, environ: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
        """Runs `modal deploy FILE` in `directory`, with nothing of this machine's own account."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MODAL_", "DEPLOY_"))}
        command = [sys.executable, "-W", "error", "-m", "modal", "deploy", str(file)]
        account = {"MODAL_TOKEN_ID": "ak-none", "MODAL_TOKEN_SECRET": "as-none"}
        own = {"MODAL_SERVER_URL": f"http://127.0.0.1:{self.port}", "MODAL_CONFIG_PATH": os.devnull}
        return subprocess.run(
            command, cwd=directory, env=inherited | account | own | environ, capture_output=True, text=True
        )

    def mapping(self) -> dict[str, Any]:
        """grpclib's table of calls, with one answer for each."""
        servicer = api_grpc.ModalClientBase
        table = servicer.__mapping__(self)  # type: ignore[arg-type]  # only the names and the types are taken
        return {
            path: handler._replace(func=self._answer(path, handler.reply_type)) for path, handler in table.items()
        }

    def _answer(self, path: str, reply: type[Any]) -> Any:
        name = path.rpartition("/")[2]

        async def answer(stream: Any) -> None:
            request = await stream.recv_message()
            self.requests.append((name, request))
            if name not in ANSWERS:
                raise GRPCError(Status.UNIMPLEMENTED, f"{name} is not answered here")
            echoed = {"function_data": request.function_data} if name == "FunctionCreate" else {}
            await stream.send_message(reply(**ANSWERS[name], **echoed))

        return answer

    def __getattr__(self, name: str) -> Any:
        return None  # a call's method, asked for by grpclib's table before `mapping` puts the answer in


class _Handler:
    def __init__(self, mapping: dict[str, Any]) -> None:
        self._mapping = mapping

    def __mapping__(self) -> dict[str, Any]:
        return self._mapping


@contextmanager
def modal_api() -> Iterator[ModalApi]:
    api, loop, started = ModalApi(), asyncio.new_event_loop(), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    api.port = listener.getsockname()[1]

    async def serve(until: asyncio.Event) -> None:
        server = Server([_Handler(api.mapping())])
        await server.start(sock=listener)
        started.set()
        await until.wait()
        server.close()
        await server.wait_closed()

    until = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=[serve(until)])
    thread.start()
    try:
        assert started.wait(30)
        yield api
    finally:
        loop.call_soon_threadsafe(until.set)
        thread.join()
        loop.close()
