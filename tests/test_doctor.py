"""`infer-server doctor` on this machine's CPU, with its real parts."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from infer_kernels.cpu import library
from infer_models.hub import DEMO_MODEL_NAME, demo_model_folder

NAMES = ["environment", "model", "kernels", "engine"]
DETAILS = {
    "environment": {
        "versions",
        "system",
        "processors",
        "memory",
        "compilers",
        "variables",
        "driver",
        "wheel_cuda",
        "device",
        "kernel_processes",
    },
    "model": {"model", "memory_estimate"},
    "kernels": {"cpu_kernels"} if library() else set(),
    "engine": {"small_model"},
}
SECRET = "a-key-that-nobody-may-see"  # noqa: S105 - no secret
PATIENCE_S = "240"
"""Other tests may have this machine's processors; alone it takes a quarter of a minute."""


def doctor(tmp_path: Path, *flags: str) -> tuple[int, str, dict[str, Any]]:
    """Return the exit code, the table and the report."""
    out = tmp_path / "report.json"
    always = ["--device", "cpu", "--timeout", PATIENCE_S, "--out", str(out)]
    completed = subprocess.run(
        [sys.executable, "-m", "infer_server", "doctor", *always, *flags],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"INFER_API_KEY": SECRET, "HF_TOKEN": SECRET},
    )
    assert completed.stderr == ""
    return completed.returncode, completed.stdout, json.loads(out.read_text())


@pytest.mark.covers("command-line-and-library/doctor")
def test_everything_works_here_and_the_report_has_what_a_bug_report_needs(tmp_path: Path) -> None:
    began = time.monotonic()
    code, table, report = doctor(tmp_path, "--model", DEMO_MODEL_NAME)
    assert code == 0, table
    rows = [line.split()[0] for line in table.splitlines()[1:] if line and line[0].isalpha()]
    assert rows == [*NAMES, "Everything"]
    assert report["seconds"] <= time.monotonic() - began
    assert {part["name"]: set(part["details"]) for part in report["parts"]} == DETAILS
    assert not [each for part in report["parts"] for each in part["findings"] if each["verdict"] == "failed"]
    assert SECRET not in table + json.dumps(report)
    assert report["parts"][0]["details"]["variables"]["INFER_API_KEY"] == "(set, not shown)"
    assert report["parts"][1]["details"]["model"]["name"] == DEMO_MODEL_NAME


@pytest.mark.full
def test_a_damaged_checkpoint_is_a_failure_and_the_other_parts_run(tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(demo_model_folder(), folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    code, table, report = doctor(tmp_path, "--model", str(folder))
    assert code == 1
    assert {part["name"]: part["verdict"] == "failed" for part in report["parts"]} == {
        "environment": False,
        "model": True,
        "kernels": False,
        "engine": False,
    }
    assert "model.safetensors is truncated" in table
    assert table.splitlines()[-1].startswith("Not everything works: model failed")
