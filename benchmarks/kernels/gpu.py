"""Checks every op against its reference on a GPU, measures it, and asks the open questions: one call, a few minutes.

    PYTHONPATH=packages/infer-kernels/src python benchmarks/kernels/gpu.py --output gpu.json

Needs torch, triton and this repository. Times are medians of launches that find nothing in the caches; shares are of
what the same device copies and multiplies in the same run. `--dry-run` compiles all launches without a GPU.
"""

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from infer_kernels.testing.ahead_of_time import compile_only
from kernels.bench import Bench
from kernels.cases import Case, all_cases
from kernels.check import Check
from kernels.checks import all_checks
from kernels.questions import QUESTIONS


def main() -> None:
    """Check, measure, ask; print Markdown and write JSON. Exits with 1 where a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="of the JSON")
    parser.add_argument("--commit", help="to record; default: what git says")
    parser.add_argument("--only", default="", help="cases, checks and questions whose name contains this")
    parser.add_argument("--skip", choices=["checks", "cases", "questions"], action="append", default=[])
    parser.add_argument("--dry-run", action="store_true", help="compile for sm_90 on the CPU, and measure nothing")
    args = parser.parse_args()
    if not args.dry_run and not torch.cuda.is_available():
        parser.exit(2, "There is no GPU here: nothing to measure. `--dry-run` compiles all launches.\n")
    bench = Bench(torch.device("cpu" if args.dry_run else "cuda"), dry=args.dry_run)
    result: dict[str, Any] = {"environment": environment(args.commit, dry=args.dry_run)}
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


def environment(commit: str | None, *, dry: bool) -> dict[str, Any]:
    """The machine, the versions, the command and the commit."""
    found: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit or current_commit(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "triton": version("triton"),
        "gpu": None,
    }
    if not dry:
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
        }
    return found


def current_commit() -> str:
    """What git says about the folder of this file, if anything."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a fixed command
    except FileNotFoundError:
        return "unknown"
    return completed.stdout.strip() or "unknown"


def launching(bench: Bench) -> AbstractContextManager[Any]:
    """Where launches are possible: on the GPU, or in the compiler alone."""
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
    """What the device itself does."""
    ceilings = {"copy_bytes_per_second": bench.copy_bandwidth, "matmul_operations_per_second": bench.matmul_rate}
    print(
        f"A copy moves {bench.copy_bandwidth / 1e9:.0f} GB/s; a product of bf16 matrices of 8192 x 8192 makes "
        f"{bench.matmul_rate / 1e12:.0f} TFLOP/s.\n"
    )
    return ceilings


def run_cases(bench: Bench, cases: list[Case]) -> list[dict[str, Any]]:
    """Time each, and print a row of it."""
    print("| op | | us | rate | share | share of a copy as long | aim | met |")
    print("|---" * 8 + "|", flush=True)
    rows = []
    for case in cases:
        row = run_case(bench, case)
        rows.append(row)
        print(
            f"| `{case.op}` | {case.label} | {row['microseconds']:.1f} | {row['rate']:.0f} {row['unit']} "
            f"| {row['share']:.0%} | {percent(row['share_of_copy'])} | {row['aim']} | {row['met']} |",
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
        answers[name] = []
        try:
            for row in ask(bench):
                answers[name].append(row)
        except (OutOfResources, RuntimeError) as error:
            answers[name].append({"failed": f"{type(error).__name__}: {error}"})
        print_table(ask.__doc__ or name, answers[name])
        if not bench.dry:
            torch.cuda.empty_cache()
    return answers


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as Markdown; columns are all keys, in order of appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    print(title, "\n")
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    for row in rows:
        print(f"| {' | '.join(cells(row.get(column, '') for column in columns))} |")
    print(flush=True)


def cells(values: Iterable[object]) -> list[str]:
    """As text, numbers in three digits or so."""
    return [f"{value:.0f}" if isinstance(value, float) else str(value) for value in values]


def percent(share: float | None) -> str:
    """A share, if there is one."""
    return "" if share is None else f"{share:.0%}"


if __name__ == "__main__":
    main()
