"""What all tests here share: a fixed seed, and the Triton interpreter for those in `interpreter/`.

Those run in a child process per file, and are reported one by one.

Triton decides when a kernel is decorated whether it will be interpreted or compiled, so one process cannot do both.
In a process that has `TRITON_INTERPRET=1` (the child, or one started by hand with a debugger) tests simply run.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from infer_kernels.testing.interpreter import interpret_kernels

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FOLDER = Path(__file__).parent / "interpreter"
REPORTS = "INFER_KERNELS_TEST_REPORTS"
OUTCOMES = pytest.StashKey[dict[Path, dict[str, str]]]()

if INTERPRETED:
    interpret_kernels()


@pytest.fixture(autouse=True)
def seed() -> None:
    """Every test draws the same numbers each time."""
    torch.manual_seed(0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the child: add a line to the file that the parent reads."""
    if REPORTS in os.environ and (report.when == "call" or not report.passed):
        with Path(os.environ[REPORTS]).open("a") as file:
            file.write(
                json.dumps({"test": report.nodeid, "failure": "" if report.passed else report.longreprtext}) + "\n"
            )


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """In the parent: look up how the test went in the child, and fail as it failed."""
    if INTERPRETED or pyfuncitem.path.parent != FOLDER:
        return None
    by_file = pyfuncitem.config.stash.setdefault(OUTCOMES, {})
    if pyfuncitem.path not in by_file:
        by_file[pyfuncitem.path] = _run_in_child(pyfuncitem)
    failure = by_file[pyfuncitem.path].get(pyfuncitem.nodeid, "the interpreter's process ended before this test")
    if failure:
        pytest.fail(failure, pytrace=False)
    return True


def _run_in_child(item: pytest.Function) -> dict[str, str]:
    """{test: how it failed, or nothing} for all selected tests of the item's file."""
    tests = [other.nodeid for other in item.session.items if other.path == item.path]
    with tempfile.TemporaryDirectory() as folder:
        reports = Path(folder) / "reports"
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
            cwd=item.config.rootpath,
            env=os.environ | {"TRITON_INTERPRET": "1", REPORTS: str(reports)},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        lines = reports.read_text().splitlines() if reports.exists() else []
    return {report["test"]: report["failure"] for report in map(json.loads, lines)}
