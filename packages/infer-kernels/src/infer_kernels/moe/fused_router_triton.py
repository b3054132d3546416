r"""Triton kernel of `FusedRouter`: logits of at most 16 rows, their experts, and the places of pairs, in one launch.

A program multiplies 16 experts' rows of the weight with a part of the inputs of all rows of x. All that it reads is on
its way before it waits for the norm's sums, and is read once, so that there is no loop.

    experts      0         16        32
    inputs 0     | program  | program  | program
         256     | program  | program  | program        each the sum over its inputs, in fp32
         512     | program  | program  | program
                    \           |         /
          the last of all to finish adds the parts in their order, chooses, and groups

No program waits for another. Each writes its sums, then counts itself with a semaphore: `acq_rel` makes the sums of a
program visible before its count, and those of all before the last program, which sees the highest count, reads them.
It sets the semaphore back to 0, so that a captured CUDA graph may hold the launch. Which program is the last changes no
bit: parts are added in order. They depend on the weight's shape alone, so a row has the same bits whatever the other
rows and their number, up to 16.

A row takes an expert once, so an expert has at most 16 pairs, and as many places: one tile of any product of experts,
whose tiles have at least 16 rows. The pairs of an expert lie in the order of their rows, as `_group_pairs_kernel` has
them.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from typing import NamedTuple

import torch
from torch import Tensor

from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.linear.fused_products_triton import MAX_ROWS, PendingNorm, inverse_rms, normalize
from infer_kernels.linear.quantized.join_splits import join_partials
from infer_kernels.moe.fused_moe_triton import PairGrouping
from infer_kernels.moe.router import ExpertChoice, choose_experts
from infer_kernels.optional_triton import tl, triton

MOST_EXPERTS = 512
MOST_CHOSEN = 16
"""Experts of a row."""
_EXPERTS = 16
"""Experts of a program: the least that fill a side of the tensor cores."""
_INNER = 256
"""Inputs of a program."""
MOST_INPUTS = 32 * _INNER
"""Parts that are added at once."""
_FEW_EXPERTS = 128
"""Experts of which all rows are chosen for at once; of more, so that registers hold them, for _ROWS_OF_MANY rows."""
_ROWS_OF_MANY = 4


class _Rule(NamedTuple):
    """The last program's reading of logits, and what it does with them.

    Attributes:
        partials: fp32 [SPLITS, ROWS, BLOCK_EXPERTS].
        bias: [experts], or None.
        expert_scales: [experts], or None.
        rows: number of rows.
        experts: number of experts.
        experts_per_token: experts of a row.
    """

    partials: tl.tensor
    bias: tl.tensor
    expert_scales: tl.tensor
    rows: tl.tensor
    experts: tl.tensor
    experts_per_token: tl.tensor


@triton.jit
def _choose_for_rows(
    expert_ids: tl.tensor,
    expert_weights: tl.tensor,
    rule: _Rule,
    first: tl.tensor,  # of the rows
    dtype: tl.constexpr,  # that logits are rounded to
    ROWS: tl.constexpr,  # of a split
    AT_ONCE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_CHOSEN: tl.constexpr,
    OVER_ALL: tl.constexpr,
) -> tl.tensor:
    """Store experts and weights of AT_ONCE rows; return which choice of a row each expert is, or -1."""
    token, every = first + tl.arange(0, AT_ONCE)[:, None], tl.arange(0, BLOCK_EXPERTS)
    mask = (token < rule.rows) & (every < rule.experts)[None, :]
    at = rule.partials + token * BLOCK_EXPERTS + every[None, :]
    logits = join_partials(at, ROWS * BLOCK_EXPERTS, mask, SPLITS)
    if rule.bias is not None:
        logits += tl.load(rule.bias + every, mask=every < rule.experts, other=0.0).to(tl.float32)[None, :]
    ids, weights, places = choose_experts(
        logits.to(dtype).to(tl.float32),
        rule.experts,
        rule.experts_per_token,
        AT_ONCE,
        BLOCK_EXPERTS,
        BLOCK_CHOSEN,
        OVER_ALL,
    )
    if rule.expert_scales is not None:
        weights *= tl.load(rule.expert_scales + ids).to(tl.float32)
    lane = tl.arange(0, BLOCK_CHOSEN)[None, :]
    stored = (token < rule.rows) & (lane < rule.experts_per_token)
    tl.store(expert_ids + token * rule.experts_per_token + lane, ids, mask=stored)
    tl.store(expert_weights + token * rule.experts_per_token + lane, weights, mask=stored)
    return places


@triton.jit
def _group_chosen(
    pair_of_place: tl.tensor,
    tiles: tl.tensor,
    places: tl.tensor,  # [ROWS, BLOCK_EXPERTS]: each row's choices by expert, -1 where it is none
    rows: tl.tensor,
    experts: tl.tensor,
    experts_per_token: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
) -> None:
    """Store the grouping of all pairs, as `_group_pairs_kernel` does."""
    row, expert = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK_EXPERTS)
    is_chosen = (places >= 0) & (row < rows)
    chosen = is_chosen.to(tl.int32)
    counts = tl.sum(chosen, axis=0)
    rows_before = tl.cumsum(chosen, axis=0) - chosen
    first_place = tl.cumsum(counts, axis=0) - counts
    is_tile = (counts > 0).to(tl.int32)
    number = tl.cumsum(is_tile, axis=0) - is_tile
    pair = row * experts_per_token + places
    tl.store(pair_of_place + first_place[None, :] + rows_before, pair, mask=is_chosen)
    max_tiles = tl.minimum(experts, rows * experts_per_token)
    tl.store(tiles + number, expert, mask=counts > 0)
    tl.store(tiles + max_tiles + number, first_place, mask=counts > 0)
    tl.store(tiles + 2 * max_tiles + number, first_place + counts, mask=counts > 0)
    is_unused = (expert >= tl.sum(is_tile, axis=0)) & (expert < max_tiles)
    tl.store(tiles + expert, tl.full((BLOCK_EXPERTS,), -1, tl.int32), mask=is_unused)


@triton.jit(do_not_specialize=["rows", "norm_tiles"])
def _fused_router_kernel(
    expert_ids: tl.tensor,  # [rows, experts_per_token] int32
    expert_weights: tl.tensor,  # [rows, experts_per_token] fp32
    pair_of_place: tl.tensor,  # [rows * experts_per_token] int32
    tiles: tl.tensor,  # [3, the lesser of experts and pairs] int32
    normalized: tl.tensor,  # [rows, hidden], takes the rows after the NORM; None without
    x: tl.tensor,  # [rows, hidden]
    weight: tl.tensor,  # [experts, hidden]
    bias: tl.tensor,  # [experts], or None
    expert_scales: tl.tensor,  # [experts], or None
    norm_weight: tl.tensor,  # [hidden]; None without a NORM
    norm_squares: tl.tensor,  # fp32 [norm_tiles, ROWS], of x; None without a NORM
    partials: tl.tensor,  # fp32 [SPLITS, ROWS, BLOCK_EXPERTS]
    semaphores: tl.tensor,  # [at least 1] int32, zeros before and after
    rows: tl.tensor,
    hidden: tl.tensor,
    experts: tl.tensor,
    experts_per_token: tl.tensor,
    norm_tiles: tl.tensor,
    eps: tl.tensor,
    x_stride: tl.tensor,
    weight_stride: tl.tensor,
    EXPERTS: tl.constexpr,  # of a program
    INNER: tl.constexpr,
    ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,  # rows whose experts are chosen at once
    NORM_TILES: tl.constexpr,
    SPLITS: tl.constexpr,
    NORM: tl.constexpr,  # the norm before the product: its variant, or None
    BLOCK_EXPERTS: tl.constexpr,  # `experts` rounded up to a power of two
    BLOCK_CHOSEN: tl.constexpr,
    OVER_ALL: tl.constexpr,
) -> None:
    split, tile = tl.program_id(0), tl.program_id(1)
    row, inner = tl.arange(0, ROWS), split * INNER + tl.arange(0, INNER)
    expert = tile * EXPERTS + tl.arange(0, EXPERTS)
    in_rows, in_inputs = (row < rows)[None, :], inner < hidden
    weight_at = weight + expert.to(tl.int64)[:, None] * weight_stride + inner[None, :]
    weight_tile = tl.load(weight_at, mask=(expert < experts)[:, None] & in_inputs[None, :], other=0.0)
    x_at = x + row.to(tl.int64)[None, :] * x_stride + inner[:, None]
    x_tile = tl.load(x_at, mask=in_rows & in_inputs[:, None], other=0.0)
    if NORM is not None:
        scale = tl.load(norm_weight + inner, mask=in_inputs, other=0.0)
        inverse = inverse_rms(norm_squares, norm_tiles, eps, hidden, NORM_TILES, ROWS)
        x_tile = normalize(x_tile, inverse, scale, NORM)
        if tile == 0:
            tl.store(normalized + row[None, :] * hidden + inner[:, None], x_tile, mask=in_rows & in_inputs[:, None])
    products = tl.dot(weight_tile, x_tile)
    own = partials + (split * ROWS + row)[None, :] * BLOCK_EXPERTS + expert[:, None]
    tl.store(own, products, mask=in_rows & (expert < BLOCK_EXPERTS)[:, None])
    # All threads' sums are written before the semaphore says so.
    tl.debug_barrier()
    finished = tl.atomic_add(semaphores, 1, sem="acq_rel", scope="gpu") + 1
    if finished == tl.num_programs(0) * tl.num_programs(1):
        tl.store(semaphores, 0)
        rule = _Rule(partials, bias, expert_scales, rows, experts, experts_per_token)
        if AT_ONCE == ROWS:
            places = _choose_for_rows(
                expert_ids,
                expert_weights,
                rule,
                0,
                x.dtype.element_ty,
                ROWS,
                AT_ONCE,
                SPLITS,
                BLOCK_EXPERTS,
                BLOCK_CHOSEN,
                OVER_ALL,
            )
        else:
            # Where a row's sums were: they are read no more once its experts are known.
            every = tl.arange(0, BLOCK_EXPERTS)[None, :]
            for first in range(0, rows, AT_ONCE):
                some = _choose_for_rows(
                    expert_ids,
                    expert_weights,
                    rule,
                    first,
                    x.dtype.element_ty,
                    ROWS,
                    AT_ONCE,
                    SPLITS,
                    BLOCK_EXPERTS,
                    BLOCK_CHOSEN,
                    OVER_ALL,
                )
                token = first + tl.arange(0, AT_ONCE)[:, None]
                tl.store(partials + token * BLOCK_EXPERTS + every, some.to(tl.float32))
            tl.debug_barrier()
            at = partials + tl.arange(0, ROWS)[:, None] * BLOCK_EXPERTS + every
            places = tl.load(at, mask=(row < rows)[:, None], other=-1.0, cache_modifier=".cg").to(tl.int32)
        _group_chosen(pair_of_place, tiles, places, rows, experts, experts_per_token, ROWS, BLOCK_EXPERTS)


def fused_router_triton(
    x: Tensor | PendingNorm,
    weight: Tensor,
    bias: Tensor | None,
    *,
    semaphores: Tensor,
    experts_per_token: int,
    over_all: bool,
    expert_scales: Tensor | None,
) -> tuple[Tensor, ExpertChoice, PairGrouping]:
    """Launch the kernel; unchecked.

    Args:
        x: [rows, hidden], bf16 or fp16, 1 to 16 rows with stride 1 in the last dimension; may await its norm.
        weight: [experts, hidden], rows at multiples of 16 bytes; at most 512 experts and 8,192 inputs.
        bias: [experts], or None.
        semaphores: [at least 1] int32, zeros.
        experts_per_token: at most 16.
        over_all: weights are shares of all experts, not of the chosen.
        expert_scales: [experts], or None, multiply the weights.

    Returns:
        The normalized rows, their experts, and the pairs in the order of experts.
    """
    norm = x if isinstance(x, PendingNorm) else None
    read = x.rows if isinstance(x, PendingNorm) else x
    (rows, hidden), experts = read.shape, len(weight)
    pairs, splits, block = rows * experts_per_token, cdiv(hidden, _INNER), next_power_of_2(experts)
    norm_tiles = 1 if norm is None else norm.squares.shape[0]
    normalized = read if norm is None else read.new_empty(rows, hidden)
    choice = ExpertChoice(
        read.new_empty(rows, experts_per_token, dtype=torch.int32),
        read.new_empty(rows, experts_per_token, dtype=torch.float32),
    )
    grouping = PairGrouping(
        read.new_empty(pairs, dtype=torch.int32), read.new_empty(3, min(experts, pairs), dtype=torch.int32)
    )
    _fused_router_kernel[(splits, cdiv(experts, _EXPERTS))](
        *choice,
        *grouping,
        None if norm is None else normalized,
        read,
        weight,
        bias,
        expert_scales,
        None if norm is None else norm.weight,
        None if norm is None else norm.squares,
        read.new_empty(splits, MAX_ROWS, block, dtype=torch.float32),
        semaphores,
        rows,
        hidden,
        experts,
        experts_per_token,
        norm_tiles,
        0.0 if norm is None else norm.eps,
        read.stride(0),
        weight.stride(0),
        EXPERTS=_EXPERTS,
        INNER=_INNER,
        ROWS=MAX_ROWS,
        AT_ONCE=MAX_ROWS if experts <= _FEW_EXPERTS else _ROWS_OF_MANY,
        NORM_TILES=next_power_of_2(norm_tiles),
        SPLITS=splits,
        NORM=None if norm is None else norm.variant,
        BLOCK_EXPERTS=block,
        BLOCK_CHOSEN=next_power_of_2(experts_per_token),
        OVER_ALL=over_all,
        num_warps=4 if experts <= 64 else 8,
        enable_fp_fusion=False,
    )
    return normalized, choice, grouping
