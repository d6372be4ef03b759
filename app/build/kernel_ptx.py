"""Reads PTX, its entries and their parameters, and makes its text, version and file names the same on every machine.

Apart from the compilers, since all of it is text in and data out.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# The lowest version that holds mma m16n8k16, ldmatrix, cp.async and the cache hints is 7.4 (CUDA 11.4), and no driver
# that we run on is older. The last is what NVRTC 12.8 writes.
VERSIONS = ("7.4", "7.5", "7.6", "7.7", "7.8", "8.0", "8.1", "8.2", "8.3", "8.4", "8.5", "8.6", "8.7")

LOC = re.compile(r"\s*\.loc\s+(\d+) (\d+) ")  # number of the file, line
_VERSION = re.compile(r"^\.version (\d+\.\d+)$", re.MULTILINE)
_TARGET = re.compile(r"^\.target (\w+)", re.MULTILINE)
_FILE = re.compile(r'^(\s*\.file\s+\d+ )"([^"]*)"(?:, \d+, \d+)?$', re.MULTILINE)
_CALL_SITE = re.compile(r"^(\s*\.loc\s+\d+ \d+ \d+), function_name .*$", re.MULTILINE)
_CALL_SITES = re.compile(r"^\s*\.section\s+\.debug_str\s*\{.*?\}\n?", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(
    r"^(?:\.visible |\.weak )?\.entry (?P<name>[\w$]+)\((?P<parameters>[^)]*)\)(?P<directives>[^{]*)"
    r"\{(?P<body>.*?)^\}",
    re.MULTILINE | re.DOTALL,
)
_PARAMETER = re.compile(
    r"\.param (?:\.align (?P<align>\d+) )?\.(?P<type>[a-z]\w*)"
    r"(?: \.ptr(?: \.\w+)?(?: \.align \d+)?)? [\w$]+(?:\[(?P<count>\d+)\])?"
)
_THREADS = re.compile(r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")
_MIN_BLOCKS = re.compile(r"\.minnctapersm\s+(\d+)")
_WIDTH = re.compile(r"\d+$")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an entry: bytes [offset, offset + bytes) of its parameter block."""

    type: str  # "u64", "f32"; "b8" for a struct
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel of a module. max_threads is None where the source promises none; min_blocks is then 1 too."""

    name: str
    parameters: tuple[Parameter, ...]
    max_threads: int | None
    min_blocks: int
    body: str


def version(text: str) -> str:
    return _found(_VERSION, text)


def target(text: str) -> str:
    return _found(_TARGET, text)


def entries(text: str) -> list[Entry]:
    return [_entry(match) for match in _ENTRY.finditer(text)]


def lowest_version(text: str, accepted: Callable[[str], bool]) -> str:
    """The text under the first version of VERSIONS that `accepted` takes, else as it is."""
    written = version(text)
    for candidate in VERSIONS[: VERSIONS.index(written)]:
        lowered = _VERSION.sub(f".version {candidate}", text, count=1)
        if accepted(lowered):
            return lowered
    return text


def with_relative_names(text: str, places: dict[Path, str]) -> str:
    """The text with every `.file` under a name that is the same on every machine.

    places: directory -> what stands for it, the first that holds the file wins: {/home/me/kernels: "kernels"}.
    """

    def settle(match: re.Match[str]) -> str:
        path = Path(match[2])
        for directory, name in places.items():
            if path.is_relative_to(directory):
                return f'{match[1]}"{name}/{path.relative_to(directory).as_posix()}"'
        return f'{match[1]}"{path.name}"'

    return _FILE.sub(settle, text)


def without_call_sites(text: str) -> str:
    """The text with each `.loc` naming its own line only, not also the lines that it was inlined at: these would be a
    third of the text, and no reader of it follows them."""
    return _CALL_SITES.sub("", _CALL_SITE.sub(r"\1", text))


def file_names(text: str) -> dict[str, str]:
    """Number -> name of the `.file` lines, for `.loc`."""
    return {match[1].split()[1]: match[2] for match in _FILE.finditer(text)}


def source_place(text: str, line: int) -> str:
    """ "kernels/norm.cu:12" for a line of the PTX, by the `.loc` before it."""
    files = file_names(text)
    found = [match for before in text.splitlines()[:line] if (match := LOC.match(before))]
    return f"{files.get(found[-1][1], '?')}:{found[-1][2]}" if found else f"PTX line {line}"


def _entry(match: re.Match[str]) -> Entry:
    threads = _THREADS.search(match["directives"])
    blocks = _MIN_BLOCKS.search(match["directives"])
    max_threads = None
    if threads:
        x, y, z = (int(size or 1) for size in threads.groups())
        max_threads = x * y * z
    return Entry(
        name=match["name"],
        parameters=_parameters(match["parameters"]),
        max_threads=max_threads,
        min_blocks=int(blocks[1]) if blocks else 1,
        body=match["body"],
    )


def _parameters(text: str) -> tuple[Parameter, ...]:
    """In order; each is aligned to its size, a struct to what its `.align` says."""
    found = []
    end = 0
    for match in _PARAMETER.finditer(text):
        width = int(_found(_WIDTH, match["type"], 0)) // 8
        align = int(match["align"] or width)
        offset = (end + align - 1) // align * align
        end = offset + width * int(match["count"] or 1)
        found.append(Parameter(match["type"], offset, end - offset))
    return tuple(found)


def _found(pattern: re.Pattern[str], text: str, group: int = 1) -> str:
    match = pattern.search(text)
    if match is None:
        raise ValueError(f"no {pattern.pattern} in PTX")
    return str(match[group])
