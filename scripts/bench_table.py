"""README's table of benchmarks, made from their JSON. scripts/make_docs puts it between the markers."""

from collections.abc import Iterable, Mapping
from typing import Any


def insert(page: str, results: Mapping[str, dict[str, Any]]) -> str:
    """`page` with the table of `results`, each by the file that it was read from, between its markers."""
    return between(page, "benchmarks", table(results))


def between(page: str, name: str, text: str) -> str:
    """`page` with `text`, of whole lines, between the two comments that carry `name`; unchanged without them.

    Raises SystemExit where the second comment is missing: all that stands behind the first would be lost.
    """
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->\n"
    before, begins, rest = page.partition(begin)
    if not begins:
        return page
    _, ends, after = rest.partition(end)
    if not ends:
        raise SystemExit(f"a page has <!-- {name}:begin --> and no <!-- {name}:end --> after it; put it back")
    return before + begin + text + end + after


def table(results: Mapping[str, dict[str, Any]]) -> str:
    """A row for each side of each file, and the first file's figure."""
    first, result = next(iter(results.items()))
    columns = list(result["streams"]["pilotlight"])
    titles = {"1": "1 stream", "prefill": f"prompt of {result['prefill_tokens']}"}
    lines = [row(["tokens/s", *(titles.get(column, f"{column} streams") for column in columns), "memory"])]
    lines.append(row("---" for _ in [*columns, "", ""]))
    for each in results.values():
        for side, figures in each["streams"].items():
            cells = [f"{figures[column]['tokens_per_s']:.0f}" if column in figures else "" for column in columns]
            name = f"{each['model']} {each['dtype']}: {side}"
            lines.append(row([name, *cells, memory(each, side)]))
    machine = result["machine"]
    starts = result["start_to_first_token"]["pilotlight"]["seconds"]
    times = ", ".join(
        f"{entry['ttft_ms']:.0f} ms and {entry['tpot_ms']:.1f} ms with {titles.get(column, f'{column} streams')}"
        for column, entry in result["streams"]["pilotlight"].items()
        if column != "prefill"
    )
    sources: dict[int, list[str]] = {}
    for source, each in results.items():
        sources.setdefault(each["output_tokens"], []).append(f"[{source}]({source})")
    lengths = "; ".join(f"{', '.join(links)} (answers of {tokens} tokens)" for tokens, links in sources.items())
    lines += [
        "",
        f"Over HTTP with streaming, prompts of {result['prompt_tokens']} tokens, on {machine['cores']} cores of "
        f"{machine['cpu']} ({', '.join(machine['features'])}); medians of {result['rounds']} rounds, in which the "
        "sides take turns.",
        "",
        f"- The first row's time to first token, and time per token after it: {times}. From the process's start to "
        f"its first token: {starts:.2f} s.",
        "- Memory: peak of the resident sets, mapped weights and kept prompts included; Pilotlight's of its two "
        "processes, front + engine.",
        f"- Every round, and the commands with the peers' flags: {lengths}.",
        "",
        f"![tokens per second over streams](docs/benchmark-{first.rpartition('/')[2].removesuffix('.json')}.svg)",
        "",
    ]
    return "\n".join(lines)


def memory(result: dict[str, Any], side: str) -> str:
    """Peak of the resident sets, the mapped weights included; ours in two processes."""
    if side in result["memory"]:
        return f"{result['memory'][side]['peak_rss_mb']:.0f} MB"
    return " + ".join(f"{result['memory'][process]['peak_rss_mb']:.0f}" for process in ("front", "engine")) + " MB"


def row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
