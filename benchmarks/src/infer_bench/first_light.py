"""Proves and measures everything on a GPU: the doctor, the tests that need one, and the benchmarks on it.

    uv run infer-bench first-light
    uv run infer-bench first-light --only doctor tests
    uv run infer-bench first-light --rehearse          on a CPU: the same commands, as small as they get

Each step is a process of its own with a time limit, one after another; this process never uses the GPU. A step that
breaks, hangs or loses the device leaves the others alone. Results are saved after every step. See docs/gpu.md.
"""

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from infer_bench.results import RESULTS, ROOT, current_commit, table
from infer_bench.server.processes import TIMED_OUT, run_limited

NUM_LOG_LINES = 200
"""The last ones of a step's output, which are saved."""
DECODES = "steps --device cuda --shape llama-3.2-3b"
IDLE = "--profile --most-idle 0.05"
REQUESTS = "--requests 256 --lengths 100 1024 --alone 4"
LOADS = "--concurrency 1 64 --no-progress"
TESTS = "packages/infer-kernels/tests/gpu packages/infer-engine/tests/gpu"
PYTEST = "-q -m gpu -p no:benchmark"
"""Without a plugin that a machine may have, and that refuses several processes."""
TESTS_ALONE = "tests/gpu"
"""Tests that time requests or measure the device's memory: nothing else may use it beside them."""


class Step(NamedTuple):
    """One command.

    Attributes:
        program: the module that runs it.
        seconds: that it may take.
        arguments: command-line arguments of the module; `{out}` is a folder for JSON, all of which is saved.
        rehearsal: what it gets on a CPU.
        num_threads: threads of torch on the CPU in each process; None: its own choice.
    """

    program: str
    seconds: float
    arguments: str
    rehearsal: str
    num_threads: int | None = None


STEPS = {
    "doctor": Step(
        *("infer_server", 210, "doctor --timeout 180 --out {out}/doctor.json"),
        "doctor --device cpu --out {out}/doctor.json",
    ),
    "tests": Step(
        *("pytest", 420, f"{PYTEST} --numprocesses 6 {TESTS}", f"-q -m 'not full' {TESTS}"),
        num_threads=1,  # references compute on the CPU, where all threads of six processes would wait for each other
    ),
    "tests alone": Step("pytest", 120, f"{PYTEST} {TESTS_ALONE} benchmarks/tests", f"-q -m 'not full' {TESTS_ALONE}"),
    "kernels": Step("infer_bench", 210, "kernels-gpu --out {out}", "kernels-gpu --quick"),
    "one sequence": Step(
        *(
            "infer_bench",
            100,
            f"{DECODES} --sequences 1 --least-read-share 0.75 --profile --most-idle 0.05 --out {{out}}",
        ),
        "steps --quick --sequences 1 --profile",
    ),
    "many sequences": Step(
        *("infer_bench", 100, f"{DECODES} --sequences 64 256 --least-read-share 0.85 --profile --out {{out}}"),
        "steps --quick --sequences 4",
    ),
    "kernel by kernel": Step(
        *("infer_bench", 100, f"{DECODES} --sequences 1 64 256 --eager --out {{out}}"),
        "steps --quick --sequences 1 --eager",
    ),
    "throughput": Step(
        *("infer_bench", 120, f"concurrency --device cuda --shape qwen3-0.6b {REQUESTS} --out {{out}}"),
        "concurrency --quick --shape llama-30m --alone 4",
    ),
    "server": Step(
        *("infer_bench", 180, f"serving --shape llama-3.2-3b {LOADS} --out {{out}} --serve --device cuda"),
        "serving --quick --no-progress --out {out}",
    ),
}
"""What runs, in order: what comes first also compiles kernels for what comes later."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps and print a table; return 1 if one fails, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=STEPS, metavar="STEP", help=f"of {', '.join(STEPS)}")
    parser.add_argument(
        "--rehearse", action="store_true", help="on the CPU, as small as it gets; says nothing of a GPU"
    )
    parser.add_argument("--out", type=Path, help="the JSON; default: benchmarks/results/first-light.json")
    args = parser.parse_args(arguments)
    if not args.rehearse and not torch.cuda.is_available():
        print("There is no GPU here. `--rehearse` runs everything that needs none.", file=sys.stderr)
        return 2
    out = args.out or RESULTS / ("first-light-rehearsal.json" if args.rehearse else "first-light.json")
    found: dict[str, dict[str, Any]] = {}
    for name in args.only or STEPS:
        print(f"\n{name}\n", flush=True)
        found[name] = run_step(STEPS[name], is_rehearsal=args.rehearse)
        print("\n".join(found[name]["log"]), flush=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"commit": current_commit(), "steps": found}, indent=2) + "\n")
    rows = [[name, f"{each['seconds']:.0f} s", verdict(each["exit_code"])] for name, each in found.items()]
    print(f"\n{table(['step', 'took', 'verdict'], rows)}\n\nsaved {out}")
    return int(any(each["exit_code"] for each in found.values()))


def run_step(step: Step, *, is_rehearsal: bool) -> dict[str, Any]:
    """Run a step; return its command, its seconds, its exit code, the end of its output and the JSON that it wrote."""
    with tempfile.TemporaryDirectory() as made:
        folder, log = Path(made) / "out", Path(made) / "log"
        folder.mkdir()
        words = shlex.split((step.rehearsal if is_rehearsal else step.arguments).format(out=folder))
        command = ["python", "-m", step.program, *words]
        began_s = time.monotonic()
        with log.open("wb") as output:
            code = run_limited(
                [sys.executable, *command[1:]],
                timeout_s=step.seconds,
                variables=None if step.num_threads is None else {"OMP_NUM_THREADS": f"{step.num_threads}"},
                output=output,
                folder=ROOT,
            )
        return {
            "command": " ".join(command).replace(str(folder), "OUT"),
            "seconds": time.monotonic() - began_s,
            "exit_code": code,
            "log": log.read_text(errors="replace").splitlines()[-NUM_LOG_LINES:],
            "results": {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))},
        }


def verdict(exit_code: int) -> str:
    """Return what an exit code means."""
    if exit_code == TIMED_OUT:
        return "**NO**: it did not end in its time"
    return "all holds" if exit_code == 0 else f"**NO**: exit code {exit_code}, see above"
