"""Downloads a model from the Hugging Face hub into its cache: the files that a snapshot is made from, no others."""

import re
from pathlib import Path

from ..errors import ModelNotFoundError, PilotlightError, UnavailableError
from ..model.checkpoint import INDEX_FILE, SINGLE_FILE, read_index
from ..source import resolve_model

NEEDS_EXTRA = "needs the build extra: pip install 'pilotlight[build]'"


def download(model: str, documents: tuple[str, ...]) -> tuple[Path, str]:
    """The directory of `model` in the hub's cache, completed from the hub, and its commit.

    `documents` are downloaded where the repository has them, the weights by their index. Without a network a complete
    snapshot of the cache is taken. HF_ENDPOINT, HF_TOKEN, HF_HOME and the like are huggingface_hub's to read.
    Raises ModelNotFoundError or UnavailableError.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UnavailableError(f"{model}: a download {NEEDS_EXTRA}") from None
    try:
        directory = Path(snapshot_download(model, allow_patterns=[*documents, INDEX_FILE]))
        weights = [SINGLE_FILE]
        if (directory / INDEX_FILE).exists():
            weights = sorted({str(file.relative_to(directory)) for file in read_index(directory).values()})
        # the same commit again, whatever was pushed meanwhile
        snapshot_download(model, revision=directory.name, allow_patterns=weights)
    except PilotlightError:
        raise
    except Exception as error:  # the library's, its HTTP client's and the system's; what to do is the same
        try:
            directory = resolve_model(model)
        except ModelNotFoundError:
            raise _failure(model, error) from error
    return directory, directory.name


def _failure(model: str, error: Exception) -> PilotlightError:
    from huggingface_hub import errors

    reason = _cause(error)
    if isinstance(error, errors.GatedRepoError):
        return ModelNotFoundError(f"{model}: the hub gives it to accepted accounts only; set HF_TOKEN ({reason})")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelNotFoundError(
            f"{model}: the hub has no such model, or it is private and needs HF_TOKEN ({reason})"
        )
    return UnavailableError(
        f"{model}: is no file or directory here, and cannot be downloaded ({reason}); without the hub, copy the "
        "model's directory or GGUF file to this machine and name that, or name a mirror in HF_ENDPOINT"
    )


def _cause(error: BaseException) -> str:
    """What the hub's library says, on one line; of a hub out of reach only the system's word at its bottom."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError):  # says all that it tried, in four lines
        while error.__cause__ is not None:
            error = error.__cause__
    return " ".join(re.sub(r"^\[Errno -?\d+\] ", "", str(error)).split())[:300]
