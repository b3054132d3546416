"""The first of the largest logits, in Triton and in PyTorch, against the rule and against `torch.max`."""

import pytest
import torch
from torch import Tensor

from infer_kernels.reference import greedy_reference, sample_reference
from infer_kernels.sampling import greedy, sample
from infer_proofs.kernels.pairwise import parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES

pytestmark = pytest.mark.usefixtures("triton_or_pytorch")


def assert_greedy(logits: Tensor) -> None:
    chosen, expected = greedy(logits), greedy_reference(logits)
    assert torch.equal(chosen.token_ids, expected.token_ids)
    assert chosen.largest.dtype == logits.dtype
    assert torch.equal(chosen.largest.nan_to_num(nan=7.0), expected.largest.nan_to_num(nan=7.0))
    assert torch.equal(chosen.largest.isnan(), expected.largest.isnan())
    values, indices = logits.max(dim=-1)
    assert torch.equal(indices, expected.token_ids)
    assert torch.equal(values.isnan(), expected.largest.isnan())
    assert torch.equal(sample(logits), chosen.token_ids)
    is_number = ~logits.isnan().any(dim=-1)  # of others the reference takes some id
    assert torch.equal(sample_reference(logits)[is_number], chosen.token_ids[is_number])


@parametrize_pairwise(vocab=[1, 2, 17, 4095, 4096, 4097, 8209], rows=[1, 3], dtype=DTYPES)
def test_greedy_equals_the_rule(vocab: int, rows: int, dtype: torch.dtype) -> None:
    assert_greedy(torch.randn(rows, vocab).to(dtype))
    assert_greedy(torch.randn(rows, vocab + 3).to(dtype)[:, 3:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_of_equals_is_taken_within_and_across_chunks(dtype: torch.dtype) -> None:
    logits = torch.full((4, 9000), -2.0, dtype=dtype)
    for row, places in enumerate(([0, 8999], [4095, 4096], [5000, 5001, 8200], range(9000))):
        logits[row, list(places)] = 1.5
    assert greedy(logits).token_ids.tolist() == [0, 4095, 5000, 0]
    assert_greedy(logits)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_infinities_and_zeros_order_as_for_torch(dtype: torch.dtype) -> None:
    inf, nan = torch.inf, torch.nan
    logits = torch.zeros(8, 5000)
    logits[0, [3, 4999]] = torch.tensor([inf, nan])
    logits[1] = -inf
    logits[2, [4990, 4991]] = inf
    logits[3, [7, 4500]] = nan
    logits[4] = -inf
    logits[4, 4400] = -60000.0
    logits[5, 0] = -0.0  # equal to 0
    logits[6] = -1.0
    logits[7, [340, 341, 699]] = nan
    logits = logits.to(dtype)
    assert greedy(logits).token_ids.tolist() == [4999, 0, 4990, 7, 4400, 0, 0, 340]
    assert greedy(logits).largest.isfinite().tolist() == [False, False, False, False, True, True, True, False]
    assert_greedy(logits)


def test_out_is_filled() -> None:
    logits = torch.randn(3, 4100)
    out = (torch.empty(3, dtype=torch.int64), torch.empty(3))
    assert greedy(logits, out=out).token_ids is out[0]
    assert torch.equal(out[1], logits.amax(dim=-1))
    own = torch.empty(3, dtype=torch.int64)
    assert sample(logits, out=own) is own
    assert torch.equal(own, out[0])
    assert greedy(torch.empty(0, 5)).token_ids.shape == (0,)
