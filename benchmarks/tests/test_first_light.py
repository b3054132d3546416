"""First light: steps run apart, within their time, and what does not hold is said. `processes` ends what hangs."""

import json
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

from infer_bench import first_light
from infer_bench.first_light import STEPS, Step, main
from infer_bench.registry import BENCHMARKS
from infer_bench.results import ROOT
from infer_bench.server.processes import TIMED_OUT, run_limited

START_A_CHILD = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
"""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Three small programs in place of the steps; returns the folder for the JSON."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "good.py").write_text("import sys; open(sys.argv[1], 'w').write('{\"rate\": 1}'); print('fine')")
    (tmp_path / "bad.py").write_text("print('lost the device'); raise SystemExit(3)")
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    made = {
        name: Step(name, seconds, "{out}/found.json", "{out}/found.json")
        for name, seconds in (("good", 60), ("bad", 60), ("slow", 0.5))
    }
    monkeypatch.setattr(first_light, "STEPS", made)
    return tmp_path


def test_a_step_that_breaks_or_hangs_leaves_the_others_alone(steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = steps / "all.json"
    assert main(["--rehearse", "--out", str(out)]) == 1
    saved = json.loads(out.read_text())["steps"]
    assert {name: each["exit_code"] for name, each in saved.items()} == {"good": 0, "bad": 3, "slow": TIMED_OUT}
    assert saved["good"]["results"] == {"found": {"rate": 1}}
    assert saved["bad"]["log"] == ["lost the device"]
    printed = capsys.readouterr().out
    assert re.search(r"\| good \| \d+ s \| all holds \|", printed)
    assert "**NO**: exit code 3" in printed
    assert "did not end in its time" in printed
    assert main(["--rehearse", "--only", "good", "--out", str(out)]) == 0


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 2
    assert "`--rehearse`" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["time.sleep(600)", ""])
def test_a_command_is_ended_with_all_that_it_started(tmp_path: Path, ending: str) -> None:
    began_s = time.monotonic()
    command = [sys.executable, "-c", START_A_CHILD + ending, str(tmp_path / "pid")]
    assert run_limited(command, timeout_s=8) == (TIMED_OUT if ending else 0)
    assert time.monotonic() - began_s < 45
    with suppress(psutil.NoSuchProcess):  # it is gone, or goes at once
        psutil.Process(int((tmp_path / "pid").read_text())).wait(timeout=30)


def test_limits_add_up_to_26_minutes_at_most_and_the_page_has_each() -> None:
    page = (ROOT / "docs/gpu.md").read_text()
    for name, step in STEPS.items():
        assert f"| `{name}` | {step.seconds:.0f} |" in page
        assert step.program != "infer_bench" or step.arguments.split()[0] in BENCHMARKS
    assert sum(step.seconds for step in STEPS.values()) <= 26 * 60


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_in_the_rehearsal_everything_holds(tmp_path: Path) -> None:
    assert main(["--rehearse", "--out", str(tmp_path / "all.json")]) == 0
