"""Every kernel against its reference on the device, then how fast it is. Knows deadlines; the cases are `kernels`'.

A rehearsal compares PyTorch's paths on the CPU and compiles a launch of every op for sm_90.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from triton.runtime.errors import OutOfResources

from gpu.parts import Finding, PartReport, Place
from infer_kernels.testing.ahead_of_time import compile_only
from kernels.bench import Bench
from kernels.cases import Case, all_cases
from kernels.check import Check
from kernels.checks import all_checks
from kernels.gpu import run_case, run_checks

Item = TypeVar("Item", Check, Case)
CHECKS_SHARE = 0.6
"""Of the part's time, for comparing; most of it goes into compiling each kernel for the first time."""


def run(place: Place) -> PartReport:
    """Compare every op, then time every case."""
    bench = Bench(place.device, dry=place.is_rehearsal)
    checks, cases = list(all_checks()), list(all_cases())
    if place.is_rehearsal:
        checks, cases = one_of_each_op(checks), one_of_each_op(cases)
    checked_by_s = place.seconds_left * (1 - CHECKS_SHARE)
    checked = run_checks(bench, while_true(lambda: place.seconds_left > checked_by_s, checks))
    rows = list(time_cases(bench, while_true(lambda: place.seconds_left > 0, cases)))
    findings = [correctness(checked, num_checks=len(checks)), aims(rows, num_cases=len(cases))]
    findings += [] if place.is_rehearsal else best_rates(rows)
    return PartReport(findings=findings, details={"checks": checked, "cases": rows})


def one_of_each_op(items: Iterable[Item]) -> list[Item]:
    """Return the first of `items` of every op."""
    return list({item.op: item for item in reversed(list(items))}.values())[::-1]


def while_true(condition: Callable[[], bool], items: Iterable[Item]) -> Iterator[Item]:
    """Yield `items` until `condition` is false."""
    for item in items:
        if not condition():
            return
        yield item


def time_cases(bench: Bench, cases: Iterable[Case]) -> Iterator[dict[str, Any]]:
    """Time each of `cases`; one that cannot be launched says why."""
    launching: AbstractContextManager[Any] = compile_only(90) if bench.dry else nullcontext()
    with launching, torch.inference_mode():
        for case in cases:
            try:
                yield run_case(bench, case)
            except (OutOfResources, RuntimeError) as error:
                print(f"FAILED {case}: {error}", file=sys.stderr)
                yield {"op": case.op, "label": case.label, "failed": f"{type(error).__name__}: {error}"}
            if not bench.dry:
                torch.cuda.empty_cache()


def correctness(checked: dict[str, Any], *, num_checks: int) -> Finding:
    """Return whether all of `num_checks` were compared and hold."""
    num_failed = len(checked["failed"])
    first = f"; first: {next(iter(checked['failed']))}" if num_failed else ""
    return Finding(
        what="kernels against their references",
        found=f"{checked['passed']} of {num_checks} agree, {num_failed} do not{first}",
        wanted="all",
        holds=checked["passed"] == num_checks,
    )


def aims(rows: list[dict[str, Any]], *, num_cases: int) -> Finding:
    """Return whether all of `num_cases` were timed and came up to what is aimed at."""
    failed = [row for row in rows if "failed" in row]
    timed = [row for row in rows if "failed" not in row]
    missed = [row for row in timed if row["met"] == "no"]
    aimed = [row for row in timed if row["aim"]]
    first = "".join(f"; {row['op']} {row['label']}" for row in (failed or missed)[:1])
    return Finding(
        what="kernels timed",
        found=f"{len(timed)} of {num_cases}, {len(failed)} failed, {len(missed)} of {len(aimed)} aims missed{first}",
        wanted="all, at their aims",
        holds=not failed and not missed and len(timed) == num_cases,
    )


def best_rates(rows: list[dict[str, Any]]) -> list[Finding]:
    """Return a line for each op: its best share of its ceiling."""
    timed = [row for row in rows if "failed" not in row]
    findings = []
    for op in dict.fromkeys(row["op"] for row in timed):
        best = max((row for row in timed if row["op"] == op), key=lambda row: row["share"])
        found = f"{best['rate']:.0f} {best['unit']}, {best['share']:.0%} of the ceiling ({best['label']})"
        findings.append(Finding(what=op, found=found))
    return findings
