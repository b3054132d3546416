"""The router of a mixture of experts, interpreted."""

from typing import Any

import pytest
import torch

from infer_kernels.checks.pairwise import parametrize_pairwise
from infer_kernels.moe.router import Scoring, moe_router, moe_router_reference

RULES: list[tuple[Scoring, bool]] = [("softmax", True), ("softmax", False), ("softmax_of_top_k", True)]


@parametrize_pairwise(
    rule=RULES,
    dtype=[torch.float32, torch.float16, torch.bfloat16],
    experts=[(1, 1), (8, 8), (7, 1), (17, 3), (64, 8), (129, 4), (512, 10)],
    tokens=[0, 1, 5],
)
def test_choice_equals_reference(
    experts: tuple[int, int], rule: tuple[Scoring, bool], dtype: torch.dtype, tokens: int
) -> None:
    logits = (torch.randn(tokens, experts[0]) * 3).to(dtype)
    options: dict[str, Any] = {"experts_per_token": experts[1], "scoring": rule[0], "normalize": rule[1]}
    actual, expected = moe_router(logits, **options), moe_router_reference(logits, **options)
    assert actual.expert_ids.dtype == torch.int32
    assert torch.equal(actual.expert_ids, expected.expert_ids)
    torch.testing.assert_close(actual.expert_weights, expected.expert_weights, rtol=2e-6, atol=1e-7)


def test_the_lower_id_comes_first_among_equals() -> None:
    logits = torch.zeros(2, 70)
    logits[1, 10::2] = 1.0
    logits[0, 1::2] = -0.0
    choice = moe_router(logits, experts_per_token=5, scoring="softmax", normalize=True)
    assert choice.expert_ids.tolist() == [[0, 1, 2, 3, 4], [10, 12, 14, 16, 18]]


@pytest.mark.parametrize("values", [[torch.nan] * 9, [0.0, torch.nan, 1.0] * 3, [-torch.inf] * 9, [torch.inf] * 9])
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's, of what is asked for
def test_ids_are_distinct_experts_whatever_the_logits(values: list[float]) -> None:
    logits = torch.tensor([values, [0.0] * 9])
    choice = moe_router(logits, experts_per_token=4, scoring="softmax", normalize=True)
    assert len(set(choice.expert_ids[0].tolist())) == 4
    assert 0 <= int(choice.expert_ids.min()) <= int(choice.expert_ids.max()) < 9
    assert choice.expert_weights[0].isnan().all()
    torch.testing.assert_close(choice.expert_weights[1], torch.full((4,), 0.25))


def test_rows_of_any_slice_equal_rows_of_the_whole() -> None:
    logits = torch.randn(20, 90)
    options: dict[str, Any] = {"experts_per_token": 6, "scoring": "softmax", "normalize": False}
    whole, part = moe_router(logits, **options), moe_router(logits[7:12], **options)
    assert torch.equal(part.expert_ids, whole.expert_ids[7:12])
    assert torch.equal(part.expert_weights, whole.expert_weights[7:12])
