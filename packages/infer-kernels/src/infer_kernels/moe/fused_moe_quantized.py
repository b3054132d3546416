"""The experts' MLPs of a mixture of experts, with quantized weights in inputs of fp32, bf16 or fp16.

`fused_moe` of `infer_kernels.moe.fused_moe` with each expert's weights dequantized. Of its five launches the two
products are replaced; a weight stays packed and is dequantized in registers, as `infer_kernels.quantization` does it.

    places   rows of x, in order of their experts
    gate-up  (tiles, outputs)    a tile of outputs holds gates and ups in turn: gate 0, up 0, gate 1, up 1, ...
    down     (tiles, outputs)

Bytes moved: at few tokens the codes and scales of the chosen experts; at many the products bound it.

Precision: that of `linear_quantized` for the products, and of `fused_moe` for all else. A row has the same bits in any
company: the tile is one for any number of rows.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from infer_kernels.integers import cdiv
from infer_kernels.moe.activation import SwiGLU, activate, activate_torch
from infer_kernels.moe.fused_moe_triton import group_pairs_triton, sum_pairs_triton
from infer_kernels.moe.sum_experts_torch import sum_experts_torch
from infer_kernels.quantization.code_tiles import as_bytes, codes_of, multiply_codes
from infer_kernels.quantization.linear_quantized import linear_quantized_torch
from infer_kernels.quantization.quantized_tiles import QuantizedTile, choose_quantized_tile
from infer_kernels.quantization.quantized_weight import QuantizedWeight


@triton.jit(do_not_specialize=["max_tiles"])
def _quantized_expert_products_kernel(
    out: tl.tensor,  # [pairs, outputs]
    x: tl.tensor,  # [tokens, inputs], or [pairs, inputs]
    values: tl.tensor,  # [experts, outputs, bytes] uint8; GATED: [experts, 2 * outputs, bytes]
    scales: tl.tensor,  # [experts, as many as `values`, groups] fp32
    zeros: tl.tensor,  # [experts, as many as `values`, groups], or None
    bias: tl.tensor,  # [experts, as many as `values`], or None
    pair_of_place: tl.tensor,  # [pairs] int32
    tiles: tl.tensor,  # [3, max_tiles] int32
    max_tiles: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    pairs_of_row: tl.tensor,  # of a row of `x`
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    values_expert_stride: tl.tensor,
    values_stride: tl.tensor,
    scales_expert_stride: tl.tensor,
    scales_stride: tl.tensor,
    zeros_expert_stride: tl.tensor,
    zeros_stride: tl.tensor,
    bias_stride: tl.tensor,
    alpha: tl.tensor,
    limit: tl.tensor,
    up_offset: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    STEPS: tl.constexpr,
    WHOLE: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    CODES: tl.constexpr,
    GATED: tl.constexpr,
) -> None:
    at = tiles + tl.program_id(0)
    expert = tl.load(at).to(tl.int64)
    if expert < 0:
        return
    place = tl.load(at + max_tiles) + tl.arange(0, ROWS)
    in_tile = place < tl.load(at + 2 * max_tiles)
    pair = tl.load(pair_of_place + place, mask=in_tile, other=0).to(tl.int64)
    number = tl.program_id(1).to(tl.int64) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    if GATED:
        output = number // 2 + number % 2 * outputs
        in_outputs = number < 2 * outputs
    else:
        output = number
        in_outputs = number < outputs
    products = multiply_codes(
        x + (pair // pairs_of_row)[None, :] * x_stride,
        in_tile[None, :],
        values + expert * values_expert_stride + output * values_stride,
        scales + expert * scales_expert_stride + output * scales_stride,
        None if zeros is None else zeros + expert * zeros_expert_stride + output * zeros_stride,
        in_outputs,
        0,
        inputs,
        inputs,
        BLOCK_OUTPUTS=BLOCK_OUTPUTS,
        BLOCK_ROWS=ROWS,
        BLOCK_INNER=BLOCK_INNER,
        STEPS=STEPS,
        WHOLE=WHOLE,
        GROUP_SIZE=GROUP_SIZE,
        CODES=CODES,
    )
    if bias is not None:
        bias_at = bias + expert * bias_stride + output
        products += tl.load(bias_at, mask=in_outputs, other=0.0).to(tl.float32)[:, None]
    if GATED:
        column = tl.program_id(1).to(tl.int64) * (BLOCK_OUTPUTS // 2) + tl.arange(0, BLOCK_OUTPUTS // 2)
        halves = tl.reshape(products, (BLOCK_OUTPUTS // 2, 2, ROWS))
        gate, up = tl.split(tl.permute(halves, (0, 2, 1)))
        products = activate(gate, up, alpha, limit, up_offset, out.dtype.element_ty)
    else:
        column = output
    tl.store(
        out + pair[None, :] * out_stride + column[:, None],
        products.to(out.dtype.element_ty),
        mask=(column < outputs)[:, None] & in_tile[None, :],
    )


def fused_moe_quantized_triton(
    x: Tensor,
    gate_up: QuantizedWeight,
    down: QuantizedWeight,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    activation: SwiGLU,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    out: Tensor,
) -> Tensor:
    """Launch the kernels; arguments as for `fused_moe_triton`, but for quantized weights; unchecked.

    Args:
        x: [tokens, hidden], fp32, bf16 or fp16.
        gate_up: [experts, 2 * intermediate, hidden], of any encoding: the gates, then the ups.
        down: [experts, hidden, intermediate], of any encoding.
        expert_ids: [tokens, experts_per_token], int32 or int64; a row with an id that no expert has is NaN.
        expert_weights: [tokens, experts_per_token] fp32.
        activation: the gate between the products.
        gate_up_bias: [experts, 2 * intermediate] of the dtype of `x`, or None.
        down_bias: [experts, hidden] of the dtype of `x`, or None.
        out: [tokens, hidden], like `x`; not `x` itself.

    Returns:
        `out`.
    """
    if out.numel() == 0:
        return out
    experts, hidden, intermediate = down.shape
    expert_ids, expert_weights = expert_ids.contiguous(), expert_weights.contiguous()
    gate_up_tile, down_tile = choose_expert_tiles(gate_up, down, x.dtype)
    pair_of_place, tiles = group_pairs_triton(expert_ids, experts=experts, rows=down_tile.rows)
    pairs = expert_ids.numel()
    activated, products = x.new_empty(pairs, intermediate), x.new_empty(pairs, hidden)
    quantized_expert_products_triton(
        x, gate_up, gate_up_bias, activated, pair_of_place, tiles, tile=gate_up_tile, activation=activation
    )
    quantized_expert_products_triton(
        activated, down, down_bias, products, pair_of_place, tiles, tile=down_tile, activation=None
    )
    return sum_pairs_triton(products, expert_ids, expert_weights, experts=experts, out=out)


def choose_expert_tiles(
    gate_up: QuantizedWeight, down: QuantizedWeight, dtype: torch.dtype
) -> tuple[QuantizedTile, QuantizedTile]:
    """Return the tiles of the two products, which have equal rows, the same for any number of rows."""
    first, second = (choose_quantized_tile(each, dtype, rows=1, is_invariant=True) for each in (gate_up, down))
    rows = min(first.rows, second.rows)
    return replace(first, rows=rows), replace(second, rows=rows)


def quantized_expert_products_triton(
    x: Tensor,
    weight: QuantizedWeight,
    bias: Tensor | None,
    out: Tensor,
    pair_of_place: Tensor,
    tiles: Tensor,
    *,
    tile: QuantizedTile,
    activation: SwiGLU | None,
) -> None:
    """Launch the products of each pair's row, of which a row of `x` has several or one, into `out`; unchecked.

    With an activation `weight` has gates and ups.
    """
    (pairs, outputs), (rows, inputs), is_gated = out.shape, x.shape, activation is not None
    numbers, zeros = activation or SwiGLU(), weight.zeros
    _quantized_expert_products_kernel[(tiles.shape[1], cdiv(weight.out_features, tile.outputs))](
        out,
        x,
        as_bytes(weight),
        weight.scales,
        zeros,
        bias,
        pair_of_place,
        tiles,
        tiles.shape[1],
        inputs,
        outputs,
        pairs // rows,
        out.stride(0),
        x.stride(0),
        weight.values.stride(0),
        weight.values.stride(1),
        weight.scales.stride(0),
        weight.scales.stride(1),
        0 if zeros is None else zeros.stride(0),
        0 if zeros is None else zeros.stride(1),
        0 if bias is None else bias.stride(0),
        numbers.alpha,
        numbers.limit,
        numbers.up_offset,
        ROWS=tile.rows,
        BLOCK_OUTPUTS=tile.outputs,
        BLOCK_INNER=tile.inner,
        STEPS=tile.steps,
        WHOLE=inputs % tile.span == 0,
        GROUP_SIZE=weight.group_size if weight.scales.shape[-1] > 1 else 0,
        CODES=codes_of(weight),
        GATED=is_gated,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=False,
    )


def fused_moe_quantized_torch(
    x: Tensor,
    gate_up: QuantizedWeight,
    down: QuantizedWeight,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    activation: SwiGLU,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> Tensor:
    """Expert by expert in plain PyTorch, in tiles of rows as `linear_invariant`, of weights dequantized in pieces.

    Arguments as for `fused_moe_quantized_triton`. Waits for the device; no gradient flows.
    """

    def multiply(rows: Tensor, weight: QuantizedWeight, bias: Tensor | None, expert: int) -> Tensor:
        return linear_quantized_torch(
            rows,
            weight.map_rows(lambda tensor: tensor[expert]),
            None if bias is None else bias[expert],
            out=rows.new_empty(len(rows), weight.out_features),
            is_invariant=True,
        )

    def compute(rows: Tensor, expert: int) -> Tensor:
        activated = activate_torch(multiply(rows, gate_up, gate_up_bias, expert), activation)
        return multiply(activated, down, down_bias, expert)

    return sum_experts_torch(x.detach(), expert_ids, expert_weights, compute, experts=gate_up.shape[0])
