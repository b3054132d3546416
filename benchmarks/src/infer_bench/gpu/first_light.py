"""Checks and measures the whole engine on a GPU, in at most nine minutes; prints short tables last.

    python -m infer_bench first-light
    python -m infer_bench first-light --part kernels --part parity
    python -m infer_bench first-light --rehearse          on a CPU: everything that needs no GPU

Each part is a process of its own, one after another. A part that breaks, or even loses the device, leaves the others
alone, and each begins with an empty GPU; this process never uses it. A part that exceeds its time is killed. Results
are saved after every part. See docs/gpu.md.
"""

import argparse
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from infer_bench.ceilings import Ceilings
from infer_bench.gpu.parts import Finding, PartReport, Place
from infer_bench.results import RESULTS, current_commit, table

FIRST = "environment"
PARTS = {
    FIRST: ("environment", 10.0),
    "kernels": ("kernel_checks", 95.0),
    "parity": ("parity", 90.0),
    "engine": ("engine_speed", 85.0),
    "modes": ("mode_speed", 105.0),
    "server": ("server_load", 55.0),
    "profile": ("step_profile", 29.0),
}
"""By name: the module and its seconds. The first part measures the ceilings, and always runs."""
PART_COMMAND = (sys.executable, "-m", f"{__package__}.first_light")
"""Runs a part; its arguments are what is asked, as JSON, and the file for the report."""
GRACE_S = 10.0
"""How much longer a part may take, to start and to finish what it began, before it is killed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts and print the tables; return 1 if something does not hold, 2 without a GPU."""
    args = read_arguments(arguments)
    if not args.rehearse and not torch.cuda.is_available():
        print("There is no GPU here. `--rehearse` runs everything that needs none.", file=sys.stderr)
        return 2
    parts: dict[str, PartReport] = {}
    seconds: dict[str, float] = {}
    ceilings = None
    for name, (module, most_s) in PARTS.items():
        if args.part and name not in (FIRST, *args.part):
            continue
        print(f"\n{name}", file=sys.stderr, flush=True)
        started = time.monotonic()
        parts[name] = run_apart(f"{__package__}.{module}", most_s, ceilings, is_rehearsal=args.rehearse)
        seconds[name] = time.monotonic() - started
        ceilings = parts[FIRST].details.get("ceilings")
        written = {part: {"name": part, "seconds": seconds[part], **asdict(found)} for part, found in parts.items()}
        result = {"command": " ".join(sys.argv), "commit": args.commit or current_commit(), "parts": written}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\n{tables(parts, seconds)}\n")
    if args.rehearse:
        print("A rehearsal on a CPU: nothing here says anything about a GPU.")
    print(f"{sum(seconds.values()):.0f} s; saved {args.out}")
    return int(any(finding.holds is False for report in parts.values() for finding in report.findings))


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the values of the command line's flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; may be given again")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny sizes")
    parser.add_argument("--commit", help="to record; default: what git says")
    parser.add_argument("--out", type=Path, help="the JSON; default: benchmarks/results/first-light.json")
    args = parser.parse_args(arguments)
    args.out = args.out or RESULTS / ("first-light-rehearsal.json" if args.rehearse else "first-light.json")
    return args


def run_apart(module: str, seconds: float, ceilings: dict[str, float] | None, *, is_rehearsal: bool) -> PartReport:
    """Run the part in `module` in a process of its own, and kill everything that it leaves running."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        asked = {"module": module, "seconds": seconds, "ceilings": ceilings, "is_rehearsal": is_rehearsal}
        command = [*PART_COMMAND, json.dumps(asked), str(report)]
        process = subprocess.Popen(command, start_new_session=True)  # noqa: S603 - this program
        try:
            error = f"its process ended with exit code {process.wait(timeout=seconds + GRACE_S)}; see standard error"
        except subprocess.TimeoutExpired:
            error = f"did not end in {seconds:.0f} s, nor in {GRACE_S:.0f} s more"
        finally:
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not report.exists():
            return PartReport(findings=[Finding("the part itself", error, wanted="a report", holds=False)])
        written = json.loads(report.read_text())
    return PartReport(findings=[Finding(**finding) for finding in written["findings"]], details=written["details"])


def run_here(asked: dict[str, Any], report: Path) -> None:
    """Run a part in this process, as `run_apart` asked, and write its report."""
    place = Place(
        device=torch.device("cpu" if asked["is_rehearsal"] else "cuda:0"),
        ceilings=asked["ceilings"] and Ceilings(**asked["ceilings"]),
        deadline_s=time.monotonic() + asked["seconds"],
    )
    part = importlib.import_module(asked["module"])
    gc.freeze()  # collections would look like slow steps and answers
    text = json.dumps(asdict(part.run(place)))
    report.write_text(text)


def tables(parts: dict[str, PartReport], seconds: dict[str, float]) -> str:
    """Return a table of all findings, one of the goals if any is among them, and one of what holds of each part."""
    marks = {True: "yes", False: "**NO**", None: ""}
    every, goals, closing = [], [], []
    for name, report in parts.items():
        judged = [finding for finding in report.findings if finding.holds is not None]
        wrong = [finding for finding in judged if not finding.holds]
        every += [[name, each.what, each.found, each.wanted, marks[each.holds]] for each in report.findings]
        goals += [[each.what, each.found, each.wanted, marks[each.holds]] for each in report.findings if each.is_goal]
        closing.append([name, f"{seconds[name]:.0f} s", f"{len(judged) - len(wrong)} of {len(judged)}", ""])
        closing += [["", "", "**NO**", f"{each.what}: {each.found}, wanted {each.wanted}"] for each in wrong]
    shown = [
        (["part", "what", "found", "wanted", "holds"], every),
        (["goal", "found", "wanted", "met"], goals),
        (["part", "took", "holds", "does not hold"], closing),
    ]
    return "\n\n".join(
        table(head, [[cell.replace("\n", " ").replace("|", "/") for cell in row] for row in rows])
        for head, rows in shown
        if rows
    )


if __name__ == "__main__":  # as `run_apart` starts it
    run_here(json.loads(sys.argv[1]), Path(sys.argv[2]))
