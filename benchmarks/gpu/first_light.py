"""Puts the whole engine on a GPU for the first time: one command, at most nine minutes, a short table at the end.

    uv run python benchmarks/gpu/first_light.py
    uv run python benchmarks/gpu/first_light.py --part kernels --part parity
    uv run python benchmarks/gpu/first_light.py --rehearse          without a GPU: everything that a CPU can run

Every part runs in a process of its own, one after another: what breaks one of them, a lost device even, leaves the
others alone, and each begins with an empty GPU. This one never touches it. A part has a time to keep; one that does not
come back is ended. What was found is saved after every part. See docs/gpu.md.
"""

import argparse
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from ceilings import Ceilings
from gpu.parts import Finding, Part, PartReport, Place
from kernels.gpu import current_commit
from race_report import table
from report import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPart:
    """A part that is to be run.

    Attributes:
        module: whose `run` it is.
        seconds: that it should take.
    """

    module: str
    seconds: float


FIRST = "environment"
PARTS = {
    FIRST: PlannedPart(module="gpu.environment", seconds=10.0),
    "kernels": PlannedPart(module="gpu.kernel_rates", seconds=105.0),
    "parity": PlannedPart(module="gpu.parity", seconds=105.0),
    "engine": PlannedPart(module="gpu.engine_speed", seconds=150.0),
    "server": PlannedPart(module="gpu.server_load", seconds=65.0),
    "profile": PlannedPart(module="gpu.step_profile", seconds=35.0),
}
"""By name; the first one measures the ceilings."""
GRACE_S = 10.0
"""What a part may take beyond its time, to start and to finish what it began, before it is ended."""
REHEARSAL_SHARE = 0.6
"""Of every part's time: a rehearsal has the same parts, at sizes that say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOutcome:
    """What came of one part.

    Attributes:
        name: of the part.
        seconds: it took, its process's start included.
        report: what it found; None where it failed.
        error: why it failed.
    """

    name: str
    seconds: float
    report: PartReport | None = None
    error: str | None = None

    @property
    def findings(self) -> list[Finding]:
        """What the tables say of it."""
        if self.report is None:
            return [Finding(what="the part itself", found=self.error or "failed", wanted="a report", holds=False)]
        return self.report.findings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts and print the table; return 1 where something does not hold, 2 where there is no GPU."""
    args = read_arguments(arguments)
    if not args.rehearse and not torch.cuda.is_available():
        print("There is no GPU here. `--rehearse` runs everything that a CPU can run.", file=sys.stderr)
        return 2
    device = torch.device("cpu" if args.rehearse else "cuda")
    if args.report is not None:  # one part, asked for by the process that runs them all
        return run_part(args.module, device, ceilings=args.ceilings, seconds=args.seconds, report=args.report)
    started = time.monotonic()
    outcomes: list[PartOutcome] = []
    ceilings = None
    for name, part in PARTS.items():
        if args.part and name not in (FIRST, *args.part):
            continue
        print(f"\n{name}", file=sys.stderr, flush=True)
        outcomes.append(start_part(name, part, ceilings, is_rehearsal=args.rehearse))
        if name == FIRST and outcomes[0].report is not None:
            ceilings = Ceilings(**outcomes[0].report.details["ceilings"])
        save(args.out, outcomes, commit=args.commit)
    print(f"\n{all_findings(outcomes)}\n\n{closing_table(outcomes, is_rehearsal=args.rehearse)}")
    print(f"\n{time.monotonic() - started:.0f} s; saved {args.out}")
    return 0 if all(finding.holds is not False for outcome in outcomes for finding in outcome.findings) else 1


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; may be given again")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, at tiny sizes")
    parser.add_argument("--commit", help="to record; left out: what git says")
    parser.add_argument("--out", type=Path, help="of the JSON; left out: benchmarks/results/first-light.json")
    parser.add_argument("--module", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--ceilings", type=lambda text: Ceilings(**json.loads(text)), help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    name = "first-light-rehearsal" if args.rehearse else "first-light"
    args.out = args.out or ROOT / "benchmarks" / "results" / f"{name}.json"
    return args


def start_part(name: str, part: PlannedPart, ceilings: Ceilings | None, *, is_rehearsal: bool) -> PartOutcome:
    """Run one part in a process of its own, and end whatever it leaves running."""
    seconds = part.seconds * (REHEARSAL_SHARE if is_rehearsal else 1)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, __file__, "--module", part.module, "--report", str(report)]
        command += ["--seconds", str(seconds), *(["--rehearse"] if is_rehearsal else [])]
        command += ["--ceilings", json.dumps(asdict(ceilings))] if ceilings is not None else []
        process = subprocess.Popen(command, start_new_session=True)  # noqa: S603 - this program
        try:
            code = process.wait(timeout=seconds + GRACE_S)
            error = f"its process ended with exit code {code}; its standard error says why"
        except subprocess.TimeoutExpired:
            error = f"did not end in {seconds:.0f} s, nor in {GRACE_S:.0f} s more"
        finally:
            _end_all(process)
        took_s = time.monotonic() - started
        if not report.exists():
            return PartOutcome(name=name, seconds=took_s, error=error)
        written = json.loads(report.read_text())
    findings = [Finding(**each) for each in written["findings"]]
    return PartOutcome(name=name, seconds=took_s, report=PartReport(findings=findings, details=written["details"]))


def _end_all(process: "subprocess.Popen[bytes]") -> None:
    """End `process` and every process that it started."""
    with suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_part(module: str, device: torch.device, *, ceilings: Ceilings | None, seconds: float, report: Path) -> int:
    """Run one part in this process and write what it found to `report`."""
    place = Place(device=device, ceilings=ceilings, deadline_s=time.monotonic() + seconds)
    run: Part = importlib.import_module(module).run
    text = json.dumps(asdict(run(place)))
    report.write_text(text)
    return 0


def save(path: Path, outcomes: Sequence[PartOutcome], *, commit: str | None) -> None:
    """Write all that is known so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit or current_commit(),
        "parts": {outcome.name: asdict(outcome) for outcome in outcomes},
    }
    path.write_text(json.dumps(result, indent=2) + "\n")


def all_findings(outcomes: Sequence[PartOutcome]) -> str:
    """Return a table of everything that was found, part by part."""
    marks = {True: "yes", False: "**NO**", None: ""}
    rows = [
        [outcome.name if number == 0 else "", finding.what, finding.found, finding.wanted, marks[finding.holds]]
        for outcome in outcomes
        for number, finding in enumerate(outcome.findings)
    ]
    return table(["part", "what", "found", "wanted", "holds"], [list(map(_as_cell, row)) for row in rows])


def closing_table(outcomes: Sequence[PartOutcome], *, is_rehearsal: bool) -> str:
    """Return a table of how much of each part holds, and of each thing that does not."""
    rows = []
    for outcome in outcomes:
        judged = [finding for finding in outcome.findings if finding.holds is not None]
        failed = [finding for finding in judged if not finding.holds]
        held = f"{len(judged) - len(failed)} of {len(judged)}" if judged else "-"
        rows.append([outcome.name, f"{outcome.seconds:.0f} s", held, ""])
        rows += [["", "", "**NO**", f"{each.what}: {each.found}, wanted {each.wanted}"] for each in failed]
    title = "A rehearsal on a CPU: nothing here says anything about a GPU.\n\n" if is_rehearsal else ""
    return title + table(["part", "took", "holds", "does not hold"], [list(map(_as_cell, row)) for row in rows])


def _as_cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "/")


if __name__ == "__main__":
    sys.exit(main())
