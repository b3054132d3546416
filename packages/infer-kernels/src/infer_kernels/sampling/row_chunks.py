"""Each chunk of a row of logits, as the draw sees it: the first two kernels of `sample`, see `sample_triton.py`.

A program takes one chunk of one row, or of many rows several, one after another: before the first it searches the row
for what makes a token a candidate, which would take longer than the chunk. What it finds of a chunk depends on the row
alone.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from torch import Tensor

from infer_kernels.gpu import describe_gpu
from infer_kernels.integers import cdiv
from infer_kernels.optional_triton import tl, triton
from infer_kernels.sampling.pivot_search import load_logits
from infer_kernels.sampling.row_limits import (
    LogitRow,
    distance_of_min_p,
    is_drawn,
    largest_of_groups,
    limit_of_top_k,
    reach_of_candidates,
    scale_of,
    share_of_top_p,
)

BLOCK = 2048
"""Tokens of a tile. A chunk is one tile, or two where the vocabulary has more than 64."""

CHUNKS = 64
"""Chunks of a row, at most."""

WIDTH = BLOCK // CHUNKS
"""Lanes of a tile of candidates that belong to one chunk."""

_PROGRAMS_PER_SM = 8
"""Programs that are wanted of the second kernel for each multiprocessor, before they take several chunks."""

_LEAST_PROGRAMS = 8
"""Least programs of a row, however many rows there are: if most rows are greedy, the others' programs run alone."""


@triton.jit
def _maxima_kernel(
    maxima: tl.tensor,  # [rows, chunks * tiles_per_chunk * GROUPS] fp32
    logits: tl.tensor,  # [rows, vocab]
    vocab: tl.tensor,
    tiles_per_chunk: tl.tensor,
    logits_stride: tl.tensor,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,  # of a tile
) -> None:
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    maxima += row * (tl.num_programs(1) * tiles_per_chunk * GROUPS)
    first_tile = tl.program_id(1) * tiles_per_chunk
    for tile in range(first_tile, first_tile + tiles_per_chunk):
        token = tile * BLOCK + lane
        values = load_logits(logits + row * logits_stride, token, token < vocab)
        largest = tl.max(tl.reshape(values, (GROUPS, BLOCK // GROUPS)), axis=1)
        tl.store(maxima + tile * GROUPS + tl.arange(0, GROUPS), largest)


@triton.jit(do_not_specialize_on_alignment=["temperatures", "top_k", "top_p", "min_p"])
def _candidates_kernel(
    masses: tl.tensor,  # [rows, CHUNKS] fp32: of what min-p leaves
    counts: tl.tensor,  # [rows, CHUNKS] int32: candidates, those that the lists cannot hold included
    lists: tl.tensor,  # [rows, DEPTH, BLOCK], or None where neither top_k nor top_p is given
    logits: tl.tensor,  # [rows, vocab]
    temperatures: tl.tensor,  # [rows] fp32
    top_k: tl.tensor,  # [rows] int32, or None
    top_p: tl.tensor,  # [rows] fp32, or None
    min_p: tl.tensor,  # [rows] fp32, or None
    maxima: tl.tensor,  # [rows, groups] fp32
    vocab: tl.tensor,
    groups: tl.tensor,
    chunks: tl.tensor,
    tiles_per_chunk: tl.tensor,
    logits_stride: tl.tensor,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride
    maxima += row * groups
    vocab = tl.cast(vocab, tl.int32)  # Triton makes a constant of an argument that is 1
    lane = tl.arange(0, BLOCK)
    temperature = tl.load(temperatures + row)
    largest, _ = largest_of_groups(maxima, groups, BLOCK)
    if is_drawn(largest, temperature):
        scale = scale_of(temperature)
        farthest = distance_of_min_p(min_p, row, scale)
        reach = tl.cast(-1.0, tl.float32)
        if lists is not None:
            lists += row * DEPTH * BLOCK
            reach = reach_of_candidates(
                maxima, groups, LogitRow(logits, vocab, largest, scale, farthest),
                limit_of_top_k(top_k, row, vocab), share_of_top_p(top_p, row), BLOCK,
            )  # fmt: skip
        for chunk in range(tl.program_id(1), chunks, tl.num_programs(1)):
            mass = tl.zeros([BLOCK], tl.float32)
            count = tl.cast(0, tl.int32)
            for tile in range(chunk * tiles_per_chunk, (chunk + 1) * tiles_per_chunk):
                values = load_logits(logits, tile * BLOCK + lane, tile * BLOCK + lane < vocab)
                distances = largest - values
                mass += tl.where(distances <= farthest, tl.exp2(-distances * scale), 0.0)
                if lists is not None:  # noqa: SIM102 - decided when the kernel is compiled, the inner `if` by the row
                    if reach >= 0.0:
                        near = distances <= reach
                        place = count + tl.cumsum(near.to(tl.int32), axis=0) - 1
                        at = lists + chunk * WIDTH + place // WIDTH * BLOCK + place % WIDTH
                        tl.store(at, values.to(logits.dtype.element_ty), mask=near & (place < DEPTH * WIDTH))
                        count += tl.sum(near.to(tl.int32), axis=0)
            tl.store(masses + row * CHUNKS + chunk, tl.sum(mass, axis=0))
            tl.store(counts + row * CHUNKS + chunk, count)


def launch_maxima(logits: Tensor, *, maxima: Tensor, chunks: int, tiles_per_chunk: int, groups_per_tile: int) -> None:
    """Write the largest logit of each group of tokens, NaN as -inf."""
    rows, vocab = logits.shape
    _maxima_kernel[(rows, chunks)](
        maxima,
        logits,
        vocab,
        tiles_per_chunk,
        logits.stride(0),
        BLOCK=BLOCK,
        GROUPS=groups_per_tile,
        num_warps=4,
        enable_fp_fusion=False,
    )


def launch_candidates(
    logits: Tensor,
    *,
    temperatures: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    maxima: Tensor,
    masses: Tensor,
    counts: Tensor,
    lists: Tensor | None,
    chunks: int,
    tiles_per_chunk: int,
) -> None:
    """Write the mass of each chunk and its candidates, for rows that are not greedy."""
    rows, vocab = logits.shape
    wanted = cdiv(_PROGRAMS_PER_SM * describe_gpu(logits.device).num_sms, rows)
    _candidates_kernel[(rows, min(chunks, max(wanted, _LEAST_PROGRAMS)))](
        masses,
        counts,
        lists,
        logits,
        temperatures,
        top_k,
        top_p,
        min_p,
        maxima,
        vocab,
        maxima.shape[1],
        chunks,
        tiles_per_chunk,
        logits.stride(0),
        BLOCK=BLOCK,
        CHUNKS=CHUNKS,
        WIDTH=WIDTH,
        DEPTH=1 if lists is None else lists.shape[1],
        num_warps=8,
        maxnreg=80,  # for three programs on a multiprocessor; 64, for four, spill
        enable_fp_fusion=False,
    )
