"""The experts' MLPs of a mixture of experts, with quantized weights in inputs of fp32, bf16 or fp16.

`fused_moe` of `infer_kernels.moe.fused_moe` with each expert's weights dequantized. Of its five launches the two
products are replaced; a weight stays packed and is dequantized in registers, as `infer_kernels.quantization` does it.

    places   rows of x, in order of their experts
    gate-up  (tiles, outputs)    a tile of outputs holds gates and ups in turn: gate 0, up 0, gate 1, up 1, ...
    down     (tiles, outputs, parts of the inputs)

Bytes moved: at few tokens the codes and scales of the chosen experts; at many the products bound it.

Precision: that of `linear_quantized` for the products, and of `fused_moe` for all else. With `is_invariant` a row has
the same bits in any company: the tile is one for any number of rows. Otherwise the tile follows the rows that an expert
has on average, which the launch knows from the shapes alone, and inputs of the second product are divided over programs
where a few rows make few; their sums are added in order by the kernel that sums over experts.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from dataclasses import replace

import torch
from torch import Tensor

from infer_kernels.gpu import describe_gpu
from infer_kernels.integers import cdiv
from infer_kernels.linear.quantized.linear_quantized import linear_quantized_torch
from infer_kernels.linear.quantized.quantized_tiles import QuantizedTile, choose_quantized_tile
from infer_kernels.moe.activation import ActivationNumbers, ExpertActivation, activate, activate_torch
from infer_kernels.moe.fused_moe_triton import (
    MOST_PARTS,
    AddedResidual,
    PairGrouping,
    group_pairs_triton,
    sum_pairs_triton,
)
from infer_kernels.moe.sum_experts_torch import sum_experts_torch
from infer_kernels.optional_triton import tl, triton
from infer_kernels.quantization import operands
from infer_kernels.quantization.code_tiles import as_bytes, codes_of, scales_of
from infer_kernels.quantization.quantized_weight import QuantizedWeight
from infer_kernels.quantization.weight_tiles import multiply_weight_tile

_MOST_ROWS = 64
"""Most rows of a tile: experts' rows differ in number, and few fill larger tiles."""
_FEWEST_ROWS = 16
_WIDE = 128
"""Outputs of the tile that takes the fewest instructions for the fewest rows."""
_LONG = 2048
"""Inputs from which on an iteration of a tile with half as many outputs takes twice as many inputs, so that as many
numbers share what it does beside. Fewer would not fill the last one.
"""
_PROGRAMS_PER_SM = 3
_LEAST_INNER = 512
"""Inputs that are worth a program of their own."""


@triton.jit(do_not_specialize=["max_tiles", "iterations", "split_stride"])
def _quantized_expert_products_kernel(
    out: tl.tensor,  # [parts of the inputs, pairs, outputs], of more than one part fp32
    x: tl.tensor,  # [tokens, inputs], or [pairs, inputs]
    values: tl.tensor,  # [experts, outputs, bytes] uint8; GATED: [experts, 2 * outputs, bytes]
    scales: tl.tensor,  # [experts, as many as `values`, groups] as `load_scales` takes them
    zeros: tl.tensor,  # [experts, as many as `values`, groups], or None
    minimums: tl.tensor,  # [experts, as many as `values`, groups] fp32, or None
    row_scales: tl.tensor,  # [experts, as many as `values`] fp32, or None
    bias: tl.tensor,  # [experts, as many as `values`], or None
    pair_of_place: tl.tensor,  # [pairs] int32
    tiles: tl.tensor,  # [3, max_tiles] int32
    max_tiles: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    pairs_of_row: tl.tensor,  # of a row of `x`
    iterations: tl.tensor,  # of a part of the inputs
    split_stride: tl.tensor,  # of `out`
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    values_expert_stride: tl.tensor,
    values_stride: tl.tensor,
    scales_expert_stride: tl.tensor,
    scales_stride: tl.tensor,
    zeros_expert_stride: tl.tensor,
    zeros_stride: tl.tensor,
    minimums_expert_stride: tl.tensor,
    minimums_stride: tl.tensor,
    row_scales_expert_stride: tl.tensor,
    row_scales_stride: tl.tensor,
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
    GELU: tl.constexpr,  # the activation where GATED
    SPLIT: tl.constexpr,  # inputs are divided over programs
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
    if SPLIT:
        first = tl.program_id(2) * iterations * (STEPS * BLOCK_INNER)
        end = min(first + iterations * (STEPS * BLOCK_INNER), inputs)
    else:
        first, end = 0, inputs
    products = multiply_weight_tile(
        operands.InputRows(x + (pair // pairs_of_row)[None, :] * x_stride, in_tile[None, :]),
        operands.WeightRows(
            values + expert * values_expert_stride + output * values_stride,
            scales + expert * scales_expert_stride + output * scales_stride,
            None if zeros is None else zeros + expert * zeros_expert_stride + output * zeros_stride,
            None if minimums is None else minimums + expert * minimums_expert_stride + output * minimums_stride,
            None if row_scales is None else row_scales + expert * row_scales_expert_stride + output * row_scales_stride,
            in_outputs,
        ),
        operands.InputSpan(first, end, inputs),
        operands.TileShape(BLOCK_OUTPUTS, ROWS, BLOCK_INNER, STEPS, WHOLE, GROUP_SIZE, CODES),
    )
    if bias is not None:
        bias_at = bias + expert * bias_stride + output
        bias_numbers = tl.load(bias_at, mask=in_outputs, other=0.0).to(tl.float32)[:, None]
        if SPLIT:
            bias_numbers = tl.where(tl.program_id(2) == 0, bias_numbers, 0.0)
        products += bias_numbers
    if GATED:
        column = tl.program_id(1).to(tl.int64) * (BLOCK_OUTPUTS // 2) + tl.arange(0, BLOCK_OUTPUTS // 2)
        halves = tl.reshape(products, (BLOCK_OUTPUTS // 2, 2, ROWS))
        gate, up = tl.split(tl.permute(halves, (0, 2, 1)))
        products = activate(gate, up, ActivationNumbers(alpha, limit, up_offset), out.dtype.element_ty, GELU)
    else:
        column = output
    if SPLIT:
        out += tl.program_id(2).to(tl.int64) * split_stride
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
    activation: ExpertActivation,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    out: Tensor,
    is_invariant: bool = True,
    grouping: PairGrouping | None = None,
    residual: AddedResidual | None = None,
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
        is_invariant: a row's bits do not depend on the other rows and their number.
        grouping: grouping of `expert_ids`, which takes no launch; in tiles of no more rows than both products have.
        residual: is added, at no more than 16 tokens.

    Returns:
        `out`.
    """
    if out.numel() == 0:
        return out
    experts, hidden, intermediate = down.shape
    expert_ids, expert_weights = expert_ids.contiguous(), expert_weights.contiguous()
    pairs = expert_ids.numel()
    gate_up_tile, down_tile = choose_expert_tiles(gate_up, down, x.dtype, pairs=None if is_invariant else pairs)
    pair_of_place, tiles = grouping or group_pairs_triton(expert_ids, experts=experts, rows=down_tile.rows)
    splits = 1 if is_invariant else choose_expert_splits(down, down_tile, pairs=pairs)
    activated = x.new_empty(1, pairs, intermediate)
    products = x.new_empty(splits, pairs, hidden, dtype=x.dtype if splits == 1 else torch.float32)
    quantized_expert_products_triton(
        x, gate_up, gate_up_bias, activated, pair_of_place, tiles, tile=gate_up_tile, activation=activation
    )
    quantized_expert_products_triton(
        activated[0], down, down_bias, products, pair_of_place, tiles, tile=down_tile, activation=None
    )
    return sum_pairs_triton(products, expert_ids, expert_weights, experts=experts, out=out, residual=residual)


def choose_expert_tiles(
    gate_up: QuantizedWeight, down: QuantizedWeight, dtype: torch.dtype, *, pairs: int | None = None
) -> tuple[QuantizedTile, QuantizedTile]:
    """Return the tiles of the two products, which have equal rows.

    Args:
        gate_up: as above.
        down: as above.
        dtype: dtype of the inputs.
        pairs: number of pairs of a token and an expert, which decides the tiles; None: the same tiles for any number.
    """
    average = 1 if pairs is None else min(_MOST_ROWS, cdiv(pairs, down.shape[0]))
    if "mxfp4" in (gate_up.encoding, down.encoding):  # of groups that ranks cut: with 16 rows sm_80 has no registers
        average = max(average, 2 * _FEWEST_ROWS)
    first, second = (
        choose_quantized_tile(each, dtype, rows=average, is_invariant=pairs is None) for each in (gate_up, down)
    )
    rows = min(first.rows, second.rows)
    return (
        _fit_outputs(replace(first, rows=rows), gate_up, pairs),
        _fit_outputs(replace(second, rows=rows), down, pairs),
    )


def _fit_outputs(tile: QuantizedTile, weight: QuantizedWeight, pairs: int | None) -> QuantizedTile:
    """Return a tile of fewer outputs where pairs of as many experts would leave multiprocessors without work."""
    wanted = _PROGRAMS_PER_SM * describe_gpu(weight.device).num_sms
    is_wide = tile.outputs == _WIDE and tile.rows == _FEWEST_ROWS
    are_few = pairs is not None and pairs * cdiv(weight.out_features, tile.outputs) < wanted
    if not (is_wide and are_few):
        return tile
    narrow = replace(tile, outputs=_WIDE // 2)
    if weight.in_features < _LONG:
        return narrow
    is_by_group = weight.scales.shape[-1] > 1 and not weight.traits.is_tiled
    return replace(narrow, steps=2 * tile.steps) if is_by_group else replace(narrow, inner=2 * tile.inner)


def choose_expert_splits(down: QuantizedWeight, tile: QuantizedTile, *, pairs: int) -> int:
    """Return in how many parts the inputs of the second product are multiplied by programs of their own.

    A few tokens choose as many experts as they have pairs, and make fewer programs than a device has room for.
    """
    programs = pairs * cdiv(down.out_features, tile.outputs)
    wanted = _PROGRAMS_PER_SM * describe_gpu(down.device).num_sms // programs
    iterations = cdiv(down.in_features, tile.span)
    splits = max(1, min(wanted, MOST_PARTS, down.in_features // _LEAST_INNER))
    return cdiv(iterations, cdiv(iterations, splits))


def quantized_expert_products_triton(
    x: Tensor,
    weight: QuantizedWeight,
    bias: Tensor | None,
    out: Tensor,
    pair_of_place: Tensor,
    tiles: Tensor,
    *,
    tile: QuantizedTile,
    activation: ExpertActivation | None,
) -> None:
    """Launch the products of each pair's row, of which a row of `x` has several or one, into `out`; unchecked.

    With an activation `weight` has gates and ups. `out` is [parts, pairs, outputs]: where inputs are divided into
    several parts, fp32 sums, of which the first has the bias.
    """
    (splits, pairs, outputs), (rows, inputs), is_gated = out.shape, x.shape, activation is not None
    numbers, zeros, minimums, row_scales = (
        activation or ExpertActivation(),
        weight.zeros,
        weight.minimums,
        weight.row_scales,
    )
    _quantized_expert_products_kernel[(tiles.shape[1], cdiv(weight.out_features, tile.outputs), splits)](
        out,
        x,
        as_bytes(weight),
        scales_of(weight),
        zeros,
        minimums,
        row_scales,
        bias,
        pair_of_place,
        tiles,
        tiles.shape[1],
        inputs,
        outputs,
        pairs // rows,
        cdiv(cdiv(inputs, tile.span), splits),
        out.stride(0),
        out.stride(1),
        x.stride(0),
        weight.values.stride(0),
        weight.values.stride(1),
        weight.scales.stride(0),
        weight.scales.stride(1),
        0 if zeros is None else zeros.stride(0),
        0 if zeros is None else zeros.stride(1),
        0 if minimums is None else minimums.stride(0),
        0 if minimums is None else minimums.stride(1),
        0 if row_scales is None else row_scales.stride(0),
        0 if row_scales is None else row_scales.stride(1),
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
        GELU=numbers.function == "gelu_tanh",
        SPLIT=splits > 1,
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
    activation: ExpertActivation,
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
