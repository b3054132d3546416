r"""Joining the results of a sequence's splits into those of all its keys, in Triton.

    maximum = max over splits of maximum_s
    total   = sum over splits of total_s * 2^(maximum_s - maximum)
    sums    = sum over splits of sums_s  * 2^(maximum_s - maximum)

All maxima are read first, about a thousand at a time, so that no sum waits for another one's scale. Then the sums of
several splits are loaded at once and added up, as many as 32 registers hold, and these sums one after another:

    splits   0 1 ... 7 | 8 9 ... 15 | ...      eight for four heads of 128
               sum     +     sum    + ...

The order depends on the number of splits and on the heads alone. Waits for memory: one, and one more for each eight.

Bytes moved: 4 * (head_dim + 3) for each split and query head, past the first-level cache, which may hold older values.

Precision: fp32.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from infer_kernels.attention.triton import operands
from infer_kernels.attention.triton.online_softmax import UNSEEN
from infer_kernels.optional_triton import tl, triton

_MAXIMA = tl.constexpr(1024)  # loaded at once
_SUMS = tl.constexpr(4096)  # elements of sums loaded at once: 32 registers of 128 threads


@triton.jit
def join_splits(
    partials: operands.Partials,
    first_item: tl.tensor,  # of the sequence
    num_splits: tl.tensor,
    head: tl.tensor,  # [HEADS]
    q_heads: tl.tensor,
    in_heads: tl.tensor,  # [HEADS]: which there are
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,  # HEAD_DIM rounded up to a power of two
) -> tl.tuple:
    """(maximum [HEADS], total [HEADS], sums [HEADS, BLOCK_D]) of all splits."""
    wide: tl.constexpr = _MAXIMA // HEADS
    lanes: tl.constexpr = _SUMS // (HEADS * BLOCK_D) if HEADS * BLOCK_D * 2 <= _SUMS else 2
    column = tl.arange(0, BLOCK_D)

    maxima = tl.full([wide, HEADS], UNSEEN, tl.float32)
    for start in range(0, num_splits, wide):
        split = start + tl.arange(0, wide)
        at = (first_item + split)[:, None] * q_heads + head[None, :]
        mask = (split < num_splits)[:, None] & in_heads[None, :]
        found = tl.load(partials.maxima + at, mask=mask, other=UNSEEN, cache_modifier=".cg")
        maxima = tl.maximum(maxima, found)
    maximum = tl.max(maxima, 0)

    total = tl.zeros([HEADS], tl.float32)
    sums = tl.zeros([HEADS, BLOCK_D], tl.float32)
    for start in range(0, num_splits, lanes):
        split = start + tl.arange(0, lanes)
        at = (first_item + split)[:, None] * q_heads + head[None, :]
        mask = (split < num_splits)[:, None] & in_heads[None, :]
        found = tl.load(partials.maxima + at, mask=mask, other=UNSEEN, cache_modifier=".cg")
        totals = tl.load(partials.totals + at, mask=mask, other=0.0, cache_modifier=".cg")
        tile_sums = tl.load(
            partials.sums + at[:, :, None] * HEAD_DIM + column[None, None, :],
            mask=mask[:, :, None] & (column < HEAD_DIM)[None, None, :],
            other=0.0,
            cache_modifier=".cg",
        )
        share = tl.exp2(found - maximum[None, :])
        total += tl.sum(totals * share, 0)
        sums += tl.sum(tile_sums * share[:, :, None], 0)
    return maximum, total, sums
