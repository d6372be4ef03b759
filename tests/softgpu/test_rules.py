"""Every rule that the soft GPU knows is named by a test that breaks it."""

import re
from pathlib import Path

HERE = Path(__file__).parent
# Names are in kebab-case; those of one word are told by what takes them.
NAMES = (r'"([a-z]+(?:-[a-z0-9]+)+)"', r'(?:\bfinding\(|\bfault\(\w+,)\s*"([a-z]+)"')


def rules() -> set[str]:
    sources = "".join(file.read_text() for file in sorted((HERE / "src").glob("*.cpp")))
    return {name for pattern in NAMES for name in re.findall(pattern, sources)}


def test_the_search_finds_rules_of_each_kind() -> None:
    assert {"shared-race", "out-of-bounds", "nc-written", "use-after-free", "source-changed", "hang"} <= rules()


def test_every_rule_is_named_by_a_test() -> None:
    files = [file for file in HERE.rglob("*") if file.suffix in (".py", ".cu") and file != Path(__file__)]
    tests = "".join(file.read_text() for file in files)
    assert [rule for rule in sorted(rules()) if not re.search(rf'["\s]{rule}["\s]', tests)] == []
