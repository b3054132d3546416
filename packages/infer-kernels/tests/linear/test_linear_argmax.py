"""The LM head and greedy decoding in one, on every path."""

import pytest
import torch
from torch import Tensor

from infer_kernels import linear_argmax, prepack
from infer_kernels.reference import linear_argmax_reference
from infer_proofs.kernels.pairwise import parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES

pytestmark = pytest.mark.usefixtures("every_path")


def whole_numbers(*shape: int, limit: int = 3) -> Tensor:
    """Return numbers so small that sums of products are exact in any order: ids and bits must be equal."""
    return torch.randint(-limit, limit + 1, shape).float()


@parametrize_pairwise(
    dtype=DTYPES,
    in_features=[1, 33, 64, 80],
    vocab=[(1, 1), (130, 130), (257, 200), (140, 131)],
    rows=[1, 7, 17, 65],
    with_bias=[True, False],
    soft_cap=[None, 30.0],
)
def test_tokens_and_logits_are_those_of_the_reference(
    rows: int, in_features: int, vocab: tuple[int, int], dtype: torch.dtype, soft_cap: float | None, *, with_bias: bool
) -> None:
    num_weight_rows, vocab_size = vocab
    hidden = whole_numbers(rows, in_features).to(dtype)
    weight = whole_numbers(num_weight_rows, in_features).to(dtype)
    bias = whole_numbers(num_weight_rows).to(dtype) if with_bias else None
    expected = linear_argmax_reference(hidden, weight, bias, vocab_size=vocab_size, soft_cap=soft_cap)
    for form in (weight, prepack(weight)):
        chosen = linear_argmax(hidden, form, bias, vocab_size=vocab_size, soft_cap=soft_cap)
        if soft_cap is None:
            assert torch.equal(chosen.token_ids, expected.token_ids)
            assert torch.equal(chosen.largest, expected.largest)
        else:  # tanh differs by roundings, which may join neighbors
            torch.testing.assert_close(chosen.largest, expected.largest, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


def test_any_numbers_give_a_logit_within_rounding_of_the_largest() -> None:
    hidden, weight = torch.randn(5, 96).bfloat16(), torch.randn(300, 96).bfloat16()
    chosen = linear_argmax(hidden, weight, vocab_size=300)
    logits = hidden.float() @ weight.float().T
    taken = logits.gather(-1, chosen.token_ids[:, None]).squeeze(-1)
    torch.testing.assert_close(taken, logits.amax(dim=-1), rtol=2**-8, atol=0.0)
    torch.testing.assert_close(chosen.largest.float(), taken, rtol=2**-8, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_that_are_equal_once_stored_are_equals(dtype: torch.dtype) -> None:
    # 1024 + 1 / 4 is nearest to 1024 in both dtypes; unrounded it would be larger, and its id is higher.
    hidden = torch.ones(1, 16, dtype=dtype)
    weight = torch.zeros(200, 16, dtype=dtype)
    weight[:, 0] = -1.0
    weight[50, 0] = 1024.0
    weight[150, :2] = torch.tensor([1024.0, 0.25])
    chosen = linear_argmax(hidden, weight, vocab_size=200)
    assert chosen.token_ids.tolist() == [50]
    assert chosen.largest.tolist() == [1024.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_of_equals_is_taken_and_padding_never(dtype: torch.dtype) -> None:
    hidden, weight = torch.ones(2, 32, dtype=dtype), torch.zeros(400, 32, dtype=dtype)
    weight[[130, 131, 290]] = 1.0
    weight[300:] = 9.0
    assert linear_argmax(hidden, weight, vocab_size=300).token_ids.tolist() == [130, 130]
    weight[:] = -1.0
    weight[300:] = torch.nan
    assert linear_argmax(hidden, weight, vocab_size=300).token_ids.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_is_larger_than_anything_and_spoils_its_row_alone(dtype: torch.dtype) -> None:
    hidden, weight = torch.ones(3, 32, dtype=dtype), whole_numbers(300, 32).to(dtype)
    hidden[1, 5] = torch.nan
    bias = torch.zeros(300, dtype=dtype)
    bias[7] = torch.inf
    chosen = linear_argmax(hidden, weight, bias, vocab_size=300)
    assert chosen.token_ids.tolist() == [7, 0, 7]
    assert chosen.largest.isnan().tolist() == [False, True, False]
    bias[7] = -torch.inf
    assert linear_argmax(hidden, weight, bias, vocab_size=300).largest.isfinite().tolist() == [True, False, True]
    bias[:] = -torch.inf
    assert linear_argmax(hidden[:1], weight, bias, vocab_size=300).token_ids.tolist() == [0]


@pytest.mark.parametrize("rows", [129, 257])
def test_a_rows_token_is_the_same_in_any_company(rows: int) -> None:
    hidden, weight = whole_numbers(rows, 32).half(), whole_numbers(150, 32).half()
    together = linear_argmax(hidden, weight, vocab_size=150)
    assert torch.equal(together.token_ids, linear_argmax_reference(hidden, weight, vocab_size=150).token_ids)
    for some in (slice(0, 1), slice(rows - 20, rows), slice(5, 60)):
        assert torch.equal(linear_argmax(hidden[some], weight, vocab_size=150).token_ids, together.token_ids[some])


def test_strided_rows_are_taken_and_no_rows_are_no_tokens() -> None:
    wide, weight = whole_numbers(4, 96), whole_numbers(50, 64)
    expected = linear_argmax(wide[:, 32:64].contiguous(), weight[:, :32].contiguous(), vocab_size=50)
    chosen = linear_argmax(wide[:, 32:64], weight[:, :32], vocab_size=50)
    assert torch.equal(chosen.token_ids, expected.token_ids)
    assert linear_argmax(wide[:0, :64], weight, vocab_size=50).token_ids.shape == (0,)


@pytest.mark.usefixtures("cpu_only")
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("vocab_size", 6, r"`vocab_size` is 6; pass 1 to 5, the rows of `weight`"),
        ("vocab_size", 0, r"`vocab_size` is 0"),
        ("soft_cap", 0.0, r"`soft_cap` is 0.0; pass a positive number"),
        ("hidden", torch.zeros(3, 7), r"`hidden` has shape \[3, 7\]; pass \[rows, 8\]"),
        ("bias", torch.zeros(4), r"`bias` has shape \[4\]; pass \[5\], as many as `weight` has rows"),
        ("weight", torch.zeros(8, 5).T, r"`weight` has stride 5 in its last dimension"),
    ],
)
def test_wrong_value_is_named_with_its_fix(name: str, value: object, message: str) -> None:
    right = {"hidden": torch.zeros(3, 8), "weight": torch.zeros(5, 8), "bias": torch.zeros(5), "vocab_size": 4}
    with pytest.raises(ValueError, match=message):
        linear_argmax(**right | {name: value})  # type: ignore[arg-type]  # one of them is wrong
