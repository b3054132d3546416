"""The kernel benchmarks run: those of a GPU in the compiler alone, the others on the smallest part of their work."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_bench.kernels import cpu, gpu, report


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "infer_bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def dry_run(output: Path, *flags: str) -> dict[str, Any]:
    completed = run("kernels-gpu", "--dry-run", "--commit", "abc", "--output", str(output), *flags)
    assert completed.returncode == 0, completed.stderr
    result: dict[str, Any] = json.loads(output.read_text())
    assert result["environment"]["commit"] == "abc"
    return result


def test_gpu_benchmark_launches_and_checks_what_is_called_so(tmp_path: Path) -> None:
    result = dry_run(tmp_path / "gpu.json", "--only", "apply_rope:")
    assert {(case["op"], case["unit"]) for case in result["cases"]} == {("apply_rope", "GB/s")}
    assert result["checks"]["passed"] > 10
    assert result["checks"]["failed"] == {}
    assert result["questions"] == {}


@pytest.mark.full
def test_gpu_benchmark_launches_every_case(tmp_path: Path) -> None:
    cases = dry_run(tmp_path / "gpu.json", "--skip", "checks", "--skip", "questions")["cases"]
    assert {case["op"] for case in cases} >= {"paged_decode", "paged_prefill", "sample", "qk_norm_rope_store"}
    assert {case["unit"] for case in cases} == {"GB/s", "TFLOP/s"}


@pytest.mark.full
@pytest.mark.parametrize("question", ["row_invariance", "split_length", "decode_grid", "graph_replay"])
def test_gpu_benchmark_asks_its_questions(question: str, tmp_path: Path) -> None:
    answers = dry_run(tmp_path / "gpu.json", "--skip", "checks", "--skip", "cases", "--only", question)["questions"]
    assert answers[question]
    assert not any("failed" in answer for answer in answers[question])


def test_gpu_benchmark_says_when_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        gpu.main([])
    assert ended.value.code == 2
    assert "There is no GPU here" in capsys.readouterr().err


def test_kernel_report_has_a_row_for_each_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    report.main(["--op", "store_kv", "--arch", "90"])
    assert capsys.readouterr().out.count("| `store_kv` |") >= 2


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
