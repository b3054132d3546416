"""What a budget of prompt tokens would do on a GPU: steps are counted as the kernel report's are, and budgets bind."""

from pathlib import Path

import pytest

from infer_bench.kernels.expectations import ASSUMPTIONS, LLAMA_8B, MODELS, describe_step
from infer_bench.kernels.mixed_steps import MixedSteps
from infer_bench.scaling.prompt_budget import BUDGETS, NO_BUDGET, chosen, lengthen, main, simulate
from infer_bench.shapes import SHAPES
from infer_kernels.checks.compiled.gpu_cards import CARDS

SMALL = SHAPES["qwen3-0.6b"]


def test_decodes_take_what_the_kernel_report_expects_of_them() -> None:
    for model in MODELS[:2]:
        expected_s = 64 / describe_step(model, 64).expected
        assert MixedSteps(model.shape).seconds([1000] * 64, []) == pytest.approx(expected_s, rel=0.1), model.name


def test_a_long_prompt_takes_the_operations_of_its_products() -> None:
    steps = MixedSteps(LLAMA_8B)
    products_s = 2 * steps.num_weights * 2048 / ASSUMPTIONS.library_operations
    assert products_s < steps.seconds([], [(0, 2048)]) < 1.25 * products_s


def test_rows_are_nearly_free_where_weights_are_read_anyway() -> None:
    steps = MixedSteps(LLAMA_8B)
    assert steps.seconds([1000] * 16, []) > steps.num_weights * 2 / CARDS[90].bandwidth
    assert lengthen(LLAMA_8B, 112) < 1.1
    assert 1.7 < lengthen(LLAMA_8B, 480) < 2 < 3.5 < lengthen(LLAMA_8B, 1024)


def test_a_captured_step_takes_the_rows_that_it_is_padded_to() -> None:
    steps = MixedSteps(LLAMA_8B)
    of_512 = steps.seconds([1000] * 16, [(0, 496)])
    assert steps.seconds([1000] * 16, [(0, 400)]) == pytest.approx(of_512, rel=0.02)
    assert steps.seconds([1000] * 16, [(0, 368)]) < 0.9 * steps.seconds([1000] * 16, [(0, 369)])


def test_a_step_that_is_not_captured_takes_the_host_at_least() -> None:
    tiny = SMALL | {"num_hidden_layers": 28, "hidden_size": 64, "intermediate_size": 64}
    steps = MixedSteps(tiny)
    assert steps.seconds([], [(0, 2304)]) < 28 * 0.0002
    assert steps.seconds([], [(0, 2305)]) == pytest.approx(28 * 0.0002)


def test_a_budget_shortens_the_longest_gaps_of_a_large_model_and_delays_first_tokens() -> None:
    few, none = (simulate(LLAMA_8B, budget, num_requests=120) for budget in (480, NO_BUDGET))
    assert few["ITL p99, ms"] < 0.5 * none["ITL p99, ms"]
    assert none["TTFT p50, ms"] < few["TTFT p50, ms"] < 1.5 * none["TTFT p50, ms"]
    assert few["tokens/s"] == pytest.approx(none["tokens/s"], rel=0.02)


def test_a_small_budget_costs_a_small_model_its_throughput_where_nobody_waits_long_for_a_chunk() -> None:
    few, many, none = (simulate(SMALL, budget, rate_scale=30, num_requests=240) for budget in (480, 2272, NO_BUDGET))
    assert few["tokens/s"] < 0.95 * none["tokens/s"]
    assert many["tokens/s"] > 0.97 * none["tokens/s"]


def test_the_budgets_that_an_engine_chooses_are_among_those_that_are_simulated() -> None:
    assert (chosen(LLAMA_8B), chosen(SMALL)) == (480, 2272)
    assert {480, 2272} < set(BUDGETS)


def test_a_table_has_a_row_for_each_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--budget", "480", "--rate-scale", "2", "--num-requests", "8", "--out", str(tmp_path)])
    assert "| Qwen3-0.6B | x2 | 480 |" in capsys.readouterr().out
    assert (tmp_path / "prompt-budget.json").is_file()
