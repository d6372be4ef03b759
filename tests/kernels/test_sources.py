"""The kernels' sources hold nothing that no kernel uses: NVRTC leaves unused inline functions out without a word."""

import re
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "kernels"
DEFINED = re.compile(
    r"^(?:template <[^>]*>\s+)?(?:inline|__device__)[\w\s*&<>:]*?\b(\w+)\("  # functions
    r"|^\s*(?:static )?constexpr [\w ]+?\b(k\w+) ="
    r"|^struct (?:alignas\(\w+\) )?(\w+)"
    r"|^\s+static [\w<>:]+ (\w+)\(",
    re.MULTILINE,
)


def test_everything_defined_is_used() -> None:
    text = "\n".join(re.sub(r"//.*", "", path.read_text()) for path in sorted(KERNELS.rglob("*.cu*")))
    names = {next(filter(None, found)) for found in DEFINED.findall(text)}
    assert {"mma", "activate", "kUnitTokens", "Splits", "pack"} <= names
    once = {name for name in names if len(re.findall(rf"\b{name}\b", text)) == 1}
    assert once == set()
