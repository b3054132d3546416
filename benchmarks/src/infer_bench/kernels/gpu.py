"""Compares ops with their references on a GPU and times them; without one, launches compile for sm_90 alone.

`infer-bench first-light --part kernels` runs all of it.
"""

import sys
from collections.abc import Iterable
from typing import Any

from triton.runtime.errors import OutOfResources

from infer_bench.kernels.bench import Bench
from infer_bench.kernels.cases import Case
from infer_bench.kernels.check import Check
from infer_kernels.checks.compiled.ahead_of_time import compile_only


def run_checks(bench: Bench, checks: Iterable[Check]) -> dict[str, Any]:
    """Compare ops with their references; where it is dry, the PyTorch paths, and launch the kernels."""
    passed, failed = 0, {}
    for check in checks:
        try:
            if not (bench.dry and check.of_kernels):
                check.compare(bench.device)
            if bench.dry:
                with compile_only(90):
                    check.run(lambda tensor: tensor)
        except (AssertionError, OutOfResources, RuntimeError) as error:
            failed[str(check)] = f"{type(error).__name__}: {error}"
            print(f"FAILED {check}: {error}", file=sys.stderr)
        else:
            passed += 1
    print(f"{passed} checks passed, {len(failed)} failed\n", flush=True)
    return {"passed": passed, "failed": failed}


def run_case(bench: Bench, case: Case) -> dict[str, Any]:
    """Time it, and compare it with the ceilings and with its aim."""
    work = case.make(bench)
    seconds = bench.seconds(work.launch)
    if work.computes:
        rate, share, unit = work.computes / seconds / 1e12, work.computes / seconds / bench.matmul_rate, "TFLOP/s"
    else:
        rate, share, unit = work.moves / seconds / 1e9, work.moves / seconds / bench.copy_bandwidth, "GB/s"
    aim = met = ""
    if case.aim is not None:
        value, of = case.aim
        aim = f"{value:.0%}" if of == "share" else f"{value:g} {of}"
        reached = {"share": share >= value, "TFLOP/s": rate >= value, "us": seconds * 1e6 <= value}
        met = "" if bench.dry else "yes" if reached[of] else "no"
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
