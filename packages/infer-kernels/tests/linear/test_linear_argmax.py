"""The LM head and greedy decoding in one, on the paths of a CPU."""

import pytest
import torch

from infer_kernels import greedy, linear_argmax, prepack
from infer_kernels.reference import greedy_reference, linear_argmax_reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("soft_cap", [None, 20.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("cpu_path")
def test_tokens_and_logits_are_those_of_the_reference(dtype: torch.dtype, soft_cap: float | None) -> None:
    # Sums of whole numbers are exact in any order.
    hidden, weight = torch.randint(-3, 4, (7, 33)).to(dtype), torch.randint(-3, 4, (130, 33)).to(dtype)
    bias = torch.randint(-3, 4, (130,)).to(dtype)
    for given_bias, vocab_size in ((None, 130), (bias, 101), (bias, 1)):
        expected = linear_argmax_reference(hidden, weight, given_bias, vocab_size=vocab_size, soft_cap=soft_cap)
        for form in (weight, prepack(weight)):
            chosen = linear_argmax(hidden, form, given_bias, vocab_size=vocab_size, soft_cap=soft_cap)
            assert torch.equal(chosen.token_ids, expected.token_ids)
            torch.testing.assert_close(chosen.largest, expected.largest)


@pytest.mark.parametrize("dtype", DTYPES)
def test_greedy_is_the_rule(dtype: torch.dtype) -> None:
    logits = torch.randint(-3, 4, (9, 700)).to(dtype)
    logits[0, 300] = torch.nan
    logits[1, 500:] = torch.inf
    logits[2] = -torch.inf
    chosen, expected = greedy(logits), greedy_reference(logits)
    out = (torch.empty(9, dtype=torch.int64), logits.new_empty(9))
    assert torch.equal(chosen.token_ids, expected.token_ids)
    assert torch.equal(chosen.largest.isfinite(), expected.largest.isfinite())
    assert torch.equal(chosen.largest[1:], expected.largest[1:])
    assert greedy(logits, out=out).token_ids is out[0]
    assert torch.equal(out[0], chosen.token_ids)


def test_no_rows_are_no_tokens() -> None:
    assert linear_argmax(torch.zeros(0, 8), torch.zeros(5, 8), vocab_size=5).largest.shape == (0,)
    assert greedy(torch.zeros(0, 8)).token_ids.shape == (0,)


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
