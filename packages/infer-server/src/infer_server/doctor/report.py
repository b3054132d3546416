"""The report of the doctor: as a table for people, as JSON for bug reports."""

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from infer_engine.protocol.doctor import UNFINISHED, Finding, PartName, Verdict

VERDICTS: Sequence[Verdict] = ("skipped", "ok", "warning", "failed")
"""From best to worst."""
HEADER = f"{'part':<12} {'verdict':<8} {'seconds':>7}  finding"


class PartResult(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the report.

    Attributes:
        name: name of the part.
        verdict: the worst of its findings.
        seconds: that it took.
        summary: what it found, in one line.
        findings: everything that it looked at.
        details: facts by name.
        log: the last lines that its processes printed, if they were not done.
    """

    name: PartName
    verdict: Verdict
    seconds: float
    summary: str
    findings: list[Finding]
    details: dict[str, Any]
    log: list[str]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report.

    Attributes:
        doctor: the version of `infer-server`.
        verdict: the worst of the parts.
        seconds: seconds of all parts.
        model: as asked for; None: the default.
        device: as asked for.
        dtype: as asked for.
        parts: in their order.
    """

    doctor: str
    verdict: Verdict
    seconds: float
    model: str | None
    device: str
    dtype: str
    parts: list[PartResult]


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of `verdicts`; of none, `ok`."""
    return max(verdicts, key=VERDICTS.index, default="ok")


def make_report(parts: list[PartResult], *, seconds: float, model: str | None, device: str, dtype: str) -> Report:
    """Return the report of `parts`."""
    return Report(
        doctor=version("infer-server"),
        verdict=worst(part.verdict for part in parts),
        seconds=round(seconds, 1),
        model=model,
        device=device,
        dtype=dtype,
        parts=parts,
    )


def as_json(report: Report) -> str:
    """Return the report as JSON with a line for each value."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def rows(part: PartResult) -> str:
    """Return the lines of a part: one of its own, then one for each finding that is not as it should be."""
    lines = [f"{part.name:<12} {part.verdict:<8} {part.seconds:>7.1f}  {part.summary}"]
    lines += [
        f"{'':<12} {each.verdict:<8} {'':>7}  {line(each)}"
        for each in part.findings
        if each.verdict != "ok" and line(each) != part.summary
    ]
    return "\n".join(lines)


def line(finding: Finding) -> str:
    """Return a finding as one line, with what to do about it."""
    text = f"{finding.what}: {finding.found}"
    return f"{text.rstrip('.')}. Fix: {finding.fix}" if finding.fix else text


def unfinished(report: Report) -> list[PartName]:
    """Return the parts for which there was too little time."""
    return [part.name for part in report.parts if any(each.what == UNFINISHED for each in part.findings)]


def closing(report: Report) -> str:
    """Return the last lines of the table: what all of it means."""
    failed = [part.name for part in report.parts if part.verdict == "failed"]
    num_warnings = sum(each.verdict == "warning" for part in report.parts for each in part.findings)
    warned = f"{num_warnings} warning{'' if num_warnings == 1 else 's'}"
    if failed:
        text = f"Not everything works: {', '.join(failed)} failed, {warned}."
        return f"{text} For a bug report, add `--out report.json` and attach that file."
    if late := unfinished(report):
        return f"Nothing failed, but {', '.join(late)} did not finish, {warned}. Give more time: `--timeout SECONDS`."
    return f"Everything works, {warned}." if num_warnings else "Everything works."
