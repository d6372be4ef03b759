"""Where the compiled kernels lie, and which of a module's images a GPU runs: a cubin of its own, or the PTX."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UnavailableError
from .errors import CudaError

MANIFEST = "manifest.json"

_PACKAGE = Path(__file__).resolve().parents[2]  # `pilotlight` in an environment, `app` in a checkout

_log = logging.getLogger(__name__)


def directory() -> Path:
    """The directory of `<module>.ptx`, `sm_<XX>/<module>.cubin` and the manifest.

    In the installed package, or beside `app/` in a checkout. Raises UnavailableError where neither holds it.
    """
    places = (_PACKAGE / "ptx", _PACKAGE.parent / "ptx")
    for place in places:
        if (place / MANIFEST).is_file():
            return place
    raise UnavailableError(f"{places[0]}: no compiled kernels there; in a checkout, scripts/build_kernels makes them")


@dataclass(frozen=True, slots=True)
class Image:
    """A module as a driver takes it, and the manifest's word on its entries."""

    file: Path
    data: bytes
    entries: dict[str, Any]


class Images:
    """The images in one directory for a GPU of one compute capability."""

    def __init__(self, place: Path, capability: tuple[int, int], title: str) -> None:
        """title: of the GPU, for messages."""
        self._place = place
        self._capability = capability
        self._title = title
        self._modules = json.loads((place / MANIFEST).read_bytes())["modules"]
        self._told = False

    def read(self, module: str) -> Image:
        """The best image of a module: the GPU's own cubin, else that of the highest lower minor, else the PTX.

        Raises CudaError where none runs on this GPU, UnavailableError for a file that is not there.
        """
        about = self._modules[module]
        have = sorted(_capability(name) for name in about["cubins"] if self._cubin(module, name).is_file())
        fitting = [found for found in have if found[0] == self._capability[0] and found <= self._capability]
        file = self._cubin(module, "sm_{}{}".format(*fitting[-1])) if fitting else self._place / f"{module}.ptx"
        if not fitting:
            self._use_ptx(module, about["target"], have)
        try:
            data = file.read_bytes()
        except OSError as error:
            raise UnavailableError(f"{file}: cannot be read: {error.strerror}; install the package again") from None
        return Image(file, data if fitting else data + b"\0", about["entries"])

    def _use_ptx(self, module: str, target: str, have: list[tuple[int, int]]) -> None:
        cubins = ", ".join(f"{major}.{minor}" for major, minor in have) or "none"
        lowest = _capability(target)
        if self._capability < lowest:
            raise CudaError(
                f"{self._title}: too old for these kernels, which need compute capability "
                f"{lowest[0]}.{lowest[1]} or more (there are images for {cubins}); use another GPU, or --device cpu"
            )
        if not self._told:
            _log.warning(
                "%s: no compiled image of kernel %s for it (there are images for %s): THE DRIVER COMPILES PTX NOW, "
                "which costs seconds at every start; `pilotlight build kernels` makes an image",
                self._title,
                module,
                cubins,
            )
            self._told = True

    def _cubin(self, module: str, architecture: str) -> Path:
        return self._place / architecture / f"{module}.cubin"


def _capability(architecture: str) -> tuple[int, int]:
    """ "sm_90" -> (9, 0), "sm_120" -> (12, 0)."""
    number = int(architecture.removeprefix("sm_"))
    return number // 10, number % 10
