"""Pilotlight on Modal. Made by `pilotlight deploy render --target modal`: change the description and render again."""

import subprocess
import time
import urllib.error
import urllib.request

import modal

PORT = 8080
READY = f"http://127.0.0.1:{PORT}/v1/health/ready"
STARTUP = 301  # seconds until it must be ready
IMAGE = "ghcr.io/someone/pilotlight@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

app = modal.App("full-2")
# Modal starts a program of its own in the image, which starts the server.
image = modal.Image.from_registry(IMAGE).entrypoint([])


@app.server(
    image=image,
    gpu="H200",
    cpu=18.0,
    memory=64 * 1024,
    env={
        "PILOTLIGHT_DEVICE": "cuda",
        "PILOTLIGHT_STARTUP_TIMEOUT": "301",
        "PILOTLIGHT_SHUTDOWN_TIMEOUT": "40",
        "PILOTLIGHT_MAX_NUM_SEQS": "64",
        "PILOTLIGHT_GPU_MEMORY_UTILIZATION": "0.90",
        "PILOTLIGHT_VERIFY": "true",
        "PILOTLIGHT_CHAT_TEMPLATE": 'a "$quoted" {path}: häß # 1',
        "OTHER": "",
        "SCIENTIFIC": "1e3",
        "PORT": "8080",
    },
    secrets=[
        modal.Secret.from_name("api-key", required_keys=["PILOTLIGHT_API_KEY"]),
        modal.Secret.from_name("hugging-face", required_keys=["HF_TOKEN"]),
    ],
    volumes={"/models": modal.Volume.from_name("models").read_only()},
    min_containers=1,
    max_containers=7,
    scaledown_window=60,
    startup_timeout=STARTUP,
    port=PORT,
    target_concurrency=48,
    unauthenticated=True,
    exit_grace_period=45,
    compute_region="eu",
)
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
