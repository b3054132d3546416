"""Penalties, bitmasks, counts and log-probabilities, in Triton and in PyTorch, against their references."""

import pytest
import torch
from hypothesis import given
from torch import Tensor

from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.draws import Draws
from infer_kernels.reference import (
    apply_bitmask_reference,
    apply_penalties_reference,
    count_tokens_reference,
    topk_logprobs_reference,
)
from infer_kernels.sampling import apply_bitmask, apply_penalties, count_tokens, sample, topk_logprobs
from infer_proofs.kernels.inputs.draw_strategies import batches
from infer_proofs.kernels.pairwise import parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES

pytestmark = pytest.mark.usefixtures("triton_or_pytorch")


def one_row(**penalties: float) -> list[float]:
    """Return penalized logits of six tokens: 0, 1 in the prompt, 1 and 2 generated once, 3 and 4 three times."""
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


@pytest.mark.parametrize(
    ("penalties", "expected"),
    [
        ({"repetition": 2.0}, [1.0, -4.0, 1.0, -4.0]),  # tokens of prompt and text
        ({"frequency": 0.5}, [2.0, -2.5, 1.5, -3.5]),  # generated tokens alone
        ({"presence": 0.5}, [2.0, -2.5, 1.5, -2.5]),  # once
        ({"repetition": 2.0, "presence": 1.0, "frequency": 0.5}, [1.0, -5.5, -0.5, -6.5]),  # repetition comes first
    ],
)
def test_penalties_make_tokens_less_probable(penalties: dict[str, float], expected: list[float]) -> None:
    assert one_row(**penalties) == [*expected, -torch.inf, 5.0]


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


@parametrize_pairwise(vocab=[1, 31, 32, 33, 257, 4097], words=[1, 2, 9, 129], dtype=DTYPES)
def test_apply_bitmask_equals_reference(vocab: int, words: int, dtype: torch.dtype) -> None:
    wide = torch.randn(5, vocab + 3).to(dtype)
    wide[1, 2], wide[2, 2] = torch.nan, torch.inf
    logits, before = wide[:, 2 : vocab + 2], wide.clone()
    bitmask = torch.randint(-(2**31), 2**31, (3, words)).to(torch.int32)
    rows = torch.tensor([4, 1, 2], dtype=torch.int32 if words == 1 else torch.int64)
    expected = apply_bitmask_reference(logits, bitmask, rows)
    assert apply_bitmask(logits, bitmask, rows) is logits
    assert torch.equal(logits.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert torch.equal(logits.isnan(), expected.isnan())
    wide[:, 2 : vocab + 2] = before[:, 2 : vocab + 2]
    assert torch.equal(wide.nan_to_num(7.0), before.nan_to_num(7.0))


def test_each_bit_stands_for_its_token() -> None:
    for token in (0, 1, 30, 31, 32, 63, 95):
        bits = torch.zeros(1, 3, dtype=torch.int64)
        bits[0, token // 32] = 1 << token % 32
        bitmask = torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32)
        logits = apply_bitmask(torch.ones(1, 100), bitmask, torch.tensor([0]))
        assert logits[0].isfinite().nonzero().flatten().tolist() == [token]


def test_allowed_logits_keep_their_bits_and_no_row_changes_nothing() -> None:
    logits = torch.tensor([[-0.0, 0.0, 1e-45, -torch.inf, torch.inf, 3.5]])
    before = logits.clone()
    apply_bitmask(logits, torch.tensor([[-1]], dtype=torch.int32), torch.tensor([0]))
    apply_bitmask(logits, torch.zeros(0, 2, dtype=torch.int32), torch.empty(0, dtype=torch.int64))
    assert torch.equal(logits.view(torch.int32), before.view(torch.int32))


@pytest.mark.parametrize("tokens", [0, 1, 129])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_count_tokens_equals_reference(tokens: int, dtype: torch.dtype) -> None:
    counts = torch.randint(0, 9, (4, 6), dtype=torch.int32)
    slots, token_ids = torch.randint(-1, 4, (tokens,), dtype=dtype), torch.randint(0, 6, (tokens,))
    expected = count_tokens_reference(counts, slots, token_ids)
    count_tokens(counts, slots, token_ids)
    assert torch.equal(counts, expected)


def test_count_tokens_adds_up_pairs_and_skips_slot_minus_one() -> None:
    counts = torch.zeros(3, 7, dtype=torch.int32)
    count_tokens(counts, torch.tensor([0, 2, -1, 2, 2]), torch.tensor([6, 1, 1, 1, 0]))
    assert counts.tolist() == [[0, 0, 0, 0, 0, 0, 1], [0] * 7, [1, 2, 0, 0, 0, 0, 0]]


@parametrize_pairwise(vocab=[1, 2, 17, 1031, 4097], dtype=DTYPES, equals=[False, True])
def test_topk_logprobs_equals_reference(vocab: int, dtype: torch.dtype, *, equals: bool) -> None:
    logits = torch.randint(-3, 4, (4, vocab + 3)).to(dtype)[:, 3:]
    if not equals:
        logits = torch.stack([9 * torch.randperm(vocab) / vocab for _ in range(4)]).to(dtype)
    token_ids = torch.randint(0, vocab, (4,), dtype=torch.int32 if equals else torch.int64)
    for k in (0, 1, vocab):
        actual, expected = topk_logprobs(logits, token_ids, k=k), topk_logprobs_reference(logits, token_ids, k=k)
        torch.testing.assert_close(actual.token_logprobs, expected.token_logprobs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(actual.top_logprobs, expected.top_logprobs, rtol=1e-5, atol=1e-5)
        assert torch.equal(actual.token_ranks, expected.token_ranks)
        assert torch.equal(logits.gather(-1, actual.top_ids), logits.gather(-1, expected.top_ids))
        if k == vocab or (dtype == torch.float32 and not equals):
            assert torch.equal(actual.top_ids, expected.top_ids)


@pytest.mark.usefixtures("cpu_only")
@given(batch=batches())
def test_ranks_count_the_tokens_before(batch: tuple[Tensor, Draws]) -> None:
    logits, draws = batch
    drawn = sample(logits, **draws.arguments)
    expected = topk_logprobs_reference(logits, drawn, k=1)
    assert torch.equal(topk_logprobs(logits, drawn, k=1).token_ranks, expected.token_ranks)


def test_topk_logprobs_of_tokens_that_cannot_be_drawn_and_of_no_rows() -> None:
    actual = topk_logprobs(torch.tensor([[0.0, -torch.inf, -torch.inf]]), torch.tensor([2]), k=2)
    assert actual.token_logprobs.tolist() == [-torch.inf]
    assert actual.token_ranks.tolist() == [3]
    assert actual.top_logprobs.tolist() == [[0.0, -torch.inf]]
    assert topk_logprobs(torch.empty(0, 5), torch.empty(0, dtype=torch.int64), k=2).top_ids.shape == (0, 2)
