"""The kernel benchmarks run: those of a GPU in the compiler alone, the others on the smallest part of their work."""

import json
import sys

import pytest
import torch

from infer_bench.kernels import cpu, kv_cache, prefill_configs, report, row_invariance
from infer_bench.kernels.bench import Bench
from infer_bench.kernels.cases import Case, all_cases
from infer_bench.kernels.check import EQUAL, Check
from infer_bench.kernels.checks import all_checks
from infer_bench.kernels.gpu import run_case, run_checks
from infer_bench.kernels.launches import describe_launches
from infer_kernels.checks.compiled.ahead_of_time import compile_only

BENCH = Bench(torch.device("cpu"), dry=True)
CHECKED = ("apply_rope", "qk_norm_rope_store", "resolve_token_ids", "moe_router", "fused_moe")
FIRST_OF_EACH_OP = list({case.op: case for case in reversed(list(all_cases()))}.values())


def test_checks_of_an_op_pass_and_its_kernels_compile() -> None:
    checks = [check for check in all_checks() if check.op in CHECKED]
    assert run_checks(BENCH, checks) == {"passed": len(checks), "failed": {}}
    assert len(checks) > 30


def test_a_check_that_fails_is_named() -> None:
    one, zero = (torch.ones(1),), (torch.zeros(1),)
    wrong = Check(op="count", label="wrong", run=lambda _: one, expected=lambda _: zero, close=EQUAL)
    assert list(run_checks(BENCH, [wrong])["failed"]) == ["count: wrong"]


@pytest.mark.parametrize("case", FIRST_OF_EACH_OP, ids=lambda case: case.op)
def test_a_case_of_every_op_launches(case: Case) -> None:
    with compile_only(90), torch.inference_mode():
        row = run_case(BENCH, case)
    assert row["unit"] == ("TFLOP/s" if case.make(BENCH).computes else "GB/s")
    assert row["met"] == ""


@pytest.mark.full
def test_every_case_launches() -> None:
    with compile_only(90), torch.inference_mode():
        rows = [run_case(BENCH, case) for case in all_cases()]
    assert {row["unit"] for row in rows} == {"GB/s", "TFLOP/s"}


def test_row_invariance_names_rows_by_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["row_invariance", "--tiny", "--device", "cpu"])
    row_invariance.main()
    assert list(json.loads(capsys.readouterr().out)["differing_rows"]) == list(row_invariance.SETTINGS)


def test_kernel_report_has_a_row_for_each_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    report.main(["--op", "store_kv", "--arch", "90"])
    assert capsys.readouterr().out.count("| `store_kv` |") >= 2


def test_prefill_candidates_are_described_and_the_one_that_ships_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = ["--shape", "128", "64", "8", "--shape", "256", "64", "8"]
    prefill_configs.main(["--arch", "90", "--head-dim", "128", *shapes, "--stages", "3"])
    printed = capsys.readouterr().out
    (shipped,) = [line for line in printed.splitlines() if "128 x 64 *" in line]
    assert [cell.strip() for cell in shipped.split("|")[-5:-1]] == ["1", "8", "wgmma", "TMA"]
    assert "does not fit" in printed or "256 x 64" in printed


def test_cpu_benchmark_compares_forms_that_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "WARM_UP", 0)
    comparisons = cpu.compare_decodes(layers=1, rounds=1)
    assert [comparison["name"] for comparison in comparisons] == [
        f"decode, head_dim {head_dim}, {order} blocks"
        for head_dim in (64, 128)
        for order in ("consecutive", "scattered")
    ]
    assert all(comparison["naive"].keys() == {"per sequence", "one batch"} for comparison in comparisons)


def test_cpu_benchmark_of_experts_reads_those_that_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "WARM_UP", 0)
    for name, size in (("EXPERTS", 8), ("MOE_HIDDEN", 64), ("MOE_INTERMEDIATE", 32)):
        monkeypatch.setattr(cpu, name, size)
    comparisons = cpu.compare_experts(layers=2, rounds=1)
    assert [each["name"] for each in comparisons] == ["experts, 1 token", "experts, 16 tokens", "experts, 256 tokens"]
    bytes_of_expert = 3 * 64 * 32 * 2
    assert comparisons[0]["gigabytes"] == pytest.approx(2 * cpu.EXPERTS_PER_TOKEN * bytes_of_expert / 1e9)
    assert comparisons[2]["gigabytes"] == pytest.approx(2 * 8 * bytes_of_expert / 1e9)


def test_the_report_says_what_a_step_launches() -> None:
    assert describe_launches() in report.DOCUMENT.read_text()


def test_attention_over_int8_is_measured_beside_bf16(capsys: pytest.CaptureFixture[str]) -> None:
    kv_cache.main(["--quick", "--heads", "4", "2", "32"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| sequences | tokens | rows | bf16_us | int8_us | speedup |"
    assert len(lines) == 4
