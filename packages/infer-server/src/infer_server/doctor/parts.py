"""The parts, and how long each may take; runs their processes and joins what these found."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from infer_engine.protocol.doctor import DoctorRequest, PartName
from infer_server.doctor.part_process import PartProcess, ProcessResult
from infer_server.doctor.redaction import Redactor
from infer_server.doctor.report import PartResult, Report, line, make_report, worst


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part and its time.

    Attributes:
        name: name of the part.
        ends_at: the share of the whole time at which it is killed; what earlier parts leave of theirs, it may use.
        margin_s: seconds before that in which it begins nothing more.
    """

    name: PartName
    ends_at: float
    margin_s: float


PARTS: Sequence[Part] = (
    Part(name="environment", ends_at=0.25, margin_s=1.0),
    Part(name="model", ends_at=0.45, margin_s=1.0),
    Part(name="kernels", ends_at=0.75, margin_s=5.0),
    Part(name="engine", ends_at=1.0, margin_s=1.0),
)
CPU_TIMEOUT_S, GPU_TIMEOUT_S = 55.0, 180.0
"""Seconds for everything. On a GPU most of them compile kernels, the first time: each takes a core about a second."""
MAX_PROCESSES = 16


def examine(
    request: DoctorRequest,
    *,
    timeout_s: float | None = None,
    on_part: Callable[[PartResult], None] = lambda _: None,
) -> Report:
    """Run all parts, one after another, and return the report, without secrets.

    Args:
        request: what each part examines; the time of each is made of `timeout_s`.
        timeout_s: seconds for everything; None: `CPU_TIMEOUT_S` or `GPU_TIMEOUT_S`, as the first part finds.
        on_part: called with each part when it is done.
    """
    began_s = time.monotonic()
    redactor = Redactor()
    results: list[PartResult] = []
    with tempfile.TemporaryDirectory(prefix="infer-doctor-") as folder:
        facts: dict[str, Any] = {}
        for part in PARTS:
            started_s = time.monotonic()
            deadline_s = began_s + part.ends_at * (timeout_s or _default_timeout_s(facts))
            seconds = max(0.0, deadline_s - started_s - part.margin_s)
            limited = msgspec.structs.replace(request, seconds=seconds)
            num_processes = _num_processes(facts) if part.name == "kernels" else 1
            found = list(_run_processes(part.name, limited, num_processes, Path(folder), deadline_s))
            result = join(part.name, found, seconds=time.monotonic() - started_s, redactor=redactor)
            facts |= result.details
            results.append(result)
            on_part(result)
    return make_report(
        results,
        seconds=time.monotonic() - began_s,
        model=redactor.clean(request.model),
        device=request.device,
        dtype=request.dtype,
    )


def join(name: PartName, found: Sequence[ProcessResult], *, seconds: float, redactor: Redactor) -> PartResult:
    """Return the part of which `found` are the processes."""
    findings = [
        msgspec.structs.replace(
            finding,
            what=redactor.clean(finding.what),
            found=redactor.clean(finding.found),
            fix=redactor.clean(finding.fix),
        )
        for each in found
        for finding in each.findings
    ]
    findings = list(dict.fromkeys(findings))  # processes of one part may find the same
    verdict = worst(finding.verdict for finding in findings)
    summaries = [redactor.clean(each.summary) for each in found if each.summary is not None]
    details: dict[str, Any] = {}
    for each in found:
        details |= redactor.clean(each.details)
    wrong = [line(finding) for finding in findings if finding.verdict == verdict and verdict != "ok"]
    return PartResult(
        name=name,
        verdict=verdict,
        seconds=round(seconds, 1),
        summary=wrong[0] if wrong else "; ".join(dict.fromkeys(summaries)),
        findings=findings,
        details=details,
        log=[redactor.clean(text) for each in found for text in each.log],
    )


def _run_processes(
    name: PartName, request: DoctorRequest, count: int, folder: Path, deadline_s: float
) -> Iterator[ProcessResult]:
    """Run `count` processes of a part side by side, and yield what each found."""
    processes: list[PartProcess] = []
    try:
        for index in range(count):
            shared = msgspec.structs.replace(request, share_index=index, num_shares=count)
            processes.append(PartProcess(name, shared, folder))
        for process in processes:
            yield process.result(deadline_s)
    finally:
        for process in processes:
            process.kill()


def _default_timeout_s(facts: dict[str, Any]) -> float:
    """Return the seconds for everything; until the part `environment` has said what computes, those of a GPU."""
    return CPU_TIMEOUT_S if facts.get("device") == "cpu" else GPU_TIMEOUT_S


def _num_processes(facts: dict[str, Any]) -> int:
    """Return how many processes check kernels, as the part `environment` says; one if it does not."""
    count = facts.get("kernel_processes", 1)
    return min(count, MAX_PROCESSES) if isinstance(count, int) and count >= 1 else 1
