"""Steps out of a profiler's Chrome trace. Knows the trace's categories and fields; knows no engine.

The trace is the one that `torch.profiler` exports: a list of events of which those with `"ph": "X"` have a category
`cat`, a `name`, a begin `ts` and a duration `dur` in microseconds, on one clock for host and device. What the device
did has the `stream` and the `correlation` of the driver's call that launched it; a mark made by `record_function` is a
`user_annotation` on the host (its shadow on the device, a `gpu_user_annotation`, is no work).
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from gpu.timeline import HostCall, Interval

GPU_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
CPU_WORK = frozenset({"cpu_op"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
_MARKS = "user_annotation"
_HOST = CPU_WORK | _LAUNCHES | {_MARKS}


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """One marked step.

    Attributes:
        start_us: when it began on the host.
        end_us: when it ended there.
        work: what the device did for it, in the order of the trace.
        calls: what the host did in it, in the order of the trace; its own mark is among them.
    """

    start_us: float
    end_us: float
    work: list[Interval]
    calls: list[HostCall]

    @property
    def duration_us(self) -> float:
        """Of the whole step."""
        return self.end_us - self.start_us


def read_steps(trace: dict[str, Any], mark: str, *, categories: Collection[str] = GPU_WORK) -> list[TracedStep]:
    """Return the steps of `trace` that are marked with `mark`, in order.

    A step waits for all that it launched. So its work is what it launched, or, where that is not known, what began
    while it lasted, and all of it lies inside.

    Args:
        trace: as it was exported, decoded.
        mark: the name of the steps' marks.
        categories: of the events that are the device's work.
    """
    launched_us = {
        event["args"]["correlation"]: float(event["ts"])
        for event in _complete_events(trace)
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    work = [_interval(event, launched_us) for event in _complete_events(trace) if event.get("cat") in categories]
    calls = [_call(event) for event in _complete_events(trace) if event.get("cat") in _HOST]
    marks = sorted((call for call in calls if call.is_mark and call.name == mark), key=lambda call: call.start_us)
    return [
        TracedStep(
            start_us=step.start_us,
            end_us=step.start_us + step.duration_us,
            work=[each for each in work if step.covers(_called_us(each))],
            calls=[call for call in calls if step.covers(call.start_us)],
        )
        for step in marks
    ]


def _complete_events(trace: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Events with a begin and a duration: others are counters, arrows, names of threads."""
    return (event for event in trace["traceEvents"] if event.get("ph") == "X" and "dur" in event)


def _interval(event: dict[str, Any], launched_us: dict[int, float]) -> Interval:
    args = event.get("args", {})
    return Interval(
        name=event["name"],
        start_us=float(event["ts"]),
        duration_us=float(event["dur"]),
        stream=int(args.get("stream", 0)),
        launched_us=launched_us.get(args["correlation"]) if "correlation" in args else None,
    )


def _call(event: dict[str, Any]) -> HostCall:
    return HostCall(
        name=event["name"],
        start_us=float(event["ts"]),
        duration_us=float(event["dur"]),
        is_mark=event["cat"] == _MARKS,
    )


def _called_us(work: Interval) -> float:
    return work.start_us if work.launched_us is None else work.launched_us
