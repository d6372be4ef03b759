"""Small wrongs that a person could write into a kernel, drawn by a seed: what `scripts/prove mutants` plants.

A mutant that the kernels' tests pass shows what they do not look at.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Rewrite = Callable[[str, random.Random], str]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One replacement in one file: `original[start:end]` becomes `replacement`."""

    file: str  # relative to the sources
    line: int
    operator: str
    before: str  # the line, stripped
    after: str
    start: int
    end: int
    replacement: str

    def apply(self, sources: Path) -> None:
        path = sources / self.file
        text = path.read_text()
        path.write_text(text[: self.start] + self.replacement + text[self.end :])

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.operator}: {self.before}  ->  {self.after}"


def _to(*choices: str) -> Rewrite:
    return lambda _, rng: rng.choice(choices)


def _number(found: str, rng: random.Random) -> str:
    value = int(found)
    return str(rng.choice([value + 1, value * 2 or 2, value - 1 if value > 1 else value + 2]))


def _exchange(*pairs: tuple[str, str]) -> Rewrite:
    both = dict(pairs) | {b: a for a, b in pairs}
    return lambda found, _: both[found]


# By name: a pattern, whose group 1 (or else the whole match) is replaced, and what it becomes. Comments, strings,
# preprocessor lines and static_asserts are blank when it is searched for.
OPERATORS: dict[str, tuple[str, Rewrite]] = {
    "index": (r"(?<=\w)\[[^\[\]]+(\])", _to(" + 1]", " - 1]")),
    "sign": (r"(?<=[\w)\]]) ([+-]) (?=[\w(])", _exchange(("+", "-"))),
    "factor": (r"(?<=[\w)\]]) (\*) (?=[\w(])", _to("+")),
    "divide": (r"(?<=[\w)\]]) ([/%]) (?=[\w(])", _exchange(("/", "%"))),
    "bits": (r"(?<=[\w)\]]) ([\^&|]) (?=[\w(])", lambda found, rng: rng.choice([c for c in "^&|" if c != found])),
    "shift": (r"(?<=[\w)\]]) (<<|>>) (?=[\w(])", _exchange(("<<", ">>"))),
    "comparison": (r"(?<=[\w)\]]) (<=|>=|==|!=|<|>) (?=[\w(-])", _exchange(("<", "<="), (">", ">="), ("==", "!="))),
    "logic": (r" (&&|\|\|) ", _exchange(("&&", "||"))),
    "order removed": (
        r"\b(?:__syncthreads|__syncwarp|__threadfence|commit_copies|wait_copies)(?:<[^<>;]*>)?\([^();]*\);",
        _to(";"),
    ),
    "stage dropped": (r"\bwait_copies<([^<>;]+)>", lambda found, _: f"({found}) + 1"),
    "mask": (r"\b(0x[0-9a-fA-F]+[uU]?)", lambda found, rng: rng.choice([f"({found} << 1)", f"({found} >> 1)"])),
    "constant": (r"(?<![\w.])(\d+)(?![\w.])", _number),
    "real": (r"(?<![\w.])(\d+\.\d*(?:e[+-]?\d+)?f?)(?!\w)", lambda found, _: f"({found} + 0.5f)"),
    "narrow": (r"\b(i64|u64|size_t|long long)\b", _to("int")),
    "extreme": (r"\bf?(min|max)f?(?=\()", _exchange(("min", "max"))),
    "accumulate": (r" ([+*|-]=) ", _to("=")),
}  # fmt: skip
_BLANK = re.compile(
    r'//[^\n]*|/\*.*?\*/|"[^"\n]*"|^[ \t]*#(?:[^\n\\]|\\\n)*|\bstatic_assert\([^;]*;|__launch_bounds__\([^)]*\)',
    re.DOTALL | re.MULTILINE,
)


def blanked(text: str) -> str:
    """`text` with what no operator may touch as spaces, so that offsets stay."""
    return _BLANK.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def candidates(sources: Path, files: Sequence[str]) -> dict[str, list[tuple[str, int, int]]]:
    """Where each operator applies: (file, start, end)."""
    found: dict[str, list[tuple[str, int, int]]] = {name: [] for name in OPERATORS}
    for file in files:
        text = blanked((sources / file).read_text())
        for name, (pattern, _) in OPERATORS.items():
            for match in re.finditer(pattern, text):
                group = 1 if match.re.groups else 0
                found[name].append((file, match.start(group), match.end(group)))
    return found


def draw(sources: Path, files: Sequence[str], seed: int) -> list[Mutant]:
    """Every mutant that the sources have room for, one at each place; the operators take turns."""
    rng = random.Random(seed)
    places = candidates(sources, files)
    for found in places.values():
        rng.shuffle(found)
    drawn = []
    while any(places.values()):
        for name in rng.sample(sorted(places), len(places)):
            if places[name]:
                file, start, end = places[name].pop()
                drawn.append(_mutant(sources, file, start, end, name, rng))
    return drawn


def _mutant(sources: Path, file: str, start: int, end: int, operator: str, rng: random.Random) -> Mutant:
    text = (sources / file).read_text()
    replacement = OPERATORS[operator][1](text[start:end], rng)
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    after = text[first:start] + replacement + text[end:last]
    line = text.count("\n", 0, start) + 1
    return Mutant(file, line, operator, text[first:last].strip(), after.strip(), start, end, replacement)
