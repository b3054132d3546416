"""The kernel benchmarks run: those of a GPU in the compiler alone, the others on the smallest part of their work."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from infer_bench.kernels import cpu


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "infer_bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is in most kernels' names: one run of cases, checks and questions."""
    output = tmp_path_factory.mktemp("dry") / "gpu.json"
    completed = run("kernels-gpu", "--dry-run", "--commit", "abc", "--only", "ro", "--output", str(output))
    assert completed.returncode == 0, completed.stderr
    result: dict[str, Any] = json.loads(output.read_text())
    return result


def test_gpu_benchmark_launches_its_cases(dry_run: dict[str, Any]) -> None:
    assert dry_run["environment"]["commit"] == "abc"
    assert {case["op"] for case in dry_run["cases"]} >= {"apply_rope", "qk_norm_rope_store", "topk_logprobs"}
    assert {case["unit"] for case in dry_run["cases"]} <= {"GB/s", "TFLOP/s"}


def test_gpu_benchmark_compares_ops_with_their_references(dry_run: dict[str, Any]) -> None:
    assert dry_run["checks"]["passed"] > 10
    assert dry_run["checks"]["failed"] == {}


def test_gpu_benchmark_asks_its_questions(dry_run: dict[str, Any]) -> None:
    answers = dry_run["questions"]["row_invariance"]
    assert answers
    assert not any("failed" in answer for answer in answers)


def test_gpu_benchmark_says_when_there_is_no_gpu() -> None:
    completed = run("kernels-gpu", CUDA_VISIBLE_DEVICES="")
    assert completed.returncode == 2
    assert "There is no GPU here" in completed.stderr


def test_kernel_report_has_a_row_for_each_configuration() -> None:
    completed = run("kernel-report", "--op", "store_kv", "--arch", "90")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.count("| `store_kv` |") >= 2


def test_kernel_sweep_marks_what_ships() -> None:
    filters = ["--arch", "90", "--op", "paged_decode", "--head-dim", "64"]
    completed = run("kernel-sweep", *filters, "--quick", "--jobs", "1")
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
