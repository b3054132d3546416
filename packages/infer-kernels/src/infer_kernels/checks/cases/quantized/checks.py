"""Quantized weights: dense layers at every number of rows that has a tile of its own, the embedding, and experts."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from infer_kernels import quantization, reference
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.checks.inputs.quantized_experts import QuantizedExperts
from infer_kernels.checks.self_check import ModelOps, MoeOps, QuantizedOps, SelfCheck, draw, product_roundings
from infer_kernels.cpu import PackedQuantizedWeight
from infer_kernels.dispatch import takes_triton
from infer_kernels.embedding import embedding_quantized_torch, embedding_quantized_triton
from infer_kernels.linear import linear, prepack
from infer_kernels.linear.quantized import linear_fp8, linear_quantized
from infer_kernels.moe import fused_moe_quantized
from infer_kernels.moe.activation import choose_activation
from infer_kernels.quantization.quantized_rows import linear_quantized_rows_reference

ROWS = (1, 17, 64, 129)
MAX_OUTPUTS = 384
MAX_TABLE_ROWS = 1024
MOST_EXPERTS = 16
WIDTH, WIDTH_REMAINDER = 256, 64
"""An expert inside is this wide, and as much wider as its own width is more than a multiple of the second."""

_HOPPER_SUM = 2.0**-11
"""What a sum of 128 products may be off: Hopper's accumulators hold 14 bits of it."""


def quantized_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the checks of each format of a model's weights; none if no weight is quantized."""
    for form in ops.quantized:
        yield SelfCheck(op="embedding_quantized", label=str(form), run=partial(_check_embedding, ops, form))
        for in_features in dict.fromkeys((ops.hidden_size, ops.intermediate_size, ops.q_heads * ops.head_dim)):
            for rows in ROWS:
                sizes = f"{rows} rows, {in_features} inputs"
                check = partial(_check_linear, ops.dtype, form, rows=rows, in_features=in_features)
                for mode, is_invariant in (("", False), (", batch-invariant", True)):
                    yield SelfCheck(
                        op="linear_quantized",
                        label=f"{form}, {sizes}{mode}",
                        run=partial(check, is_invariant=is_invariant),
                    )
                yield SelfCheck(
                    op="linear",
                    label=f"{form}, {sizes}",
                    run=partial(_check_packed, ops.dtype, form, rows=rows, in_features=in_features),
                )
                if form.encoding == "fp8_e4m3" and (form.group_size or 32) % 32 == 0:
                    yield SelfCheck(
                        op="linear_fp8",
                        label=f"{form}, {sizes}",
                        run=partial(_check_linear_fp8, ops.dtype, form, rows=rows, in_features=in_features),
                    )
        if ops.moe is None:
            continue
        for rows in ROWS:
            yield SelfCheck(
                op="fused_moe_quantized",
                label=f"{form}, {rows} rows of {ops.hidden_size}",
                run=partial(_check_experts, ops.moe, ops.dtype, form, hidden=ops.hidden_size, rows=rows),
            )


def _check_embedding(ops: ModelOps, form: QuantizedOps, device: torch.device) -> None:
    num_rows = min(ops.vocab_size, MAX_TABLE_ROWS)
    ids = torch.tensor([0, num_rows - 1, num_rows // 2, 0], dtype=torch.int32)
    weight = form.draw(num_rows, ops.hidden_size, device=device)
    look_up = embedding_quantized_triton if takes_triton(weight.values) else embedding_quantized_torch
    actual = look_up(ids.to(device), weight, dtype=ops.dtype, scale=ops.embedding_scale)
    host = form.draw(num_rows, ops.hidden_size, device=torch.device("cpu"))
    expected = reference.embedding_quantized_reference(ids, host, dtype=ops.dtype, scale=ops.embedding_scale)
    assert_within_roundings(actual.cpu(), expected)


def _check_linear(
    dtype: torch.dtype, form: QuantizedOps, device: torch.device, *, rows: int, in_features: int, is_invariant: bool
) -> None:
    x, bias = draw(rows, in_features, dtype=dtype), draw(MAX_OUTPUTS, dtype=dtype)
    weight = form.draw(MAX_OUTPUTS, in_features, device=device)
    multiply = (
        linear_quantized.linear_quantized_triton
        if takes_triton(weight.values)
        else linear_quantized.linear_quantized_torch
    )
    out = torch.empty(rows, MAX_OUTPUTS, dtype=dtype, device=device)
    multiply(x.to(device), weight, bias.to(device), out=out, is_invariant=is_invariant)
    host = form.draw(MAX_OUTPUTS, in_features, device=torch.device("cpu"))
    expected = reference.linear_quantized_reference(x, host, bias)
    assert_within_roundings(out.cpu(), expected, roundings=product_roundings(dtype, in_features))


def _check_packed(dtype: torch.dtype, form: QuantizedOps, device: torch.device, *, rows: int, in_features: int) -> None:
    """Compare the layer as a model computes it: on a CPU with C++ kernels inputs are quantized too."""
    x, bias = draw(rows, in_features, dtype=dtype), draw(MAX_OUTPUTS, dtype=dtype)
    packed = prepack(form.draw(MAX_OUTPUTS, in_features, device=device))
    if isinstance(packed, PackedQuantizedWeight):
        x[::2, in_features // 3] *= 300  # outliers, as real models have them
    actual = linear(x.to(device), packed, bias.to(device)).cpu()
    host = form.draw(MAX_OUTPUTS, in_features, device=torch.device("cpu"))
    roundings = product_roundings(dtype, in_features)
    if isinstance(packed, PackedQuantizedWeight):
        expected = linear_quantized_rows_reference(x, host, bias)
    elif form.encoding == "fp8_e4m3" and linear_fp8.takes_fp8_products(device):
        expected = reference.linear_fp8_reference(x, host, bias)
        roundings = max(roundings, _HOPPER_SUM / torch.finfo(dtype).eps)
    else:
        expected = reference.linear_quantized_reference(x, host, bias)
    assert_within_roundings(actual, expected, roundings=roundings)


def _check_linear_fp8(
    dtype: torch.dtype, form: QuantizedOps, device: torch.device, *, rows: int, in_features: int
) -> None:
    x, bias = draw(rows, in_features, dtype=dtype), draw(MAX_OUTPUTS, dtype=dtype)
    weight = form.draw(MAX_OUTPUTS, in_features, device=device)
    out = torch.empty(rows, MAX_OUTPUTS, dtype=dtype, device=device)
    if linear_fp8.takes_fp8_products(device):
        linear_fp8.linear_fp8_triton(x.to(device), weight, bias.to(device), out=out, is_invariant=False)
    else:
        linear_fp8.linear_fp8_torch(x.to(device), weight, bias.to(device), out=out)
    host = form.draw(MAX_OUTPUTS, in_features, device=torch.device("cpu"))
    expected = reference.linear_fp8_reference(x, host, bias)
    roundings = max(product_roundings(dtype, in_features), _HOPPER_SUM / torch.finfo(dtype).eps)
    assert_within_roundings(out.cpu(), expected, roundings=roundings)


def _check_experts(
    moe: MoeOps, dtype: torch.dtype, form: QuantizedOps, device: torch.device, *, hidden: int, rows: int
) -> None:
    plain = random_experts(
        tokens=rows,
        experts=min(moe.experts, max(MOST_EXPERTS, moe.experts_per_token)),
        experts_per_token=moe.experts_per_token,
        hidden=hidden,
        intermediate=min(moe.intermediate_size, WIDTH + moe.intermediate_size % WIDTH_REMAINDER),
        dtype=dtype,
    )
    host = torch.device("cpu")
    gate_up, down = (form.draw(*each.shape, device=host) for each in (plain.gate_up, plain.down))
    layer = QuantizedExperts(plain=plain, gate_up=gate_up, down=down)
    biases: dict[str, Any] = plain.biases if moe.has_biases else {"gate_up_bias": None, "down_bias": None}
    activation = choose_activation(moe.activation)
    gate_up, down = (each.map_rows(lambda tensor: tensor.to(device)) for each in (layer.gate_up, layer.down))
    x, expert_ids, expert_weights = (each.to(device) for each in (plain.x, plain.expert_ids, plain.expert_weights))
    moved: dict[str, Any] = {name: None if bias is None else bias.to(device) for name, bias in biases.items()}
    expected = reference.fused_moe_quantized_reference(*layer.arguments, activation=activation, **biases)
    if not takes_triton(x):
        arguments = x, gate_up, down, expert_ids, expert_weights
        actual = fused_moe_quantized.fused_moe_quantized_torch(*arguments, activation=activation, **moved)
        assert_within_roundings(actual.cpu(), expected, roundings=product_roundings(dtype, hidden))
        return
    gate_up, down = quantization.tile_microscaled(gate_up), quantization.tile_microscaled(down)  # as `prepack_experts`
    for is_invariant in (True, False):
        actual = fused_moe_quantized.fused_moe_quantized_triton(
            x,
            gate_up,
            down,
            expert_ids,
            expert_weights,
            activation=activation,
            **moved,
            out=torch.empty_like(x),
            is_invariant=is_invariant,
        )
        assert_within_roundings(actual.cpu(), expected, roundings=product_roundings(dtype, hidden))
