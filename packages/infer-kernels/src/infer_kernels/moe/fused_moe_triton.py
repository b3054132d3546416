"""Triton kernels of `fused_moe`: four or five launches whose grids and memory have room for any routing.

    pairs    (token, k) of every token and each of its experts, numbered token * experts_per_token + k
    places   the pairs in order of their experts
    tiles    of places: those of one expert, up to the rows of a product's tile

    count        (experts)          pairs of each expert; of few pairs a part of the next one
    group        (experts)          pairs -> places and tiles; unused tiles have expert -1
    gate-up      (tiles, columns)   rows of x times gates and ups, and the activation; written by pair
    down         (tiles, columns)   rows by pair; written by pair
    sum          (tokens, columns)  of a token's pairs in order; adds the residual stream, if it is given

A program of `group` learns where its expert's places and tiles begin from the counts of all, so nothing waits for the
device or for another program, and equal routings give equal places. A row's products are added in one order, whatever
tile the number of rows chooses: rows have the same bits in any batch.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from typing import NamedTuple

import torch
from torch import Tensor

from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.linear.fused_products_triton import MAX_ROWS
from infer_kernels.linear.product_tiles import ProductTile, choose_experts_tile
from infer_kernels.moe.activation import ActivationNumbers, ExpertActivation, activate
from infer_kernels.optional_triton import tl, triton

_PAIRS = 1024
"""Pairs that a program of the first two kernels looks at together: where there are no more, one launch is enough."""

_WIDEST = 1024
"""Columns of a program of the sum."""
NORMED_COLUMNS = 128
"""Columns of a program of the sum whose norm is pending: a few tokens make programs for most of a device."""
MOST_PARTS = 4
"""Most parts of a product, which are added in fp32 before they are rounded."""


class PairGrouping(NamedTuple):
    """The pairs of tokens and their experts in the order of experts.

    Attributes:
        pair_of_place: [pairs] int32.
        tiles: [3, most that any routing has] int32: of each tile its expert, or -1; its first place; the end of the
            expert's places.
    """

    pair_of_place: Tensor
    tiles: Tensor


class AddedResidual(NamedTuple):
    """The addend of the sum over experts, at no more than 16 tokens.

    Attributes:
        rows: [tokens, hidden], like the sum.
        squares: [tiles of `NORMED_COLUMNS` columns, 16] fp32, takes the sums of squares of the total.
    """

    rows: Tensor
    squares: Tensor


@triton.jit(do_not_specialize=["pairs"], do_not_specialize_on_alignment=["expert_ids"])
def _count_pairs_kernel(
    counts: tl.tensor,  # [experts] int32
    expert_ids: tl.tensor,  # [pairs]
    pairs: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    expert = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    found = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, pairs, BLOCK):
        pair = start + lane
        found += (tl.load(expert_ids + pair, mask=pair < pairs, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(found, axis=0))


@triton.jit(do_not_specialize=["pairs", "max_tiles"], do_not_specialize_on_alignment=["expert_ids"])
def _group_pairs_kernel(
    pair_of_place: tl.tensor,  # [pairs] int32
    tiles: tl.tensor,  # [3, max_tiles] int32: the expert, or -1; the first place; the expert's last place + 1
    counts: tl.tensor,  # [experts] int32; None: there are at most BLOCK pairs
    expert_ids: tl.tensor,  # [pairs]
    pairs: tl.tensor,
    experts: tl.tensor,
    max_tiles: tl.tensor,
    ROWS: tl.constexpr,  # of a tile
    BLOCK: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,  # more than there are experts
) -> None:
    expert = tl.program_id(0)
    other, lane = tl.arange(0, BLOCK_EXPERTS), tl.arange(0, BLOCK)
    if counts is None:
        ids = tl.load(expert_ids + lane, mask=lane < pairs, other=-1)
        # Those that no expert has are counted beyond the last one.
        ids = tl.where((ids >= 0) & (ids < experts), ids, experts).to(tl.int32)
        all_counts = tl.where(other < experts, tl.histogram(ids, BLOCK_EXPERTS), 0)
    else:
        all_counts = tl.load(counts + other, mask=other < experts, other=0)
    all_tiles = (all_counts + ROWS - 1) // ROWS
    first_place = tl.sum(tl.where(other < expert, all_counts, 0), axis=0)
    first_tile = tl.sum(tl.where(other < expert, all_tiles, 0), axis=0)
    count = tl.sum(tl.where(other == expert, all_counts, 0), axis=0)
    num_tiles = tl.sum(tl.where(other == expert, all_tiles, 0), axis=0)
    for start in range(0, num_tiles, BLOCK):
        number = start + lane
        in_list = number < num_tiles
        at = tiles + first_tile + number
        tl.store(at, tl.zeros((BLOCK,), tl.int32) + expert, mask=in_list)
        tl.store(at + max_tiles, first_place + number * ROWS, mask=in_list)
        tl.store(at + 2 * max_tiles, tl.zeros((BLOCK,), tl.int32) + first_place + count, mask=in_list)
    if expert == experts - 1:
        for start in range(first_tile + num_tiles, max_tiles, BLOCK):
            number = start + lane
            tl.store(tiles + number, tl.full((BLOCK,), -1, tl.int32), mask=number < max_tiles)
    place = first_place
    for start in range(0, tl.where(count > 0, pairs, 0), BLOCK):
        pair = start + lane
        is_own = tl.load(expert_ids + pair, mask=pair < pairs, other=-1) == expert
        ranks = tl.cumsum(is_own.to(tl.int32), axis=0)
        tl.store(pair_of_place + place + ranks - 1, pair, mask=is_own)
        place += tl.sum(is_own.to(tl.int32), axis=0)


@triton.jit(do_not_specialize=["max_tiles"])
def _expert_products_kernel(
    out: tl.tensor,  # [pairs, outputs]
    x: tl.tensor,  # [tokens, inputs], or [pairs, inputs]
    weight: tl.tensor,  # [experts, outputs, inputs]; GATED: [experts, 2 * outputs, inputs]
    bias: tl.tensor,  # [experts, as many as `weight`], or None
    pair_of_place: tl.tensor,  # [pairs] int32
    tiles: tl.tensor,  # [3, max_tiles] int32
    max_tiles: tl.tensor,
    inputs: tl.tensor,
    outputs: tl.tensor,
    pairs_of_row: tl.tensor,  # of a row of `x`
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    weight_expert_stride: tl.tensor,
    weight_stride: tl.tensor,
    bias_stride: tl.tensor,
    alpha: tl.tensor,
    limit: tl.tensor,
    up_offset: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    WHOLE: tl.constexpr,  # inputs are a multiple of BLOCK_INNER
    GATED: tl.constexpr,
    GELU: tl.constexpr,  # the activation where GATED
) -> None:
    at = tiles + tl.program_id(0)
    expert = tl.load(at).to(tl.int64)
    if expert < 0:
        return
    place = tl.load(at + max_tiles) + tl.arange(0, ROWS)
    in_tile = place < tl.load(at + 2 * max_tiles)
    pair = tl.load(pair_of_place + place, mask=in_tile, other=0).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    inner = tl.arange(0, BLOCK_INNER)
    x_at = x + (pair // pairs_of_row)[:, None] * x_stride + inner[None, :]
    weight_at = weight + expert * weight_expert_stride + column[None, :] * weight_stride + inner[:, None]
    up_at = weight + expert * weight_expert_stride + (column + outputs)[None, :] * weight_stride + inner[:, None]
    in_rows, in_columns = in_tile[:, None], (column < outputs)[None, :]
    products = tl.zeros((ROWS, BLOCK_COLUMNS), tl.float32)
    ups = tl.zeros((ROWS, BLOCK_COLUMNS), tl.float32)
    for start in range(0, inputs, BLOCK_INNER):
        if WHOLE:
            x_mask, weight_mask = in_rows, in_columns
        else:
            x_mask = in_rows & (start + inner < inputs)[None, :]
            weight_mask = in_columns & (start + inner < inputs)[:, None]
        x_tile = tl.load(x_at + start, mask=x_mask, other=0.0)
        weight_tile = tl.load(weight_at + start, mask=weight_mask, other=0.0)
        products = tl.dot(x_tile, weight_tile, products, input_precision="ieee")
        if GATED:
            up_tile = tl.load(up_at + start, mask=weight_mask, other=0.0)
            ups = tl.dot(x_tile, up_tile, ups, input_precision="ieee")
    if bias is not None:
        bias_at = bias + expert * bias_stride + column
        products += tl.load(bias_at, mask=column < outputs, other=0.0).to(tl.float32)[None, :]
        if GATED:
            ups += tl.load(bias_at + outputs, mask=column < outputs, other=0.0).to(tl.float32)[None, :]
    if GATED:
        products = activate(products, ups, ActivationNumbers(alpha, limit, up_offset), out.dtype.element_ty, GELU)
    tl.store(
        out + pair[:, None] * out_stride + column[None, :],
        products.to(out.dtype.element_ty),
        mask=in_rows & in_columns,
    )


@triton.jit(do_not_specialize=["parts", "tokens"], do_not_specialize_on_alignment=["expert_ids", "expert_weights"])
def _sum_pairs_kernel(
    out: tl.tensor,  # [tokens, hidden]
    products: tl.tensor,  # [parts, pairs, hidden]: their sums are the products
    expert_ids: tl.tensor,  # [pairs]
    expert_weights: tl.tensor,  # [pairs] fp32
    residual: tl.tensor,  # [tokens, hidden], is added; or None
    squares: tl.tensor,  # fp32 [tiles of columns, ROWS], takes the sums of squares of `out`; None without `residual`
    tokens: tl.tensor,
    experts: tl.tensor,
    hidden: tl.tensor,
    parts: tl.tensor,
    part_stride: tl.tensor,
    out_stride: tl.tensor,
    residual_stride: tl.tensor,
    EXPERTS_PER_TOKEN: tl.constexpr,
    MOST_PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < hidden
    dtype: tl.constexpr = out.dtype.element_ty
    total = tl.zeros((BLOCK,), tl.float32)
    # Unrolled, so that no load waits for the sum of those before it.
    for k in tl.static_range(EXPERTS_PER_TOKEN):
        pair = token * EXPERTS_PER_TOKEN + k
        expert = tl.load(expert_ids + pair)
        at = products + pair * hidden + column
        product = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        for part in tl.static_range(1, MOST_PARTS):
            in_part = column < tl.where(part < parts, hidden, 0)
            product += tl.load(at + part * part_stride, mask=in_part, other=0.0).to(tl.float32)
        product = product.to(dtype).to(tl.float32)
        is_one = (expert >= 0) & (expert < experts)
        total += tl.where(is_one, tl.load(expert_weights + pair) * product, float("nan"))
    result = total.to(dtype)
    if residual is not None:
        carried = tl.load(residual + token * residual_stride + column, mask=mask, other=0.0).to(tl.float32)
        result = (result.to(tl.float32) + carried).to(dtype)
        stored = tl.where(mask, result.to(tl.float32), 0.0)
        own = squares + tl.program_id(1) * ROWS
        tl.store(own + token, tl.sum(stored * stored, axis=0))
        row = tl.arange(0, ROWS)
        # Readers add all rows of `squares`: those of no token are zeros, whatever lay there.
        if token == 0:
            tl.store(own + row, tl.zeros((ROWS,), tl.float32), mask=row >= tokens)
    tl.store(out + token * out_stride + column, result, mask=mask)


def fused_moe_triton(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    activation: ExpertActivation,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    out: Tensor,
    grouping: PairGrouping | None = None,
    residual: AddedResidual | None = None,
) -> Tensor:
    """Launch the kernels; unchecked. A `grouping` that is given takes no launch."""
    hidden = x.shape[1]
    if out.numel() == 0:
        return out
    experts, _, intermediate = down.shape
    expert_ids, expert_weights = expert_ids.contiguous(), expert_weights.contiguous()
    pairs = expert_ids.numel()
    tile = choose_experts_tile(x.device, x.dtype, hidden, intermediate, rows_of_expert=pairs // experts)
    pair_of_place, tiles = grouping or group_pairs_triton(expert_ids, experts=experts, rows=tile.rows)
    activated, products = x.new_empty(pairs, intermediate), x.new_empty(pairs, hidden)
    expert_products_triton(x, gate_up, gate_up_bias, activated, pair_of_place, tiles, tile=tile, activation=activation)
    expert_products_triton(activated, down, down_bias, products, pair_of_place, tiles, tile=tile, activation=None)
    return sum_pairs_triton(products[None], expert_ids, expert_weights, experts=experts, out=out, residual=residual)


def group_pairs_triton(expert_ids: Tensor, *, experts: int, rows: int) -> PairGrouping:
    """Launch the first two kernels, of few pairs the second; tiles have up to `rows` places."""
    pairs, device = expert_ids.numel(), expert_ids.device
    max_tiles = pairs // rows + min(experts, pairs)
    counts = None if pairs <= _PAIRS else torch.empty(experts, dtype=torch.int32, device=device)
    pair_of_place = torch.empty(pairs, dtype=torch.int32, device=device)
    tiles = torch.empty(3, max_tiles, dtype=torch.int32, device=device)
    options = {"BLOCK": _PAIRS, "num_warps": 4, "enable_fp_fusion": False}
    if counts is not None:
        _count_pairs_kernel[(experts,)](counts, expert_ids, pairs, **options)
    _group_pairs_kernel[(experts,)](
        pair_of_place,
        tiles,
        counts,
        expert_ids,
        pairs,
        experts,
        max_tiles,
        ROWS=rows,
        BLOCK_EXPERTS=next_power_of_2(experts + 1),
        **options,
    )
    return PairGrouping(pair_of_place, tiles)


def expert_products_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    pair_of_place: Tensor,
    tiles: Tensor,
    *,
    tile: ProductTile,
    activation: ExpertActivation | None,
) -> None:
    """Launch the products of each pair's row, of which a row of `x` has several or one, into `out`; unchecked.

    With an activation `weight` has gates and ups.
    """
    (pairs, outputs), (rows, inputs), is_gated = out.shape, x.shape, activation is not None
    numbers = activation or ExpertActivation()
    columns = tile.columns // 2 if is_gated else tile.columns  # gates and ups are two products
    _expert_products_kernel[(tiles.shape[1], cdiv(outputs, columns))](
        out,
        x,
        weight,
        bias,
        pair_of_place,
        tiles,
        tiles.shape[1],
        inputs,
        outputs,
        pairs // rows,
        out.stride(0),
        x.stride(0),
        weight.stride(0),
        weight.stride(1),
        0 if bias is None else bias.stride(0),
        numbers.alpha,
        numbers.limit,
        numbers.up_offset,
        ROWS=tile.rows,
        BLOCK_COLUMNS=columns,
        BLOCK_INNER=tile.inner,
        WHOLE=inputs % tile.inner == 0,
        GATED=is_gated,
        GELU=numbers.function == "gelu_tanh",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=False,
    )


def sum_pairs_triton(
    products: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    experts: int,
    out: Tensor,
    residual: AddedResidual | None = None,
) -> Tensor:
    """Launch the last kernel: each token's products times its weights, summed into `out`; unchecked.

    `products` are [parts, pairs, hidden], of the dtype of `out` where there is one part; several, at most `MOST_PARTS`
    and fp32, are added in order and rounded first. `expert_ids` and `expert_weights` [tokens, experts_per_token] are
    contiguous. With a residual `out` takes the total, of which each program leaves the sum of squares.
    """
    tokens, hidden = out.shape
    block = min(_WIDEST, next_power_of_2(hidden)) if residual is None else NORMED_COLUMNS
    _sum_pairs_kernel[(tokens, cdiv(hidden, block))](
        out,
        products,
        expert_ids,
        expert_weights,
        None if residual is None else residual.rows,
        None if residual is None else residual.squares,
        tokens,
        experts,
        hidden,
        len(products),
        products.stride(0),
        out.stride(0),
        0 if residual is None else residual.rows.stride(0),
        EXPERTS_PER_TOKEN=expert_ids.shape[1],
        MOST_PARTS=MOST_PARTS if products.dtype == torch.float32 else 1,
        BLOCK=block,
        ROWS=MAX_ROWS,
        num_warps=4 if residual is None else 1,
        enable_fp_fusion=False,
    )
    return out
