"""Experts with quantized weights, in Triton and in PyTorch: values of every encoding, and bits in any company.

The C++ kernels multiply rows in eight bits: `test_quantized_experts.py`.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import QuantizedWeight, fused_moe, prepack_experts
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.checks.inputs.quantized_experts import QuantizedExperts, quantized_experts
from infer_kernels.moe.activation import ActivationName, choose_activation
from infer_kernels.moe.fused_moe import fused_moe_quantized_reference
from infer_kernels.moe.fused_moe_quantized import fused_moe_quantized_torch, fused_moe_quantized_triton
from infer_kernels.quantization import Encoding
from infer_proofs.kernels.interpreted.recorded_launches import record_launches
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES, INTERPRETED

pytestmark = pytest.mark.usefixtures("triton_or_pytorch")

ENCODINGS: list[Encoding] = ["int8", "int4", "e2m1", "fp8_e4m3"]
OFFSETS: list[tuple[Encoding, str]] = [("int8", "zeros"), ("int8", "minimums"), ("int4", "zeros"), ("int4", "minimums")]
CALLS: list[tuple[int, ActivationName, bool, bool]] = [
    *((0, "silu_and_mul", True, False), (13, "silu_and_mul", False, True), (13, "clamped_swiglu", True, False)),
    *((67, "gelu_tanh_and_mul", True, True), (67, "clamped_swiglu", False, False)),
]
"""Tokens, activation, with biases, invariant."""
NO_BIASES = {"gate_up_bias": None, "down_bias": None}


def compute(
    layer: QuantizedExperts,
    picked: Any = slice(None),
    *,
    activation: ActivationName = "silu_and_mul",
    with_bias: bool = True,
    is_invariant: bool = False,
) -> Tensor:
    plain = layer.plain
    x, ids, shares = plain.x[picked], plain.expert_ids[picked], plain.expert_weights[picked]
    biases: dict[str, Any] = plain.biases if with_bias else NO_BIASES
    options: dict[str, Any] = biases | {"activation": choose_activation(activation)}
    if not INTERPRETED:
        return fused_moe_quantized_torch(x, layer.gate_up, layer.down, ids, shares, **options)
    out = torch.full_like(x, torch.nan)
    options |= {"out": out, "is_invariant": is_invariant}
    assert fused_moe_quantized_triton(x, layer.gate_up, layer.down, ids, shares, **options) is out
    return out


@parametrize_pairwise(
    form=[*((each, "none") for each in ENCODINGS), *OFFSETS],
    dtype=DTYPES,
    sizes=[(1, 1, 1, 1), (7, 2, 33, 17), (7, 2, 80, 96), (1, 1, 64, 128), (7, 2, 64, 32)],
    group_size=[None, 16, 32, 48],
    call=CALLS,
    in_words=[True, False],
)
def test_sum_of_experts_equals_reference(
    form: tuple[Encoding, str],
    dtype: torch.dtype,
    sizes: tuple[int, int, int, int],
    group_size: int | None,
    call: tuple[int, ActivationName, bool, bool],
    *,
    in_words: bool,
) -> None:
    (encoding, offsets), (tokens, activation, with_bias, is_invariant) = form, call
    names = ("experts", "experts_per_token", "hidden", "intermediate")
    plain = random_experts(tokens=tokens, **dict(zip(names, sizes, strict=True)), dtype=dtype)
    layer = quantized_experts(
        plain,
        encoding=encoding,
        group_size=group_size,
        has_zeros=offsets == "zeros",
        has_minimums=offsets == "minimums",
    )
    if in_words:
        words = {name: getattr(layer, name) for name in ("gate_up", "down")}
        layer = replace(layer, **{name: each.in_words() for name, each in words.items() if each.can_be_words()})
    actual = compute(layer, activation=activation, with_bias=with_bias, is_invariant=is_invariant)
    biases: dict[str, Any] = plain.biases if with_bias else {}
    expected = fused_moe_quantized_reference(*layer.arguments, activation=activation, **biases)
    assert_within_roundings(actual, expected, 6 if offsets == "minimums" else 4)


@pytest.mark.usefixtures("triton_only")
@parametrize_each_value(dtype=DTYPES, form=[("int8", None), ("int4", 16), ("e2m1", 32), ("fp8_e4m3", None)])
def test_rows_of_any_slice_equal_rows_of_the_whole(form: tuple[Encoding, int | None], dtype: torch.dtype) -> None:
    encoding, group_size = form
    plain = random_experts(tokens=24, experts=2, experts_per_token=2, hidden=48, intermediate=48, dtype=dtype)
    layer = quantized_experts(plain, encoding=encoding, group_size=group_size)
    whole = compute(layer)
    for start, stop in ((0, 1), (3, 10)):
        assert torch.equal(compute(layer, slice(start, stop)), whole[start:stop])
    shuffled = torch.randperm(24)
    assert torch.equal(compute(layer, shuffled), whole[shuffled])


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's, of products that nobody wrote
def test_a_row_with_an_id_that_no_expert_has_is_nan_and_the_others_are_not() -> None:
    plain = random_experts(tokens=5, experts=4, experts_per_token=2, hidden=48, intermediate=32, dtype=torch.float32)
    layer = quantized_experts(plain, encoding="int4", group_size=16)
    expected = compute(layer)
    plain.expert_ids[1, 0], plain.expert_ids[3, 1] = 4, -1
    actual = compute(layer)
    assert actual[[1, 3]].isnan().all()
    torch.testing.assert_close(actual[[0, 2, 4]], expected[[0, 2, 4]], rtol=0 if INTERPRETED else 1e-6, atol=1e-6)


@pytest.mark.usefixtures("triton_only")
@pytest.mark.parametrize(
    ("encoding", "group_size", "offsets"),
    [
        *(("int4", 32, "zeros"), ("int4", 32, "none"), ("int4", 32, "minimums"), ("int8", 32, "minimums")),
        *(("int8", None, "none"), ("fp8_e4m3", 32, "none")),
    ],
)
def test_experts_that_are_prepacked_are_words_and_take_four_launches(
    encoding: Encoding, group_size: int | None, offsets: str
) -> None:
    plain = random_experts(tokens=5, experts=3, experts_per_token=2, hidden=64, intermediate=32, dtype=torch.float16)
    layer = quantized_experts(
        plain,
        encoding=encoding,
        group_size=group_size,
        has_zeros=offsets == "zeros",
        has_minimums=offsets == "minimums",
    )
    gate_up, down = prepack_experts(layer.gate_up), prepack_experts(layer.down)
    assert isinstance(gate_up, QuantizedWeight)
    assert isinstance(down, QuantizedWeight)
    assert gate_up.order == down.order == "words"
    routing = plain.expert_ids, plain.expert_weights
    with record_launches() as launches:
        actual = fused_moe(plain.x, gate_up, down, *routing, activation="silu_and_mul")
    assert len(launches) == 4
    expected = fused_moe_quantized_reference(*layer.arguments, activation="silu_and_mul")
    torch.testing.assert_close(actual, expected, atol=1e-2, rtol=1e-2)
