"""The router of a mixture of experts on every path."""

from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import moe_router
from infer_kernels.moe.router import Scoring
from infer_kernels.reference import moe_router_reference
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_pairwise
from infer_proofs.kernels.threads import torch_threads

pytestmark = pytest.mark.usefixtures("every_path")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
RULES: list[tuple[Scoring, bool]] = [("softmax", True), ("softmax", False), ("softmax_of_top_k", True)]


@parametrize_pairwise(
    rule=RULES,
    dtype=DTYPES,
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES)
def test_weights_are_multiplied_by_the_scales_of_their_experts(rule: tuple[Scoring, bool], dtype: torch.dtype) -> None:
    logits, scales = torch.randn(5, 19).to(dtype), torch.randn(19).to(dtype)
    options: dict[str, Any] = {"experts_per_token": 3, "scoring": rule[0], "normalize": rule[1]}
    plain, scaled = moe_router(logits, **options), moe_router(logits, **options, expert_scales=scales)
    expected = moe_router_reference(logits, **options, expert_scales=scales)
    assert torch.equal(scaled.expert_ids, plain.expert_ids)
    assert torch.equal(scaled.expert_weights, plain.expert_weights * scales.float()[plain.expert_ids.long()])
    torch.testing.assert_close(scaled.expert_weights, expected.expert_weights, rtol=2e-6, atol=1e-7)


def test_normalized_weights_sum_to_one_and_others_to_the_share_of_the_chosen() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, 0.0]])
    shares = logits.softmax(dim=-1)[0]
    plain = moe_router(logits, experts_per_token=2, scoring="softmax", normalize=False)
    normalized = moe_router(logits, experts_per_token=2, scoring="softmax", normalize=True)
    assert plain.expert_ids.tolist() == [[0, 2]]
    torch.testing.assert_close(plain.expert_weights[0], shares[[0, 2]])
    torch.testing.assert_close(normalized.expert_weights[0], shares[[0, 2]] / shares[[0, 2]].sum())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_lower_id_comes_first_among_equals(dtype: torch.dtype) -> None:
    logits = torch.zeros(2, 70, dtype=dtype)
    logits[1, 10::2] = 1.0
    logits[0, 1::2] = -0.0
    choice = moe_router(logits, experts_per_token=5, scoring="softmax", normalize=True)
    assert choice.expert_ids.tolist() == [[0, 1, 2, 3, 4], [10, 12, 14, 16, 18]]
    torch.testing.assert_close(choice.expert_weights, torch.full((2, 5), 0.2))


@pytest.mark.parametrize("values", [[torch.nan] * 9, [0.0, torch.nan, 1.0] * 3, [-torch.inf] * 9, [torch.inf] * 9])
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's, of what is asked for
def test_ids_are_distinct_experts_whatever_the_logits(values: list[float]) -> None:
    logits = torch.tensor([values, [0.0] * 9])
    choice = moe_router(logits, experts_per_token=4, scoring="softmax", normalize=True)
    assert len(set(choice.expert_ids[0].tolist())) == 4
    assert 0 <= int(choice.expert_ids.min()) <= int(choice.expert_ids.max()) < 9
    assert choice.expert_weights[0].isnan().all()
    torch.testing.assert_close(choice.expert_weights[1], torch.full((4,), 0.25))


@parametrize_each_value(threads=[1, 2, 3], rule=RULES)
def test_rows_of_every_slice_equal_rows_of_the_whole(rule: tuple[Scoring, bool], threads: int, every_path: str) -> None:
    def choose(logits: Tensor) -> Tensor:
        choice = moe_router(logits, experts_per_token=6, scoring=rule[0], normalize=rule[1])
        return torch.cat((choice.expert_ids.float(), choice.expert_weights), dim=1)

    slices = [(0, 1), (7, 8), (3, 5), (7, 20), (0, 255), (11, 266), (200, 233)]
    logits = torch.randn(20 if every_path == "triton" else 300, 90)
    with torch_threads(threads):
        whole = choose(logits)
        for start, stop in slices[: 4 if every_path == "triton" else None]:
            assert torch.equal(choose(logits[start:stop].clone()), whole[start:stop])


def test_strided_rows_are_taken() -> None:
    logits = torch.randn(5, 40)
    options: dict[str, Any] = {"experts_per_token": 3, "scoring": "softmax", "normalize": False}
    strided, dense = (moe_router(part, **options) for part in (logits[:, 7:30], logits[:, 7:30].contiguous()))
    assert torch.equal(strided.expert_ids, dense.expert_ids)
    assert torch.equal(strided.expert_weights, dense.expert_weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experts_per_token": 0}, r"`experts_per_token` is 0; pass 1 to 8"),
        ({"experts_per_token": 9}, r"`experts_per_token` is 9; pass 1 to 8"),
        ({"scoring": "sigmoid"}, r"`scoring` is 'sigmoid'; pass one of \['softmax', 'softmax_of_top_k'\]"),
        ({"logits": torch.zeros(8)}, r"`logits` has shape \[8\]; pass \[tokens, experts\]"),
        ({"logits": torch.zeros(8, 3).T}, r"`logits` has stride 3 in its last dimension"),
        ({"expert_scales": torch.zeros(9)}, r"`expert_scales` has shape \[9\]; pass \[8\]"),
    ],
)
def test_wrong_value_is_named_with_its_fix(change: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {
        "logits": torch.zeros(3, 8),
        "experts_per_token": 2,
        "scoring": "softmax",
        "normalize": True,
    }
    with pytest.raises(ValueError, match=message):
        moe_router(**right | change)
