"""Draws serving runs, latency against throughput and one run over time; the style of all pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from infer_bench.client.load import RequestResult
from infer_bench.client.summary import gaps_s

ACCENT, WAITING, MUTED, INK = "#2a6fbb", "#f0b35e", "#9fc3e8", "#333333"
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#bbbbbb",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "figure.dpi": 110,
    "font.size": 11,
    "grid.color": "#eeeeee",
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def plot_sweep(points: Mapping[float, dict[str, Any]], path: Path, *, title: str, unit: str) -> None:
    """Draw latency against throughput, TTFT on the left and ITL on the right.

    Args:
        points: summaries by load, the rate or the concurrency, in its order.
        path: the PNG to write.
        title: what was run on what.
        unit: unit of the loads, as the points' labels show it.
    """
    fine = {load: point for load, point in points.items() if point["itl_s"]["p50"] is not None}
    rates = [point["output_tokens_per_s"] for point in fine.values()]
    with mpl.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
        for axes, name in zip(panels, ("TTFT", "ITL"), strict=True):
            for percent, color in (("p99", WAITING), ("p50", ACCENT)):
                times = [1e3 * point[f"{name.lower()}_s"][percent] for point in fine.values()]
                axes.plot(rates, times, "o-", color=color, label=percent.upper())
            for load, rate, time in zip(fine, rates, times, strict=True):
                axes.annotate(f"{load:g}", (rate, time), textcoords="offset points", xytext=(0, 7), color=ACCENT)
            axes.set(xlabel=f"output tokens/s (numbers: {unit})", ylabel=f"{name}, ms")
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
            axes.legend(loc="upper left")
        panels[0].set_title(title)
        save_figure(figure, path)


def plot_timeline(results: Sequence[RequestResult], path: Path, *, title: str) -> None:
    """Draw every gap between tokens over time, above the requests: waiting and prefilled, then decoded."""
    fine = [result for result in results if result.token_times_s]
    with mpl.rc_context(STYLE):
        figure, (gaps, rows) = plt.subplots(
            2, 1, figsize=(10, 6.2), sharex=True, layout="constrained", height_ratios=(3, 2)
        )
        firsts = [result.token_times_s[0] for result in fine]
        gaps.vlines(firsts, 0, 1, transform=gaps.get_xaxis_transform(), color=WAITING, linewidth=0.7, zorder=1)
        times = [time_s for result in fine for time_s in result.token_times_s[1:]]
        gaps.plot(times, [1e3 * gap for result in fine for gap in gaps_s(result)], ".", color=ACCENT, markersize=4)
        gaps.set_ylabel("gap before a token, ms")
        gaps.set_ylim(bottom=0)
        gaps.set_title(title)
        for row, result in enumerate(fine):
            rows.hlines(row, result.arrival_s, result.token_times_s[0], color=WAITING, linewidth=2.4)
            rows.hlines(row, result.token_times_s[0], result.token_times_s[-1], color=MUTED, linewidth=2.4)
        rows.invert_yaxis()
        rows.set_ylabel("request")
        rows.set_xlabel("seconds since the start")
        rows.set_xlim(left=0)
        handles = [Line2D([], [], color=color, linewidth=2.4) for color in (WAITING, MUTED)]
        labels = ["waits and is prefilled, until its first token (lines above)", "is decoded"]
        figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=10)
        save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, and say so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    print("drew", path)
