"""Draws a soak: the memory of each process over time, and the P99 of each minute below."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from infer_bench.plots import ACCENT, MUTED, STYLE, WAITING, save_figure
from infer_bench.soak.latency import Kill, Window
from infer_bench.soak.memory import MOST_CHANGE, MemorySeries, change_of

_ROOM = 4 * MOST_CHANGE
"""Around the memory of the first process that was judged, as a share; a core that loads comes from below."""


def plot_soak(
    all_series: Sequence[MemorySeries],
    windows: Sequence[Window],
    kills: Sequence[Kill],
    path: Path,
    *,
    title: str,
    warm_up_s: float,
) -> None:
    """Draw memory with the band in which it is flat, kills as lines, and P99s.

    Args:
        all_series: memory by process.
        windows: P99s by minute.
        kills: times of the kills of cores.
        path: the PNG to write.
        title: what was run.
        warm_up_s: what is not judged.
    """
    with mpl.rc_context(STYLE):
        figure, (cores, server, latency) = plt.subplots(
            3, 1, figsize=(10, 7.6), sharex=True, layout="constrained", height_ratios=(3, 2, 2)
        )
        for axes, role, what in ((cores, "core", "each core"), (server, "server", "the server's process")):
            _draw_memory(axes, [each for each in all_series if each.name.startswith(role)], warm_up_s=warm_up_s)
            axes.set_ylabel(f"{what}, MiB")
        minutes = [window.begin_s / 60 + 0.5 for window in windows]
        latency.plot(
            minutes, [1e3 * window.latency_p99_s for window in windows], "o-", color=ACCENT, label="whole stream"
        )
        latency.plot(minutes, [1e3 * window.ttft_p99_s for window in windows], "o-", color=MUTED, label="first token")
        latency.margins(y=0.25)
        latency.set_ylim(bottom=0)
        latency.set_ylabel("P99 of a minute, ms")
        latency.set_xlabel("minutes (orange: a core is killed; grey: the warm-up; pale blue: ±3% of what is judged)")
        latency.legend(loc="upper right", ncols=2)
        for axes in (cores, server, latency):
            axes.axvspan(0, warm_up_s / 60, color="#f4f4f4", zorder=0)
            for kill in kills:
                axes.axvline(kill.at_s / 60, color=WAITING, linewidth=1.2, zorder=1)
        latency.set_xlim(0, max(series.times_s[-1] for series in all_series) / 60)
        cores.set_title(title)
        save_figure(figure, path)


def _draw_memory(axes: Axes, all_series: Sequence[MemorySeries], *, warm_up_s: float) -> None:
    for series in all_series:
        change = change_of(series, warm_up_s=warm_up_s)
        minutes = [time_s / 60 for time_s in series.times_s]
        axes.plot(minutes, series.own_mib, color=ACCENT if change else MUTED, linewidth=1.3)
        if change is not None:
            low, high = (change.first_mib * (1 + share) for share in (-MOST_CHANGE, MOST_CHANGE))
            begin = max(warm_up_s, series.times_s[0] + warm_up_s) / 60
            axes.fill_between([begin, minutes[-1]], low, high, color=MUTED, alpha=0.25, linewidth=0)
            axes.set_ylim(change.first_mib * (1 - _ROOM), change.first_mib * (1 + _ROOM))
