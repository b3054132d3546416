"""The compiler's work on every kernel that ships, in Markdown.

uv run infer-bench kernel-report --write
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from infer_bench.results import ROOT, table
from infer_kernels.checks.cases.launch_case import LaunchCase
from infer_proofs.kernels.compiled.shipped import SHIPPED_CASES, compile_launch

CAPABILITIES = (80, 90, 120)
DOCUMENT = ROOT / "docs" / "kernel-report.md"
NEXT_SECTION = "\n## Main loops\n"
"""The beginning of what this program does not write."""
INTRODUCTION = """# Kernel report

Written by `nox -s kernel_report -- --write`: every kernel of `infer-kernels` in every configuration that ships,
compiled without a GPU with torch {torch} and triton {triton}. Nothing here is a measurement of time.

A cell holds registers per thread, KiB of shared memory per program, and warps x stages. Bytes that a thread spills
(registers that did not fit and live in memory) follow in bold where there are any. fp8 caches need sm_89.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile, print the report, and write it where that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"also write {DOCUMENT.name} in docs/")
    parser.add_argument("--arch", type=int, choices=CAPABILITIES, action="append", help="default: all three")
    parser.add_argument("--op", action="append", help="ops to report; default: all")
    args = parser.parse_args(arguments)
    if args.write and (args.arch or args.op):
        parser.error("--write takes the whole report; leave out --arch and --op")
    cases = [case for case in SHIPPED_CASES if not args.op or case.op in args.op]
    if not cases:
        parser.error(f"no such op; there are {', '.join(sorted({case.op for case in SHIPPED_CASES}))}")
    report = describe(cases, tuple(args.arch or CAPABILITIES))
    print(report)
    if args.write:
        _, heading, rest = DOCUMENT.read_text(encoding="utf-8").partition(NEXT_SECTION)
        DOCUMENT.write_text(f"{report}\n{heading}{rest}", encoding="utf-8")
        print("wrote", DOCUMENT, file=sys.stderr)


def describe(cases: Sequence[LaunchCase], capabilities: Sequence[int]) -> str:
    """Return the introduction, and a table with a row for each case."""
    rows = []
    for number, case in enumerate(cases):
        print(f"\r{number + 1} of {len(cases)}: {case!s:100}", end="", file=sys.stderr)
        rows.append([f"`{case.op}`", case.label, *(describe_case(case, each) for each in capabilities)])
    print(file=sys.stderr)
    head = ["op", "configuration", *(f"sm_{capability}" for capability in capabilities)]
    return INTRODUCTION.format(torch=version("torch"), triton=version("triton")) + "\n" + table(head, rows)


def describe_case(case: LaunchCase, capability: int) -> str:
    """Return one cell, empty where the device is never asked."""
    if capability < case.first_capability:
        return ""
    kernel = compile_launch(case.launch, capability, kernel=case.kernel)
    shared = f"{kernel.shared_memory / 1024:.1f}".removesuffix(".0")
    spills = f", **spills {kernel.spilled_bytes}**" if kernel.spilled_bytes else ""
    return f"{kernel.registers}, {shared}, {kernel.num_warps} x {kernel.num_stages}{spills}"
