"""First light runs its parts apart from one another, limits their time, and reports what does not hold."""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from infer_bench.gpu import environment, first_light, kernel_checks
from infer_bench.gpu.first_light import GRACE_S, PARTS, read_arguments, run_apart, tables
from infer_bench.gpu.kernel_checks import best_rates, judge_checks, judge_times
from infer_bench.gpu.parts import Finding, PartReport, Place
from infer_bench.kernels.checks import all_checks
from infer_bench.results import ROOT

CEILINGS = {"read_bytes_per_s": 1e9, "copy_bytes_per_s": 2e9, "operations_per_s": 3e9}
START_A_CHILD = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[2]).parent.parent.joinpath("pid").write_text(str(child.pid))
"""


def place(seconds: float = 60.0) -> Place:
    return Place(device=torch.device("cpu"), deadline_s=time.monotonic() + seconds)


@pytest.fixture
def run_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PartReport]:
    """Return a function that runs a script in place of a part, with reports in `tmp_path`."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run_script(script: str, *, seconds: float = 60.0) -> PartReport:
        monkeypatch.setattr(first_light, "PART_COMMAND", (sys.executable, "-c", script))
        return run_apart("made_part", seconds, None, is_rehearsal=True)

    return run_script


def is_running(pid_file: Path) -> bool:
    try:
        psutil.Process(int(pid_file.read_text())).wait(timeout=30)
    except psutil.NoSuchProcess:
        return False
    except psutil.TimeoutExpired:
        return True
    return False


def test_a_part_gets_its_place_and_its_findings_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_part.py").write_text(
        "from infer_bench.gpu.parts import Finding, PartReport\n"
        "def run(place):\n"
        "    found = f'{place.device}, {place.ceilings.copy_bytes_per_s:g}, {50 < place.seconds_left <= 60}'\n"
        "    return PartReport(findings=[Finding('w', found, holds=True)], details={'a': [1]})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = run_apart("made_part", 60.0, CEILINGS, is_rehearsal=True)
    assert report.findings == [Finding("w", "cpu, 2e+09, True", holds=True)]
    assert report.details == {"a": [1]}


@pytest.mark.parametrize(
    ("script", "code"),
    [("raise RuntimeError('no such kernel')", "exit code 1"), ("import os; os.abort()", "exit code -6")],
)
def test_a_part_that_breaks_does_not_hold(run_script: Callable[..., PartReport], script: str, code: str) -> None:
    (finding,) = run_script(script).findings
    assert finding.holds is False
    assert code in finding.found


def test_a_part_over_its_time_is_killed_with_all_that_it_started(
    run_script: Callable[..., PartReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_light, "GRACE_S", 9.0)  # to start, on a slow machine
    started = time.monotonic()
    (finding,) = run_script(START_A_CHILD + "time.sleep(600)", seconds=1.0).findings
    assert time.monotonic() - started < 45
    assert finding.holds is False
    assert "did not end in 1 s" in finding.found
    assert not is_running(tmp_path / "pid")


def test_what_a_part_leaves_running_is_killed(run_script: Callable[..., PartReport], tmp_path: Path) -> None:
    written = '{"findings": [], "details": {"a": 1}}'
    report = run_script(START_A_CHILD + f"pathlib.Path(sys.argv[2]).write_text({written!r})")
    assert report.details == {"a": 1}
    assert not is_running(tmp_path / "pid")


def test_the_tables_mark_what_does_not_hold() -> None:
    good = [Finding("a", "1 | 2", wanted="3", holds=True), Finding("b", "4\n5")]
    bad = [Finding("the part itself", "lost the device", wanted="a report", holds=False)]
    shown = tables({"x": PartReport(findings=good), "y": PartReport(findings=bad)}, {"x": 1.0, "y": 2.0})
    every, closing = (part.splitlines()[2:] for part in shown.split("\n\n"))
    assert every == [
        "| x | a | 1 / 2 | 3 | yes |",
        "| x | b | 4 5 |  |  |",
        "| y | the part itself | lost the device | a report | **NO** |",
    ]
    assert closing == [
        "| x | 1 s | 1 of 1 |  |",
        "| y | 2 s | 0 of 1 |  |",
        "|  |  | **NO** | the part itself: lost the device, wanted a report |",
    ]


def test_goals_have_a_table_of_their_own() -> None:
    found = [Finding("a", "1"), Finding("idle", "9%", wanted="5%", holds=False, is_goal=True)]
    _, goals, closing = tables({"x": PartReport(findings=found)}, {"x": 1.0}).split("\n\n")
    assert goals.splitlines()[2:] == ["| idle | 9% | 5% | **NO** |"]
    assert "| x | 1 s | 0 of 1 |" in closing


@pytest.mark.parametrize(("holds", "status"), [(True, 0), (None, 0), (False, 1)])
def test_the_exit_status_says_whether_all_holds_and_every_part_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, holds: bool | None, status: int
) -> None:
    asked: list[Any] = []

    def run_apart(module: str, _seconds: float, ceilings: Any, *, is_rehearsal: bool) -> PartReport:
        name = module.rpartition(".")[2]
        asked.append((name, ceilings, is_rehearsal))
        found = [Finding("w", "f", holds=holds if name == "engine_speed" else True)]
        return PartReport(findings=found, details={"ceilings": CEILINGS})

    monkeypatch.setattr(first_light, "run_apart", run_apart)
    out = tmp_path / "found.json"
    assert first_light.main(["--rehearse", "--part", "engine", "--commit", "abc", "--out", str(out)]) == status
    assert asked == [("environment", None, True), ("engine_speed", CEILINGS, True)]
    saved = json.loads(out.read_text())
    assert saved["commit"] == "abc"
    assert saved["parts"]["engine"]["findings"][0]["holds"] is holds


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert first_light.main([]) == 2
    assert "`--rehearse`" in capsys.readouterr().err


def test_a_rehearsal_does_not_overwrite_results_of_a_gpu() -> None:
    assert read_arguments([]).out != read_arguments(["--rehearse"]).out


def test_all_parts_take_at_most_ten_minutes_and_the_page_says_how_long_each_takes() -> None:
    page = (ROOT / "docs/gpu.md").read_text()
    for name, (_, seconds) in PARTS.items():
        assert f"| `{name}` | {seconds:.0f} |" in page
    assert sum(seconds + GRACE_S for _, seconds in PARTS.values()) < 600


def test_a_rehearsal_measures_ceilings_and_checks_every_op() -> None:
    found = environment.run(place()).details
    assert found["ceilings"]["operations_per_s"] > 0
    assert found["machine"].keys() >= {"gpu", "torch", "triton"}
    report = kernel_checks.run(place(seconds=300))
    assert [finding.holds for finding in report.findings] == [True, True]
    ops = sorted({check.op for check in all_checks()})
    assert report.details["checks"] == {"passed": len(ops), "failed": {}}
    assert {row["op"] for row in report.details["cases"]} >= {"paged_decode", "paged_prefill", "sample"}


@pytest.mark.parametrize(
    ("checked", "holds"),
    [
        ({"passed": 3, "failed": {}}, True),
        ({"passed": 2, "failed": {}}, False),  # no time for the third
        ({"passed": 2, "failed": {"rms_norm: x": "off"}}, False),
    ],
)
def test_kernels_hold_only_if_all_were_compared_and_agree(checked: dict[str, Any], *, holds: bool) -> None:
    finding = judge_checks(checked, num_checks=3)
    assert finding.holds is holds
    assert ("rms_norm: x" in finding.found) == bool(checked["failed"])


def test_an_op_is_shown_at_its_best_and_its_missed_aims_are_named() -> None:
    def row(op: str, share: float, met: str = "") -> dict[str, Any]:
        aim = "80%" if met else ""
        return {"op": op, "label": f"{share}", "share": share, "rate": 10.0, "unit": "GB/s", "aim": aim, "met": met}

    rows = [row("copy", 0.5, "no"), row("copy", 0.9, "yes"), row("norm", 0.7)]
    finding = judge_times(rows, num_cases=3)
    assert finding.holds is False
    assert "1 missed their aims; first: copy 0.5" in finding.found
    assert {finding.what: finding.found for finding in best_rates(rows)} == {
        "copy": "10 GB/s, 90% of the ceiling (0.9)",
        "norm": "10 GB/s, 70% of the ceiling (0.7)",
    }
    assert judge_times(rows[1:], num_cases=2).holds is True
    assert judge_times(rows[1:], num_cases=3).holds is False  # no time for the third
    failed = judge_times([*rows[1:], {"op": "sample", "label": "x", "failed": "OutOfResources"}], num_cases=3)
    assert failed.holds is False
    assert "1 failed" in failed.found
    assert "sample x" in failed.found
