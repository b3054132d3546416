"""The kernel part: compares every op with its reference on the device, then times it.

A rehearsal compares the PyTorch paths on the CPU, and compiles one launch of every op for sm_90.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from typing import Any, TypeVar

import torch
from triton.runtime.errors import OutOfResources

from infer_bench.gpu.goals import judge_prefill_attention
from infer_bench.gpu.parts import Finding, PartReport, Place
from infer_bench.kernels.bench import Bench
from infer_bench.kernels.cases import Case, all_cases
from infer_bench.kernels.check import Check
from infer_bench.kernels.checks import all_checks
from infer_bench.kernels.gpu import run_case, run_checks
from infer_kernels.checks.compiled.ahead_of_time import compile_only

Item = TypeVar("Item", Check, Case)
CHECKS_SHARE = 0.6
"""Share of the part's time for comparing; most of it goes into compiling each kernel for the first time."""


def run(place: Place) -> PartReport:
    """Compare every op, then time every case."""
    bench = Bench(place.device, dry=place.is_rehearsal)
    checks, cases = list(all_checks()), list(all_cases())
    if place.is_rehearsal:
        checks, cases = one_of_each_op(checks), one_of_each_op(cases)
    left_after_checks_s = place.seconds_left * (1 - CHECKS_SHARE)
    checked = run_checks(bench, takewhile(lambda _: place.seconds_left > left_after_checks_s, checks))
    rows = list(time_cases(bench, takewhile(lambda _: place.seconds_left > 0, cases)))
    findings = [judge_checks(checked, num_checks=len(checks)), judge_times(rows, num_cases=len(cases))]
    findings += [] if place.is_rehearsal else [*best_rates(rows), judge_prefill_attention(place, rows)]
    return PartReport(findings=findings, details={"checks": checked, "cases": rows})


def one_of_each_op(items: Sequence[Item]) -> list[Item]:
    """Return the first of `items` of every op."""
    return list({item.op: item for item in reversed(items)}.values())


def time_cases(bench: Bench, cases: Iterable[Case]) -> Iterator[dict[str, Any]]:
    """Time each of `cases`; the row of one that cannot be launched says why."""
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


def judge_checks(checked: dict[str, Any], *, num_checks: int) -> Finding:
    """Judge whether all of `num_checks` were compared and agree."""
    num_failed = len(checked["failed"])
    first = f"; first: {next(iter(checked['failed']))}" if num_failed else ""
    found = f"{checked['passed']} of {num_checks} agree, {num_failed} do not{first}"
    return Finding("kernels against their references", found, wanted="all", holds=checked["passed"] == num_checks)


def judge_times(rows: list[dict[str, Any]], *, num_cases: int) -> Finding:
    """Judge whether all of `num_cases` were timed and reach their aims."""
    failed = [row for row in rows if "failed" in row]
    missed = [row for row in rows if row.get("met") == "no"]
    num_timed = len(rows) - len(failed)
    first = "".join(f"; first: {row['op']} {row['label']}" for row in (failed + missed)[:1])
    return Finding(
        "kernels timed",
        f"{num_timed} of {num_cases}, {len(failed)} failed, {len(missed)} missed their aims{first}",
        wanted="all, at their aims",
        holds=not missed and num_timed == num_cases,
    )


def best_rates(rows: list[dict[str, Any]]) -> list[Finding]:
    """Return a finding for each op: its best share of its ceiling."""
    ordered = sorted((row for row in rows if "failed" not in row), key=lambda row: float(row["share"]))
    best = {row["op"]: row for row in ordered}  # the last of each op stays
    return [
        Finding(op, f"{row['rate']:.0f} {row['unit']}, {row['share']:.0%} of the ceiling ({row['label']})")
        for op, row in best.items()
    ]
