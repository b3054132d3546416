"""First light runs its parts apart from one another, keeps its time, and says what it found; here, rehearsed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from ceilings import Ceilings
from gpu import first_light
from gpu.environment import driver_version
from gpu.first_light import PartOutcome, PlannedPart, all_findings, closing_table, read_arguments, start_part
from gpu.kernel_rates import aims, best_rates, correctness, one_of_each_op, while_true
from gpu.parts import Finding, PartReport
from kernels.checks import all_checks

CEILINGS = Ceilings(read_bytes_per_s=1e9, copy_bytes_per_s=2e9, operations_per_s=3e9)
HEAD = "from gpu.parts import Finding, PartReport\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What writes a module that holds a part and returns its name."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def write(body: str) -> str:
        (tmp_path / "made_part.py").write_text(HEAD + body)
        return "made_part"

    return write


def outcome_of(module: str, *, seconds: float = 60.0) -> PartOutcome:
    return start_part("made", PlannedPart(module=module, seconds=seconds), CEILINGS, is_rehearsal=True)


def test_a_part_gets_its_place_and_its_findings_come_back(module: Any) -> None:
    outcome = outcome_of(
        module(
            "def run(place):\n"
            "    found = f'{place.device}, {place.ceilings.copy_bytes_per_s:g}, {place.seconds_left:.0f}'\n"
            "    return PartReport(findings=[Finding(what='w', found=found, holds=True)], details={'a': [1]})\n"
        )
    )
    assert outcome.report == PartReport(
        findings=[Finding(what="w", found="cpu, 2e+09, 36", holds=True)], details={"a": [1]}
    )
    assert outcome.error is None


def test_a_part_that_breaks_is_a_finding_that_does_not_hold(module: Any) -> None:
    (finding,) = outcome_of(module("def run(place):\n    raise RuntimeError('no such kernel')\n")).findings
    assert finding.holds is False
    assert "exit code 1" in finding.found


def test_a_process_that_dies_without_a_word_is_one_too(module: Any) -> None:
    (finding,) = outcome_of(module("import os\ndef run(place):\n    os.abort()\n")).findings
    assert finding.holds is False
    assert "exit code -6" in finding.found


def test_a_part_that_hangs_is_ended_with_all_that_it_started(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_light, "GRACE_S", 15.0)  # until it has started, on a slow machine
    pid_file = tmp_path / "pid"
    body = (
        "import subprocess, time\n"
        "def run(place):\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        f"    open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
        "    time.sleep(600)\n"
    )
    started = time.monotonic()
    (finding,) = outcome_of(module(body), seconds=1.0).findings
    assert time.monotonic() - started < 60
    assert finding.holds is False
    assert "did not end" in finding.found
    assert not is_running(int(pid_file.read_text()))


def test_what_a_part_leaves_running_is_ended(module: Any, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    body = (
        "import subprocess\n"
        "def run(place):\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        f"    open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
        "    return PartReport()\n"
    )
    assert outcome_of(module(body)).report == PartReport()
    assert not is_running(int(pid_file.read_text()))


def is_running(pid: int) -> bool:
    deadline_s = time.monotonic() + 5
    while time.monotonic() < deadline_s:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return False
        time.sleep(0.05)
    return True


def test_the_page_gives_every_part_its_time() -> None:
    page = (Path(first_light.__file__).parents[2] / "docs" / "gpu.md").read_text()
    for name, part in first_light.PARTS.items():
        assert f"| `{name}` | {part.seconds:.0f} |" in page


def test_all_parts_together_keep_the_nine_minutes() -> None:
    parts = first_light.PARTS.values()
    assert sum(part.seconds + first_light.GRACE_S for part in parts) < 540


def test_the_tables_mark_what_does_not_hold() -> None:
    good = PartReport(
        findings=[Finding(what="a", found="1 | 2", wanted="3", holds=True), Finding(what="b", found="4\n5")]
    )
    bad = PartOutcome(name="second", seconds=2.0, error="lost the device")
    outcomes = [PartOutcome(name="first", seconds=1.0, report=good), bad]
    assert all_findings(outcomes).splitlines()[2:] == [
        "| first | a | 1 / 2 | 3 | yes |",
        "|  | b | 4 5 |  |  |",
        "| second | the part itself | lost the device | a report | **NO** |",
    ]
    assert closing_table(outcomes, is_rehearsal=False).splitlines()[2:] == [
        "| first | 1 s | 1 of 1 |  |",
        "| second | 2 s | 0 of 1 |  |",
        "|  |  | **NO** | the part itself: lost the device, wanted a report |",
    ]
    assert "says anything about a GPU" in closing_table([bad], is_rehearsal=True)


def test_without_a_gpu_it_says_so() -> None:
    script = Path(first_light.__file__)
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    completed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=environment)
    assert completed.returncode == 2
    assert "`--rehearse`" in completed.stderr


def test_a_rehearsal_finds_the_ceilings_and_checks_every_op(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    script = Path(first_light.__file__)
    command = [sys.executable, str(script), "--rehearse", "--part", "kernels", "--commit", "abc", "--out", str(out)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    saved = json.loads(out.read_text())
    assert saved["commit"] == "abc"
    assert saved["parts"]["environment"]["report"]["details"]["ceilings"]["operations_per_s"] > 0
    checks = saved["parts"]["kernels"]["report"]["details"]["checks"]
    assert checks == {"passed": len({check.op for check in all_checks()}), "failed": {}}
    ops = {row["op"] for row in saved["parts"]["kernels"]["report"]["details"]["cases"]}
    assert ops >= {"paged_decode", "paged_prefill", "sample", "rms_norm"}
    assert "A rehearsal on a CPU" in completed.stdout
    assert str(out) in completed.stdout


def test_a_rehearsal_does_not_overwrite_what_a_gpu_has_shown() -> None:
    assert read_arguments([]).out != read_arguments(["--rehearse"]).out


def test_items_end_with_the_condition() -> None:
    left, checks = iter([True, True, False]), list(all_checks())[:5]
    assert list(while_true(lambda: next(left), checks)) == checks[:2]


def test_the_first_check_of_every_op_is_rehearsed() -> None:
    ops = [check.op for check in one_of_each_op(all_checks())]
    assert sorted(ops) == sorted({check.op for check in all_checks()})


@pytest.mark.parametrize(
    ("checked", "holds"),
    [
        ({"passed": 3, "failed": {}}, True),
        ({"passed": 2, "failed": {}}, False),  # no time for the third
        ({"passed": 2, "failed": {"rms_norm: x": "off"}}, False),
    ],
)
def test_kernels_are_right_only_where_all_of_them_were_compared(checked: dict[str, Any], *, holds: bool) -> None:
    finding = correctness(checked, num_checks=3)
    assert finding.holds is holds
    assert ("rms_norm: x" in finding.found) == bool(checked["failed"])


def case_row(op: str, *, share: float, aim: str = "", met: str = "") -> dict[str, Any]:
    return {"op": op, "label": f"{share}", "share": share, "rate": 10.0, "unit": "GB/s", "aim": aim, "met": met}


def test_an_op_is_shown_at_its_best_and_its_missed_aims_are_told() -> None:
    rows = [
        case_row("copy", share=0.5, aim="80%", met="no"),
        case_row("copy", share=0.9, aim="80%", met="yes"),
        case_row("norm", share=0.7),
    ]
    finding = aims(rows, num_cases=3)
    assert finding.holds is False
    assert "1 of 2 aims missed; copy 0.5" in finding.found
    assert [(finding.what, finding.found) for finding in best_rates(rows)] == [
        ("copy", "10 GB/s, 90% of the ceiling (0.9)"),
        ("norm", "10 GB/s, 70% of the ceiling (0.7)"),
    ]
    assert aims(rows[1:], num_cases=2).holds is True
    assert aims(rows[1:], num_cases=3).holds is False  # no time for the third
    failed = aims([*rows[1:], {"op": "sample", "label": "x", "failed": "OutOfResources"}], num_cases=3)
    assert failed.holds is False
    assert "1 failed" in failed.found
    assert "sample x" in failed.found


def test_the_driver_is_unknown_where_its_tool_is_missing() -> None:
    assert driver_version(lambda _: None) is None


def test_the_driver_is_what_its_tool_says(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 570.1\necho 570.1\n")
    tool.chmod(0o755)
    assert driver_version(lambda _: str(tool)) == "570.1"
    tool.write_text("#!/bin/sh\necho no devices\nexit 9\n")
    assert driver_version(lambda _: str(tool)) is None
