"""Judges whether the latency of a soak's checked streams drifts.

Streams that were open while a core was missing wait for another one, which is what a kill costs: they are reported by
themselves. The others are put into windows of a minute. A drift is how the median of the windows' P99s grows from the
first half of the time after the warm-up to the second half; the median leaves out single minutes in which the machine
had something else to do.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from infer_bench.client.summary import percentile
from infer_bench.limits import Finding

MOST_GROWTH = 0.25
"""What takes time in proportion to the requests so far takes twice as long in the second half of an hour after its
warm-up as in the first: the bound is passed where more than a quarter of the P99 grows like that."""
WINDOW_S = 60.0
MIN_STREAMS, MIN_WINDOWS = 50, 4
"""In a window, as of fewer the P99 is the slowest one; and windows that are judged."""
_OTHERS = "processors that other programs used, first and second half"


class Stream(NamedTuple):
    """A checked stream: when it was sent, in seconds from the soak's start, and how long it took."""

    sent_s: float
    ttft_s: float
    latency_s: float


class Kill(NamedTuple):
    """A core that was killed: when, which, and when two cores were up again; None if that took too long."""

    at_s: float
    victim: str
    recovered_s: float | None


class OthersCpu(NamedTuple):
    """Processor seconds that programs other than the soak had used at a moment, from an arbitrary start."""

    at_s: float
    cpu_s: float


class Window(NamedTuple):
    """The P99s of the undisturbed streams that were sent in a minute from `begin_s` on."""

    begin_s: float
    ttft_p99_s: float
    latency_p99_s: float


def is_disturbed(stream: Stream, kills: Sequence[Kill]) -> bool:
    """Return whether a core was missing while the stream was open, as far as is known."""
    end_s = stream.sent_s + stream.latency_s
    return any(kill.at_s <= end_s and stream.sent_s <= (kill.recovered_s or kill.at_s) for kill in kills)


def windows_of(streams: Sequence[Stream], kills: Sequence[Kill]) -> list[Window]:
    """Return the windows with enough undisturbed streams."""
    by_window: dict[int, list[Stream]] = {}
    for stream in streams:
        if not is_disturbed(stream, kills):
            by_window.setdefault(int(stream.sent_s // WINDOW_S), []).append(stream)
    windows = []
    for number, found in sorted(by_window.items()):
        if len(found) >= MIN_STREAMS:
            _, ttft_s, latency_s = zip(*found, strict=True)
            windows.append(Window(number * WINDOW_S, percentile(ttft_s, 99), percentile(latency_s, 99)))
    return windows


def judge_latency(streams: Sequence[Stream], kills: Sequence[Kill], *, warm_up_s: float) -> list[Finding]:
    """Judge the drift of the undisturbed streams, and report the others."""
    windows = [window for window in windows_of(streams, kills) if window.begin_s >= warm_up_s]
    return [
        _judge_drift("P99 of the time to the first token", [window.ttft_p99_s for window in windows]),
        _judge_drift("P99 of whole streams", [window.latency_p99_s for window in windows]),
        _report("streams while a core was missing", [each for each in streams if is_disturbed(each, kills)]),
        _report("all other streams", [each for each in streams if not is_disturbed(each, kills)]),
    ]


def report_others(others: Sequence[OthersCpu], *, warm_up_s: float) -> Finding:
    """Report how many processors other programs kept busy in each half of what is judged: latency depends on it."""
    judged = [each for each in others if each.at_s >= warm_up_s]
    half = len(judged) // 2
    if not half:
        return Finding(_OTHERS, "too short a run to say")
    halves = ((judged[0], judged[half]), (judged[half], judged[-1]))
    rates = [(end.cpu_s - begin.cpu_s) / (end.at_s - begin.at_s) for begin, end in halves]
    return Finding(_OTHERS, ", ".join(f"{max(0.0, rate):.2f}" for rate in rates))


def judge_kills(kills: Sequence[Kill]) -> Finding:
    """Judge whether there were kills, and after each of them two cores again."""
    times = [kill.recovered_s - kill.at_s for kill in kills if kill.recovered_s is not None]
    slowest = f", the slowest after {max(times):.1f} s" if times else ""
    found = f"{len(kills)}, {len(times)}{slowest}"
    return Finding("cores killed, then two again", found, "some, all of them", 0 < len(kills) == len(times))


def _judge_drift(what: str, p99s: Sequence[float]) -> Finding:
    if len(p99s) < MIN_WINDOWS:
        return Finding(what, "too short a run to judge")
    half = len(p99s) // 2
    first, last = statistics.median(p99s[:half]), statistics.median(p99s[-half:])
    found = f"{1e3 * first:.0f} to {1e3 * last:.0f} ms ({last / first - 1:+.0%})"
    return Finding(what, found, f"up to +{MOST_GROWTH:.0%}", last <= first * (1 + MOST_GROWTH))


def _report(what: str, streams: Sequence[Stream]) -> Finding:
    if not streams:
        return Finding(what, "none")

    def words(values: Sequence[float]) -> str:
        return ", ".join(f"{1e3 * each:.0f}" for each in (percentile(values, 50), percentile(values, 99), max(values)))

    _, ttft_s, latency_s = zip(*streams, strict=True)
    return Finding(
        f"{len(streams)} {what}: first token p50, p99, max; whole", f"{words(ttft_s)}; {words(latency_s)} ms"
    )
