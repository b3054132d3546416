"""Wrong arguments of sampling are refused with the argument's name, its value and what would be right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from infer_kernels.checks.inputs.draws import random_draws
from infer_kernels.sampling import apply_bitmask, apply_penalties, count_tokens, greedy, sample, topk_logprobs

LOGITS = torch.randn(3, 8)
SLOTS = torch.zeros(3, dtype=torch.int32)
COUNTS = torch.zeros(2, 8, dtype=torch.int32)
ONES = torch.ones(3)

# For each function, arguments that are right; each case below replaces one.
RIGHT: dict[Callable[..., Any], dict[str, Any]] = {
    sample: {"logits": LOGITS, "out": torch.zeros(3, dtype=torch.int64)} | random_draws(3, vocab=8).arguments,
    apply_penalties: {
        "logits": LOGITS.clone(),
        "slots": SLOTS,
        "in_prompt": COUNTS.bool(),
        "generated_counts": COUNTS,
        "repetition": ONES,
        "presence": ONES,
        "frequency": ONES,
    },
    apply_bitmask: {"logits": LOGITS.clone(), "bitmask": COUNTS[:1, :1].clone(), "rows": SLOTS[:1]},
    count_tokens: {"generated_counts": COUNTS, "slots": SLOTS, "token_ids": SLOTS},
    greedy: {"logits": LOGITS},
    topk_logprobs: {"logits": LOGITS, "token_ids": SLOTS, "k": 3},
}
TENSORS = [
    (op, name)
    for op, arguments in RIGHT.items()
    for name, value in arguments.items()
    if isinstance(value, torch.Tensor)
]


@pytest.mark.parametrize("op", RIGHT)
def test_right_arguments_are_taken(op: Callable[..., Any]) -> None:
    op(**RIGHT[op])


@pytest.mark.parametrize(("op", "name"), TENSORS)
def test_tensor_of_wrong_dtype_is_refused(op: Callable[..., Any], name: str) -> None:
    value = RIGHT[op][name]
    dtype = torch.float64 if value.is_floating_point() else torch.int16
    with pytest.raises(TypeError, match=rf"`{name}` has dtype torch\.\w+"):
        op(**RIGHT[op] | {name: value.to(dtype)})


@pytest.mark.parametrize(("op", "name"), TENSORS)
def test_tensor_with_a_dimension_too_many_is_refused(op: Callable[..., Any], name: str) -> None:
    with pytest.raises(ValueError, match=r"`\w+` has shape \["):
        op(**RIGHT[op] | {name: RIGHT[op][name].unsqueeze(0)})


@pytest.mark.parametrize(("op", "name"), [case for case in TENSORS if case != (greedy, "logits")])
def test_tensor_elsewhere_is_refused(op: Callable[..., Any], name: str) -> None:
    with pytest.raises(ValueError, match=r"`\w+` is on (meta|cpu) but .* move one"):
        op(**RIGHT[op] | {name: RIGHT[op][name].to("meta")})


@pytest.mark.parametrize(
    ("op", "name", "value", "message"),
    [
        (sample, "logits", torch.zeros(8, 3).T, r"`logits` has stride 3 in its last dimension"),
        (sample, "logits", torch.zeros(3, 0), r"`logits` has shape \[3, 0\]; pass \[rows, vocab\]"),
        (sample, "top_k", SLOTS[:2], r"`top_k` has shape \[2\]; pass \[3\], one for each row"),
        (sample, "seeds", None, r"`seeds` is None but `temperatures` is not; pass one for each row"),
        (sample, "positions", None, r"`positions` is None"),
        (sample, "out", torch.zeros(6, dtype=torch.int64)[::2], r"`out` has stride 2; pass a contiguous one"),
        (greedy, "logits", torch.zeros(8, 3).T, r"`logits` has stride 3 in its last dimension"),
        (greedy, "logits", torch.zeros(3, 0), r"`logits` has shape \[3, 0\]; pass \[rows, vocab\]"),
        (
            greedy,
            "out",
            (SLOTS[:2].long(), ONES),
            r"`out` has shape \[2\] and strides \[1\]; pass contiguous tensors \[3\]",
        ),
        (apply_penalties, "generated_counts", COUNTS[:, :7], r"`generated_counts` has shape \[2, 7\]; pass \[2, 8\]"),
        (apply_penalties, "in_prompt", COUNTS[:1].bool(), r"`in_prompt` has shape \[1, 8\]; pass \[2, 8\]"),
        (apply_bitmask, "rows", SLOTS[:2], r"`rows` has shape \[2\]; pass \[1\], one for each of `bitmask`"),
        (apply_bitmask, "bitmask", torch.zeros(4, 1).int().T[:, ::2], r"`bitmask` has stride"),
        (count_tokens, "token_ids", SLOTS[:2], r"`token_ids` has shape \[2\]; pass \[3\], one for each of `slots`"),
        (topk_logprobs, "token_ids", SLOTS[:2], r"`token_ids` has shape \[2\]; pass \[3\]"),
        (topk_logprobs, "k", 9, r"`k` is 9; pass 0 to 8, the vocabulary"),
        (topk_logprobs, "k", -1, r"`k` is -1; pass 0 to 8"),
    ],
)
def test_wrong_value_is_named_with_its_fix(op: Callable[..., Any], name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op(**RIGHT[op] | {name: value})


def test_logits_that_want_a_gradient_are_sampled() -> None:
    logits = LOGITS.clone().requires_grad_()
    assert torch.equal(sample(logits, **random_draws(3, vocab=8).arguments), sample(**RIGHT[sample] | {"out": None}))
    assert not topk_logprobs(logits, SLOTS, k=1).token_logprobs.requires_grad
