r"""Attention of decodes over a paged cache, in Triton, each sequence's keys in splits.

The formula is that of `reference.py`. A program takes one split of one sequence's keys for one key-value head; the
query heads that share that head are the rows of its tile, so that keys and values are read once for all of them.

    positions   0          SPLIT       2 SPLIT      3 SPLIT
    keys        |  split 0   |  split 1   |  split 2  |       each (maximum, total, sum of values) in fp32
                      \            |            /
                       the last of them to finish joins all three, in this order

Splits have a fixed length and lie at fixed positions, so that a sequence's bits do not depend on how many others share
the step (Dao et al., "Flash-Decoding", 2023, splits by what fills the device). A semaphore counts the splits that have
finished, and the program that finishes last joins them, in an order that does not depend on which one it is.

The programs of a captured step, as many as a device runs at once, take items one after another. Each load that leads
to an item's keys waits for the one before it, and all but the last two are made ahead, while other items are computed:

    item i + 2   sequence
    item i + 1   split, length, row of q, row of the block table
    item i       block -> keys

On sm_80, sm_89 and sm_90 the compiler moves some of these numbers to registers of whole warps where they are loaded,
and so waits for them: not long, as item i + 1's split lies beside its sequence, which was loaded an item ago, and
lengths and rows are few. Nothing is gained where an item is a program's only one, or others of the multiprocessor keep
its memory busy meanwhile; decodes with heads of 128 are alone there on sm_89 and sm_120.

Bytes moved: seq_len * 2 * kv_heads * head_dim * itemsize, plus q and out, plus fp32 partial results where there are
several splits, written and read: 8 * q_heads * head_dim for each.

Precision: that of `online_softmax.py`; splits are joined in fp32; one rounding at the end.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from infer_kernels.attention.triton import operands
from infer_kernels.attention.triton.join_splits import join_splits
from infer_kernels.attention.triton.online_softmax import add_sinks, online_softmax, weighted_mean
from infer_kernels.optional_triton import tl, triton

SPLIT = 256
"""Tokens of a split, a multiple of every tile."""


@triton.jit
def _load_sequence(
    items: operands.DecodeItems,
    program: tl.tensor,  # a number of `items.stop`
) -> tl.tensor:
    """The sequence of an item; 0 if there is none."""
    exists = program < items.stop
    return tl.load(items.work + 2 + (program // items.kv_heads).to(tl.int64) * 2, mask=exists, other=0)


@triton.jit
def _load_item(
    items: operands.DecodeItems,
    program: tl.tensor,  # as in _load_sequence
    seq: tl.tensor,  # from _load_sequence
) -> tl.tuple:
    """(split, tokens of the sequence, row of q, row of the block table) of an item; zeros if there is none."""
    exists = program < items.stop
    split = tl.load(items.work + 3 + (program // items.kv_heads).to(tl.int64) * 2, mask=exists, other=0)
    seq_len = tl.load(items.seq_lens + seq, mask=exists, other=0)
    first_token = tl.load(items.query_start + seq, mask=exists, other=0)
    return split, seq_len, first_token, tl.load(items.block_rows + seq, mask=exists, other=0)


@triton.jit(
    do_not_specialize=["block_table_stride"],
    do_not_specialize_on_alignment=[
        "partial_maxima",
        "partial_totals",
        "sinks",
        "work",
        "query_start",
        "seq_lens",
        "block_rows",
        "block_table",
    ],
)
def paged_decode_kernel(
    out: tl.tensor,  # [tokens, q_heads, head_dim]
    q: tl.tensor,  # [tokens, q_heads, head_dim]
    k_cache: tl.tensor,  # [blocks, kv_heads, BLOCK_SIZE, head_dim]
    v_cache: tl.tensor,  # the same shape
    k_tiles: tl.tensor,  # descriptor of k_cache as [blocks * kv_heads * BLOCK_SIZE, head_dim] (DESCRIPTORS)
    v_tiles: tl.tensor,  # of v_cache
    sinks: tl.tensor,  # [q_heads], or None
    partial_sums: tl.tensor,  # fp32 [items, q_heads, head_dim]
    partial_maxima: tl.tensor,  # fp32 [items, q_heads]
    partial_totals: tl.tensor,  # fp32 [items, q_heads]
    semaphores: tl.tensor,  # [seqs, kv_heads], zeros before and after
    work: tl.tensor,  # the number of items, 0, then items: (sequence, split), a sequence's side by side and in order
    query_start: tl.tensor,  # [seqs + 1]
    seq_lens: tl.tensor,  # [seqs]
    block_rows: tl.tensor,  # [seqs]: each sequence's row of block_table
    block_table: tl.tensor,  # [rows, columns]
    block_table_stride: tl.tensor,
    kv_heads: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    window: tl.tensor,
    v_scale: tl.tensor,  # of an fp8 cache, the keys' being part of `scale`
    out_stride_token: tl.tensor,
    out_stride_head: tl.tensor,
    q_stride_token: tl.tensor,
    q_stride_head: tl.tensor,
    k_stride_block: tl.tensor,
    k_stride_head: tl.tensor,
    k_stride_token: tl.tensor,
    v_stride_block: tl.tensor,
    v_stride_head: tl.tensor,
    v_stride_token: tl.tensor,
    GROUP: tl.constexpr,  # query heads per key-value head
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,  # HEAD_DIM rounded up to a power of two
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,  # rows of a tile of queries, at least GROUP
    TILE: tl.constexpr,  # keys per iteration
    KEYS_PER_SPLIT: tl.constexpr,
    HEADS: tl.constexpr,  # GROUP rounded up to a power of two
    WHOLE: tl.constexpr,  # TILE divides BLOCK_SIZE: an iteration's keys lie in one block
    DESCRIPTORS: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
    ONE_LOOP: tl.constexpr,
) -> None:
    first, step = tl.program_id(0), tl.num_programs(0)
    stop = tl.load(work) * kv_heads
    row = tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_D)
    items = operands.DecodeItems(work, seq_lens, query_start, block_rows, kv_heads, stop)
    seq = _load_sequence(items, first)
    next_seq = _load_sequence(items, first + step)
    split, seq_len, first_token, block_row = _load_item(items, first, seq)
    for program in range(first, stop, step):
        item = (program // kv_heads).to(tl.int64)
        kv_head = (program % kv_heads).to(tl.int64)
        later_seq = _load_sequence(items, program + 2 * step)
        next_split, next_len, next_token, next_row = _load_item(items, program + step, next_seq)

        token = first_token.to(tl.int64)
        position = seq_len - 1
        start = split * KEYS_PER_SPLIT
        first_split = 0
        if WINDOWED:
            oldest = tl.maximum(0, seq_len - window)
            start = tl.maximum(start, oldest // TILE * TILE)
            first_split = oldest // KEYS_PER_SPLIT
        last_split = tl.maximum(position, 0) // KEYS_PER_SPLIT
        # True for all items of a list of these lengths. Without the branch the compiler takes more registers.
        if (split >= first_split) & (split <= last_split):
            head = kv_head * GROUP + row
            mask = (row < GROUP)[:, None] & (column < HEAD_DIM)[None, :]
            q_at = q + token * q_stride_token + head[:, None] * q_stride_head + column[None, :]
            queries = tl.load(q_at, mask=mask, other=0.0)
            maximum, total, accumulator = online_softmax(
                queries, tl.zeros([BLOCK_M], tl.int32) + position, position,
                start, tl.minimum(seq_len, (split + 1) * KEYS_PER_SPLIT),
                operands.SequenceCache(
                    block_table + block_row.to(tl.int64) * block_table_stride,
                    kv_head, kv_heads,
                    operands.Cache(k_cache, k_tiles, k_stride_block, k_stride_head, k_stride_token),
                    operands.Cache(v_cache, v_tiles, v_stride_block, v_stride_head, v_stride_token),
                ),
                operands.Scoring(scale, soft_cap, window),
                operands.TileShape(
                    BLOCK_M, HEAD_DIM, BLOCK_D, BLOCK_SIZE, TILE, WHOLE, DESCRIPTORS, WINDOWED, CAPPED, PRECISION,
                    ONE_LOOP,
                ),
            )  # fmt: skip

            out_at = out + token * out_stride_token + head[:, None] * out_stride_head + column[None, :]
            if first_split == last_split:
                if sinks is not None:
                    total, accumulator = add_sinks(
                        operands.RunningSoftmax(maximum, total, accumulator), sinks, head, row < GROUP
                    )
                attended = weighted_mean(tl.where(total > 0.0, total, 1.0), accumulator, v_scale, v_cache)
                tl.store(out_at, attended.to(out.dtype.element_ty), mask=mask)
            else:
                q_heads = kv_heads * GROUP
                at = item * q_heads + head
                tl.store(partial_sums + at[:, None] * HEAD_DIM + column[None, :], accumulator, mask=mask)
                tl.store(partial_maxima + at, maximum, mask=row < GROUP)
                tl.store(partial_totals + at, total, mask=row < GROUP)
                # All threads' partial results are written before the semaphore says so.
                tl.debug_barrier()
                semaphore = semaphores + seq.to(tl.int64) * kv_heads + kv_head
                finished = tl.atomic_add(semaphore, 1, sem="acq_rel", scope="gpu")
                if finished == last_split - first_split:
                    tl.store(semaphore, 0)
                    joined_row = tl.arange(0, HEADS)  # without the rows that fill a tile of queries
                    joined_head = kv_head * GROUP + joined_row
                    highest, joined_total, joined_sums = join_splits(
                        operands.Partials(partial_sums, partial_maxima, partial_totals),
                        item - (split - first_split), last_split - first_split + 1, joined_head, q_heads,
                        joined_row < GROUP, HEADS, HEAD_DIM, BLOCK_D,
                    )  # fmt: skip
                    if sinks is not None:
                        joined_total, joined_sums = add_sinks(
                            operands.RunningSoftmax(highest, joined_total, joined_sums),
                            sinks,
                            joined_head,
                            joined_row < GROUP,
                        )
                    joined = weighted_mean(
                        tl.where(joined_row < GROUP, joined_total, 1.0), joined_sums, v_scale, v_cache
                    )
                    tl.store(
                        out + token * out_stride_token + joined_head[:, None] * out_stride_head + column[None, :],
                        joined.to(out.dtype.element_ty),
                        mask=(joined_row < GROUP)[:, None] & (column < HEAD_DIM)[None, :],
                    )
        seq, next_seq = next_seq, later_seq
        split, seq_len, first_token, block_row = next_split, next_len, next_token, next_row
