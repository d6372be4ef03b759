"""From what a person calls a model to a directory on this machine: a path as given, or a hub id in the local cache.

Nothing is downloaded and nothing is written here, so a read-only cache without a network serves as it is. The cache's
layout (blobs, refs, snapshots of symbolic links) is that of huggingface_hub, whose import a start need not pay.
"""

import json
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from .errors import ModelNotFoundError
from .peek import on_runpod, snapshot_weights

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")  # the hub's own limit on a name
_REVISION = re.compile(r"[A-Za-z0-9_-]{1,64}")  # a commit's hash, and never a way out of the cache

_log = logging.getLogger(__name__)


def resolve_model(model: str) -> Path:
    """The directory of `model`. Raises ModelNotFoundError, saying what to do.

    A hub id's directory is the snapshot that refs/main names or, in a cache without refs/main, the only complete one.
    """
    path = expand(model)
    if os.path.isdir(path):
        return _a_model(model, path)
    if os.path.isfile(path):
        if path.suffix.lower() == ".gguf":
            raise ModelNotFoundError(
                f"{model}: a GGUF file is not served as it is; turn it into a snapshot with "
                f"`pilotlight build snapshot {model} -o DIR` and serve DIR"
            )
        raise ModelNotFoundError(f"{model}: is a file, expected a directory of a snapshot or of a checkpoint")
    if not is_hub_id(model):
        raise ModelNotFoundError(f"{model}: no such directory")
    try:
        return _cached(model, hub_cache())
    except OSError as error:
        raise ModelNotFoundError(f"{model}: {error.filename}: cannot be read: {error.strerror}") from None


def _a_model(model: str, path: Path) -> Path:
    """A directory that looks like one of a model. What is wrong with a model is said by whoever reads its files."""
    if any((path / name).exists() for name in ("config.json", "manifest.json", "tokenizer.json")):
        return path
    inside = sorted(entry.parent.name for entry in path.glob("*/config.json"))
    hint = f"; there is one in {path / inside[0]}" if inside else ""
    raise ModelNotFoundError(
        f"{model}: holds no config.json; expected the directory of a snapshot or of a checkpoint{hint}"
    )


def expand(text: str) -> Path:
    """A path as a person writes it. An impossible one (an unknown ~user, a name too long) counts as one that is not
    there: `os.path` takes it so, where `pathlib` raises.
    """
    return Path(os.path.expanduser(text))


def is_hub_id(model: str) -> bool:
    """Whether `model` is spelled as a repository on the hub: "owner/name" or "name"."""
    return _HUB_ID.fullmatch(model) is not None


def hub_cache(environ: Mapping[str, str] | None = None) -> Path:
    """Where huggingface_hub keeps repositories. Rules: its documentation, "Environment variables".

    At RunPod, unless one of those is set, where RunPod keeps an endpoint's models.
    """
    environ = os.environ if environ is None else environ
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(name):
            return expand(environ[name])
    if environ.get("HF_HOME"):
        return expand(environ["HF_HOME"]) / "hub"
    if on_runpod(environ):
        from .runpod_env import cache

        return Path(cache(environ))
    home = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expand(home) / "huggingface" / "hub"


def _cached(model: str, cache: Path) -> Path:
    repository = cache / f"models--{model.replace('/', '--')}"
    if not repository.is_dir():
        advice = (
            "name it as the endpoint's model, so that RunPod caches it"
            if on_runpod(os.environ)
            else f"download it with `hf download {model}`"
        )
        raise ModelNotFoundError(
            f"{model}: no such directory, and no model of that name in the cache {cache}; {advice}, "
            f"or make a snapshot with `pilotlight build snapshot {model} -o DIR`"
        )
    reference = repository / "refs" / "main"
    if reference.is_file():
        revision = reference.read_text(encoding="utf-8", errors="replace").strip()
        if not _REVISION.fullmatch(revision):
            raise ModelNotFoundError(
                f"{reference}: is damaged: expected the name of a directory in {repository / 'snapshots'}; "
                f"write it anew with `hf download {model}`"
            )
        snapshot = repository / "snapshots" / revision
        problem = _problem(snapshot)
        if problem:
            raise ModelNotFoundError(f"{snapshot}: {problem}; complete it with `hf download {model}`")
        return snapshot
    return _only_complete(model, repository)


def _only_complete(model: str, repository: Path) -> Path:
    folder = repository / "snapshots"
    snapshots = sorted(folder.iterdir()) if folder.is_dir() else []
    problems = {snapshot: _problem(snapshot) for snapshot in snapshots}
    complete = [snapshot for snapshot, problem in problems.items() if problem is None]
    match complete:
        case [snapshot]:
            _log.warning("%s: the cache has no refs/main; its only complete snapshot is used: %s", model, snapshot)
            return snapshot
        case []:
            told = "; ".join(f"{snapshot.name[:12]}: {problem}" for snapshot, problem in problems.items())
            raise ModelNotFoundError(
                f"{repository}: has no complete snapshot ({told or 'none at all'}); complete it with "
                f"`hf download {model}`"
            )
        case _:
            names = ", ".join(snapshot.name for snapshot in complete)
            raise ModelNotFoundError(
                f"{repository}: has no refs/main and {len(complete)} complete snapshots ({names}); "
                f"pass the directory of one of them, under {folder}"
            )


def _problem(snapshot: Path) -> str | None:
    """Why a snapshot of the cache cannot be served, or None. Files that nobody reads are not asked for."""
    if not snapshot.is_dir():
        return "is missing"
    for file in sorted(snapshot.rglob("*")):
        if file.is_symlink() and not file.exists():
            return f"{file.relative_to(snapshot)} is a link to a blob that is missing"
    needed = ["config.json"]
    index = snapshot / "model.safetensors.index.json"
    if index.is_file():
        try:
            needed += sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return f"{index.name} is damaged"
    elif not snapshot_weights(str(snapshot)):  # of a snapshot of ours
        needed.append("model.safetensors")
    for name in needed:
        if not (snapshot / name).is_file():
            return f"{name} is missing"
    return None
