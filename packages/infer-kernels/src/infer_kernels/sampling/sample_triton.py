"""The launcher of `sample` and its last kernel, which draws. What is drawn is defined in `sample.py`.

A row lies in up to 64 chunks at fixed positions, whose size depends on the vocabulary alone. Three launches, the first
two in `row_chunks.py`:

1. A program for each chunk: the largest logit of each group of neighboring tokens. Greedy rows need no more.
2. A program for each chunk, or of many rows for several: its mass, and, if top-k or top-p cut the row, its candidates:
   the logits within a distance of the row's largest that certainly holds the cut. For top-k it is the distance within
   which the largest of k groups lie, for top-p the one beyond which even a whole vocabulary has less mass than top-p
   drops.
3. A program for each row: the cut, by `search_cut` over the candidates, a tile or two; the chunk in which the draw
   falls, by the chunks' masses; the token, from that chunk.

       lists of a row        chunk 0         chunk 1   ...     A chunk's candidates, in order of ids, fill 32 lanes
       [DEPTH, 64 x 32]  0   x x x x ... x   x x ...           of each tile, from the first tile on.
                         1   x x ...

A chunk is always taken by one program, as if it took no other, and what programs found is always joined in the order
of the chunks: a row's draw depends neither on the other rows nor on what the device runs at once.

If a chunk has more candidates than its lists hold, `search_cut` reads the row instead: about ten passes for bf16
logits, seventeen for fp32.

Scratch, for each row: 512 bytes for chunks, 4 to 8 KiB for groups of a vocabulary of up to 262,144, and where top-k
or top-p is given DEPTH * 2048 * itemsize for candidates.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
from torch import Tensor

from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.optional_triton import tl, triton
from infer_kernels.sampling.pivot_search import RowValues, load_logits, measure_cut, search_cut, smallest_within
from infer_kernels.sampling.row_chunks import BLOCK, CHUNKS, WIDTH, launch_candidates, launch_maxima
from infer_kernels.sampling.row_limits import (
    LogitRow,
    distance_of_min_p,
    is_drawn,
    largest_of_groups,
    limit_of_top_k,
    scale_of,
    share_of_top_p,
)
from infer_kernels.sampling.uniform import uniform_number

DEPTH = 16
"""Tiles of a row's lists: a chunk of 2048 tokens may have 512 candidates."""

_GROUPS = 1024
"""Groups of a row, but for vocabularies of more than 64 tiles: a tile has no fewer than 16."""

_NO_TOKEN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _find_cut(
    values: RowValues,  # the row's candidates, or the row
    row: LogitRow,
    total: tl.tensor,  # mass of what min-p leaves
    k: tl.tensor,  # `row.vocab` or more: no limit
    p: tl.tensor,  # 1 or more: no limit
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The value that the row is cut at, and how many tokens of that value are kept."""
    low, candidates = smallest_within(values, row.farthest, BLOCK)
    ties_kept = candidates
    if k < row.vocab:
        if candidates > k:
            low = search_cut(values, 0.0, k.to(tl.float32), low, row.largest, BLOCK)
        above, mass, ties = measure_cut(values, row.scale, low, BLOCK)
        ties_kept = tl.minimum(ties, k - above)
        total = mass + ties_kept.to(tl.float32) * tl.exp2((low - row.largest) * row.scale)
    if p < 1.0:
        wanted = p * total
        cut = search_cut(values, row.scale, wanted, low, row.largest, BLOCK)
        _, mass, ties = measure_cut(values, row.scale, cut, BLOCK)
        if cut == low:
            ties = tl.minimum(ties, ties_kept)
        each = tl.exp2((cut - row.largest) * row.scale)
        # A quotient beyond int32 means all of them: only a mass lost to rounding asks for so many.
        needed = tl.minimum(tl.ceil((wanted - mass) / tl.maximum(each, 1e-37)), 1e9).to(tl.int32)
        ties_kept = tl.minimum(ties, tl.maximum(needed, 1))
        low = cut
    return low, ties_kept


@triton.jit
def _measure_listed_chunks(
    candidates: RowValues,
    scale: tl.tensor,
    cut: tl.tensor,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return each chunk's mass above `cut`, and how many of its tokens equal it: [CHUNKS] both."""
    lane = tl.arange(0, BLOCK)
    masses = tl.zeros([BLOCK], tl.float32)
    ties = tl.zeros([BLOCK], tl.int32)
    for tile in range(tl.max(candidates.filled, axis=0)):
        values = load_logits(candidates.at, tile * BLOCK + lane, tile < candidates.filled)
        masses += tl.where(values > cut, tl.exp2((values - candidates.largest) * scale), 0.0)
        ties += (values == cut).to(tl.int32)
    by_chunk: tl.constexpr = (CHUNKS, BLOCK // CHUNKS)
    return tl.sum(tl.reshape(masses, by_chunk), axis=1), tl.sum(tl.reshape(ties, by_chunk), axis=1)


@triton.jit
def _measure_chunks_of_row(
    row: LogitRow,
    tiles_per_chunk: tl.tensor,
    cut: tl.tensor,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """`_measure_listed_chunks` of a row whose candidates are too many for lists."""
    lane = tl.arange(0, BLOCK)
    chunk = tl.arange(0, CHUNKS)
    masses = tl.zeros([CHUNKS], tl.float32)
    ties = tl.zeros([CHUNKS], tl.int32)
    for tile in range(tl.cdiv(row.vocab, BLOCK)):
        token = tile * BLOCK + lane
        values = load_logits(row.logits, token, token < row.vocab)
        mass = tl.sum(tl.where(values > cut, tl.exp2((values - row.largest) * row.scale), 0.0), axis=0)
        here = chunk == tile // tiles_per_chunk
        masses += tl.where(here, mass, 0.0)
        ties += tl.where(here, tl.sum((values == cut).to(tl.int32), axis=0), 0)
    return masses, ties


@triton.jit
def _draw_token(
    row: LogitRow,
    first_tile: tl.tensor,  # of the chunk in which the draw falls
    last_tile: tl.tensor,
    running: tl.tensor,  # fp64: mass before the chunk
    ties_seen: tl.tensor,  # before the chunk
    cut: tl.tensor,
    ties_kept: tl.tensor,
    target: tl.tensor,  # fp64: the share of the mass that the draw stands for
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The first id up to which the kept tokens' mass exceeds `target`; the chunk's last, should rounding hide it."""
    lane = tl.arange(0, BLOCK)
    mass_of_tie = tl.exp2((cut - row.largest) * row.scale)
    drawn_tile = first_tile
    mass_before = running
    ties_before = ties_seen
    tile = first_tile
    while tile <= last_tile:
        values = load_logits(row.logits, tile * BLOCK + lane, tile * BLOCK + lane < row.vocab)
        distances = row.largest - values
        weights = tl.exp2(-distances * row.scale)
        mass = tl.sum(tl.where((values > cut) & (distances <= row.farthest), weights, 0.0), axis=0)
        ties = tl.sum((values == cut).to(tl.int32), axis=0)
        mass += tl.minimum(ties, tl.maximum(ties_kept - ties_seen, 0)).to(tl.float32) * mass_of_tie
        if mass > 0.0:
            drawn_tile = tile
            mass_before = running
            ties_before = ties_seen
        running += mass.to(tl.float64)
        ties_seen += ties
        tile = tl.where(running > target, last_tile + 1, tile + 1)

    token = drawn_tile * BLOCK + lane
    values = load_logits(row.logits, token, token < row.vocab)
    distances = row.largest - values
    tied = values == cut
    within = ties_before + tl.cumsum(tied.to(tl.int32), axis=0) <= ties_kept
    kept = ((values > cut) & (distances <= row.farthest)) | (tied & within)
    weights = tl.where(kept, tl.exp2(-distances * row.scale), 0.0)
    exceeds = (tl.cumsum(weights, axis=0) > (target - mass_before).to(tl.float32)) & (weights > 0.0)
    first = tl.min(tl.where(exceeds, token, _NO_TOKEN), axis=0)
    last = tl.max(tl.where(weights > 0.0, token, 0), axis=0)
    return tl.minimum(first, last)


@triton.jit(do_not_specialize_on_alignment=["out", "temperatures", "top_k", "top_p", "min_p", "seeds", "positions"])
def _draw_kernel(
    out: tl.tensor,  # [rows] int64
    logits: tl.tensor,  # [rows, vocab]
    temperatures: tl.tensor,  # [rows] fp32
    top_k: tl.tensor,  # [rows] int32, or None
    top_p: tl.tensor,  # [rows] fp32, or None
    min_p: tl.tensor,  # [rows] fp32, or None
    seeds: tl.tensor,  # [rows] int64
    positions: tl.tensor,  # [rows]
    maxima: tl.tensor,  # [rows, groups] fp32
    masses: tl.tensor,  # [rows, CHUNKS] fp32
    counts: tl.tensor,  # [rows, CHUNKS] int32: each chunk's candidates, those that its lists cannot hold included
    lists: tl.tensor,  # [rows, DEPTH, BLOCK], or None where neither top_k nor top_p is given
    vocab: tl.tensor,
    groups: tl.tensor,
    tiles_per_chunk: tl.tensor,
    logits_stride: tl.tensor,
    BLOCK: tl.constexpr,
    TOKENS_PER_GROUP: tl.constexpr,
    CHUNKS: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride
    vocab = tl.cast(vocab, tl.int32)  # Triton makes a constant of an argument that is 1
    largest, first_group = largest_of_groups(maxima + row * groups, groups, BLOCK)
    temperature = tl.load(temperatures + row)
    if is_drawn(largest, temperature):
        scale = scale_of(temperature)
        farthest = distance_of_min_p(min_p, row, scale)
        logit_row = LogitRow(logits, vocab, largest, scale, farthest)
        chunk = tl.arange(0, CHUNKS)
        chunks = tl.cdiv(vocab, BLOCK * tiles_per_chunk)
        chunk_masses = tl.load(masses + row * CHUNKS + chunk, mask=chunk < chunks, other=0.0)
        chunk_ties = tl.zeros([CHUNKS], tl.int32)
        cut = tl.cast(float("-inf"), tl.float32)
        ties_kept = tl.cast(0, tl.int32)
        if lists is not None:
            k = limit_of_top_k(top_k, row, vocab)
            p = share_of_top_p(top_p, row)
            if (k < vocab) | (p < 1.0):
                lane = tl.arange(0, BLOCK)
                lists += row * DEPTH * BLOCK
                total = tl.sum(chunk_masses, axis=0)
                count = tl.load(counts + row * CHUNKS + lane // WIDTH, mask=lane // WIDTH < chunks, other=0)
                is_listed = tl.max(count, axis=0) <= DEPTH * WIDTH
                source = lists
                filled = (count - lane % WIDTH + WIDTH - 1) // WIDTH
                tiles = tl.max(filled, axis=0)
                if not is_listed:
                    source = logits
                    filled = (vocab - lane + BLOCK - 1) // BLOCK
                    tiles = tl.cdiv(vocab, BLOCK)
                cut, ties_kept = _find_cut(RowValues(source, filled, tiles, largest), logit_row, total, k, p, BLOCK)
                if is_listed:
                    candidates = RowValues(lists, filled, tiles, largest)
                    chunk_masses, chunk_ties = _measure_listed_chunks(candidates, scale, cut, BLOCK, CHUNKS)
                else:
                    chunk_masses, chunk_ties = _measure_chunks_of_row(logit_row, tiles_per_chunk, cut, BLOCK, CHUNKS)
        ties_before = tl.cumsum(chunk_ties, axis=0) - chunk_ties
        kept_ties = tl.minimum(chunk_ties, tl.maximum(ties_kept - ties_before, 0))
        chunk_masses += kept_ties.to(tl.float32) * tl.exp2((cut - largest) * scale)
        running = tl.cumsum(chunk_masses.to(tl.float64), axis=0)
        total = tl.max(running, axis=0)
        number = uniform_number(tl.load(seeds + row), tl.load(positions + row).to(tl.int64))
        target = number * total
        first = tl.min(tl.where((running > target) & (chunk_masses > 0.0), chunk, CHUNKS), axis=0)
        last = tl.max(tl.where(chunk_masses > 0.0, chunk, 0), axis=0)
        drawn_chunk = tl.minimum(first, last)
        is_drawn_chunk = chunk == drawn_chunk
        mass_before = tl.sum(tl.where(is_drawn_chunk, running - chunk_masses.to(tl.float64), 0.0), axis=0)
        ties_seen = tl.sum(tl.where(is_drawn_chunk, ties_before, 0), axis=0)
        drawn = _draw_token(
            logit_row, drawn_chunk * tiles_per_chunk, (drawn_chunk + 1) * tiles_per_chunk - 1,
            mass_before, ties_seen, cut, ties_kept, target, BLOCK,
        )  # fmt: skip
        tl.store(out + row, drawn.to(tl.int64))
    else:
        token = first_group * TOKENS_PER_GROUP + tl.arange(0, TOKENS_PER_GROUP)
        values = load_logits(logits, token, token < vocab)
        first_token = tl.min(tl.where(values == largest, token, _NO_TOKEN), axis=0)
        tl.store(out + row, first_token.to(tl.int64))


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
    """Launch the kernels; arguments as for `sample`, unchecked."""
    rows, vocab = logits.shape
    if rows == 0:
        return out
    tiles = cdiv(vocab, BLOCK)
    tiles_per_chunk = cdiv(tiles, CHUNKS)
    groups_per_tile = min(BLOCK, max(16, _GROUPS // next_power_of_2(tiles)))
    chunks = cdiv(tiles, tiles_per_chunk)
    device = logits.device
    maxima = torch.empty(rows, chunks * tiles_per_chunk * groups_per_tile, dtype=torch.float32, device=device)
    masses = torch.empty(rows, CHUNKS, dtype=torch.float32, device=device)
    counts = torch.empty(rows, CHUNKS, dtype=torch.int32, device=device)
    lists = None
    if top_k is not None or top_p is not None:
        lists = torch.empty(rows, DEPTH, BLOCK, dtype=logits.dtype, device=device)
    launch_maxima(
        logits, maxima=maxima, chunks=chunks, tiles_per_chunk=tiles_per_chunk, groups_per_tile=groups_per_tile
    )
    launch_candidates(
        logits,
        temperatures=temperatures,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        maxima=maxima,
        masses=masses,
        counts=counts,
        lists=lists,
        chunks=chunks,
        tiles_per_chunk=tiles_per_chunk,
    )
    _draw_kernel[(rows,)](
        out,
        logits,
        temperatures,
        top_k,
        top_p,
        min_p,
        seeds,
        positions,
        maxima,
        masses,
        counts,
        lists,
        vocab,
        maxima.shape[1],
        tiles_per_chunk,
        logits.stride(0),
        BLOCK=BLOCK,
        TOKENS_PER_GROUP=BLOCK // groups_per_tile,
        CHUNKS=CHUNKS,
        WIDTH=WIDTH,
        DEPTH=DEPTH,
        num_warps=8,
        enable_fp_fusion=False,
    )
    return out
