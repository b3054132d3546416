"""Draws the ablation: for each claim its workload's number on every step."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from infer_bench.serving.ablation_claims import Measured, metric_words

ACCENT, BESIDE, REST, INK = "#0f766e", "#94a3b8", "#e2e8f0", "#1f2937"


class Panel(NamedTuple):
    """One claim's number.

    Attributes:
        title: what is shown.
        workload: that shows it.
        metric: of it: seconds, where less is better, or a rate.
        step: whose claim it is; it is compared with the one before it.
        left_out: steps whose bars would dwarf the two that are compared; their numbers stand below instead.
    """

    title: str
    workload: str
    metric: str
    step: str
    left_out: tuple[str, ...] = ()

    @property
    def is_time(self) -> bool:
        """Whether the metric is seconds."""
        return not self.metric.endswith("_per_s")

    @property
    def axis(self) -> str:
        """The axis's name, with its unit."""
        unit, better = ("milliseconds", "less") if self.is_time else ("output tokens per second", "more")
        return f"{unit}, on {self.workload} ({better} is better)"


PANELS = (
    Panel("Continuous batching: P99 time to first token", "continuous_batching", "ttft_p99_s", "continuous"),
    Panel("Paged cache: throughput of a burst", "paged_attention", "output_tokens_per_s", "paged"),
    Panel("Chunked prefill: P99 time between tokens", "chunked_prefill", "itl_p99_s", "chunked"),
    Panel(
        "Prefix caching: median time to first token", "prefix_caching", "ttft_p50_s", "prefix", ("static", "continuous")
    ),
)


def draw(measured: Measured, labels: Mapping[str, str], path: Path, *, title: str) -> Path:
    """Draw a panel of bars, one a step, for each claim, and return `path`; `labels` are the steps'."""
    figure = Figure(figsize=(10.5, 6.0), layout=ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.1))
    figure.suptitle(title, fontsize=13, color=INK)
    figure.supxlabel("green: the step that brings it; dark: the one before it", fontsize=9, color=INK)
    for panel, axis in zip(PANELS, figure.subplots(2, 2).flat, strict=True):
        steps = [step for step in labels if step not in ("capped", *panel.left_out)]
        values = [measured[step][panel.workload][panel.metric] for step in steps]
        shown = [1e3 * value if panel.is_time else value for value in values]
        place = steps.index(panel.step)
        colours = [{0: ACCENT, -1: BESIDE}.get(index - place, REST) for index in range(len(steps))]
        bars = axis.barh([labels[step] for step in steps], shown, color=colours, height=0.68)
        axis.bar_label(bars, [metric_words(panel.metric, value) for value in values], padding=4, fontsize=9, color=INK)
        axis.invert_yaxis()
        axis.margins(x=0.16)
        axis.set_title(panel.title, loc="left", fontsize=11, color=INK)
        axis.set_xlabel(panel.axis + _words_left_out(panel, measured, labels), fontsize=9, color=INK)
        axis.tick_params(labelsize=9, colors=INK, length=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.spines["bottom"].set_color(BESIDE)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def _words_left_out(panel: Panel, measured: Measured, labels: Mapping[str, str]) -> str:
    values = {labels[step]: measured[step][panel.workload][panel.metric] for step in panel.left_out}
    words = [f"{label} {metric_words(panel.metric, value)}" for label, value in values.items()]
    return f"\nnot drawn: {', '.join(words)}" if words else ""
