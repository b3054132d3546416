"""Work lists made on the device, in Triton, from lengths that lie there: each replay of a step makes them anew.

The lists are those of `DecodeWorkList.items` and `PrefillWorkList.items`, behind a header of their number of items and
0. Program s writes the items of sequence s, and finds their places without waiting for another program.

    decodes    place of (s, split)   the number of splits of all sequences before s, plus split - first split of s
    prefill    place of (s, tile)    over all sequences i, the number of tiles of i that come before it:
                                     max(0, tiles_i - ceil(max(0, keys + (0 if i < s else 1) - before_i) / queries))

`before_i` is the number of tokens of sequence i before its queries, and `keys` = before_s + tile * queries. Tile t of i
has before_i + t * queries keys: it comes first if those are more, or as many and i < s.

Bytes moved: 12 * seqs for each program, nearly all from a cache, and 8 for each item: the time is that of a launch.

Precision: integers. Items that do not fit the memory are left out, and not counted.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from typing import NamedTuple

from torch import Tensor

from infer_kernels.attention.plan import DeviceMetadata
from infer_kernels.optional_triton import tl, triton

WORK_HEADER = 2
"""int32s before a list's items: their number, and one that keeps pairs aligned."""

_SEQS = 128
"""Sequences that a program looks at together."""

_ITEMS = 16
"""Items that a program writes together."""

_NO_WINDOW = 2**31 - 1


class _Batch(NamedTuple):
    """Pointers to the lengths of a step's sequences.

    Attributes:
        query_start: [seqs + 1].
        seq_lens: [seqs].
        is_prefill: [seqs].
    """

    query_start: tl.tensor
    seq_lens: tl.tensor
    is_prefill: tl.tensor


@triton.jit
def _splits_of(
    seq: tl.tensor,
    mask: tl.tensor,
    batch: _Batch,
    window: tl.tensor,
    KEYS_PER_SPLIT: tl.constexpr,
) -> tl.tuple:
    """(number of splits, first split) of sequences, whose number is 0 unless they are decodes."""
    start = batch.query_start + seq
    rows = tl.load(start + 1, mask=mask, other=0) - tl.load(start, mask=mask, other=0)
    seq_len = tl.load(batch.seq_lens + seq, mask=mask, other=0)
    is_decode = mask & (rows == 1) & (tl.load(batch.is_prefill + seq, mask=mask, other=1) == 0)
    first = tl.maximum(seq_len - window, 0) // KEYS_PER_SPLIT
    last = tl.maximum(seq_len - 1, 0) // KEYS_PER_SPLIT
    return tl.where(is_decode, last - first + 1, 0), first


@triton.jit(
    do_not_specialize=["max_items", "window"],
    do_not_specialize_on_alignment=["work", "query_start", "seq_lens", "is_prefill"],
)
def decode_work_list_kernel(
    work: tl.tensor,  # [2 + 2 * max_items], written
    query_start: tl.tensor,  # [seqs + 1]
    seq_lens: tl.tensor,  # [seqs]
    is_prefill: tl.tensor,  # [seqs]
    max_items: tl.tensor,
    window: tl.tensor,
    KEYS_PER_SPLIT: tl.constexpr,
    SEQS: tl.constexpr,
    ITEMS: tl.constexpr,
) -> None:
    batch = _Batch(query_start, seq_lens, is_prefill)
    seq = tl.program_id(0)
    place = 0
    for start in range(0, seq, SEQS):
        other = start + tl.arange(0, SEQS)
        count, _ = _splits_of(other, other < seq, batch, window, KEYS_PER_SPLIT)
        place += tl.sum(count, axis=0)
    num_splits, first_split = _splits_of(seq, seq < tl.num_programs(0), batch, window, KEYS_PER_SPLIT)
    for start in range(0, num_splits, ITEMS):
        index = start + tl.arange(0, ITEMS)
        mask = (index < num_splits) & (place + index < max_items)
        item = work + 2 + (place + index).to(tl.int64) * 2
        tl.store(item, tl.zeros([ITEMS], tl.int32) + seq, mask=mask)
        tl.store(item + 1, first_split + index, mask=mask)
    if seq == tl.num_programs(0) - 1:
        tl.store(work, tl.minimum(place + num_splits, max_items))
        tl.store(work + 1, 0)


@triton.jit
def _tiles_of(
    seq: tl.tensor,
    mask: tl.tensor,
    batch: _Batch,
    QUERIES: tl.constexpr,
) -> tl.tuple:
    """(number of tiles, tokens before the first query) of sequences; decodes have no tiles."""
    start = batch.query_start + seq
    rows = tl.load(start + 1, mask=mask, other=0) - tl.load(start, mask=mask, other=0)
    rows = tl.where(tl.load(batch.is_prefill + seq, mask=mask, other=0) != 0, rows, 0)
    return (rows + QUERIES - 1) // QUERIES, tl.load(batch.seq_lens + seq, mask=mask, other=0) - rows


@triton.jit(
    do_not_specialize=["max_items"],
    do_not_specialize_on_alignment=["work", "query_start", "seq_lens", "is_prefill"],
)
def prefill_work_list_kernel(
    work: tl.tensor,  # [2 + 2 * max_items], written
    query_start: tl.tensor,  # [seqs + 1]
    seq_lens: tl.tensor,  # [seqs]
    is_prefill: tl.tensor,  # [seqs]
    max_items: tl.tensor,
    QUERIES: tl.constexpr,  # queries of a tile
    SEQS: tl.constexpr,
    ITEMS: tl.constexpr,
) -> None:
    batch = _Batch(query_start, seq_lens, is_prefill)
    seq, num_seqs = tl.program_id(0), tl.num_programs(0)
    num_tiles, before = _tiles_of(seq, seq < num_seqs, batch, QUERIES)
    for start in range(0, num_tiles, ITEMS):
        tile = start + tl.arange(0, ITEMS)
        keys = before + tile * QUERIES
        place = tl.zeros([ITEMS], tl.int32)
        for first_other in range(0, num_seqs, SEQS):
            other = first_other + tl.arange(0, SEQS)
            tiles, tokens = _tiles_of(other, other < num_seqs, batch, QUERIES)
            # Of equal keys an earlier sequence's tile comes first; of one sequence's tiles no two are equal.
            lead = tl.where(other < seq, 0, 1) - tokens
            behind = (tl.maximum(keys[:, None] + lead[None, :], 0) + QUERIES - 1) // QUERIES
            place += tl.sum(tl.maximum(tiles[None, :] - behind, 0), axis=1)
        mask = (tile < num_tiles) & (place < max_items)
        item = work + 2 + place.to(tl.int64) * 2
        tl.store(item, tl.zeros([ITEMS], tl.int32) + seq, mask=mask)
        tl.store(item + 1, tile * QUERIES, mask=mask)
    if seq == 0:
        total = 0
        for first_other in range(0, num_seqs, SEQS):
            other = first_other + tl.arange(0, SEQS)
            tiles, _ = _tiles_of(other, other < num_seqs, batch, QUERIES)
            total += tl.sum(tiles, axis=0)
        tl.store(work, tl.minimum(total, max_items))
        tl.store(work + 1, 0)


def make_decode_work_list(work: Tensor, metadata: DeviceMetadata, *, window: int | None, split: int) -> None:
    """Launch the kernel for splits of `split` keys; `work` [2 + 2 * items] int32 is written."""
    decode_work_list_kernel[(metadata.num_seqs,)](
        work,
        metadata.query_start,
        metadata.seq_lens,
        metadata.is_prefill,
        _room(work),
        _NO_WINDOW if window is None else window,
        KEYS_PER_SPLIT=split,
        SEQS=_SEQS,
        ITEMS=_ITEMS,
        num_warps=4,
        enable_fp_fusion=False,
    )


def make_prefill_work_list(work: Tensor, metadata: DeviceMetadata, *, queries: int) -> None:
    """Launch the kernel for tiles of `queries` queries; `work` [2 + 2 * items] int32 is written."""
    prefill_work_list_kernel[(metadata.num_seqs,)](
        work,
        metadata.query_start,
        metadata.seq_lens,
        metadata.is_prefill,
        _room(work),
        QUERIES=queries,
        SEQS=_SEQS,
        ITEMS=_ITEMS,
        num_warps=4,
        enable_fp_fusion=False,
    )


def _room(work: Tensor) -> int:
    """Items that a list's memory holds."""
    return (work.shape[0] - WORK_HEADER) // 2
