"""The image and GPUs: why it leaves where one was asked for and none works, and the CUDA device in the container.

The soft GPU stands in for NVIDIA's driver and is mounted as its container runtime mounts that: libcuda.so.1 among the
system's libraries, read-only, and the driver's device file. The image of this check is built from a local checkpoint,
whose answers are known.
"""

import json
import re
import shutil
import signal

from pilotlight.errors import EXIT_UNAVAILABLE
from tests import softgpu
from tests.models import write_chain

from . import build, contents
from .containers import CACHE, PODMAN, Server, attempt, inside, run, say

CHAIN_IMAGE = "localhost/pilotlight:chain"
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
SECRET = "hf_not-a-token-of-anybody"  # shows whether a build's secret stays in the image
DRIVER = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
FLAGS = ("--max-model-len", "96", "--max-num-seqs", "2")


def check() -> None:
    _check_refusals()
    _build_chain()
    _check_soft_gpu()


def _check_refusals() -> None:
    """A GPU that was asked for, by flag or by the runtime, and is not there or does not work: the reason, no CPU."""
    nothing = CACHE / "nothing"
    nothing.touch()
    promised = ["--env", "NVIDIA_VISIBLE_DEVICES=GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"]
    for what, arguments, options in (
        ("--device cuda", ["--device", "cuda"], []),
        ("a GPU that the runtime names", [], promised),
        ("a device file without a driver", [], ["--volume", f"{nothing}:/dev/nvidiactl:ro"]),
    ):
        done = attempt(*arguments, options=options)
        assert done.returncode == EXIT_UNAVAILABLE, (what, done.returncode, done.stdout)
        reason = re.search(r"pilotlight: (libcuda\.so\.1, which comes with the NVIDIA driver, .*)", done.stdout)
        assert reason, (what, done.stdout)
        say(f"{what}: left with {done.returncode}: {reason[1]}")


def _build_chain() -> None:
    """MODEL as a local directory, its weights in several layers, and a token that the build does not need."""
    chain = build.CONTEXT / "models" / "chain"
    write_chain(chain, map(ord, ALPHABET), loop=True, head_dim=64)
    token = CACHE / "token"
    token.write_text(SECRET, encoding="utf-8")
    arguments = ["--build-arg", "MODEL=models/chain", "--build-arg", "SHARD_BYTES=200K"]
    build.build_image(CHAIN_IMAGE, *arguments, "--secret", f"id=hf_token,src={token}")
    layers = contents.weight_layers(CHAIN_IMAGE)
    assert sum(size > contents.EMPTY for size in layers) > 2, layers
    shutil.rmtree(chain)
    for look in (["history", "--no-trunc"], ["image", "inspect"]):
        assert SECRET not in run([*PODMAN, *look, CHAIN_IMAGE], quiet=True)


def _check_soft_gpu() -> None:
    """The same image without a word about a device: it finds the GPU that the runtime shows."""
    package = inside("python", "-c", "import pilotlight; print(*pilotlight.__path__)")
    options = [
        *("--volume", f"{softgpu.library()}:{DRIVER}:ro"),
        *("--volume", f"{CACHE / 'nothing'}:/dev/nvidiactl:ro"),
        *("--env", f"SOFTGPU_PTX_DIRECTORY={package}/ptx"),
    ]
    with Server("gpu", *FLAGS, options=options, image=CHAIN_IMAGE) as server:
        server.wait_until_ready()
        server.expect_in_log(r"serving models/chain at .* \(cuda:0.*, bfloat16")
        body = {"model": "models/chain", "prompt": "1 ", "max_tokens": 26, "temperature": 0}
        status, answer = server.request("POST", "/v1/completions", body)
        assert status == 200, answer
        assert json.loads(answer)["choices"][0]["text"] == ALPHABET
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
    say(f"on the soft GPU in the container: {ALPHABET!r}, left with 0")
