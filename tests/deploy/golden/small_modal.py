"""Pilotlight on Modal. Made by `pilotlight deploy render --target modal`: change the description and render again."""

import subprocess
import time
import urllib.error
import urllib.request

import modal

PORT = 8000
READY = f"http://127.0.0.1:{PORT}/health"
STARTUP = 600  # seconds until it must be ready
IMAGE = "ghcr.io/someone/pilotlight:1.2.3"

app = modal.App("small")
# Modal starts a program of its own in the image, which starts the server.
image = modal.Image.from_registry(IMAGE).entrypoint([])


@app.cls(
    image=image,
    gpu=["L4", "A10"],
    cpu=4.0,
    memory=16 * 1024,
    env={
        "PILOTLIGHT_DEVICE": "cuda",
        "PILOTLIGHT_STARTUP_TIMEOUT": "600",
        "PILOTLIGHT_SHUTDOWN_TIMEOUT": "25",
        "PORT": "8000",
    },
    min_containers=0,
    max_containers=3,
    scaledown_window=300,
    startup_timeout=STARTUP,
    timeout=900,
)
@modal.concurrent(max_inputs=32, target_inputs=16)
class Pilotlight:
    @modal.enter()
    def start(self) -> None:
        self.server = subprocess.Popen(["pilotlight", "serve"])
        deadline = time.monotonic() + STARTUP
        while not is_ready():
            if self.server.poll() is not None:
                raise RuntimeError(f"pilotlight serve left with {self.server.returncode}; its log says why")
            if time.monotonic() > deadline:
                raise TimeoutError(f"pilotlight serve was not ready within {STARTUP} seconds")
            time.sleep(0.05)

    @modal.web_server(PORT, startup_timeout=STARTUP, requires_proxy_auth=True)
    def serve(self) -> None:
        """Requests go to the server that `start` has started."""

    @modal.exit()
    def stop(self) -> None:
        self.server.terminate()
        self.server.wait()


def is_ready() -> bool:
    try:
        with urllib.request.urlopen(READY, timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
