"""The plots of docs/scale.md, from benchmarks/fleet.json. Imported by scripts/plot_benchmarks alone: it needs
matplotlib, which nothing else here does."""

from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

COLORS = ("#d9480f", "#f08c00", "#74838f", "#1c7ed6")  # the measured start, then the others
ALWAYS_ON = "#212529"


def draw(result: dict[str, Any], folder: Path) -> list[Path]:
    """Draws all plots into `folder`; returns their files."""
    sweeps = result["fleet"]
    measured = f"{result['start']['seconds']:g}"
    return [
        _rate(sweeps["rate"], measured, folder / "scale-rate.svg"),
        _idle(sweeps["idle"], measured, folder / "scale-idle.svg"),
        _size(sweeps["concurrency"], sweeps["max_replicas"], measured, folder / "scale-size.svg"),
    ]


def _rate(sweep: dict[str, Any], measured: str, target: Path) -> Path:
    figure, (bill, wait) = plt.subplots(1, 2, figsize=(8.6, 3.4), layout="constrained")
    _lines(bill, sweep, measured, "rate", "mean_replicas", marker=".", linestyle="none")
    for points, color in zip(sweep["curves"].values(), COLORS, strict=True):
        bill.plot(_column(points, "rate"), _column(points, "closed_form"), color=color, linewidth=1)
    bill.axhline(1, color=ALWAYS_ON, linestyle=":")
    bill.text(0.1, 1.1, "always on", fontsize=8)
    _lines(wait, sweep, measured, "rate", "ttft_p99")
    for axes in (bill, wait):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("requests an hour (Poisson)")
    bill.set_ylabel("bill, always on = 1")
    wait.set_ylabel("TTFT p99, seconds")
    return _save(figure, wait, target)


def _idle(sweep: dict[str, Any], measured: str, target: Path) -> Path:
    figure, (bill, cold) = plt.subplots(1, 2, figsize=(8.6, 3.4), layout="constrained")
    _lines(bill, sweep, measured, "idle", "cost_per_million")
    _lines(cold, sweep, measured, "idle", "cold_share", factor=100)
    tokens = sweep["rate"] * sweep["output_tokens"]  # an hour
    bill.axhline(1e6 / tokens, color=ALWAYS_ON, linestyle=":")
    bill.text(0, 0.85 * 1e6 / tokens, "one always on", fontsize=8, verticalalignment="top")
    for axes in (bill, cold):
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(left=-0.2)
        axes.set_xlabel("idle seconds before a replica is stopped")
        axes.xaxis.set_major_formatter("{x:g}")
    bill.set_yscale("log")
    bill.set_ylabel("per million tokens, at 1 an hour")
    cold.set_ylabel("% of requests that find none ready")
    return _save(figure, cold, target)


def _size(concurrency: dict[str, Any], most: dict[str, Any], measured: str, target: Path) -> Path:
    figure, ((cost, pace), (burst_cost, burst_wait)) = plt.subplots(2, 2, figsize=(8.6, 6.2), layout="constrained")
    _lines(cost, concurrency, measured, "concurrency", "cost_per_million")
    _lines(pace, concurrency, measured, "concurrency", "tpot_p50", factor=1000)
    for axes in (cost, pace):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("concurrency (a steady stream)")
    cost.set_yscale("log", base=2)
    cost.yaxis.set_major_formatter("{x:g}")
    pace.set_ylim(bottom=0)
    pace.set_ylabel("time per token, ms (median)")
    _lines(burst_cost, most, measured, "max_replicas", "cost_per_million")
    _lines(burst_wait, most, measured, "max_replicas", "ttft_p99")
    burst_wait.set_yscale("log")
    for axes in (burst_cost, burst_wait):
        axes.set_xlabel("most replicas (bursts of a minute)")
    for axes in (cost, burst_cost):
        axes.set_ylabel("per million tokens, at 1 an hour")
    burst_wait.set_ylabel("TTFT p99, seconds")
    return _save(figure, burst_wait, target)


def _lines(
    axes: Axes,
    sweep: dict[str, Any],
    measured: str,
    x: str,
    y: str,
    *,
    factor: float = 1,
    marker: str = "o",
    linestyle: str = "-",
) -> None:
    for (start, points), color in zip(sweep["curves"].items(), COLORS, strict=True):
        label = f"start {start} s" + (" (measured)" if start == measured else "")
        values = [value * factor for value in _column(points, y)]
        axes.plot(
            _column(points, x), values, marker=marker, markersize=4, linestyle=linestyle, color=color, label=label
        )
    axes.grid(alpha=0.3)


def _column(points: list[dict[str, Any]], name: str) -> list[float]:
    return [point[name] for point in points]


def _save(figure: Any, legend: Axes, target: Path) -> Path:
    legend.legend(frameon=False, fontsize=8)
    figure.savefig(target, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return target
