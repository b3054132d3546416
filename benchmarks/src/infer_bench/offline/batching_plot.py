"""Draws the result of `batching`: for each mode the rows of the batch step by step, and the queue below."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from infer_bench.serving.plots import INK, STYLE, save_figure

PREFILL, DECODE, HELD, IDLE, QUEUE = "#173f6b", "#8fbbe2", "#d3e3f3", "#efece6", "#b9b4aa"
KINDS = {PREFILL: "prefill", DECODE: "decode", HELD: "admitted, not computed", IDLE: "empty row"}


def plot_batching(result: Mapping[str, Any], path: Path) -> None:
    """Draw a panel of bars and one of the queue for each mode, all over the same steps."""
    modes: dict[str, dict[str, Any]] = result["modes"]
    num_steps = max(mode["steps"] for mode in modes.values())
    most_waiting = max(max(mode["num_waiting"]) for mode in modes.values())
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        figure, panels = plt.subplots(
            2 * len(modes), 1, figsize=(11, 8), layout="constrained", height_ratios=[5, 1] * len(modes)
        )
        for index, (name, mode) in enumerate(modes.items()):
            batch, queue = panels[2 * index : 2 * index + 2]
            _draw_batch(batch, name, mode, num_rows=result["rows"])
            batch.set(xlim=(0, num_steps), xticks=[])
            _draw_queue(queue, mode["num_waiting"], most_waiting)
            queue.set_xlim(0, num_steps)
        panels[-1].set_xlabel("engine step")
        figure.align_ylabels()
        patches = [Patch(facecolor=color, edgecolor="#c9c5bd", label=label) for color, label in KINDS.items()]
        figure.legend(handles=patches, loc="outside upper center", ncols=len(KINDS))
        save_figure(figure, path)


def _draw_batch(axes: Axes, name: str, mode: dict[str, Any], *, num_rows: int) -> None:
    for row in range(num_rows):
        axes.broken_barh([(0, mode["steps"])], (row + 0.1, 0.8), facecolors=IDLE)
    for number, bar in enumerate(mode["bars"], start=1):
        begin, (last, length) = bar["admitted"], (bar["decode"] or bar["prefill"])[-1]
        place = (bar["row"] + 0.1, 0.8)
        axes.broken_barh([(begin, last + length - begin)], place, facecolors=HELD, edgecolor="white", linewidth=0.8)
        axes.broken_barh(bar["decode"], place, facecolors=DECODE)
        axes.broken_barh(bar["prefill"], place, facecolors=PREFILL)
        axes.plot([last + length] * 2, [place[0], sum(place)], color="white", linewidth=1.2)
        prefilled = sum(bar["prefill"][-1])
        axes.text(prefilled + 0.5, bar["row"] + 0.5, str(number), va="center", fontsize=8, color=INK)
    axes.set_title(
        f"{name}: {mode['steps']} steps, {mode['rows_computing']:.0%} of the rows at work, "
        f"{mode['median_steps_to_first_token']} steps to the first token (median)",
        fontweight="bold",
    )
    axes.set_ylim(num_rows, 0)
    axes.set_yticks([row + 0.5 for row in range(num_rows)], [str(row + 1) for row in range(num_rows)])
    axes.set_ylabel("row of the batch")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_queue(axes: Axes, num_waiting: list[int], most_waiting: int) -> None:
    axes.fill_between(range(len(num_waiting) + 1), [*num_waiting, 0], step="post", color=QUEUE, linewidth=0)
    axes.set_ylim(0, most_waiting or 1)
    axes.set_yticks([0, most_waiting or 1])
    axes.set_ylabel("waiting")
