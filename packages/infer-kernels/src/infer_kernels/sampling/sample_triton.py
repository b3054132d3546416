"""The sampling kernel and its launcher: one program per row. What is drawn is defined in `sample.py`.

A row is read at most three times, whatever its values, if few tokens can be at the cut:

1. The largest logit of each lane, and with it the row's; a greedy row ends here.
2. The mass; and, if top-k or top-p cut the row, each lane's candidates, copied to its own short list. Lanes share
   nothing, so nothing is synchronized and the order is always the same:

       lane      0    1    2   ...  BLOCK - 1       Candidates are the logits within a distance of the largest that
       list 0    x    x         x       x           certainly holds the cut: for top-k the distance within which k
       list 1         x                 x           lanes' largest lie, for top-p the one beyond which even a whole
       ...                                          vocabulary has less mass than top-p drops. `search_cut` then
       list DEPTH - 1                               reads the lists, not the row: a tile or two.

3. The running mass in order of ids, up to the tile in which the draw falls: half a row on average.

If a lane has more candidates than its list holds, which takes many thousands of them, `search_cut` reads the row: about
ten passes for bf16 logits, seventeen for fp32. All reads after the first come from cache.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
import triton
import triton.language as tl
from torch import Tensor

from infer_kernels.integers import cdiv
from infer_kernels.sampling.pivot_search import load_logits, measure_cut, reach_of_top_k, search_cut, smallest_within
from infer_kernels.sampling.uniform import uniform_number

BLOCK = 2048
DEPTH = 16

# Farther from the largest logit than this no token is kept; -inf lies at infinity.
_FARTHEST = tl.constexpr(3.0e38)
_LOG2_E = tl.constexpr(1.4426950408889634)
_NO_TOKEN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _cut_row(
    logits: tl.tensor,  # [vocab], the row
    lists: tl.tensor,  # [DEPTH, BLOCK], its candidates
    filled: tl.tensor,  # [BLOCK] int32: candidates of each lane, those that its list cannot hold included
    vocab: tl.tensor,
    largest: tl.tensor,
    scale: tl.tensor,
    reach: tl.tensor,  # distance of the farthest candidate
    total: tl.tensor,  # mass of what min-p leaves
    k: tl.tensor,  # `vocab` or more: no limit
    p: tl.tensor,  # 1 or more: no limit
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The value that the row is cut at, how many tokens of that value are kept, and the mass of all that are."""
    lane = tl.arange(0, BLOCK)
    source = lists
    tiles = tl.max(filled, axis=0)
    if tiles > DEPTH:
        source = logits
        filled = (vocab - lane + BLOCK - 1) // BLOCK
        tiles = tl.cdiv(vocab, BLOCK)
    low, candidates = smallest_within(source, filled, tiles, largest, reach, BLOCK)
    ties_kept = candidates
    if k < vocab:
        if candidates > k:
            low = search_cut(source, filled, tiles, largest, 0.0, k.to(tl.float32), low, largest, BLOCK)
        above, mass, ties = measure_cut(source, filled, tiles, largest, scale, low, BLOCK)
        ties_kept = tl.minimum(ties, k - above)
        total = mass + ties_kept.to(tl.float32) * tl.exp2((low - largest) * scale)
    if p < 1.0:
        wanted = p * total
        cut = search_cut(source, filled, tiles, largest, scale, wanted, low, largest, BLOCK)
        _, mass, ties = measure_cut(source, filled, tiles, largest, scale, cut, BLOCK)
        if cut == low:
            ties = tl.minimum(ties, ties_kept)
        each = tl.exp2((cut - largest) * scale)
        # A quotient beyond int32 means all of them: only a mass lost to rounding asks for so many.
        needed = tl.minimum(tl.ceil((wanted - mass) / tl.maximum(each, 1e-37)), 1e9).to(tl.int32)
        ties_kept = tl.minimum(ties, tl.maximum(needed, 1))
        low = cut
        total = mass + ties_kept.to(tl.float32) * each
    return low, ties_kept, total


@triton.jit
def _draw_token(
    logits: tl.tensor,  # [vocab], the row
    vocab: tl.tensor,
    largest: tl.tensor,
    scale: tl.tensor,
    farthest: tl.tensor,  # distance that min-p allows
    cut: tl.tensor,
    ties_kept: tl.tensor,
    target: tl.tensor,  # fp64: the share of the mass that the draw stands for
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The first id up to which the kept tokens' mass exceeds `target`; the last one kept, should rounding hide it."""
    lane = tl.arange(0, BLOCK)
    mass_of_tie = tl.exp2((cut - largest) * scale)
    running = tl.cast(0.0, tl.float64)
    ties_seen = tl.cast(0, tl.int32)
    drawn_tile = tl.cast(0, tl.int32)
    mass_before = tl.cast(0.0, tl.float64)
    ties_before = tl.cast(0, tl.int32)
    tiles = tl.cdiv(vocab, BLOCK)
    tile = tl.cast(0, tl.int32)
    while tile < tiles:
        values = load_logits(logits, tile * BLOCK + lane, tile * BLOCK + lane < vocab)
        distances = largest - values
        weights = tl.exp2(-distances * scale)
        mass = tl.sum(tl.where((values > cut) & (distances <= farthest), weights, 0.0), axis=0)
        ties = tl.sum((values == cut).to(tl.int32), axis=0)
        mass += tl.minimum(ties, tl.maximum(ties_kept - ties_seen, 0)).to(tl.float32) * mass_of_tie
        if mass > 0.0:
            drawn_tile = tile
            mass_before = running
            ties_before = ties_seen
        running += mass.to(tl.float64)
        ties_seen += ties
        tile = tl.where(running > target, tiles, tile + 1)

    token = drawn_tile * BLOCK + lane
    values = load_logits(logits, token, token < vocab)
    distances = largest - values
    tied = values == cut
    within = ties_before + tl.cumsum(tied.to(tl.int32), axis=0) <= ties_kept
    kept = ((values > cut) & (distances <= farthest)) | (tied & within)
    weights = tl.where(kept, tl.exp2(-distances * scale), 0.0)
    exceeds = (tl.cumsum(weights, axis=0) > (target - mass_before).to(tl.float32)) & (weights > 0.0)
    first = tl.min(tl.where(exceeds, token, _NO_TOKEN), axis=0)
    last = tl.max(tl.where(weights > 0.0, token, 0), axis=0)
    return tl.minimum(first, last)


@triton.jit(
    do_not_specialize_on_alignment=["out", "temperatures", "top_k", "top_p", "min_p", "seeds", "positions"],
)
def _sample_kernel(
    out: tl.tensor,  # [rows] int64
    logits: tl.tensor,  # [rows, vocab]
    temperatures: tl.tensor,  # [rows] fp32
    top_k: tl.tensor,  # [rows] int32, or None
    top_p: tl.tensor,  # [rows] fp32, or None
    min_p: tl.tensor,  # [rows] fp32, or None
    seeds: tl.tensor,  # [rows] int64
    positions: tl.tensor,  # [rows]
    scratch: tl.tensor,  # [rows, lists of a lane, BLOCK], or None where neither top_k nor top_p is given
    vocab: tl.tensor,
    logits_stride: tl.tensor,
    scratch_stride: tl.tensor,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride
    lane = tl.arange(0, BLOCK)
    vocab = tl.cast(vocab, tl.int32)  # Triton makes a constant of an argument that is 1
    tiles = tl.cdiv(vocab, BLOCK)

    nearest = tl.full([BLOCK], float("-inf"), tl.float32)
    nearest_tile = tl.zeros([BLOCK], tl.int32)
    for tile in tl.range(0, tiles, num_stages=4):
        values = load_logits(logits, tile * BLOCK + lane, tile * BLOCK + lane < vocab)
        nearest_tile = tl.where(values > nearest, tile, nearest_tile)
        nearest = tl.maximum(nearest, values)
    largest = tl.max(nearest, axis=0)
    temperature = tl.load(temperatures + row)
    if (temperature > 0.0) & (tl.abs(largest) < float("inf")):
        scale = _LOG2_E / tl.maximum(temperature, 1e-30)
        farthest = tl.cast(_FARTHEST, tl.float32)
        if min_p is not None:
            ratio = tl.load(min_p + row)
            if ratio > 0.0:
                farthest = tl.minimum(farthest, tl.maximum(-tl.log2(ratio) / scale, 0.0))

        reach = tl.cast(-1.0, tl.float32)  # no candidates
        k = vocab
        p = tl.cast(1.0, tl.float32)
        if scratch is not None:
            scratch += row * scratch_stride
            if top_k is not None:
                limit = tl.load(top_k + row)
                k = tl.where((limit > 0) & (limit < vocab), limit, vocab)
            if top_p is not None:
                p = tl.load(top_p + row)
            distances = largest - nearest
            if k < vocab:
                reach = tl.minimum(farthest, reach_of_top_k(distances, k))
            elif p < 1.0:
                # No less than the mass of the lanes' largest, and no more than `vocab` times that of a token as far
                # away as `reach`: what lies beyond it is less than what top-p drops. 0.01 is for rounding.
                least = tl.sum(tl.where(distances <= farthest, tl.exp2(-distances * scale), 0.0), axis=0)
                bits = tl.log2(vocab.to(tl.float32)) - tl.log2(1.0 - p) - tl.log2(least) + 0.01
                reach = tl.minimum(farthest, tl.maximum(bits, 0.0) / scale)

        masses = tl.zeros([BLOCK], tl.float32)
        filled = tl.zeros([BLOCK], tl.int32)
        for tile in tl.range(0, tiles, num_stages=4):
            values = load_logits(logits, tile * BLOCK + lane, tile * BLOCK + lane < vocab)
            distances = largest - values
            masses += tl.where(distances <= farthest, tl.exp2(-distances * scale), 0.0)
            if scratch is not None:
                near = distances <= reach
                at = scratch + filled * BLOCK + lane
                tl.store(at, values.to(logits.dtype.element_ty), mask=near & (filled < DEPTH))
                filled += near.to(tl.int32)
        total = tl.sum(masses, axis=0)

        cut = tl.cast(float("-inf"), tl.float32)
        ties_kept = tl.cast(0, tl.int32)
        if scratch is not None:  # noqa: SIM102 - decided when the kernel is compiled, the inner `if` by the row
            if (k < vocab) | (p < 1.0):
                tl.debug_barrier()  # the lists may be read by other threads than those that wrote them
                cut, ties_kept, total = _cut_row(
                    logits, scratch, filled, vocab, largest, scale, reach, total, k, p, BLOCK, DEPTH
                )
        number = uniform_number(tl.load(seeds + row), tl.load(positions + row).to(tl.int64))
        target = number * total.to(tl.float64)
        drawn = _draw_token(logits, vocab, largest, scale, farthest, cut, ties_kept, target, BLOCK)
        tl.store(out + row, drawn.to(tl.int64))
    else:
        first = tl.min(tl.where(nearest == largest, nearest_tile * BLOCK + lane, _NO_TOKEN), axis=0)
        tl.store(out + row, first.to(tl.int64))


def sample_triton(
    logits: Tensor,
    *,
    temperatures: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor,
    positions: Tensor,
    out: Tensor,
) -> Tensor:
    """Launch the kernel; arguments as for `sample`, unchecked."""
    rows, vocab = logits.shape
    if rows == 0:
        return out
    scratch = None
    if top_k is not None or top_p is not None:
        depth = min(DEPTH, cdiv(vocab, BLOCK))
        scratch = torch.empty(rows, depth, BLOCK, dtype=logits.dtype, device=logits.device)
    _sample_kernel[(rows,)](
        out,
        logits,
        temperatures,
        top_k,
        top_p,
        min_p,
        seeds,
        positions,
        scratch,
        vocab,
        logits.stride(0),
        0 if scratch is None else scratch.stride(0),
        BLOCK=BLOCK,
        DEPTH=DEPTH,
        num_warps=8,
        enable_fp_fusion=False,
    )
    return out
