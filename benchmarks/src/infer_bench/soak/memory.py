"""Judges whether the memory of a process is flat.

Memory is what a process has for itself: resident pages that neither belong to files nor are shared (`rss - shared` of
psutil, which is the kernel's `RssAnon`). Pages of libraries would hide growth behind a large constant, and the system
drops and reads them as it likes; PSS and USS of one process change when another one ends.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from infer_bench.limits import Finding

MOST_CHANGE = 0.03
MIN_JUDGED_S = 300.0
"""Seconds of a process's life after its warm-up; fewer say nothing about growth."""


@dataclass(slots=True, kw_only=True)
class MemorySeries:
    """The memory of one process over its life.

    Attributes:
        name: what it does, with a number for each further process that does the same.
        times_s: times of the samples, from the soak's start.
        own_mib: its own memory at these times.
    """

    name: str
    times_s: list[float] = field(default_factory=list)
    own_mib: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change of memory after the warm-up: medians of the first and the last fifth of the samples."""

    first_mib: float
    last_mib: float

    @property
    def share(self) -> float:
        """The change as a share of what there was first."""
        return self.last_mib / self.first_mib - 1


def change_of(series: MemorySeries, *, warm_up_s: float) -> Change | None:
    """Return how the memory of a process changed after its warm-up; None if it did not live long enough to say.

    The warm-up is the first `warm_up_s` of the soak, and of the process. Medians of fifths leave out the peaks of
    single samples, such as a body of 20 MB; of steady growth they see four fifths.
    """
    begin_s = max(warm_up_s, series.times_s[0] + warm_up_s)
    judged = [mib for time_s, mib in zip(series.times_s, series.own_mib, strict=True) if time_s >= begin_s]
    num_fifth = len(judged) // 5
    if not num_fifth or series.times_s[-1] - begin_s < MIN_JUDGED_S:
        return None
    first, last = statistics.median(judged[:num_fifth]), statistics.median(judged[-num_fifth:])
    return Change(first_mib=first, last_mib=last)


def judge_memory(all_series: Sequence[MemorySeries], *, warm_up_s: float) -> list[Finding]:
    """Judge each process that lived long enough; where none did, say so."""
    findings = []
    for series in all_series:
        if (change := change_of(series, warm_up_s=warm_up_s)) is not None:
            found = f"{change.first_mib:.1f} to {change.last_mib:.1f} MiB ({change.share:+.1%})"
            holds = abs(change.share) <= MOST_CHANGE
            findings.append(Finding(f"memory of {series.name}", found, f"±{MOST_CHANGE:.0%}", holds))
    return findings or [Finding("memory", "too short a run to judge")]
