"""Checks every op against its reference on a GPU, measures it, and asks the open questions: one call, a few minutes.

    uv run infer-bench kernels-gpu --output gpu.json

Times are medians of launches that find nothing in the caches; shares are of what the same device copies and multiplies
in the same run. `--dry-run` compiles all launches without a GPU.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from infer_bench.kernels.bench import Bench
from infer_bench.kernels.cases import Case, all_cases
from infer_bench.kernels.check import Check
from infer_bench.kernels.checks import all_checks
from infer_bench.kernels.questions import QUESTIONS
from infer_bench.results import environment, table
from infer_kernels.testing.ahead_of_time import compile_only


def main(arguments: Sequence[str] | None = None) -> None:
    """Check, measure, ask; print Markdown and write JSON. Exits with 1 where a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="of the JSON")
    parser.add_argument("--commit", help="to record; default: what git says")
    parser.add_argument("--only", default="", help="cases, checks and questions whose name contains this")
    parser.add_argument("--skip", choices=["checks", "cases", "questions"], action="append", default=[])
    parser.add_argument("--dry-run", action="store_true", help="compile for sm_90 on the CPU, and measure nothing")
    args = parser.parse_args(arguments)
    if not args.dry_run and not torch.cuda.is_available():
        parser.exit(2, "There is no GPU here: nothing to measure. `--dry-run` compiles all launches.\n")
    bench = Bench(torch.device("cpu" if args.dry_run else "cuda"), dry=args.dry_run)
    result: dict[str, Any] = {"environment": environment(commit=args.commit)}
    print(f"{result['environment']}\n", flush=True)
    if "checks" not in args.skip:
        result["checks"] = run_checks(bench, (check for check in all_checks() if args.only in str(check)))
    with launching(bench), torch.inference_mode():
        if "cases" not in args.skip:
            result["ceilings"] = measure_ceilings(bench)
            result["cases"] = run_cases(bench, [case for case in all_cases() if args.only in str(case)])
        if "questions" not in args.skip:
            result["questions"] = ask_questions(bench, args.only)
    if args.output:
        args.output.write_text(json.dumps(result, indent=2) + "\n")
    if result.get("checks", {}).get("failed"):
        parser.exit(1, "checks failed\n")


def launching(bench: Bench) -> AbstractContextManager[Any]:
    """Return where launches are possible: on the GPU, or in the compiler alone."""
    return compile_only(90) if bench.dry else nullcontext()


def run_checks(bench: Bench, checks: Iterable[Check]) -> dict[str, Any]:
    """Compare ops with their references; where it is dry, the PyTorch paths, and launch the kernels."""
    passed, failed = 0, {}
    for check in checks:
        try:
            if not (bench.dry and check.of_kernels):
                check.compare(bench.device)
            if bench.dry:
                with launching(bench):
                    check.run(lambda tensor: tensor)
        except (AssertionError, OutOfResources, RuntimeError) as error:
            failed[str(check)] = f"{type(error).__name__}: {error}"
            print(f"FAILED {check}: {error}", file=sys.stderr)
        else:
            passed += 1
    print(f"{passed} checks passed, {len(failed)} failed\n", flush=True)
    return {"passed": passed, "failed": failed}


def measure_ceilings(bench: Bench) -> dict[str, float]:
    """Return what the device itself does, and print it."""
    print(
        f"A copy moves {bench.copy_bandwidth / 1e9:.0f} GB/s; a product of bf16 matrices of 8192 x 8192 makes "
        f"{bench.matmul_rate / 1e12:.0f} TFLOP/s.\n"
    )
    return {"copy_bytes_per_second": bench.copy_bandwidth, "matmul_operations_per_second": bench.matmul_rate}


def run_cases(bench: Bench, cases: list[Case]) -> list[dict[str, Any]]:
    """Time each, and print a row of it."""
    print(table(["op", "", "us", "rate", "share", "share of a copy as long", "aim", "met"], []), flush=True)
    rows = []
    for case in cases:
        row = run_case(bench, case)
        rows.append(row)
        of_copy = "" if row["share_of_copy"] is None else f"{row['share_of_copy']:.0%}"
        print(
            f"| `{case.op}` | {case.label} | {row['microseconds']:.1f} | {row['rate']:.0f} {row['unit']} "
            f"| {row['share']:.0%} | {of_copy} | {row['aim']} | {row['met']} |",
            flush=True,
        )
        if not bench.dry:
            torch.cuda.empty_cache()
    print()
    return rows


def run_case(bench: Bench, case: Case) -> dict[str, Any]:
    """Time it, and compare it with the ceilings and with what is aimed at."""
    work = case.make(bench)
    seconds = bench.seconds(work.launch)
    if work.computes:
        rate, share, unit = work.computes / seconds / 1e12, work.computes / seconds / bench.matmul_rate, "TFLOP/s"
    else:
        rate, share, unit = work.moves / seconds / 1e9, work.moves / seconds / bench.copy_bandwidth, "GB/s"
    aim, met = "", ""
    for text, target, reached in (
        (f"{case.least_share or 0:.0%}", case.least_share, share >= (case.least_share or 0)),
        (f"{case.least_teraflops} TFLOP/s", case.least_teraflops, rate >= (case.least_teraflops or 0)),
        (f"{case.most_microseconds} us", case.most_microseconds, seconds * 1e6 <= (case.most_microseconds or 0)),
    ):
        if target is not None:
            aim, met = text, "" if bench.dry else ("yes" if reached else "no")
    return {
        "op": case.op,
        "label": case.label,
        "microseconds": seconds * 1e6,
        "rate": rate,
        "unit": unit,
        "share": share,
        "share_of_copy": None if work.computes else bench.copy_seconds(work.moves) / seconds,
        "aim": aim,
        "met": met,
    }


def ask_questions(bench: Bench, only: str) -> dict[str, list[dict[str, Any]]]:
    """Ask each, and print a table of its answers; one that cannot be asked here says why."""
    answers: dict[str, list[dict[str, Any]]] = {}
    for name, ask in QUESTIONS.items():
        if only not in name:
            continue
        print(f"question: {name}", file=sys.stderr)
        rows = answers[name] = []
        try:
            rows.extend(ask(bench))
        except (OutOfResources, RuntimeError) as error:
            rows.append({"failed": f"{type(error).__name__}: {error}"})
        columns = list(dict.fromkeys(key for row in rows for key in row))
        cells = [[_cell(row.get(column, "")) for column in columns] for row in rows]
        print(f"{ask.__doc__}\n\n{table(columns, cells)}\n", flush=True)
        if not bench.dry:
            torch.cuda.empty_cache()
    return answers


def _cell(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float) else str(value)
