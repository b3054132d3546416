"""The kernel benchmarks run: those of a GPU in the compiler alone, the others on the smallest part of their work."""

import pytest
import torch

from infer_bench.kernels import cpu, gpu, report
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


@pytest.mark.parametrize(
    ("tile", "too_large", "ops"),
    [
        ("64 64 4 3", "128 64 8 15", {"paged_prefill"}),
        ("128 128 64 8 3", "256 256 64 8 4", {"linear_invariant", "fused_moe"}),
    ],
)
def test_a_candidate_takes_the_place_of_the_tile_that_ships(
    tile: str, too_large: str, ops: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main(["--quick", "--tile", *tile.split()]) == 0
    assert {line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()[2:]} == {f"| {op}" for op in ops}
    assert gpu.main(["--quick", "--tile", *too_large.split()]) == 1
    failed = capsys.readouterr().err
    assert all(f"FAILED {op}: " in failed for op in ops)
    assert "out of resource: shared memory" in failed


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
