"""Part 3: greedy tokens of tiny twins against the CPU's, and bits in every batch. Judges; computes no token itself.

For each family and dtype one process compares engines of every mode and backend (`twin_checks.py`), two more ask
whether plain linears would keep their bits (`invariance.py`). A configuration that fails is a finding, and the rest is
computed all the same. What is compared is small: of long contexts and of real weights it says nothing.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agreement import TOLERANCES
from gpu.device_memory import free_unreferenced
from gpu.invariance import WORKSPACES, measure_rows, row_findings
from gpu.isolation import Ended, run_in_turns, run_python
from gpu.parts import Finding, PartReport, Place
from gpu.twin_checks import DEVICE_LOST, Check, all_checks
from gpu.twins import FAMILIES, write_twin

LONGEST_S = 120.0
"""What the part takes at most, however much time is left."""

DTYPES = ("bfloat16", "float32")

LOGIT_TOLERANCES = {"float32": 1e-3, "bfloat16": 0.2}
"""Differences of single logits, in their standard deviations, that rounding explains: on a CPU it makes 1e-5 and 0.08.

A window, a position or a scale that is wrong makes more than that before it changes a decided token.
"""

ANSWER_TOKENS, REHEARSED_TOKENS = 24, 4
_GRACE_S = 15.0
"""A process that has not ended so long after its time hangs; its last check may have compiled kernels."""

Record = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class TwinReport:
    """What was found of one family in one dtype.

    Attributes:
        family: of the twin.
        dtype: of weights and activations.
        num_planned: checks of each kind that there are.
        head: what the process said before its first check; empty if it never came so far.
        records: of the checks, in order, as `twin_checks.py` writes them.
        failure: why no process began; empty if one did.
    """

    family: str
    dtype: str
    num_planned: dict[str, int]
    head: Record = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    failure: str = ""

    @property
    def name(self) -> str:
        """How the table calls it."""
        return f"{self.family} {self.dtype}"

    def computed(self, kind: str) -> list[Record]:
        """Return the records of the checks of a kind that did not fail."""
        return [record for record in self.records if record["kind"] == kind and "error" not in record]

    def num_left_out(self, kind: str) -> int:
        """Return how many checks of a kind were not begun."""
        return self.num_planned[kind] - [record["kind"] for record in self.records].count(kind)


def run(place: Place) -> PartReport:
    """Compare everything that there is time for."""
    deadline_s = min(place.deadline_s, time.monotonic() + LONGEST_S)
    free_unreferenced()  # what this process keeps, the others cannot have
    with tempfile.TemporaryDirectory() as made:
        folders = {family: write_twin(family, Path(made) / family) for family in FAMILIES}
        first, second = (
            [partial(check_twin, place, folders[family], family, dtype) for family in FAMILIES] for dtype in DTYPES
        )
        rows = [partial(measure_rows, place, workspace) for workspace in WORKSPACES]
        tasks: list[Callable[[float], Any]] = [*first, *rows, *second]
        found = run_in_turns(tasks, deadline_s=deadline_s - _GRACE_S)
    row_results = dict(zip(WORKSPACES, found[len(first) : -len(second)], strict=True))
    return report_of([*found[: len(first)], *found[-len(second) :]], row_results)


def check_twin(place: Place, folder: Path, family: str, dtype: str, deadline_s: float) -> TwinReport:
    """Perform the checks of one twin until `deadline_s`, by as many processes as it takes."""
    checks = all_checks(is_rehearsal=place.is_rehearsal)
    report = TwinReport(family=family, dtype=dtype, num_planned=count_kinds(checks))
    output = folder / f"{dtype}.jsonl"
    flags = ["--folder", str(folder), "--device", str(place.device), "--dtype", dtype, "--output", str(output)]
    flags += ["--answer-tokens", str(REHEARSED_TOKENS if place.is_rehearsal else ANSWER_TOKENS)]
    flags += ["--rehearsal"] if place.is_rehearsal else []

    def perform(first: int) -> tuple[Ended, list[Record]]:
        seconds = deadline_s - time.monotonic()
        output.write_text("", encoding="utf-8")
        here = ["-m", "gpu.twin_checks", *flags, "--first", str(first), "--seconds", str(seconds)]
        return run_python(here, seconds=seconds + _GRACE_S), read_lines(output)

    continue_to_the_end(report, checks, perform, is_time_left=lambda: time.monotonic() < deadline_s)
    return report


def continue_to_the_end(
    report: TwinReport,
    checks: Sequence[Check],
    perform: Callable[[int], tuple[Ended, list[Record]]],
    *,
    is_time_left: Callable[[], bool],
) -> None:
    """Let one process after the other `perform` the checks from a first one, and note in `report` what they found.

    The check during which a process died is a failed one, and the next process goes on behind it.
    """
    while len(report.records) < len(checks) and is_time_left():
        ended, lines = perform(len(report.records))
        if not lines:
            report.failure = "no check was begun: the process " + ended.describe()
            return
        report.head, *records = lines
        report.records += records
        if ended.status == 0:
            return
        if ended.status == DEVICE_LOST and records:
            continue
        if len(report.records) < len(checks):
            during = checks[len(report.records)]
            error = f"the process {ended.describe()}"
            report.records.append({"kind": during.kind, "name": during.name, "error": error, "traceback": ended.stderr})


def read_lines(path: Path) -> list[Record]:
    """Return the JSON of every whole line."""
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def count_kinds(checks: Iterable[Check]) -> dict[str, int]:
    """Return how many checks there are of each kind."""
    kinds = [check.kind for check in checks]
    return {kind: kinds.count(kind) for kind in ("oracle", "invariance", "control")}


def report_of(twins: Sequence[TwinReport], rows: dict[str, Record]) -> PartReport:
    """Judge what was found; `rows` are the results of `measure_rows` by workspace."""
    findings = [judge_start(twin) for twin in twins if twin.failure]
    findings += [judge_tokens(twin) for twin in twins if not twin.failure]
    findings += [judge_bits(twin) for twin in twins if not twin.failure]
    findings += [failure for twin in twins for failure in judge_failures(twin)]
    findings += [describe_control(dtype, [twin for twin in twins if twin.dtype == dtype]) for dtype in DTYPES]
    findings += [finding for workspace, found in rows.items() for finding in row_findings(workspace, found)]
    details = {
        "twins": {twin.name: {"head": twin.head, "failure": twin.failure, "checks": twin.records} for twin in twins},
        "row_invariance": rows,
    }
    return PartReport(findings=findings, details=details)


def judge_start(twin: TwinReport) -> Finding:
    """Return the line of a twin none of whose checks was begun."""
    return Finding(what=f"{twin.name}: tokens and bits", found=twin.failure, holds=False)


def judge_tokens(twin: TwinReport) -> Finding:
    """Return the line that says whether a twin's tokens are the oracle's."""
    what = f"{twin.name}: greedy tokens against the CPU's in fp32"
    tolerance = TOLERANCES[getattr(torch, twin.dtype)]
    most = LOGIT_TOLERANCES[twin.dtype]
    wanted = f"the same where the margin exceeds {tolerance:g} sd; logits within {most:g} sd"
    records = twin.computed("oracle")
    if not records:
        return Finding(what=what, found="nothing was compared" + _left_out(twin, "oracle"), wanted=wanted)
    decided, same = (sum(record[key] for record in records) for key in ("num_decided", "num_decided_same"))
    errors = [record["logit_error"] for record in records]
    found = (
        f"{len(records)} configurations, {twin.head['num_prompts']} answers of {twin.head['answer_tokens']} tokens: "
        f"{same} of {decided} decided tokens the same; logits within {max(errors):.2g} sd"
    )
    holds = same == decided > 0 and all(error <= most for error in errors)
    return Finding(what=what, found=found + _left_out(twin, "oracle"), wanted=wanted, holds=holds)


def judge_bits(twin: TwinReport) -> Finding:
    """Return the line that says whether `batch_invariant` keeps its promise."""
    what = f"{twin.name}: bits of the logits with batch_invariant"
    wanted = "those of the request alone"
    records = twin.computed("invariance")
    if not records:
        return Finding(what=what, found="nothing was compared" + _left_out(twin, "invariance"), wanted=wanted)
    different = [record["name"] for record in records if not _are_equal(record)]
    found = f"equal in {len(records) - len(different)} of {len(records)} ways"
    found += f"; not {', '.join(different)}" if different else ""
    return Finding(what=what, found=found + _left_out(twin, "invariance"), wanted=wanted, holds=not different)


def judge_failures(twin: TwinReport) -> list[Finding]:
    """Return a line for each error that checks of a twin ended with."""
    names: dict[str, list[str]] = {}
    for record in twin.records:
        if "error" in record:
            names.setdefault(_first_line(record["error"]), []).append(record["name"])
    return [
        Finding(what=f"{twin.name}: {len(failed)} of its checks, first `{failed[0]}`", found=error, holds=False)
        for error, failed in names.items()
    ]


def describe_control(dtype: str, twins: Sequence[TwinReport]) -> Finding:
    """Return the line that says what bits are without `batch_invariant`; nothing is wanted of them."""
    counts = []
    for twin in twins:
        records = twin.computed("control")
        counts.append(f"{twin.family} in {sum(map(_are_equal, records))} of {len(records)} ways")
    return Finding(what=f"{dtype}: bits equal without batch_invariant", found=", ".join(counts))


def _are_equal(record: Record) -> bool:
    return bool(record["num_equal_rows"] == record["num_rows"] > 0)


def _left_out(twin: TwinReport, kind: str) -> str:
    count = twin.num_left_out(kind)
    return f"; {count} left out, no time left" if count else ""


def _first_line(text: str, *, most: int = 160) -> str:
    return (text.strip() or "no message").splitlines()[0][:most]
