"""Penalties, the counts that they come from, and log-probabilities, on the PyTorch path."""

import pytest
import torch
from torch import Tensor

from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.reference import apply_penalties_reference, count_tokens_reference, topk_logprobs_reference
from infer_kernels.sampling import apply_penalties, count_tokens, topk_logprobs

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def one_row(**penalties: float) -> list[float]:
    """Penalized logits of six tokens: 0 and 1 in the prompt, 1 and 2 generated once, 3 and 4 three times."""
    logits = torch.tensor([[2.0, -2.0, 2.0, -2.0, -torch.inf, 5.0]])
    neutral = {"repetition": 1.0, "presence": 0.0, "frequency": 0.0}
    columns: dict[str, Tensor] = {name: torch.tensor([value]) for name, value in (neutral | penalties).items()}
    apply_penalties(
        logits,
        slots=torch.tensor([1]),
        in_prompt=torch.tensor([[True] * 6, [True, True, False, False, False, False]]),
        generated_counts=torch.tensor([[9] * 6, [0, 1, 1, 3, 3, 0]], dtype=torch.int32),
        **columns,
    )
    row: list[float] = logits[0].tolist()
    return row


def test_repetition_makes_tokens_of_prompt_and_text_less_probable() -> None:
    assert one_row(repetition=2.0) == [1.0, -4.0, 1.0, -4.0, -torch.inf, 5.0]


def test_frequency_counts_generated_tokens_alone() -> None:
    assert one_row(frequency=0.5) == [2.0, -2.5, 1.5, -3.5, -torch.inf, 5.0]


def test_presence_takes_generated_tokens_once() -> None:
    assert one_row(presence=0.5) == [2.0, -2.5, 1.5, -2.5, -torch.inf, 5.0]


def test_repetition_comes_before_the_others() -> None:
    assert one_row(repetition=2.0, presence=1.0, frequency=0.5) == [1.0, -5.5, -0.5, -6.5, -torch.inf, 5.0]


@pytest.mark.parametrize("vocab", [1, 17, 1031])
@pytest.mark.parametrize("dtype", DTYPES)
def test_apply_penalties_equals_reference(vocab: int, dtype: torch.dtype) -> None:
    wide = torch.randn(5, vocab + 3).to(dtype)
    logits, rest = wide[:, 2 : vocab + 2], wide[:, vocab + 2 :].clone()
    state = {
        "slots": torch.tensor([3, -1, 0, 2, 0], dtype=torch.int32),
        "in_prompt": torch.rand(4, vocab) < 0.3,
        "generated_counts": torch.randint(0, 3, (4, vocab), dtype=torch.int32),
        "repetition": torch.tensor([1.3, 1.3, 1.0, 0.7, 1.0]),
        "presence": torch.tensor([0.5, 0.5, 0.0, 0.0, -1.0]),
        "frequency": torch.tensor([0.1, 0.1, 0.0, 0.0, 0.0]),
    }
    expected = apply_penalties_reference(logits, **state)
    assert apply_penalties(logits, **state) is logits
    assert_within_roundings(logits, expected)
    assert torch.equal(wide[:, vocab + 2 :], rest)


def test_count_tokens_adds_up_pairs_and_skips_slot_minus_one() -> None:
    counts = torch.zeros(3, 7, dtype=torch.int32)
    slots, token_ids = torch.tensor([0, 2, -1, 2, 2]), torch.tensor([6, 1, 1, 1, 0])
    count_tokens(counts, slots, token_ids)
    assert counts.tolist() == [[0, 0, 0, 0, 0, 0, 1], [0] * 7, [1, 2, 0, 0, 0, 0, 0]]
    expected = count_tokens_reference(counts, slots, token_ids)
    count_tokens(counts, slots.int(), token_ids.int())
    assert torch.equal(counts, expected)


@pytest.mark.parametrize("vocab", [1, 2, 17, 1031])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("equals", [False, True])
def test_topk_logprobs_equals_reference(vocab: int, dtype: torch.dtype, *, equals: bool) -> None:
    logits = torch.randint(-3, 4, (5, vocab + 3)).to(dtype)[:, 3:]
    if not equals:
        logits = torch.stack([torch.randperm(vocab) / vocab for _ in range(5)]).to(dtype)
    token_ids = torch.randint(0, vocab, (5,))
    for k in (0, 1, vocab):
        actual, expected = topk_logprobs(logits, token_ids, k=k), topk_logprobs_reference(logits, token_ids, k=k)
        torch.testing.assert_close(actual.token_logprobs, expected.token_logprobs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(actual.top_logprobs, expected.top_logprobs, rtol=1e-5, atol=1e-5)
        assert torch.equal(actual.token_ranks, expected.token_ranks)
        assert torch.equal(logits.gather(-1, actual.top_ids), logits.gather(-1, expected.top_ids))
        if k == vocab or (dtype == torch.float32 and not equals):
            assert torch.equal(actual.top_ids, expected.top_ids)


def test_topk_logprobs_of_tokens_that_cannot_be_drawn() -> None:
    logits = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    actual = topk_logprobs(logits, torch.tensor([2]), k=2)
    assert actual.token_logprobs.tolist() == [-torch.inf]
    assert actual.token_ranks.tolist() == [3]
    assert actual.top_logprobs.tolist() == [[0.0, -torch.inf]]
