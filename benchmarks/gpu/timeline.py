"""What a device did in a stretch of time: which kernels, how long nothing, and why. Knows intervals; knows no profiler.

    stream 7    |kernel a |        |kernel c       |
    stream 9         |kernel b|         |kernel d|        |kernel e|
    busy        |-------------|    |---------------|      |--------|
    gaps                      |b..c|               |c..e  |        |...

A kernel begins when it was launched and everything before it in its stream is done. So in a gap the device waits for
the host where the next kernel was launched after the gap had begun, and for itself where it was launched before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BEGIN = "the step's begin"
END = "the step's end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Something that a device did, a kernel or a copy.

    Attributes:
        name: of the kernel.
        start_us: when it began.
        duration_us: how long it took.
        stream: where it was queued.
        launched_us: when the host called for it; None where that is not known.
    """

    name: str
    start_us: float
    duration_us: float
    stream: int
    launched_us: float | None = None

    @property
    def end_us(self) -> float:
        """When it ended."""
        return self.start_us + self.duration_us


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """Something that the host did.

    Attributes:
        name: of the operator, of the driver's call, or of a part of the program that was marked.
        start_us: when it began.
        duration_us: how long it took.
        is_mark: whether it is a part of the program, inside of which there is Python between the calls.
    """

    name: str
    start_us: float
    duration_us: float
    is_mark: bool = False

    def covers(self, time_us: float) -> bool:
        """Whether it was being done at `time_us`."""
        return self.start_us <= time_us <= self.start_us + self.duration_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Time in which one interval or another was always under way.

    Attributes:
        start_us: when it began.
        end_us: when it ended.
        first: the interval with which it began.
        last: the interval with which it ended.
    """

    start_us: float
    end_us: float
    first: Interval
    last: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Time in which a device did nothing.

    Attributes:
        start_us: when it began.
        duration_us: how long it took.
        after: what ended last before it, or `BEGIN`.
        before: what began first after it, or `END`.
        next_launched_us: when the host called for that; None where nothing came or it is not known.
    """

    start_us: float
    duration_us: float
    after: str
    before: str
    next_launched_us: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTotal:
    """All intervals of one name.

    Attributes:
        name: theirs.
        num_calls: how many there are.
        total_us: their durations' sum.
    """

    name: str
    num_calls: int
    total_us: float


def merge(intervals: Iterable[Interval]) -> list[Stretch]:
    """Return when the device was busy, in order: intervals that overlap or touch are one stretch."""
    stretches: list[Stretch] = []
    for each in sorted(intervals, key=lambda interval: interval.start_us):
        if stretches and each.start_us <= stretches[-1].end_us:
            before = stretches.pop()
            last = max(before.last, each, key=lambda interval: interval.end_us)
            stretches.append(
                Stretch(start_us=before.start_us, end_us=last.end_us, first=before.first, last=last),
            )
        else:
            stretches.append(Stretch(start_us=each.start_us, end_us=each.end_us, first=each, last=each))
    return stretches


def busy_us(intervals: Iterable[Interval]) -> float:
    """Return how long the device was busy, on any stream."""
    return sum(stretch.end_us - stretch.start_us for stretch in merge(intervals))


def find_gaps(intervals: Sequence[Interval], *, start_us: float, end_us: float) -> list[Gap]:
    """Return when the device did nothing between `start_us` and `end_us`, longest first; all `intervals` lie inside."""
    gaps = []
    idle_since, after = start_us, BEGIN
    for stretch in merge(intervals):
        gaps.append(
            Gap(
                start_us=idle_since,
                duration_us=stretch.start_us - idle_since,
                after=after,
                before=stretch.first.name,
                next_launched_us=stretch.first.launched_us,
            )
        )
        idle_since, after = stretch.end_us, stretch.last.name
    gaps.append(Gap(start_us=idle_since, duration_us=end_us - idle_since, after=after, before=END))
    return sorted((gap for gap in gaps if gap.duration_us > 0), key=lambda gap: -gap.duration_us)


def total_by_name(intervals: Iterable[Interval]) -> list[KernelTotal]:
    """Return calls and time by name, most time first."""
    by_name: dict[str, list[float]] = {}
    for each in intervals:
        by_name.setdefault(each.name, []).append(each.duration_us)
    totals = [KernelTotal(name=name, num_calls=len(each), total_us=sum(each)) for name, each in by_name.items()]
    return sorted(totals, key=lambda total: -total.total_us)


def explain_gap(gap: Gap, calls: Iterable[HostCall]) -> str:
    """Return what the host did in `gap` where the device waited for it: the innermost of `calls` that was under way.

    It is the one in the middle between the gap's begin and the launch that ended it.
    """
    launched_us = gap.start_us + gap.duration_us if gap.next_launched_us is None else gap.next_launched_us
    if launched_us <= gap.start_us:
        return f"the device's own: launched {gap.start_us - launched_us:.0f} us before"
    middle_us = (gap.start_us + launched_us) / 2
    under_way = [call for call in calls if call.covers(middle_us)]
    if not under_way:
        return "not known"
    innermost = min(under_way, key=lambda call: call.duration_us)
    return f"Python in `{innermost.name}`" if innermost.is_mark else innermost.name
