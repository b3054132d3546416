"""The serving ladder in one picture: for each claim its workload's number on every rung. Knows numbers and colours."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ladder_claims import Measured, metric_words

ACCENT, BESIDE, REST, INK = "#0f766e", "#94a3b8", "#e2e8f0", "#1f2937"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One claim's number.

    Attributes:
        title: what is shown.
        axis: with its unit.
        workload: that shows it.
        metric: of it.
        rung: whose claim it is; the one below it is what it is compared with.
        factor: from the metric's unit to the axis's.
        left_out: rungs whose bars would dwarf the two that are compared; their numbers stand below instead.
    """

    title: str
    axis: str
    workload: str
    metric: str
    rung: str
    factor: float = 1.0
    left_out: tuple[str, ...] = ()


PANELS = (
    Panel(
        title="Continuous batching: P99 time to first token",
        axis="milliseconds, on continuous_batching (less is better)",
        workload="continuous_batching",
        metric="ttft_p99_s",
        rung="continuous",
        factor=1e3,
    ),
    Panel(
        title="Paged cache: throughput of a burst",
        axis="output tokens per second, on paged_attention (more is better)",
        workload="paged_attention",
        metric="output_tokens_per_s",
        rung="paged",
    ),
    Panel(
        title="Chunked prefill: P99 time between tokens",
        axis="milliseconds, on chunked_prefill (less is better)",
        workload="chunked_prefill",
        metric="itl_p99_s",
        rung="chunked",
        factor=1e3,
    ),
    Panel(
        title="Prefix caching: median time to first token",
        axis="milliseconds, on prefix_caching (less is better)",
        workload="prefix_caching",
        metric="ttft_p50_s",
        rung="prefix",
        factor=1e3,
        left_out=("static", "continuous"),
    ),
)


def draw(measured: Measured, names: Mapping[str, str], path: Path, *, title: str) -> Path:
    """Draw a panel of bars, one a rung, for each claim, and return `path`.

    Args:
        measured: the ladder.
        names: the rungs' for people.
        path: of the PNG.
        title: above it all.
    """
    figure = Figure(figsize=(10.5, 6.0), layout=ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.1))
    figure.suptitle(title, fontsize=13, color=INK)
    figure.supxlabel("green: the rung that brings it; dark: the one before it", fontsize=9, color=INK)
    for panel, axis in zip(PANELS, figure.subplots(2, 2).flat, strict=True):
        rows = [rung for rung in names if rung not in ("capped", *panel.left_out)]
        values = [measured[rung][panel.workload][panel.metric] for rung in rows]
        below = rows.index(panel.rung) - 1
        colours = [
            ACCENT if rung == panel.rung else BESIDE if index == below else REST for index, rung in enumerate(rows)
        ]
        labels = [names[rung] for rung in rows]
        bars = axis.barh(labels, [value * panel.factor for value in values], color=colours, height=0.68)
        axis.bar_label(bars, [metric_words(panel.metric, value) for value in values], padding=4, fontsize=9, color=INK)
        axis.invert_yaxis()
        axis.margins(x=0.16)
        axis.set_title(panel.title, loc="left", fontsize=11, color=INK)
        axis.set_xlabel(panel.axis + _words_left_out(panel, measured, names), fontsize=9, color=INK)
        axis.tick_params(labelsize=9, colors=INK, length=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.spines["bottom"].set_color(BESIDE)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def _words_left_out(panel: Panel, measured: Measured, names: Mapping[str, str]) -> str:
    values = {rung: measured[rung][panel.workload][panel.metric] for rung in panel.left_out}
    words = [f"{names[rung]} {metric_words(panel.metric, value)}" for rung, value in values.items()]
    return f"\nnot drawn: {', '.join(words)}" if words else ""
