"""The image's build with buildah: its tools, a base that needs no registry, and what a change of the code rebuilds.

The base is a stand-in for python:3.11-slim-bookworm made of Debian's own packages. pip's settings and certificates of
this machine are mounted while building and stay out of the image.
"""

import ast
import contextlib
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .containers import CACHE, IMAGE, MODEL, PODMAN, ROOT, inspect, run, say, timed

BASE = "localhost/python:3.11-slim-bookworm"
CONTEXT = CACHE / "context"  # a copy of the tree: what a build sees does not change meanwhile
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_PIP_SETTINGS = ("index-url", "extra-index-url", "proxy", "trusted-host", "timeout", "default-timeout", "retries")


def prepare() -> None:
    """The tools, a container storage of our own, the build's context."""
    tools = ["buildah", "podman", "runc", "mmdebstrap"]
    missing = [tool for tool in tools if not shutil.which(tool)]
    if os.geteuid() != 0:
        sys.exit("test_image: building with chroot isolation needs root; run it with sudo")
    if missing:
        run(["bash", "-c", '. scripts/lib.sh && apt_install "$@"', "bash", *missing, "debian-archive-keyring"])
    storage = CACHE / "storage.conf"
    settings = f'[storage]\ndriver = "overlay"\ngraphroot = "{CACHE / "storage"}"\nrunroot = "{CACHE / "run"}"\n'
    if storage.exists() and storage.read_text(encoding="utf-8") != settings:
        shutil.rmtree(CACHE)  # the tree was moved, and podman keeps paths in its database
    CACHE.mkdir(parents=True, exist_ok=True)
    storage.write_text(settings, encoding="utf-8")
    os.environ |= {"CONTAINERS_STORAGE_CONF": str(storage), "BUILDAH_ISOLATION": "chroot"}
    shutil.rmtree(CONTEXT, ignore_errors=True)
    shutil.copytree(ROOT, CONTEXT, ignore=_left_out)


def _left_out(directory: str, names: Sequence[str]) -> set[str]:
    """What .dockerignore leaves out anyway, and is large."""
    ignored = {name for name in names if name == "__pycache__" or name.startswith(MODEL)}
    if Path(directory) == ROOT:
        ignored |= {name for name in names if name.startswith(".") and name != ".dockerignore"}
    return ignored


def make_base() -> None:
    """Debian 12 with Python where the official image has it: `python` and `pip` in /usr/local/bin."""
    archive = CACHE / "base.tar"
    links = " && ".join(
        f'ln -s /usr/bin/{program} "$1/usr/local/bin/{name}"'
        for name, program in (("python", "python3"), ("python3", "python3"), ("pip", "pip3"))
    )
    run([
        "mmdebstrap", "--quiet", "--variant=minbase",
        "--include=ca-certificates,python3,python3-venv,python3-pip",
        *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("man", "doc", "locale")),
        f"--customize-hook={links}",
        '--customize-hook=rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED',
        "bookworm", str(archive),
    ])  # fmt: skip
    work = run(["buildah", "from", "scratch"]).strip()
    run(["buildah", "add", "--quiet", work, str(archive), "/"])
    path = "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    run(["buildah", "config", "--env", path, "--env", "LANG=C.UTF-8", "--cmd", "python3", work])
    run(["buildah", "commit", "--quiet", "--rm", work, BASE])
    archive.unlink()


def has_base() -> bool:
    return subprocess.run([*PODMAN, "image", "exists", BASE], check=False).returncode == 0


def build_image(name: str = IMAGE, *options: str) -> None:
    flags = ["--pull-never", "--format", "docker", "--layers", "--build-arg", f"BASE={BASE}", "--tag", name]
    run(["buildah", "bud", *flags, *options, *_pip_mounts(), str(CONTEXT)], show=True)


def check_rebuild() -> None:
    """A change of the code replaces the last layer alone, also where every stage has to run again for it.

    What it builds is removed again: the image is the one from before, and so is the builder's cache.
    """
    known = _images()
    (image,) = run([*PODMAN, "image", "inspect", "--format", "{{.Id}}", IMAGE], quiet=True).split()
    for what, files in (
        ("the server's code", ("app/front/main.py",)),
        ("code that every stage runs", ("app/cli.py", "app/errors.py")),
    ):
        before = inspect()["RootFS"]["Layers"]
        for file in files:
            with (CONTEXT / file).open("a", encoding="utf-8") as source:
                source.write("# a change\n")
        with timed(f"rebuild after a change of {what}"):
            build_image()
        after = inspect()["RootFS"]["Layers"]
        changed = [number for number, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
        assert changed == [len(after) - 1], f"of {len(after)} layers {changed} changed, and only the last should"
        say(f"a change of {what}: {len(after) - 1} layers stay, the last is new")
    run([*PODMAN, "tag", image, IMAGE])
    run([*PODMAN, "rmi", "--force", *sorted(_images() - known)], quiet=True)


def _images() -> set[str]:
    """By their ids, those of the builder's cache too."""
    return set(run([*PODMAN, "images", "--all", "--quiet", "--no-trunc"], quiet=True).split())


def remove_leftovers() -> None:
    """A failed build would leave a mount behind; images that lost their name are kept, as the builder's cache."""
    run(["buildah", "rm", "--all"], quiet=True)
    shutil.rmtree(CONTEXT, ignore_errors=True)


def _pip_mounts() -> list[str]:
    """This machine's way to the package index, as build-time mounts: pip's settings and the certificates."""
    config = CACHE / "pip.conf"
    lines = ["[global]"]
    mounts = ["--volume", f"{config}:/etc/pip.conf:ro"]
    certificates = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if certificates:
        mounts += ["--volume", f"{Path(certificates).resolve()}:{CERTIFICATES}:ro"]
        lines.append(f"cert = {CERTIFICATES}")
    for line in _pip_settings().splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in _PIP_SETTINGS:
            words = [word for word in ast.literal_eval(value).split() if not word.startswith("file:")]
            lines += [f"{name} = {' '.join(words)}"] if words else []
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return mounts


def _pip_settings() -> str:
    with contextlib.suppress(OSError):
        done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout
    return ""
