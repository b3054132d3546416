"""A row's parameters as distances from its largest logit and as limits; for the kernels of `sample`."""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from typing import NamedTuple

from infer_kernels.optional_triton import tl, triton

# Farther from the largest logit than this no token is kept; -inf lies at infinity.
_FARTHEST = tl.constexpr(3.0e38)
_LOG2_E = tl.constexpr(1.4426950408889634)


class LogitRow(NamedTuple):
    """A row of logits, of which a token is drawn.

    Attributes:
        logits: pointer to [vocab].
        vocab: number of logits.
        largest: the largest of them.
        scale: factor from distances to bits of probability.
        farthest: distance below the largest that min-p allows.
    """

    logits: tl.tensor
    vocab: tl.tensor
    largest: tl.tensor
    scale: tl.tensor
    farthest: tl.tensor


@triton.jit
def largest_of_groups(
    maxima: tl.tensor,  # [groups], of the row
    groups: tl.tensor,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The largest logit of a row, and the first group that has it."""
    lane = tl.arange(0, BLOCK)
    nearest = tl.full([BLOCK], float("-inf"), tl.float32)
    nearest_tile = tl.zeros([BLOCK], tl.int32)
    for tile in range(tl.cdiv(groups, BLOCK)):
        index = tile * BLOCK + lane
        values = tl.load(maxima + index, mask=index < groups, other=float("-inf"))
        nearest_tile = tl.where(values > nearest, tile, nearest_tile)
        nearest = tl.maximum(nearest, values)
    largest = tl.max(nearest, axis=0)
    return largest, tl.min(tl.where(nearest == largest, nearest_tile * BLOCK + lane, 0x7FFFFFFF), axis=0)


@triton.jit
def is_drawn(largest: tl.tensor, temperature: tl.tensor) -> tl.tensor:
    """Whether the row is not greedy."""
    return (temperature > 0.0) & (tl.abs(largest) < float("inf"))


@triton.jit
def scale_of(temperature: tl.tensor) -> tl.tensor:
    """The factor from distances to bits of probability."""
    return _LOG2_E / tl.maximum(temperature, 1e-30)


@triton.jit
def distance_of_min_p(
    min_p: tl.tensor,  # [rows], or None
    row: tl.tensor,
    scale: tl.tensor,
) -> tl.tensor:
    """The distance below the largest logit that min-p allows."""
    farthest = tl.cast(_FARTHEST, tl.float32)
    if min_p is not None:
        ratio = tl.load(min_p + row)
        if ratio > 0.0:
            farthest = tl.minimum(farthest, tl.maximum(-tl.log2(ratio) / scale, 0.0))
    return farthest


@triton.jit
def limit_of_top_k(
    top_k: tl.tensor,  # [rows], or None
    row: tl.tensor,
    vocab: tl.tensor,
) -> tl.tensor:
    """The number of tokens that top-k keeps; `vocab`: no limit."""
    k = vocab
    if top_k is not None:
        limit = tl.load(top_k + row)
        k = tl.where((limit > 0) & (limit < vocab), limit, vocab)
    return k


@triton.jit
def share_of_top_p(
    top_p: tl.tensor,  # [rows], or None
    row: tl.tensor,
) -> tl.tensor:
    """The share of the mass that top-p keeps; 1 or more: no limit."""
    p = tl.cast(1.0, tl.float32)
    if top_p is not None:
        p = tl.load(top_p + row)
    return p


@triton.jit
def _reach_of_top_k(
    maxima: tl.tensor,  # [groups], of the row
    groups: tl.tensor,
    largest: tl.tensor,
    k: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """A distance within which k logits lie for certain, and few more.

    Each group's largest is a logit of its own, so the k-th nearest of them bounds the k-th nearest of all. Sixteen
    halvings of the range of fp32 bits, which order like the numbers, find it to a part in 256. Infinite if `k` is
    larger than the number of groups.
    """
    lane = tl.arange(0, BLOCK)
    low = tl.cast(0, tl.int32)
    high = tl.cast(0x7F800000, tl.int32)  # infinity
    for _ in range(16):
        middle = low + (high - low) // 2
        counts = tl.zeros([BLOCK], tl.int32)
        for tile in range(tl.cdiv(groups, BLOCK)):
            index = tile * BLOCK + lane
            values = tl.load(maxima + index, mask=index < groups, other=float("-inf"))
            # -inf is at infinity, farther than any `middle`.
            counts += ((largest - values).to(tl.int32, bitcast=True) <= middle).to(tl.int32)
        enough = tl.sum(counts, axis=0) >= k
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    return high.to(tl.float32, bitcast=True)


@triton.jit
def reach_of_candidates(
    maxima: tl.tensor,  # [groups], of the row
    groups: tl.tensor,
    row: LogitRow,
    k: tl.tensor,
    p: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """A distance from the largest logit within which top-k and top-p cut the row for certain; -1 if neither does."""
    reach = tl.cast(-1.0, tl.float32)
    if k < row.vocab:
        reach = tl.minimum(row.farthest, _reach_of_top_k(maxima, groups, row.largest, k, BLOCK))
    elif p < 1.0:
        # No less than the mass of the groups' largest, and no more than `vocab` times that of a token as far away as
        # `reach`: what lies beyond it is less than what top-p drops. 0.01 is for rounding.
        lane = tl.arange(0, BLOCK)
        sums = tl.zeros([BLOCK], tl.float32)
        for tile in range(tl.cdiv(groups, BLOCK)):
            index = tile * BLOCK + lane
            distances = row.largest - tl.load(maxima + index, mask=index < groups, other=float("-inf"))
            sums += tl.where(distances <= row.farthest, tl.exp2(-distances * row.scale), 0.0)
        bits = tl.log2(row.vocab.to(tl.float32)) - tl.log2(1.0 - p) - tl.log2(tl.sum(sums, axis=0)) + 0.01
        reach = tl.minimum(row.farthest, tl.maximum(bits, 0.0) / row.scale)
    return reach
