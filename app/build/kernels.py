"""`pilotlight build kernels`: the CUDA sources become PTX, one cubin per architecture and a manifest.

PTX is compiled once, for the lowest target that we run on, and every cubin is assembled from that very text, so that
what tests ran on PTX is what every card runs. PTX and manifest are committed; cubins are made where an image is.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..command_line import Parser
from ..errors import KernelError, UnavailableError, UsageError
from ..source import expand
from . import kernel_ptx
from .kernel_compilers import ARCHITECTURES, NEEDS_EXTRA, Cubin, Sources, assemble, compile_to_ptx, compiler_versions
from .kernel_rules import check_text, check_usage
from .writer import replacing, write_document

FORMAT = 1
MANIFEST = "manifest.json"
MAX_CUBIN_BYTES = 40_000_000  # of all together; the image carries them
_CHECKOUT = Path(__file__).resolve().parents[2]

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Module:
    """One compiled module: its text, its images by architecture, and its part of the manifest."""

    text: str
    cubins: dict[str, bytes]
    document: Document


def command(argv: list[str]) -> int:
    """Runs `pilotlight build kernels`. Returns the exit code; raises PilotlightError."""
    options = _parse(argv)
    sources, output = Path(expand(options.source)), Path(os.path.realpath(expand(options.output)))
    made = build_kernels(sources, output, options.modules)
    size = sum(file.stat().st_size for file in output.glob("sm_*/*.cubin"))
    what = f"compiled {', '.join(made)}" if made else "up to date"
    print(f"{output}: {what}; {size / 1e6:.1f} MB of cubins")
    return 0


def build_kernels(source: Path, output: Path, only: Sequence[str] = ()) -> list[str]:
    """Brings `output` up to date with the kernels in `source`; returns the modules that were made anew.

    `only` names the modules to look at (default: all); of the others, those that are whole stay as they are. On any
    failure `output` stays as it was.
    """
    sources = Sources(source)
    names = sources.modules()
    for name in only:
        if name not in names:
            raise UsageError(f"{source}: has no {name}.cu")
    if not names:
        raise UsageError(f"{source}: has no kernels (*.cu)")
    compilers = compiler_versions()
    try:
        with _locked(output):
            return _update(sources, output, compilers, set(only or names))
    except OSError as error:
        raise UnavailableError(f"{error.filename or output}: {error.strerror}; {output} is as it was") from error


def stale_modules(source: Path, output: Path) -> list[str]:
    """Modules whose part of `output` is missing, changed, or made from other sources. Needs no compiler."""
    sources = Sources(source)
    recorded = _read_manifest(output)["modules"]
    names = set(sources.modules())
    return sorted(
        name
        for name in names | set(recorded) | {file.stem for file in output.glob("*.ptx")}
        if name not in names
        or name not in recorded
        or recorded[name]["sources_sha256"] != sources.digest(name)
        or not _intact(output, name, recorded[name])
    )


def _update(sources: Sources, output: Path, compilers: dict[str, str], wanted: set[str]) -> list[str]:
    manifest = _read_manifest(output)
    recorded: dict[str, Document] = manifest["modules"]
    same_compilers = manifest["compilers"] == compilers
    # Taken first: what is edited while it compiles is stale afterwards.
    digests = {name: sources.digest(name) for name in sources.modules()}
    kept: dict[str, Module] = {}
    texts: dict[str, str | None] = {}  # of the modules to make; None where the text is to be compiled too
    for name, digest in digests.items():
        document = recorded.get(name)
        if document is None or not _intact(output, name, document):
            if name in wanted:
                texts[name] = None
            continue
        current = same_compilers and document["sources_sha256"] == digest
        if name not in wanted or (current and _has_cubins(output, name, document)):
            kept[name] = _kept_module(output, name, document)
        else:
            texts[name] = (output / f"{name}.ptx").read_text(encoding="utf-8") if current else None
    if kept and not same_compilers:
        raise UsageError(f"{', '.join(kept)} came from other compilers: build all modules at once")
    if not texts and set(recorded) == set(kept):
        return []
    made = _make(sources, texts)
    modules = kept | {name: _module(name, text, cubins, digests[name]) for name, (text, cubins) in made.items()}
    _check_whole(modules)
    with replacing(output) as partial:
        for name, module in modules.items():
            write_document(partial / f"{name}.ptx", module.text.encode())
            for architecture, image in module.cubins.items():
                write_document(partial / architecture / f"{name}.cubin", image)
        documents = {name: modules[name].document for name in sorted(modules)}
        whole = {"format": FORMAT, "compilers": compilers, "modules": documents}
        write_document(partial / MANIFEST, format_json(whole).encode())
    return sorted(texts)


def _make(sources: Sources, texts: dict[str, str | None]) -> dict[str, tuple[str, dict[str, Cubin]]]:
    """Compiles and assembles, as many at a time as there are CPUs: each module's text, and the cubins of it."""
    workers = len(os.sched_getaffinity(0))
    images: dict[str, dict[str, Future[Cubin]]] = {}
    finished: dict[str, str] = {}
    with _progress(len(texts) * (1 + len(ARCHITECTURES))) as step, ThreadPoolExecutor(workers) as pool:
        try:
            pending = {name: pool.submit(_text, sources, name, text) for name, text in texts.items()}
            for name, future in pending.items():
                finished[name] = future.result()
                step()
                images[name] = {
                    architecture: pool.submit(assemble, architecture, name, finished[name])
                    for architecture in ARCHITECTURES
                }
            cubins: dict[str, dict[str, Cubin]] = {}  # by module and architecture
            for name, futures in images.items():
                cubins[name] = {}
                for architecture, image in futures.items():
                    cubins[name][architecture] = image.result()
                    step()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {name: (finished[name], cubins[name]) for name in texts}


def _text(sources: Sources, name: str, text: str | None) -> str:
    if text is None:
        text = compile_to_ptx(sources, name)
    _refuse(check_text(name, text))
    return text


def _module(name: str, text: str, cubins: dict[str, Cubin], digest: str) -> Module:
    """The module with its part of the manifest. Raises KernelError where it breaks a promise."""
    entries = kernel_ptx.entries(text)
    _refuse(
        breach
        for entry in entries
        for architecture, cubin in cubins.items()
        for breach in check_usage(name, entry, architecture, cubin.usage[entry.name])
    )
    document = {
        "sources_sha256": digest,
        "ptx_sha256": _sha256(text.encode()),
        "version": kernel_ptx.version(text),
        "target": kernel_ptx.target(text),
        "cubins": {
            architecture: {"bytes": len(cubin.image), "sha256": _sha256(cubin.image)}
            for architecture, cubin in cubins.items()
        },
        "entries": {
            entry.name: {
                "parameters": [asdict(parameter) for parameter in entry.parameters],
                "max_threads": entry.max_threads,
                "min_blocks": entry.min_blocks,
                "static_shared_bytes": max(cubin.usage[entry.name].static_shared_bytes for cubin in cubins.values()),
                "architectures": {
                    architecture: asdict(cubin.usage[entry.name]) for architecture, cubin in cubins.items()
                },
            }
            for entry in sorted(entries, key=lambda entry: entry.name)
        },
    }
    return Module(text, {architecture: cubin.image for architecture, cubin in cubins.items()}, document)


def _check_whole(modules: dict[str, Module]) -> None:
    """What only all modules together can break."""
    owner: dict[str, str] = {}
    for name, module in modules.items():
        for entry in module.document["entries"]:
            if entry in owner:
                raise KernelError(f"kernels/{name}.cu: {entry} is an entry of kernels/{owner[entry]}.cu too")
            owner[entry] = name
    size = sum(cubin["bytes"] for module in modules.values() for cubin in module.document["cubins"].values())
    if size > MAX_CUBIN_BYTES:
        raise KernelError(f"the cubins have {size / 1e6:.1f} MB in all, over {MAX_CUBIN_BYTES / 1e6:.0f} MB")


def _refuse(breaches: Iterator[str]) -> None:
    """Raises KernelError, a line a breach: the first ten, since the others are mostly the same in another entry."""
    found = list(breaches)
    if found:
        more = [f"and {len(found) - 10} more"] if found[10:] else []
        raise KernelError("\n".join(found[:10] + more))


# --- what is already there -------------------------------------------------------------------------------------


def _read_manifest(output: Path) -> Document:
    """The manifest at `output`, an empty one where nothing is there. Raises UsageError where anything else is."""
    try:
        manifest = json.loads((output / MANIFEST).read_bytes())
    except FileNotFoundError:
        if output.is_dir() and any(output.iterdir()):
            raise UsageError(f"{output}: is there and holds no kernels; choose another directory") from None
        return {"compilers": {}, "modules": {}}
    except ValueError as error:
        raise UsageError(f"{output / MANIFEST}: is not JSON ({error}); remove it") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return {"compilers": {}, "modules": {}}
    return manifest


def _intact(output: Path, name: str, document: Document) -> bool:
    file = output / f"{name}.ptx"
    return file.is_file() and _sha256(file.read_bytes()) == document["ptx_sha256"]


def _has_cubins(output: Path, name: str, document: Document) -> bool:
    return set(document["cubins"]) == set(ARCHITECTURES) and all(
        (file := output / architecture / f"{name}.cubin").is_file() and _sha256(file.read_bytes()) == cubin["sha256"]
        for architecture, cubin in document["cubins"].items()
    )


def _kept_module(output: Path, name: str, document: Document) -> Module:
    cubins = {
        architecture: file.read_bytes()
        for architecture in document["cubins"]
        if (file := output / architecture / f"{name}.cubin").is_file()
    }
    return Module((output / f"{name}.ptx").read_text(encoding="utf-8"), cubins, document)


@contextlib.contextmanager
def _locked(output: Path) -> Iterator[None]:
    """One build at a time: the directory itself is locked, again where another build has replaced it meanwhile.

    It is made for that, and goes again where the build fails and nothing has come into it.
    """
    while True:
        output.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(output, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not output.exists() or not os.path.samestat(os.fstat(descriptor), output.stat()):
                continue
            try:
                yield
            except BaseException:
                with contextlib.suppress(OSError):
                    output.rmdir()
                raise
            return
        finally:
            os.close(descriptor)


# --- small things --------------------------------------------------------------------------------------------


def format_json(value: Any, indent: int = 0) -> str:
    """JSON in which whatever has no further level stands on one line."""
    if not isinstance(value, dict) or not any(isinstance(item, dict | list) for item in value.values()):
        return json.dumps(value)
    margin = "\n" + " " * (indent + 1)
    items = (f"{json.dumps(key)}: {format_json(item, indent + 1)}" for key, item in value.items())
    return "{" + margin + ("," + margin).join(items) + "\n" + " " * indent + "}" + ("\n" if not indent else "")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], object]]:
    """A bar on stderr once it takes longer than two seconds."""
    try:
        from tqdm import tqdm
    except ImportError:
        raise UnavailableError(f"`pilotlight build kernels` {NEEDS_EXTRA}") from None
    with tqdm(total=total, desc="kernels", unit=" compilations", delay=2, leave=False) as bar:
        yield bar.update


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        "pilotlight build kernels",
        "Compile the CUDA kernels to PTX, and to a cubin per architecture; only what has changed.",
    )
    parser.add_argument("modules", metavar="MODULE", nargs="*", help="look at these only (default: all)")
    parser.add_argument(
        "--source", metavar="DIR", default=str(_CHECKOUT / "kernels"), help="the *.cu (default: kernels)"
    )
    parser.add_argument("-o", "--output", metavar="DIR", default=str(_CHECKOUT / "ptx"), help="default: ptx")
    return parser.parse_args(argv)
