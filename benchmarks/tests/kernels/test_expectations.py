"""What is expected of decodes, computed from bytes, launches and counted loops."""

import pytest

from infer_bench.kernels import expectations
from infer_bench.kernels.expectations import ASSUMPTIONS, MODELS, Piece, Step, describe_step
from infer_bench.kernels.main_loops import main_loop_cases
from infer_kernels.checks.compiled.gpu_cards import CARDS

LLAMA = MODELS[1]


def test_a_step_is_its_kernels_one_after_another() -> None:
    pieces = (
        Piece(name="weights", count=2, num_bytes=3e9, seconds=4e-3),
        Piece(name="attention", count=1, num_bytes=0, seconds=2e-3 - 3 * ASSUMPTIONS.gap_s),
    )
    step = Step(5, pieces)
    assert step.expected == pytest.approx(5 / 10e-3)
    assert step.bound == pytest.approx(5 / (6e9 / CARDS[90].bandwidth))
    assert step.holders == "weights 80%, attention 20%"


def test_the_bound_is_that_of_weights_keys_and_values() -> None:
    # 8.03 billion weights less the embedding, and 131,072 bytes of keys and values a token.
    step = describe_step(LLAMA, 64)
    num_bytes = 2 * (8.03e9 - 128_256 * 4096) + 64 * 1000 * 131_072
    assert step.bound == pytest.approx(64 / (num_bytes / CARDS[90].bandwidth), rel=2e-3)
    assert 0.5 < step.expected / step.bound < 1


def test_a_launch_costs_what_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds() -> tuple[float, int]:
        step = describe_step(LLAMA, 64)
        return 64 / step.expected, sum(piece.count for piece in step.pieces)

    before, launches = seconds()
    monkeypatch.setattr(expectations, "ASSUMPTIONS", expectations.Assumptions(gap_s=3e-6))
    after, _ = seconds()
    assert after - before == pytest.approx(launches * 2e-6)


def test_quantized_products_take_what_their_loops_do() -> None:
    step = describe_step(MODELS[2], 1)
    pieces = [piece for piece in step.pieces if piece.name == "quantized products"]
    assert sum(piece.count for piece in pieces) == 4 * 32
    card = CARDS[90]
    assert all(piece.seconds >= piece.num_bytes / card.bandwidth for piece in pieces)
    assert sum(piece.num_bytes * piece.count for piece in pieces) == pytest.approx(6.98e9 * 4.25 / 8, rel=1e-3)


def test_a_layer_with_experts_is_eight_launches_and_a_router_more_than_one_of_them() -> None:
    few, many = (describe_step(MODELS[3], batch) for batch in (1, 64))
    [router] = [piece for piece in few.pieces if piece.name == "routers"]
    assert router.count == 24
    assert router.num_bytes == 2 * 2880 * 32
    assert router.seconds >= ASSUMPTIONS.launch_s + ASSUMPTIONS.last_program_s
    once = ("once a step", "LM head")
    assert sum(piece.count for piece in few.pieces if piece.name not in once) == 8 * 24
    assert sum(piece.count for piece in many.pieces if piece.name not in once) == 12 * 24
    assert few.expected >= 0.7 * few.bound


def test_main_loops_are_of_kernels_that_ship() -> None:
    ops = {case.op for case in main_loop_cases()}
    assert {"paged_decode", "paged_prefill", "linear_quantized", "fused_moe_quantized", "linear_argmax"} <= ops
    assert len(list(main_loop_cases())) < 60
