"""The kernel benchmarks run: those of a GPU in the compiler alone, the others on the smallest part of their work."""

import pytest
import torch

from infer_bench.kernels import cpu, gpu, report, tiles
from infer_bench.kernels.bench import Bench
from infer_bench.kernels.cases import all_cases
from infer_bench.kernels.gpu import other_bits, run_cases

BENCH = Bench(torch.device("cpu"), dry=True)


def test_a_case_of_every_op_compiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--quick"]) == 0
    printed = capsys.readouterr().out
    assert all(f"| {op} | " in printed for op in {case.op for case in all_cases()})
    assert "| nan | TFLOP/s |" in printed


@pytest.mark.full
def test_every_case_compiles() -> None:
    rows = list(run_cases(BENCH, list(all_cases())))
    assert [row for row in rows if "failed" in row] == []
    assert {row["unit"] for row in rows} == {"GB/s", "TFLOP/s"}


def test_a_case_that_misses_its_aim_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"op": "sample", "label": "x", "met": "yes"}
    for found, code in ((row, 0), (row | {"met": "no"}, 1), ({"op": "sample", "label": "x", "failed": "e"}, 1)):
        monkeypatch.setattr(gpu, "run_cases", lambda *_, found=found: [found])
        assert gpu.main(["--quick"]) == code


@pytest.mark.parametrize("setting", ["default", "no split-K"])
def test_rows_with_other_bits_are_listed_by_layer(setting: str) -> None:
    found = other_bits(setting, layers=((96, 64), (64, 128)), counts=(1, 2, 7, 16), device="cpu")
    assert list(found) == ["64 to 96", "128 to 64"]
    assert 16 not in found["64 to 96"]


def test_kernel_report_has_a_row_for_each_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    report.main(["--op", "apply_rope", "--arch", "90"])
    assert capsys.readouterr().out.count("| `apply_rope` |") >= 2


def test_prefill_candidates_are_described_and_the_one_that_ships_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = ["--shape", "128", "64", "8", "--shape", "256", "64", "8"]
    tiles.main(["--arch", "90", "--head-dim", "128", *shapes, "--stages", "3"])
    printed = capsys.readouterr().out
    (shipped,) = [line for line in printed.splitlines() if "128 x 64 *" in line]
    assert [cell.strip() for cell in shipped.split("|")[-5:-1]] == ["1", "8", "wgmma", "TMA"]
    assert "does not fit" in printed or "256 x 64" in printed


def test_product_candidates_are_described_and_take_the_place_of_what_ships(capsys: pytest.CaptureFixture[str]) -> None:
    tiles.main_of_products(
        ["--arch", "90", "--shape", "128", "128", "64", "8", "3", "--shape", "256", "256", "64", "8", "4"]
    )
    candidate, too_large = capsys.readouterr().out.split("| 256 x 256", maxsplit=1)
    assert {"_linear_invariant_kernel", "_expert_products_kernel"} <= set(candidate.split())
    assert "| wgmma |" in candidate
    assert "does not fit" in too_large


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
