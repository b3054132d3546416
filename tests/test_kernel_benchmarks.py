"""The kernel benchmarks run: those of a GPU in the compiler alone, the others on the smallest part of their work."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from kernels import cpu

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks" / "kernels"


def run(script: str, *flags: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, FOLDER / script, *flags],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


def dry_run(output: Path, *flags: str) -> dict[str, Any]:
    completed = run("gpu.py", "--dry-run", "--commit", "abc", "--output", str(output), *flags)
    assert completed.returncode == 0, completed.stderr
    result: dict[str, Any] = json.loads(output.read_text())
    assert result["environment"]["commit"] == "abc"
    return result


def test_gpu_benchmark_launches_every_case(tmp_path: Path) -> None:
    cases = dry_run(tmp_path / "gpu.json", "--skip", "checks", "--skip", "questions")["cases"]
    assert {case["op"] for case in cases} >= {"paged_decode", "paged_prefill", "sample", "qk_norm_rope_store"}
    assert {case["unit"] for case in cases} == {"GB/s", "TFLOP/s"}


def test_gpu_benchmark_compares_ops_with_their_references(tmp_path: Path) -> None:
    checks = dry_run(tmp_path / "gpu.json", "--skip", "cases", "--skip", "questions", "--only", "hidden 64")["checks"]
    assert checks["passed"] > 10
    assert checks["failed"] == {}


@pytest.mark.parametrize("question", ["row_invariance", "split_length", "graph_replay"])
def test_gpu_benchmark_asks_its_questions(question: str, tmp_path: Path) -> None:
    result = dry_run(tmp_path / "gpu.json", "--skip", "checks", "--skip", "cases", "--only", question)
    answers = result["questions"][question]
    assert answers
    assert not any("failed" in answer for answer in answers)


def test_gpu_benchmark_says_when_there_is_no_gpu() -> None:
    completed = run("gpu.py", CUDA_VISIBLE_DEVICES="")
    assert completed.returncode == 2
    assert "There is no GPU here" in completed.stderr


def test_kernel_report_has_a_row_for_each_configuration() -> None:
    completed = run("report.py", "--op", "count_tokens", "--arch", "90")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("| `count_tokens` |") == 1


def test_kernel_sweep_marks_what_ships() -> None:
    completed = run("sweep.py", "--arch", "90", "--op", "paged_decode", "--head-dim", "64", "--quick", "--jobs", "1")
    assert completed.returncode == 0, completed.stderr
    assert "| `paged_decode` | 64 |" in completed.stdout


def test_cpu_benchmark_compares_forms_that_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "WARM_UP", 0)
    comparisons = cpu.compare_decodes(layers=1, rounds=1)
    assert [comparison.name for comparison in comparisons] == [
        f"decode, head_dim {head_dim}, {order} blocks"
        for head_dim in (64, 128)
        for order in ("consecutive", "scattered")
    ]
    assert all(comparison.naive.keys() == {"per sequence", "one batch"} for comparison in comparisons)
