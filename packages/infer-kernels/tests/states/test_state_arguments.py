"""Wrong arguments of ops with states are refused with the argument's name, its value and what would be right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from infer_kernels import (
    StateRows,
    causal_convolution,
    gated_convolution,
    gated_delta_rule,
    gated_rms_norm,
    sigmoid_gate,
)

X, GATES = torch.zeros(3, 8), torch.zeros(3, 4)
SLOTS = torch.tensor([0, 1], dtype=torch.int32)
START = torch.tensor([0, 1, 3], dtype=torch.int32)
ROWS = StateRows(query_start=START, read=SLOTS, write=SLOTS + 2)
RIGHT: dict[Callable[..., Any], dict[str, Any]] = {
    causal_convolution: {
        "x": X,
        "state": torch.zeros(4, 3, 8),
        "rows": ROWS,
        "weight": torch.zeros(8, 4),
        "bias": torch.zeros(8),
        "activation": "silu",
    },
    gated_convolution: {
        "bcx": torch.zeros(3, 24),
        "state": torch.zeros(4, 2, 8),
        "rows": ROWS,
        "weight": torch.zeros(8, 3),
        "bias": torch.zeros(8),
    },
    gated_delta_rule: {
        "qkv": torch.zeros(3, 2 * 2 * 8 + 4 * 6),
        "a": GATES,
        "b": GATES,
        "state": torch.zeros(4, 4, 8, 6),
        "rows": ROWS,
        "a_log": torch.zeros(4),
        "dt_bias": torch.zeros(4),
        "key_heads": 2,
    },
    gated_rms_norm: {"x": X.view(3, 2, 4), "gate": X, "weight": torch.zeros(4), "eps": 1e-6},
    sigmoid_gate: {"x": X, "gate": X, "addend": X},
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
    with pytest.raises(TypeError, match=r"`\w+` has dtype torch\.\w+"):
        op(**RIGHT[op] | {name: RIGHT[op][name].double()})


@pytest.mark.parametrize(("op", "name"), TENSORS)
def test_tensor_with_a_dimension_too_many_is_refused(op: Callable[..., Any], name: str) -> None:
    with pytest.raises(ValueError, match=r"`\w+` has (shape \[|\d+ columns)"):
        op(**RIGHT[op] | {name: RIGHT[op][name].unsqueeze(0)})


@pytest.mark.parametrize(("op", "name"), TENSORS)
def test_tensor_whose_last_dimension_is_strided_is_refused(op: Callable[..., Any], name: str) -> None:
    strided = torch.stack([RIGHT[op][name]] * 2, dim=-1)[..., 0]
    with pytest.raises(ValueError, match=rf"`{name}` has stride 2 in its last dimension"):
        op(**RIGHT[op] | {name: strided})


@pytest.mark.parametrize(("op", "name"), TENSORS)
def test_tensor_on_another_device_is_refused(op: Callable[..., Any], name: str) -> None:
    with pytest.raises(ValueError, match=r"`\w+` is on \w+ but `\w+` is on"):
        op(**RIGHT[op] | {name: RIGHT[op][name].to("meta")})


@pytest.mark.parametrize(
    ("op", "name", "value", "message"),
    [
        (causal_convolution, "x", torch.zeros(3, 7), r"`x` has 7 columns; pass 8, as `weight` has 8 channels"),
        (causal_convolution, "state", torch.zeros(4, 2, 8), r"`state` has shape \[4, 2, 8\]; pass \[4, 3, 8\]"),
        (causal_convolution, "weight", torch.zeros(8, 0), r"`weight` has no taps"),
        (causal_convolution, "bias", torch.zeros(7), r"`bias` has shape \[7\]; pass \[8\]"),
        (causal_convolution, "activation", "gelu", r"`activation` is 'gelu'; pass 'silu' or None"),
        (gated_convolution, "bcx", X, r"`bcx` has 8 columns; pass 24, b, c and x side by side, as `weight` has 8"),
        (gated_delta_rule, "qkv", torch.zeros(3, 9), r"`qkv` has 9 columns; pass 56: queries and keys of 2 heads of 8"),
        (gated_delta_rule, "a", torch.zeros(3, 2), r"`a` has shape \[3, 2\]; pass \[3, 4\]"),
        (gated_delta_rule, "b", torch.zeros(2, 4), r"`b` has shape \[2, 4\]; pass \[3, 4\]"),
        (gated_delta_rule, "a_log", torch.zeros(2), r"`a_log` has shape \[2\]; pass \[4\]"),
        (gated_delta_rule, "key_heads", 3, r"`key_heads` is 3 but `state` has 4 value heads; pass a divisor"),
        (gated_delta_rule, "key_heads", 0, r"`key_heads` is 0 but"),
        (gated_rms_norm, "gate", torch.zeros(3, 4), r"`gate` has shape \[3, 4\]; pass \[3, 8\]"),
        (gated_rms_norm, "weight", torch.zeros(8), r"`weight` has shape \[8\]; pass \[4\]"),
        (sigmoid_gate, "gate", torch.zeros(3, 2), r"`gate` has shape \[3, 2\]; pass \[3, 8\], .* or one column"),
        (sigmoid_gate, "addend", torch.zeros(3, 1), r"`addend` has shape \[3, 1\]; pass \[3, 8\]"),
    ],
)
def test_wrong_value_is_named_with_its_fix(op: Callable[..., Any], name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op(**RIGHT[op] | {name: value})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"query_start": SLOTS}, r"`query_start` has shape \[2\]; pass \[3\], one more than `read`"),
        ({"write": START}, r"`write` has shape \[3\]; pass \[2\], as many as `read`"),
        ({"read": SLOTS[None]}, r"`read` has shape \[1, 2\]; pass \[seqs\]"),
        ({"write": torch.zeros(4, dtype=torch.int32)[::2]}, r"`write` has stride 2 in its last dimension"),
        ({"query_start": START.to("meta")}, r"`query_start` is on meta but `read` is on cpu"),
    ],
)
def test_rows_of_wrong_shapes_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StateRows(**{"query_start": START, "read": SLOTS, "write": SLOTS} | wrong)


@pytest.mark.parametrize("name", ["query_start", "read", "write"])
def test_rows_of_another_dtype_are_refused(name: str) -> None:
    right = {"query_start": START, "read": SLOTS, "write": SLOTS}
    with pytest.raises(TypeError, match=rf"`{name}` has dtype torch.int64"):
        StateRows(**right | {name: right[name].long()})
