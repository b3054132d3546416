"""Weights whose groups have minimums, interpreted: every op with them against the reference."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import embedding_quantized, fused_moe, linear, linear_invariant, prepack, prepack_experts
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.checks.inputs.quantized_experts import quantized_experts
from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.embedding import embedding_quantized_reference
from infer_kernels.linear.quantized import linear_dequantized
from infer_kernels.linear.quantized.linear_quantized import linear_quantized_reference, linear_quantized_triton
from infer_kernels.moe.activation import choose_activation
from infer_kernels.moe.fused_moe import fused_moe_quantized_reference
from infer_kernels.moe.fused_moe_quantized import fused_moe_quantized_triton
from infer_kernels.quantization import Encoding, QuantizedWeight
from infer_proofs.kernels.interpreted.recorded_launches import record_launches
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_pairwise

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ENCODINGS: list[Encoding] = ["int4", "int8"]


def random_weight(*shape: int, encoding: Encoding, group_size: int | None, in_words: bool = False) -> QuantizedWeight:
    weight = random_quantized(*shape, encoding=encoding, group_size=group_size, has_minimums=True)
    return weight.in_words() if in_words and weight.can_be_words() else weight


def multiply(x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None, *, is_invariant: bool = False) -> Tensor:
    out = torch.full((len(x), weight.out_features), torch.nan, dtype=x.dtype)
    return linear_quantized_triton(x, weight, bias, out=out, is_invariant=is_invariant)


def assert_product(actual: Tensor, x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None) -> None:
    """Compare with numbers that are rounded to the dtype of `x`, as the kernels round them, and products in fp64."""
    numbers = weight.dequantize(x.dtype).double()
    expected = x.double() @ numbers.T + (0.0 if bias is None else bias.double())
    assert_within_roundings(actual, expected.to(x.dtype))


@parametrize_pairwise(
    encoding=ENCODINGS,
    dtype=DTYPES,
    features=[(1, 1), (33, 130), (256, 65), (352, 40)],
    group_size=[None, 16, 32, 48, 128],
    rows=[0, 1, 17, 65],
    in_words=[True, False],
    is_invariant=[True, False],
)
def test_layer_equals_reference(
    encoding: Encoding,
    dtype: torch.dtype,
    features: tuple[int, int],
    group_size: int | None,
    rows: int,
    *,
    in_words: bool,
    is_invariant: bool,
) -> None:
    in_features, out_features = features
    weight = random_weight(out_features, in_features, encoding=encoding, group_size=group_size, in_words=in_words)
    x, bias = torch.randn(rows, in_features).to(dtype), torch.randn(out_features).to(dtype)
    actual = multiply(x, weight, bias, is_invariant=is_invariant)
    assert_product(actual, x, weight, bias)
    assert_within_roundings(actual, linear_quantized_reference(x, weight, bias), roundings=8)


@parametrize_pairwise(encoding=ENCODINGS, group_size=[16, 32, 48, 64, 256], dtype=DTYPES, in_words=[True, False])
def test_every_group_of_a_tile_has_its_own_scale_and_minimum(
    encoding: Encoding, group_size: int, dtype: torch.dtype, *, in_words: bool
) -> None:
    # sgl-project/sglang#37759: a tile of several groups took the first one's zeros. Row i of the unit matrix picks
    # number i. Scales are powers of two, and minimums multiples of them: every number is exact. Some minimums are
    # negative, as those of Q4_1, and one scale is 0, as of a block of equal numbers.
    in_features = 336 if group_size == 48 else 352
    weight = random_weight(5, in_features, encoding=encoding, group_size=group_size, in_words=in_words)
    assert weight.minimums is not None
    exponents = torch.arange(weight.scales.numel()).view_as(weight.scales) % 5 - 2.0
    weight.scales.copy_(exponents.exp2())
    weight.minimums.copy_(weight.scales * (torch.arange(weight.scales.numel()).view_as(weight.scales) % 7 - 2))
    weight.scales[2, -1] = 0.0
    unit = torch.eye(in_features, dtype=dtype)
    for is_invariant in (False, True):
        assert torch.equal(multiply(unit, weight, is_invariant=is_invariant).float(), weight.dequantize().T)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("in_words", [True, False])
def test_what_lies_around_scales_and_minimums_reaches_nothing(encoding: Encoding, *, in_words: bool) -> None:
    # vllm-project/vllm#47303: scales past a row's last group were read, and were NaN. 352 inputs end within a tile.
    weight = random_weight(9, 352, encoding=encoding, group_size=32, in_words=in_words)
    assert weight.minimums is not None

    def surrounded(of_groups: Tensor) -> Tensor:
        memory = torch.full((11, of_groups.shape[1] + 7), torch.nan)
        return memory[1:10, 3 : 3 + of_groups.shape[1]].copy_(of_groups)

    inside = replace(weight, scales=surrounded(weight.scales), minimums=surrounded(weight.minimums))
    for rows in (3, 70):
        x = torch.randn(rows, 352).bfloat16()
        assert torch.equal(multiply(x, inside), multiply(x, weight))
    ids = torch.tensor([8, 0])
    expected = embedding_quantized_reference(ids, weight, dtype=torch.float32)
    assert torch.equal(embedding_quantized(ids, inside, dtype=torch.float32), expected)


@parametrize_each_value(dtype=DTYPES, form=[("int4", 32), ("int4", 16), ("int4", 48), ("int8", 32), ("int8", None)])
def test_rows_have_the_same_bits_in_any_company(form: tuple[Encoding, int | None], dtype: torch.dtype) -> None:
    encoding, group_size = form
    weight = random_weight(37, 1056, encoding=encoding, group_size=group_size, in_words=True)
    x = torch.randn(70, 1056).to(dtype)
    whole = multiply(x, weight, is_invariant=True)
    for start, stop in ((0, 1), (69, 70), (3, 10), (0, 65)):
        assert torch.equal(multiply(x[start:stop], weight, is_invariant=True), whole[start:stop])


@parametrize_each_value(dtype=DTYPES, form=[("int4", 32), ("int4", 16), ("int8", 32), ("int8", 48)], rows=[1, 13])
def test_inputs_may_be_divided_over_programs(form: tuple[Encoding, int], rows: int, dtype: torch.dtype) -> None:
    encoding, group_size = form
    weight = random_weight(20, 2016, encoding=encoding, group_size=group_size, in_words=True)
    x, bias, semaphores = torch.randn(rows, 2016).to(dtype), torch.randn(20).to(dtype), torch.zeros(64).int()
    apart = multiply(x, weight, bias)
    assert_product(apart, x, weight, bias)
    out = torch.full_like(apart, torch.nan)
    with record_launches() as launches:
        linear_quantized_triton(x, weight, bias, out=out, is_invariant=False, semaphores=semaphores)
    assert len(launches) == 1
    assert torch.equal(out, apart)


@parametrize_pairwise(
    encoding=ENCODINGS,
    dtype=DTYPES,
    hidden=[1, 33, 80, 1504],
    group_size=[None, 16, 32, 48],
    scale=[1.0, 9.75],
    in_words=[True, False],
)
def test_rows_of_a_table_equal_reference(
    encoding: Encoding, dtype: torch.dtype, hidden: int, group_size: int | None, scale: float, *, in_words: bool
) -> None:
    weight = random_weight(13, hidden, encoding=encoding, group_size=group_size, in_words=in_words)
    ids = torch.tensor([12, 0, 5, 5, 7])
    actual = embedding_quantized(ids, weight, dtype=dtype, scale=scale)
    assert torch.equal(actual, embedding_quantized_reference(ids, weight, dtype=dtype, scale=scale))


@parametrize_pairwise(
    encoding=ENCODINGS,
    dtype=DTYPES,
    experts=[(1, 1), (7, 2)],
    widths=[(1, 1), (33, 17), (80, 96), (64, 128)],
    group_size=[None, 16, 32, 48],
    tokens=[0, 13, 67],
    in_words=[True, False],
    is_invariant=[True, False],
)
def test_sum_of_experts_equals_reference(
    encoding: Encoding,
    dtype: torch.dtype,
    experts: tuple[int, int],
    widths: tuple[int, int],
    group_size: int | None,
    tokens: int,
    *,
    in_words: bool,
    is_invariant: bool,
) -> None:
    plain = random_experts(
        tokens=tokens,
        experts=experts[0],
        experts_per_token=experts[1],
        hidden=widths[0],
        intermediate=widths[1],
        dtype=dtype,
    )
    layer = quantized_experts(plain, encoding=encoding, group_size=group_size, has_minimums=True)
    gate_up, down = (
        each.in_words() if in_words and each.can_be_words() else each for each in (layer.gate_up, layer.down)
    )
    biases: dict[str, Any] = plain.biases if tokens != 13 else {"gate_up_bias": None, "down_bias": None}
    actual = fused_moe_quantized_triton(
        plain.x,
        gate_up,
        down,
        plain.expert_ids,
        plain.expert_weights,
        activation=choose_activation("silu_and_mul"),
        **biases,
        out=torch.full_like(plain.x, torch.nan),
        is_invariant=is_invariant,
    )
    expected = fused_moe_quantized_reference(*layer.arguments, activation="silu_and_mul", **biases)
    assert_within_roundings(actual, expected, 6)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_public_ops_take_prepacked_weights_to_the_kernels(encoding: Encoding) -> None:
    weight = random_weight(40, 64, encoding=encoding, group_size=32)
    numbers, x, ids = weight.dequantize(), torch.randn(5, 64), torch.tensor([3, 39])
    kept = prepack(weight)
    assert isinstance(kept, QuantizedWeight)
    assert kept.order == "words"
    drawn = random_experts(tokens=9, experts=4, experts_per_token=2, hidden=64, intermediate=32, dtype=torch.float32)
    layer = quantized_experts(drawn, encoding=encoding, group_size=32, has_minimums=True)
    gate_up, down = prepack_experts(layer.gate_up), prepack_experts(layer.down)
    routing = (drawn.expert_ids, drawn.expert_weights)
    with record_launches() as launches:
        assert_within_roundings(linear(x, kept), x @ numbers.T, 8)
        assert_within_roundings(linear_invariant(x, kept), x @ numbers.T, 8)
        assert torch.equal(embedding_quantized(ids, kept, dtype=torch.float32), numbers[ids])
    assert len(launches) == 3
    with record_launches() as launches:
        found = fused_moe(drawn.x, gate_up, down, *routing, activation="silu_and_mul")
    assert len(launches) == 4
    assert_within_roundings(found, fused_moe_quantized_reference(*layer.arguments, activation="silu_and_mul"), 8)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_many_rows_are_multiplied_by_weights_that_are_dequantized_once(
    encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_dequantized, "SCRATCH", 64 * 7)
    monkeypatch.setattr(linear_dequantized, "LEAST_ROWS", 5)
    weight = random_weight(24, 64, encoding=encoding, group_size=32, in_words=True)
    x, bias = torch.randn(5, 64).bfloat16(), torch.randn(24).bfloat16()
    with record_launches() as launches:
        actual = linear(x, weight, bias)
    assert len(launches) == 4  # pieces of seven outputs
    assert_product(actual, x, weight, bias)


@pytest.mark.parametrize(
    ("encoding", "scale_dtype"),
    [("int6", torch.float32), ("iq4", torch.float32), ("int4", torch.float16), ("int8", torch.int8)],
)
def test_what_only_a_cpu_multiplies_is_dequantized_elsewhere(encoding: Encoding, scale_dtype: torch.dtype) -> None:
    weight = random_quantized(48, 256, encoding=encoding, group_size=32, scale_dtype=scale_dtype)
    x = torch.randn(5, 256)
    with record_launches() as launches:
        assert_product(linear(x, prepack(weight)), x, weight)
        ids = torch.tensor([47, 0])
        assert torch.equal(embedding_quantized(ids, weight, dtype=torch.float32), weight.dequantize()[ids])
    assert not launches
