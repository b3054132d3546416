"""The speed of the kernels on a GPU, at the shapes of real models, and its share of what the device can do.

    uv run infer-bench kernels-gpu
    uv run infer-bench kernels-gpu --op paged_decode --op paged_prefill
    uv run infer-bench kernels-gpu --quick           without a GPU: each op compiles, and nothing is timed

A share is of a copy's bytes per second, or of the library's product's operations, on the same device in the same run.
Where a case misses its aim or cannot be launched, the exit code is 1. One question is answered beside: which numbers of
rows of `F.linear` have other bits than the same rows in a large batch, as the library comes, and with split-K off.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import functional
from triton.runtime.errors import OutOfResources

from infer_bench.kernels.bench import Bench
from infer_bench.kernels.cases import all_cases
from infer_bench.kernels.work import Case
from infer_bench.limits import Limit, judge
from infer_bench.results import argument_parser, save, table
from infer_proofs.kernels.compiled.ahead_of_time import compile_only

ROWS = (*range(1, 18), 24, 32, 48, 64, 100, 128, 200, 256, 512, 513, 1024, 2048, 4096)
LAYERS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096), (2560, 2560))
"""[out_features, in_features] of Llama 8B's layers and head, and of a small one."""
COLUMNS = ("op", "label", "microseconds", "rate", "unit", "share", "aim", "met")


def main(arguments: Sequence[str] | None = None) -> int:
    """Time, print a table and save the result; return 1 where an aim is missed, 2 without a GPU."""
    parser = argument_parser(__doc__, quick="the first case of each op, only compiled, for sm_90")
    parser.add_argument("--op", action="append", help="only this one; may be given again")
    args = parser.parse_args(arguments)
    if not args.quick and not torch.cuda.is_available():
        print("There is no GPU here; `--quick` compiles the kernels without one.", file=sys.stderr)
        return 2
    bench = Bench(torch.device("cpu" if args.quick else "cuda"), dry=args.quick)
    cases = [case for case in all_cases() if not args.op or case.op in args.op]
    if args.quick:
        cases = list({case.op: case for case in reversed(cases)}.values())
    rows = list(run_cases(bench, cases))
    print(table(COLUMNS, [[_cell(row.get(name, "")) for name in COLUMNS] for row in rows]))
    result: dict[str, Any] = {"cases": rows}
    if not args.quick:
        save("kernels-gpu", result, args)
        result["other_bits"] = {setting: other_bits(setting) for setting in ("default", "no split-K")}
        print("\nrows of `F.linear` with other bits than in a batch of 4096:", result["other_bits"])
        save("kernels-gpu", result, args)
    return judge(
        [
            Limit(what="cases that cannot be launched", value=sum("failed" in row for row in rows), most=0),
            Limit(what="cases that miss their aims", value=sum(row.get("met") == "no" for row in rows), most=0),
        ]
    )


def run_cases(bench: Bench, cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
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


def run_case(bench: Bench, case: Case) -> dict[str, Any]:
    """Time one case, and compare it with the ceilings and with its aim."""
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


@torch.inference_mode()
def other_bits(
    setting: str,
    *,
    layers: Sequence[tuple[int, int]] = LAYERS,
    counts: Sequence[int] = ROWS,
    device: str = "cuda",
) -> dict[str, list[int]]:
    """Return by layer the numbers of rows whose results are not those of the same rows among `max(counts)`."""
    cuda = torch.backends.cuda
    matmul, library = cuda.matmul, cuda.preferred_blas_library()
    before = matmul.allow_bf16_reduced_precision_reduction
    if setting != "default":
        cuda.preferred_blas_library("cublaslt")  # cuBLAS cannot leave split-K out, and torch refuses to ask it
        matmul.allow_bf16_reduced_precision_reduction = (False, False)  # reduced precision, split-K
    try:
        found = {}
        for out_features, in_features in layers:
            x = torch.randn(max(counts), in_features, device=device).bfloat16()
            weight = torch.randn(out_features, in_features, device=device).bfloat16()
            whole = functional.linear(x, weight)
            found[f"{in_features} to {out_features}"] = [
                rows for rows in counts if not torch.equal(functional.linear(x[:rows], weight), whole[:rows])
            ]
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before
        cuda.preferred_blas_library(library)
    return found


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
