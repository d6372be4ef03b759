"""README's table of a benchmark, made from its JSON. scripts/make_docs puts it between the markers."""

from collections.abc import Iterable
from typing import Any

BEGIN, END = "<!-- benchmarks:begin -->\n", "<!-- benchmarks:end -->\n"


def insert(page: str, source: str, result: dict[str, Any]) -> str:
    """`page` with the table of `result`, read from the file named `source`, between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table(source, result) + END + after


def table(source: str, result: dict[str, Any]) -> str:
    counts = list(result["streams"]["pilotlight"])
    head = [
        "",
        *(f"{count} stream{'s' if count != '1' else ''}" for count in counts),
        "start to first token",
        "memory",
    ]
    lines = [row(head), row("---" for _ in head)]
    for side, by_count in result["streams"].items():
        cells = [f"{by_count[count]['tokens_per_s']:.0f} tokens/s" for count in counts]
        lines.append(
            row([side, *cells, f"{result['start_to_first_token'][side]['seconds']:.2f} s", memory(result, side)])
        )
    machine, versions = result["machine"], result["versions"]
    peer = f", transformers {versions['transformers']}, torch {versions['torch']}" if "torch" in versions else ""
    ours = ", ".join(
        f"{entry['ttft_ms']:.0f} ms and {entry['tpot_ms']:.0f} ms at {count}"
        for count, entry in result["streams"]["pilotlight"].items()
    )
    lines += [
        "",
        f"{result['model']} in fp32 over HTTP with streaming, beside transformers' `generate` in process: "
        f"{result['prompt_tokens']} tokens in, {result['output_tokens']} out, {machine['cores']} cores "
        f"({machine['cpu']}), numpy {versions['numpy']}{peer}; medians of {result['rounds']} rounds in turn. "
        f"Time to first token and per token after it: {ours}. "
        f"[{source}]({source}) has every round and the command; `scripts/plot_benchmarks` draws the chart.",
        "",
        f"![tokens per second over streams](docs/benchmark-{source.rpartition('/')[2].removesuffix('.json')}.svg)",
        "",
    ]
    return "\n".join(lines)


def memory(result: dict[str, Any], side: str) -> str:
    """Peak of the resident sets; ours in two processes."""
    if side in result["memory"]:
        return f"{result['memory'][side]['peak_rss_mb']:.0f} MB"
    return " + ".join(f"{result['memory'][process]['peak_rss_mb']:.0f}" for process in ("front", "engine")) + " MB"


def row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
