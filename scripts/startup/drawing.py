"""A recorded comparison of starts as a picture: the waterfall of our median start, and bars against the others.

Apart from scripts/plot_benchmarks because only it needs the ledger's spans.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from .compare import last_mark
from .ledger import Span, spans
from .sides import OURS

CRITICAL, BESIDE, PEER = "#d9480f", "#f4b596", "#74838f"
_LEAST_SHARE = 0.01  # of the start: a shorter span is no bar that anybody sees


def draw(result: Mapping[str, Any], target: Path) -> None:
    condition, sides = next(iter(result["conditions"].items()))
    document = sides.get(OURS, {}).get("ledger")
    bars = [
        (f"{name} ({condition})", found)
        for condition, sides in result["conditions"].items()
        for name, found in sides.items()
    ]
    shown = _spans(document) if document else []
    heights = [max(2, len(shown)), len(bars)] if shown else [len(bars)]
    figure, axes = plt.subplots(
        len(heights), figsize=(6.8, 0.22 * sum(heights) + 1.2), layout="constrained", height_ratios=heights,
        squeeze=False, sharex=False,
    )  # fmt: skip
    if shown:
        _waterfall(axes[0][0], shown, condition)
    _bars(axes[-1][0], bars)
    machine = result["machine"]
    figure.suptitle(
        f"exec to first streamed token: {result['model']} in {result['dtype']}, {machine['cores']} cores of "
        f"{machine['cpu']}; medians of {result['count']} starts in turn",
        fontsize=7,
    )
    figure.savefig(target, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def _spans(document: Mapping[str, Any]) -> list[Span]:
    """Those that are long enough to be seen."""
    started = spans(document)
    least = _LEAST_SHARE * max(span["end"] for span in started)
    return [span for span in started if span["end"] - span["start"] >= least]


def _waterfall(axes: Axes, shown: list[Span], condition: str) -> None:
    for number, span in enumerate(shown):
        width = 1000 * (span["end"] - span["start"])
        axes.barh(
            number, width, left=1000 * span["start"], color=CRITICAL if span["critical"] else BESIDE, height=0.7
        )
        rate = f", {span['bytes'] / width / 1e6:.1f} GB/s" if span["bytes"] else ""
        axes.annotate(f" {width:.0f}{rate}", (1000 * span["end"], number), va="center", fontsize=6)
    axes.set_yticks(range(len(shown)), [f"{span['process']}: {span['name']}" for span in shown], fontsize=6)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("ms since exec", fontsize=6)
    axes.set_title(f"our median start ({condition}); what decided it is dark", fontsize=7)
    axes.tick_params(axis="x", labelsize=6)


def _bars(axes: Axes, entries: list[tuple[str, Mapping[str, Any]]]) -> None:
    labels = []
    for number, (label, found) in enumerate(entries):
        last = last_mark(found["median"])
        median, (low, high) = found["median"][last], found["quartiles"][last]
        axes.barh(
            number, 1000 * median, xerr=[[1000 * (median - low)], [1000 * (high - median)]], height=0.7,
            color=CRITICAL if label.startswith(f"{OURS} (") else PEER, error_kw={"elinewidth": 0.8},
        )  # fmt: skip
        axes.annotate(f" {1000 * median:.0f}", (1000 * high, number), va="center", fontsize=6)
        labels.append(label if last == "first_token" else f"{label}: {last.replace('_', ' ')}")
    axes.set_yticks(range(len(labels)), labels, fontsize=6)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(right=2 * max(1000 * found["quartiles"][last_mark(found["median"])][1] for _, found in entries))
    axes.set_xlabel("ms, median and the middle half (logarithmic)", fontsize=6)
    axes.tick_params(axis="x", labelsize=6)
