"""The kernels of penalties, bitmasks, counts and log-probabilities, interpreted, against their references."""

import pytest
import torch

from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.reference import (
    apply_bitmask_reference,
    apply_penalties_reference,
    count_tokens_reference,
    topk_logprobs_reference,
)
from infer_kernels.sampling import apply_bitmask, apply_penalties, count_tokens, topk_logprobs

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("vocab", [1, 17, 1031, 2049])
@pytest.mark.parametrize("dtype", DTYPES)
def test_apply_penalties_equals_reference(vocab: int, dtype: torch.dtype) -> None:
    wide = torch.randn(5, vocab + 3).to(dtype)
    wide[:, 2] = -torch.inf
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


@pytest.mark.parametrize("vocab", [1, 33, 4097])
@pytest.mark.parametrize("words", [1, 2, 129])
@pytest.mark.parametrize("dtype", DTYPES)
def test_apply_bitmask_equals_reference(vocab: int, words: int, dtype: torch.dtype) -> None:
    wide = torch.randn(4, vocab + 3).to(dtype)
    wide[1, 2], wide[3, 2] = torch.nan, torch.inf
    logits, rest = wide[:, 2 : vocab + 2], wide[:, vocab + 2 :].clone()
    bitmask = torch.randint(-(2**31), 2**31, (3, words)).to(torch.int32)
    rows = torch.tensor([3, 0, 1], dtype=torch.int32)
    expected = apply_bitmask_reference(logits, bitmask, rows)
    assert apply_bitmask(logits, bitmask, rows) is logits
    assert torch.equal(logits.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert torch.equal(logits.isnan(), expected.isnan())
    assert torch.equal(wide[:, vocab + 2 :], rest)


@pytest.mark.parametrize("tokens", [0, 1, 129])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_count_tokens_equals_reference(tokens: int, dtype: torch.dtype) -> None:
    counts = torch.randint(0, 9, (4, 6), dtype=torch.int32)
    slots, token_ids = torch.randint(-1, 4, (tokens,), dtype=dtype), torch.randint(0, 6, (tokens,))
    expected = count_tokens_reference(counts, slots, token_ids)
    count_tokens(counts, slots, token_ids)
    assert torch.equal(counts, expected)


@pytest.mark.parametrize("vocab", [1, 2, 17, 1031, 4097])
@pytest.mark.parametrize("dtype", DTYPES)
def test_topk_logprobs_equals_reference(vocab: int, dtype: torch.dtype) -> None:
    logits = torch.cat((torch.randint(-3, 4, (2, vocab)).float(), torch.randn(2, vocab) * 9)).to(dtype)
    token_ids = torch.randint(0, vocab, (4,), dtype=torch.int32)
    actual, expected = topk_logprobs(logits, token_ids, k=vocab), topk_logprobs_reference(logits, token_ids, k=vocab)
    torch.testing.assert_close(actual.token_logprobs, expected.token_logprobs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual.top_logprobs, expected.top_logprobs, rtol=1e-5, atol=1e-5)
    assert torch.equal(actual.token_ranks, expected.token_ranks)
    assert torch.equal(actual.top_ids, expected.top_ids)


def test_topk_logprobs_of_tokens_that_cannot_be_drawn() -> None:
    logits = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    actual = topk_logprobs(logits, torch.tensor([2]), k=0)
    assert actual.token_logprobs.tolist() == [-torch.inf]
    assert actual.token_ranks.tolist() == [3]
    assert actual.top_ids.shape == (1, 0)


def test_no_rows_launch_nothing() -> None:
    assert topk_logprobs(torch.empty(0, 5), torch.empty(0, dtype=torch.int64), k=2).top_ids.shape == (0, 2)
