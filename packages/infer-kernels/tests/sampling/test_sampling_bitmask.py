"""Bitmasks over the vocabulary, in plain PyTorch, against the reference."""

import pytest
import torch

from infer_kernels.reference import apply_bitmask_reference
from infer_kernels.sampling import apply_bitmask

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def random_bits(masked: int, words: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, (masked, words), dtype=torch.int64).to(torch.int32)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 257])
@pytest.mark.parametrize("words", [1, 2, 9])
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_equals_the_reference(vocab: int, words: int, dtype: torch.dtype) -> None:
    wide = torch.randn(5, vocab + 3).to(dtype)
    wide[1, 2], wide[2, 2] = torch.nan, torch.inf
    logits, before = wide[:, 2 : vocab + 2], wide.clone()
    bitmask, rows = random_bits(3, words), torch.tensor([4, 1, 2])
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


def test_allowed_logits_keep_their_bits() -> None:
    logits = torch.tensor([[-0.0, 0.0, 1e-45, -torch.inf, torch.inf, 3.5]])
    before = logits.clone()
    apply_bitmask(logits, torch.tensor([[-1]], dtype=torch.int32), torch.tensor([0]))
    assert torch.equal(logits.view(torch.int32), before.view(torch.int32))


def test_no_row_changes_nothing() -> None:
    logits = torch.randn(2, 40)
    before = logits.clone()
    apply_bitmask(logits, random_bits(0, 2), torch.empty(0, dtype=torch.int64))
    assert torch.equal(logits, before)
